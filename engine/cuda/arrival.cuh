/* SPDX-License-Identifier: Apache-2.0 */
/* How the first kernel of a step brings the step's batch to where the others read it: from the
 * host's mapped memory, and with the tokens that the step before has drawn. Either may be absent.
 *
 * The host's memory is about a microsecond away, by estimate. So nothing but a row's token waits
 * for another load, and the others do not read there. */
#ifndef ENGINE_CUDA_ARRIVAL_CUH
#define ENGINE_CUDA_ARRIVAL_CUH

#include "engine/cuda/common.cuh"
#include "engine/cuda/sampling_arrays.cuh"

/* With what an image of a batch begins (step.cu). */
struct arrival_header {
    uint32_t pieces; /* of 16 bytes, from device_arrival.first on */
};

/* Where an array of the batch is before it has arrived. */
template <typename T>
__device__ const T *arrival_source(const struct device_arrival &a, const T *at)
{
    return a.from == NULL
               ? at
               : reinterpret_cast<const T *>(a.from + (reinterpret_cast<const char *>(at) - a.to));
}

/* The token of a row, or -1 if the step before has drawn one that ends the row's text. *otherwise:
 * the host's token. */
__device__ inline int32_t arrival_token(const struct device_arrival &a, int64_t r,
                                        int32_t *otherwise)
{
    const struct device_token token = *arrival_source(a, a.tokens + r);
    *otherwise = token.id;
    return a.drawn != NULL && token.draw >= 0 ? a.drawn[token.draw].next : token.id;
}

/* Pieces i, i + all, i + 2 all... below `pieces`, some at a time: one text may have many. */
__device__ inline void arrival_pieces(const int4 *from, int4 *to, uint32_t i, uint32_t all,
                                      uint32_t pieces)
{
    enum { BATCH = 4 };
    for (; i < pieces; i += BATCH * all) {
        int4 batch[BATCH] = {};
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (i + k * all < pieces)
                batch[k] = from[i + k * all];
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (i + k * all < pieces)
                to[i + k * all] = batch[k];
    }
}

/* The token of row r, to all threads of a block. The block that owns the row also writes its text's
 * span, without a slot if the text has ended, as padding has none; and these blocks together bring
 * the rest of the batch. From the host's memory come decode steps only, in which span r has row r.
 */
__device__ inline int32_t arrival_row(const struct device_arrival &a,
                                      const struct device_batch &batch, int64_t r, bool owns)
{
    __shared__ int32_t token, otherwise;
    __shared__ uint32_t pieces;
    const int4 *from = reinterpret_cast<const int4 *>(a.from) + a.first;
    int4 *to = reinterpret_cast<int4 *>(a.to) + a.first;
    uint32_t i = (uint32_t)r * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    bool brings = owns && a.from != NULL;
    struct device_span span = {};
    if (threadIdx.x == blockDim.x - 1) { /* few steps have a piece for it */
        pieces = brings ? reinterpret_cast<const arrival_header *>(a.from)->pieces : 0;
        token = arrival_token(a, r, &otherwise);
    }
    if (brings && threadIdx.x == 0)
        span = *arrival_source(a, a.spans + r);
    if (brings && i < a.sure) {
        to[i] = from[i];
        i += all;
    }
    __syncthreads();
    arrival_pieces(from, to, i, all, pieces);
    if (brings && threadIdx.x == 0) {
        span.slot = token < 0 ? NULL : span.slot;
        a.spans[r] = span;
    } else if (owns && threadIdx.x == 0 && token < 0) {
        a.spans[batch.row_span[r]].slot = NULL;
    }
    return token < 0 ? otherwise : token;
}

#endif
