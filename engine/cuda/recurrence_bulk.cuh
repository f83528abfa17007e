/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of spans of one row whose inputs were computed before: blocks of threads that
 * stay, and that take one piece of S after the other through a ring of BUFFERS in shared memory.
 *
 * Bulk copies fill a buffer with a piece and its inputs while the threads compute others. The
 * threads change the piece in place, and a bulk copy takes it back. The buffer is free once that
 * copy has read it, which is waited for one piece later: so two of three buffers are always on
 * their way to or from memory, and no thread waits for memory while it has work. Sums have the
 * order of recurrence_kernel: no bit depends on which of the two runs. */
#ifndef ENGINE_CUDA_RECURRENCE_BULK_CUH
#define ENGINE_CUDA_RECURRENCE_BULK_CUH

#include "engine/cuda/recurrence_state.cuh"

enum {
    BUFFERS = 3,
    BUFFER_WARPS = 8 /* of a piece, if it may be cut: 16 KiB of S */
};

/* Floats from one buffer to the next: the inputs and sums, then S. */
__host__ __device__ static inline int buffer_floats(const struct recurrence_call &call)
{
    return (call.at.total + 31) / 32 * 32 + call.height * call.a.features;
}

__device__ static inline float *buffer_state(const struct recurrence_call &call, float *buffer)
{
    return buffer + (call.at.total + 31) / 32 * 32;
}

__device__ static inline unsigned piece_bytes(const struct recurrence_call &call,
                                              const struct piece &piece)
{
    return (unsigned)(piece.owned * block_floats(call) * sizeof(float));
}

/* What the threads of a block share about the buffers. */
struct ring {
    struct piece pieces[BUFFERS];
    bulk_barrier arrived[BUFFERS];
};

/* Requests item number `item` (of spans, heads and pieces) for a buffer. One thread calls it. A
 * span without a slot has nothing to bring. */
__device__ static void request_piece(const struct recurrence_call &call,
                                     const struct device_batch &batch, int item, struct piece *out,
                                     bulk_barrier *arrived, float *buffer)
{
    int number = item % call.pieces, of_span = item / call.pieces;
    int heads = call.a.num_heads;
    const struct piece piece = piece_of(call, batch, of_span / heads, of_span % heads, number);
    *out = piece;
    unsigned inputs = (unsigned)(call.at.inputs * sizeof(float)), bytes = piece_bytes(call, piece);
    if (piece.span.slot == NULL) {
        bulk_expect(arrived, 0);
        return;
    }
    bulk_expect(arrived, bytes + inputs);
    bulk_load(buffer_state(call, buffer), state_of(call, piece), bytes, arrived);
    bulk_load(buffer, call.given + (size_t)item * call.at.inputs, inputs, arrived);
}

/* All threads: the token changes the piece in the buffer, and reads it into the sums. */
template <bool DECAYS, bool FEATURES, enum erasing ERASES>
__device__ static void recur_in_buffer(const struct recurrence_call &call,
                                       const struct piece &piece, float *buffer)
{
    static_assert(ERASES != ERASES_BY_ANOTHER, "its inputs are not computed before");
    const struct owner owner = owner_of(call, piece, buffer_state(call, buffer));
    struct slices<1> slices;
    if (owner.works)
        load_slice(slices.of[0], owner, call.a.features, 0);
    if (ERASES != ERASES_NOTHING)
        recur_erasing<1, true, false>(call, owner, slices, buffer, 0);
    else if (owner.works)
        recur<1, DECAYS, FEATURES, true>(call, owner, slices, buffer, 0);
    if (owner.works)
        store_slice(slices.of[0], owner, call.a.features, 0);
}

/* Grid: as many blocks as the device holds at once, or one for each item. */
template <bool DECAYS, bool FEATURES, enum erasing ERASES>
__global__ static void __launch_bounds__(MOST_WARPS * 32, 2)
    bulk_kernel(const struct recurrence_call call, const struct device_batch batch)
{
    KERNEL_TIMES();
    SHARED_MEMORY(float, shared); /* [BUFFERS, buffer_floats] */
    __shared__ struct ring ring;
    const int items = batch.num_spans * call.a.num_heads * call.pieces, step = (int)gridDim.x;
    const int size = buffer_floats(call);
    /* the last warp copies: the first one writes h */
    const int copier = warp_index() == (int)blockDim.x / 32 - 1 ? lane_index() : 32;
    if (copier == 0) {
        for (int i = 0; i < BUFFERS; i++)
            bulk_open(&ring.arrived[i]);
        bulk_fence();
    }
    __syncwarp();
    grid_wait();
    int first = (int)blockIdx.x + copier * step;
    if (copier < BUFFERS && first < items)
        request_piece(call, batch, first, &ring.pieces[copier], &ring.arrived[copier],
                      shared + copier * size);
    __syncthreads();
    for (int i = 0, item = (int)blockIdx.x; item < items; i++, item += step) {
        int now = i % BUFFERS, last = (i + BUFFERS - 1) % BUFFERS;
        const struct piece &piece = ring.pieces[now];
        float *buffer = shared + now * size;
        bool there = piece.span.slot != NULL;
        bulk_wait(&ring.arrived[now], i / BUFFERS % 2);
        if (there)
            recur_in_buffer<DECAYS, FEATURES, ERASES>(call, piece, buffer);
        bulk_fence();
        __syncthreads();
        if (copier == 0) {
            if (there)
                bulk_store(state_of(call, piece), buffer_state(call, buffer),
                           piece_bytes(call, piece));
            bulk_commit();
            bulk_wait_read<1>(); /* of the piece before */
            int next = item + (BUFFERS - 1) * step;
            if (i > 0 && next < items)
                request_piece(call, batch, next, &ring.pieces[last], &ring.arrived[last],
                              shared + last * size);
        }
        if (there)
            write_chunk(call, piece, buffer, 0, 1);
    }
    if (copier == 0)
        bulk_wait_written<0>();
}

#endif
