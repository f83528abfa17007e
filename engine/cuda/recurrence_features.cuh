/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of the recurrence for spans of one row, by a kernel before it: phi, f, a, b v and the
 * new M. Each is computed once, whatever heads and pieces read it; and the recurrence needs no
 * registers for formulas.
 *
 * A warp has one task: a head's q or k, a head's f, or 32 rows of a piece. No warp waits for
 * another: exp(M before - M after) becomes a number of its own beside a. */
#ifndef ENGINE_CUDA_RECURRENCE_FEATURES_CUH
#define ENGINE_CUDA_RECURRENCE_FEATURES_CUH

#include "engine/cuda/recurrence_chunk.cuh"

enum { FEATURE_WARPS = 8 };

/* The numbers of a row's tasks, in their order. */
struct feature_tasks {
    int keys, queries, decays, rows; /* rows: [H, pieces, parts] */
    int parts;                       /* 32s of rows of a piece */
};

__host__ __device__ static inline struct feature_tasks
feature_tasks_of(const struct recurrence_call &call)
{
    struct feature_tasks tasks;
    tasks.keys = ops_recurrence_key_heads(&call.a);
    tasks.queries = call.a.num_qk_heads;
    tasks.decays =
        call.at.decay > call.at.f ? tasks.keys : 0; /* the delta rule reads absent ones */
    tasks.parts = (call.height + 31) / 32;
    tasks.rows = call.a.num_heads * call.pieces * tasks.parts;
    return tasks;
}

__host__ __device__ static inline int feature_tasks_count(const struct feature_tasks &tasks)
{
    return tasks.keys + tasks.queries + tasks.decays + tasks.rows;
}

/* The array at `at` in the inputs of all pieces that read head `head` of `heads`. */
__device__ static inline struct row_copies readers_of(const struct recurrence_call &call, int span,
                                                      int heads, int head, int at)
{
    int pieces = call.a.num_heads / heads * call.pieces;
    size_t first = (size_t)span * call.a.num_heads * call.pieces + (size_t)head * pieces;
    return {call.given + first * call.at.inputs + at, pieces, call.at.inputs};
}

/* phi of q or k, and M. Each feature is computed once: mapped [m], in shared memory, keeps them
 * until what all have in common is known. */
__device__ static void compute_side(const struct recurrence_call &call, const struct piece &piece,
                                    bool key, int row, float *mapped)
{
    const struct side side = side_of(call, piece, key, row);
    bool raises = key && call.exponential && piece.span.slot != NULL;
    float before = raises ? maxima_of(call, piece.span)[side.head] : 0.0f, sum = 0.0f;
    struct map_terms terms = first_terms(call, side);
#pragma unroll 1
    for (int j = lane_index(); j < call.a.phi.features; j += 32) {
        float value = feature(call, side, terms, j);
        sum += value;
        terms.most = fmaxf(terms.most, value);
        mapped[j] = value;
    }
    last_terms(call, sum, &terms);
    if (raises)
        terms.most = terms.most > before ? terms.most : before;
    int heads = key ? ops_recurrence_key_heads(&call.a) : call.a.num_qk_heads;
    write_phi(
        call, piece, side, terms, key ? 1.0f : call.a.phi.query_scale,
        [&](int j) { return mapped[j]; }, mapped,
        readers_of(call, row, heads, side.head, key ? call.at.k : call.at.q));
    if (!key)
        return;
    float rescale = raises ? formula_exp(before - terms.most) : 1.0f;
    const struct row_copies out = readers_of(call, row, heads, side.head, call.at.rescale);
    for (int i = lane_index(); i < out.count; i += 32)
        out.first[(size_t)i * out.stride] = rescale;
    __syncwarp(); /* every lane has read M */
    if (raises && lane_index() == 0)
        maxima_of(call, piece.span)[side.head] = terms.most;
}

/* Task number `task` of a row. Where all spans have one row, row i is span i: so nothing here waits
 * for the span but what needs its slot or position. Padding is computed like all rows. */
__device__ static void compute_inputs(const struct recurrence_call &call,
                                      const struct device_batch &batch, int row, int task,
                                      float *mapped)
{
    const struct feature_tasks tasks = feature_tasks_of(call);
    struct piece piece = {};
    int others = tasks.keys + tasks.queries;
    if (task < others) {
        piece.span = in_chunk(call, batch.spans[row]);
        piece.k_head = task;
        piece.q_head = task - tasks.keys;
        compute_side(call, piece, task < tasks.keys, row, mapped);
    } else if (task < others + tasks.decays) {
        int head = task - others;
        fill_decays(call, head, row, readers_of(call, row, tasks.keys, head, call.at.f));
    } else {
        int number = task - others - tasks.decays, part = number % tasks.parts;
        int of_head = number / tasks.parts, head = of_head / call.pieces;
        piece = piece_of(call, batch, row, head, of_head % call.pieces);
        size_t item = (size_t)row * call.a.num_heads * call.pieces + of_head;
        fill_rows(call, piece, call.given + item * call.at.inputs, part, 0, row, 1.0f);
    }
}

/* What features_kernel needs: phi of each warp before its position. */
static inline size_t features_bytes(const struct recurrence_call &call)
{
    return (size_t)FEATURE_WARPS * (size_t)call.a.phi.features * sizeof(float);
}

/* Blocks of FEATURE_WARPS warps, a warp for each task of each row. */
__global__ static void __launch_bounds__(FEATURE_WARPS * 32, 4)
    features_kernel(const struct recurrence_call call, const struct device_batch batch)
{
    SHARED_MEMORY(float, shared); /* [FEATURE_WARPS, m] */
    grid_wait();
    int tasks = feature_tasks_count(feature_tasks_of(call));
    int task = (int)blockIdx.x * FEATURE_WARPS + warp_index();
    if (task < batch.num_spans * tasks)
        compute_inputs(call, batch, task / tasks, task % tasks,
                       shared + warp_index() * call.a.phi.features);
}

#endif
