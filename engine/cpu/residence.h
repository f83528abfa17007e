/* SPDX-License-Identifier: Apache-2.0 */
/* Where packed weights are: in memory of their own, or in a file in the layout of struct weight,
 * which is mapped. A file that is missing is made while the weights are packed; one that is there
 * spares packing them. */
#ifndef ENGINE_CPU_RESIDENCE_H
#define ENGINE_CPU_RESIDENCE_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weight;
struct residence;

enum { RESIDENCE_OWNER_BYTES = 16 }; /* of a model's fingerprint */

/* The kinds of residences are two of these. Weights come in the same order whenever a model is
 * opened. */
struct residence_kind {
    /* Gives weight->data room for weight->bytes. *packed: they are there, as they were packed
     * before, and may not be changed. ERROR_INVALID: the file is not of this model. */
    int (*place)(struct residence *, struct weight *, bool *packed, struct error *);
    void (*leave)(struct residence *, struct weight *);
    /* All weights are there, and whose they are is known. */
    int (*settle)(struct residence *, const unsigned char owner[RESIDENCE_OWNER_BYTES],
                  struct error *);
    void (*close)(struct residence *);
};

/* Each kind begins with this. */
struct residence {
    const struct residence_kind *kind;
};

/* On huge pages where the kernel agrees: decoding reads all of the weights every token. */
int residence_open_memory(struct residence **out, struct error *err);

/* number: what the file's bytes depend on beside the model: the format asked for, and the number of
 * its bits. The path is copied. */
int residence_open_file(struct residence **out, const char *path, uint32_t number,
                        struct error *err);

#endif
