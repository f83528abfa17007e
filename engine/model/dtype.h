/* SPDX-License-Identifier: Apache-2.0 */
/* The number formats of matrices, as files have them. */
#ifndef ENGINE_MODEL_DTYPE_H
#define ENGINE_MODEL_DTYPE_H

#include <stddef.h>

/* The numbers of matrices: name, numbers that are a block, bytes of a block. Those in blocks are as
 * GGUF has them (quantized.h). */
#define DTYPES(X)     \
    X(F32, 1, 4)      \
    X(F16, 1, 2)      \
    X(BF16, 1, 2)     \
    X(Q4_0, 32, 18)   \
    X(Q4_1, 32, 20)   \
    X(Q5_0, 32, 22)   \
    X(Q5_1, 32, 24)   \
    X(Q8_0, 32, 34)   \
    X(Q4_K, 256, 144) \
    X(Q5_K, 256, 176) \
    X(Q6_K, 256, 210) \
    X(MXFP4, 32, 17)
#define DTYPE_VALUE(name, ...) DTYPE_##name,
enum dtype { DTYPES(DTYPE_VALUE) NUM_DTYPES };

const char *dtype_name(enum dtype dtype); /* "F32", "F16", "Q4_K" */
size_t dtype_block(enum dtype dtype);     /* numbers of a block; 1: each stands alone */
/* Bytes of so many numbers, which are whole blocks. */
size_t dtype_size(enum dtype dtype, size_t numbers);

#endif
