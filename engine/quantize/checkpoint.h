/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a checkpoint's folder anew, with some matrices in blocks, or the blocks beside it. */
#ifndef ENGINE_QUANTIZE_CHECKPOINT_H
#define ENGINE_QUANTIZE_CHECKPOINT_H

#include "engine/model/tensors.h"
#include "lib/base/error.h"

#include <signal.h>
#include <stddef.h>

/* A tensor and what takes its place: blocks of Q4_1, row by row. */
struct checkpoint_blocks {
    const struct tensor *tensor;
    const unsigned char *blocks; /* NULL: it stays */
};

/* What would be in the way of checkpoint_write, as far as it can be known before: of the place, and
 * of the config.json in `from`, which must say nothing of a quantization yet. */
int checkpoint_check(const char *out, const char *from, struct error *err);

/* Makes the folder `out`, which must not be there: the tensors of `from`, a folder, but for those
 * that the model ignores, in one file, with the blocks in place of theirs; its config.json, which
 * tells of them; and the files of its tokenizer. It gets its name when all is on the disk. Where it
 * fails, also since *stop has become true, nothing is left. */
int checkpoint_write(const char *out, const char *from, struct tensors *tensors,
                     const struct checkpoint_blocks *blocks, size_t count,
                     const volatile sig_atomic_t *stop, struct error *err);

/* The same for the file regla.q4 in the model's folder (model/four_bits.h), with the blocks alone,
 * which are of the weights with this fingerprint [16]. */
int checkpoint_check_beside(const char *folder, struct error *err);
int checkpoint_write_beside(const char *folder, struct tensors *tensors,
                            const struct checkpoint_blocks *blocks, size_t count,
                            const unsigned char *fingerprint, const volatile sig_atomic_t *stop,
                            struct error *err);

#endif
