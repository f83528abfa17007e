/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices packed for the device, in blocks (weight_blocks.h).
 *
 * A matrix is cut along its inputs into `segments` of neighbouring blocks. A sum over the inputs
 * adds up each segment, block by block from zero, and then these in order, from zero again. The
 * bits are the same whether segments are computed one after the other or beside each other. */
#ifndef ENGINE_CUDA_WEIGHTS_H
#define ENGINE_CUDA_WEIGHTS_H

#include "engine/cuda/device.h"
#include "engine/cuda/weight_blocks.h"

struct weight {
    enum weight_format format; /* never auto */
    bool rounded;              /* products round x: ACTIVATIONS_16BIT */
    int64_t in, out;           /* of a head */
    int heads;
    int64_t panels;      /* of a head */
    int blocks;          /* of a panel */
    int segments;        /* 1, 2, 4, 8 or 16 */
    unsigned char *data; /* on the device; aligned to 256 */
    float *bias;         /* on the device: [heads * out], or NULL */
    uint16_t *rows;      /* on the device: once more, for cuBLASLt (cublaslt.cu), or NULL */
    int shape;           /* of these rows */
    size_t bytes;        /* of data */
    struct weight_chunk *chunk;
};

/* Sums of a long row run beside each other in as many warps, a power of two; of two blocks or more
 * each. */
int weight_segments(int blocks);

#endif
