/* SPDX-License-Identifier: Apache-2.0 */
/* Packs matrices into panels (struct weight), and makes tables of rows. */
#ifndef ENGINE_CPU_WEIGHTS_H
#define ENGINE_CPU_WEIGHTS_H

#include "engine/cpu/residence.h"
#include "engine/ops/packing.h"
#include "lib/base/threads.h"

struct table {
    struct matrix matrix; /* its data is borrowed */
};

/* The pool's threads pack the panels, where the residence lacks them. activations: used where they
 * fit the format. ERROR_INVALID when a number is too large for the format. */
int weights_create(struct weight **out, struct residence *residence, struct threads *threads,
                   const struct matrix *parts, int num_parts, int heads, enum weight_format format,
                   enum activation_format activations, struct error *err);
void weights_free(struct weight *weight, struct residence *residence); /* NULL is allowed */

/* The bytes of a packed matrix of heads * out rows. format is not auto. */
size_t weights_packed_bytes(enum weight_format format, int64_t in, int64_t out, int heads);

#endif
