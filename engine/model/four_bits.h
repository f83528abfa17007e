/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of a model in four bits: where tensors have their blocks as bytes, and where they lie
 * beside the weights, in the file regla.q4 of a model's folder, for `--weights q4`
 * (model-format.md). `regla quantize` writes both. */
#ifndef ENGINE_MODEL_FOUR_BITS_H
#define ENGINE_MODEL_FOUR_BITS_H

#include "engine/model/model.h"
#include "engine/model/tensors.h"

#define FOUR_BITS_FILE "regla.q4"
/* The tensor that says whose blocks they are: U8 [16], of model/fingerprint.h. */
#define FOUR_BITS_OWNER "fingerprint"
enum { FOUR_BITS_OWNER_BYTES = 16 };

/* Tensors of U8 become matrices of DTYPE_Q4_1, whose rows they have as bytes. */
int four_bits_from_bytes(struct tensors *file, struct error *err);

/* Opens the blocks beside the weights; *out is NULL where there are none. The caller closes it. */
int four_bits_open(struct tensors **out, const char *directory, struct error *err);
/* Sets matrix->q4 where there are blocks of this tensor, which is the matrix. `beside` may be NULL,
 * here and below. */
int four_bits_take(struct tensors *beside, const struct tensor *tensor, struct matrix *matrix,
                   struct error *err);
/* Fails where blocks are of no matrix of the model. */
int four_bits_finish(struct tensors *beside, struct error *err);

/* Checks that the model's blocks are of the weights with this fingerprint, and finite. *hash: of
 * all of them, never 0; 0: there are none. */
int four_bits_check(const struct model *model, const unsigned char *fingerprint, uint64_t *hash,
                    struct error *err);

#endif
