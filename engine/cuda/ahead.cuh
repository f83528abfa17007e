/* SPDX-License-Identifier: Apache-2.0 */
/* What a product asks for ahead of time: weights of the products that follow. Memory is
 * idle for most of a small layer's time, which goes into beginning and ending its kernels: on an
 * H200 a decode step of one text uses 3 to 25 % of it (loadtest/FIGURES.md). So weights can be on
 * their way to the second cache when their product begins. They are asked for before grid_wait, as
 * no kernel of a step writes weights. */
#ifndef ENGINE_CUDA_AHEAD_CUH
#define ENGINE_CUDA_AHEAD_CUH

#include "engine/cuda/common.cuh"
#include "engine/cuda/weights.h"

/* AHEAD_BYTES is what the second cache keeps until it is needed: half of an H100's 50 MB, since
 * each half of that cache may hold a copy. A product asks for one part of the next weight, the part
 * that is read first. One of more parts (the head) gets the others from the products before, the
 * second from the one before the last, and so on. */
enum {
    AHEAD_PRODUCTS = 4,
    AHEAD_PIECE = 16 << 10, /* what is asked for at once */
    AHEAD_BYTES = 25 << 20,
    AHEAD_PART = AHEAD_BYTES / AHEAD_PRODUCTS
};
static_assert(AHEAD_PART % AHEAD_PIECE == 0, "pieces of a part");

/* The first part of the next weight, and one of a later weight, which may be empty. */
struct ahead {
    const unsigned char *from[2];
    unsigned bytes[2];
};

/* next: see ops_matmul. num_rows: of this product, and probably of those; what is then cuBLASLt's
 * reads its weights elsewhere. */
inline struct ahead ahead_of(const struct backend *backend, const struct weight *const *next,
                             int num_rows)
{
    struct ahead ahead = {};
    if (next == NULL || !switch_on(backend, CUDA_SWITCH_AHEAD))
        return ahead;
    for (size_t i = 0, found = 0; i < AHEAD_PRODUCTS && next[i] != NULL && found < 2; i++) {
        size_t at = i * AHEAD_PART, bytes = next[i]->bytes;
        if (bytes <= at || cublaslt_expects(next[i], num_rows))
            continue;
        ahead.from[found] = next[i]->data + at;
        ahead.bytes[found++] = (unsigned)(bytes - at < AHEAD_PART ? bytes - at : AHEAD_PART);
    }
    return ahead;
}

/* Every CTA asks for its share, by one thread, since the instruction takes its warp a turn for each
 * thread that asks. Called first in a kernel, where it costs no registers (before the wait, beside
 * the weights that are being loaded there, several kernels spill). */
__device__ inline void request_ahead(const struct ahead &ahead)
{
    if (threadIdx.x > 0)
        return;
    unsigned ctas = gridDim.x * gridDim.y * gridDim.z;
    unsigned cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned bytes = ahead.bytes[i], pieces = (bytes + AHEAD_PIECE - 1) / AHEAD_PIECE;
#pragma unroll 1
        for (unsigned piece = cta; piece < pieces; piece += ctas)
            prefetch(ahead.from[i] + piece * AHEAD_PIECE,
                     min(bytes - piece * AHEAD_PIECE, (unsigned)AHEAD_PIECE));
    }
}

#endif
