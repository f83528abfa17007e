/* SPDX-License-Identifier: Apache-2.0 */
/* Makes of a model's checkpoint one in four bits, by what a text does in the model.
 *
 *   open -> engine_open with quantizer_observer -> start -> for each pass: next, steps of the text,
 *        round until nothing is left -> write
 *
 * A pass sums x xᵀ over the inputs of as many products as memory allows, and rounds their matrices
 * (rounding.h). Embeddings, the head, matrices of feature maps, and those whose rows are no whole
 * blocks of 32 stay as they are. */
#ifndef ENGINE_QUANTIZE_QUANTIZER_H
#define ENGINE_QUANTIZE_QUANTIZER_H

#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "lib/base/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct quantizer;

struct quantizer_options {
    int threads;         /* 0: as many as this process may use */
    size_t memory_bytes; /* of a pass's sums; those of one product are always taken, and three times
                            as much to round with them */
    int max_step_tokens; /* of the engine's steps */
};

int quantizer_open(struct quantizer **out, const struct quantizer_options *options,
                   struct error *err);
void quantizer_close(struct quantizer *quantizer); /* NULL is allowed */

/* For engine_options.observer, as long as the quantizer is open. */
const struct product_observer *quantizer_observer(const struct quantizer *quantizer);

/* Says which of the packed matrices can be rounded. `model` is the engine's, from a folder, and
 * borrowed. ERROR_INVALID: none can, or a tensor is quantized already. */
int quantizer_start(struct quantizer *quantizer, const struct model *model, struct error *err);

/* Begins a pass. *any: there are matrices left for one. */
int quantizer_next(struct quantizer *quantizer, bool *any, struct error *err);

/* After a step: -1 where its sums failed. */
int quantizer_status(const struct quantizer *quantizer, struct error *err);

/* After the steps of a pass: rounds the matrices of its next product. *any: there was one. */
int quantizer_round(struct quantizer *quantizer, bool *any, struct error *err);

struct quantizer_report {
    int matrices, rounded; /* tensors: to be rounded, and of these done */
    int64_t rounded_numbers, bytes_before, bytes_after;
    int64_t most_inputs; /* of a product */
};
void quantizer_report(const struct quantizer *quantizer, struct quantizer_report *report);
/* The name of tensor i, from 0 on, that is multiplied with and stays as it is, but for the head and
 * feature maps, and why; NULL past the last. */
const char *quantizer_kept(const struct quantizer *quantizer, int i, const char **why);

/* Writes the folder `out`: the checkpoint with its rounded matrices as blocks of Q4_1
 * (engine/model/model-format.md). NULL: these alone, beside the model, which has this fingerprint.
 * All of it, or nothing; it gives up where *stop becomes true. */
int quantizer_write(const struct quantizer *quantizer, const char *out,
                    const unsigned char *fingerprint, const volatile sig_atomic_t *stop,
                    struct error *err);

#endif
