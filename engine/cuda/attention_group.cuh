/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of longer spans: a block answers up to 64 queries of one tile of positions and one
 * head, with the bits of attention_query.cuh. attention.cu says in which order sums run. */
#ifndef ENGINE_CUDA_ATTENTION_GROUP_CUH
#define ENGINE_CUDA_ATTENTION_GROUP_CUH

#include "engine/cuda/attention_keys.cuh"

namespace
{

/* Queries of one text at positions of one tile. Row i of the block is at position first + i. */
struct query_group {
    device_span span;
    int row, n;
    int64_t first;
};

/* Finds a group by its number among the groups of all spans, in order. */
__device__ bool find_group(const device_batch &batch, int number, query_group *group)
{
    int lane = (int)threadIdx.x % 32;
    for (int from = 0; from < batch.num_spans; from += 32) {
        int count = 0;
        if (from + lane < batch.num_spans) {
            const device_span &span = batch.spans[from + lane];
            if (span.slot != nullptr && span.num_rows >= FEW_TOKENS)
                count = (int)((span.position + span.num_rows - 1) / OPS_TILE -
                              span.position / OPS_TILE) +
                        1;
        }
        int end = count;
        for (int other = 1; other < 32; other *= 2) {
            int before = __shfl_up_sync(FULL_WARP, end, (unsigned)other);
            end += lane >= other ? before : 0;
        }
        unsigned behind = __ballot_sync(FULL_WARP, number < end);
        if (behind != 0) {
            int at = __ffs((int)behind) - 1;
            int in_span = number - __shfl_sync(FULL_WARP, end - count, at);
            group->span = batch.spans[from + at];
            int64_t position = group->span.position;
            int64_t base = (position / OPS_TILE + in_span) * OPS_TILE;
            group->first = base < position ? position : base;
            group->row = group->span.first_row + (int)(group->first - position);
            group->n =
                (int)(smaller(position + group->span.num_rows, base + OPS_TILE) - group->first);
            return true;
        }
        number -= __shfl_sync(FULL_WARP, end, 31);
    }
    return false;
}

/* A tile is loaded in parts of PART lines of 64 numbers: features of K, then keys of V, two parts
 * for every 64 columns. */
template <kv_format KV>
__device__ void load_page_part(const ops_attention &a, const keys &all, int tile, int part,
                               char *to)
{
    const int line = OPS_TILE * (int)sizeof(typename number<KV>::type), tid = (int)threadIdx.x;
    const char *from = all.pages[tile] + all.in_page;
    int key_parts = (a.key_dim + PART - 1) / PART;
    if (part < key_parts) {
        int count = (int)smaller(a.key_dim - part * PART, PART);
        from += (int64_t)part * PART * line;
        for (int at = tid * 16; at < count * line; at += THREADS * 16)
            copy_async_16(to + at, from + at);
        return;
    }
    int stride = (int)ops_value_stride(a.value_dim) * (line / OPS_TILE);
    int column = (part - key_parts) / 2 * line, key = (part - key_parts) % 2 * PART;
    from += (int64_t)a.key_dim * line + (int64_t)key * stride + column;
    for (int at = tid * 16; at < PART * line; at += THREADS * 16)
        if (column + at % line < stride)
            copy_async_16(to + at, from + (int64_t)(at / line) * stride + at % line);
}

/* The same for keys in a ring and in the step's rows. Keys outside [low, end) are zero. */
__device__ void load_ring_part(const ops_attention &a, const keys &all, int tile, int part,
                               int64_t low, int64_t end, float *to)
{
    int key_parts = (a.key_dim + PART - 1) / PART, lane = (int)threadIdx.x % OPS_TILE;
    int64_t base = (int64_t)tile * OPS_TILE;
    if (part < key_parts) {
        int64_t s = base + lane;
        bool there = s >= low && s < end;
        ring_key key = find_key(a, all, there ? s : end - 1);
        for (int f = (int)threadIdx.x / OPS_TILE; f < PART; f += THREADS / OPS_TILE)
            to[f * OPS_TILE + lane] =
                there && part * PART + f < a.key_dim ? key.k[(part * PART + f) * key.stride] : 0.0f;
        return;
    }
    int column = (part - key_parts) / 2 * OPS_TILE + lane;
    for (int j = (int)threadIdx.x / OPS_TILE; j < PART; j += THREADS / OPS_TILE) {
        int64_t s = base + (part - key_parts) % 2 * PART + j;
        bool there = s >= low && s < end && column < a.value_dim;
        to[j * OPS_TILE + lane] = there ? find_key(a, all, s).v[column] : 0.0f;
    }
}

/* The parts of all tiles of a block, in order; some are being loaded. */
template <kv_format KV, bool RING> struct part_stream {
    char *stages; /* [STAGES] */
    int tile, end_tile;
    int part, parts_each; /* the next to load */
    int ask, take;        /* stages */
    int64_t low, end;     /* of keys, for a ring */

    enum { BYTES = PART * OPS_TILE * (int)sizeof(typename number<KV>::type) };

    __device__ void request(const ops_attention &a, const keys &all)
    {
        if (tile < end_tile) {
            if constexpr (RING)
                load_ring_part(a, all, tile, part, low, end, (float *)(stages + ask * BYTES));
            else
                load_page_part<KV>(a, all, tile, part, stages + ask * BYTES);
            tile += part + 1 == parts_each;
            part = part + 1 == parts_each ? 0 : part + 1;
        }
        copy_async_commit();
        ask = ask + 1 == STAGES ? 0 : ask + 1;
    }

    /* Waits for all threads and for the next part, and returns the part. */
    __device__ const char *next(const ops_attention &a, const keys &all)
    {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        request(a, all);
        const char *here = stages + take * BYTES;
        take = take + 1 == STAGES ? 0 : take + 1;
        return here;
    }
};

/* sums [4][4] += x, 4 rows of `pitch` apart, times `lines` lines of 4 numbers. */
template <kv_format KV>
__device__ void multiply(const float *x, int pitch, const char *lines, int count, float (*sums)[4])
{
    const int line = OPS_TILE * (int)sizeof(typename number<KV>::type);
    int k = 0;
#pragma unroll 1
    for (; k + 4 <= count; k += 4) {
        float4 inputs[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            inputs[i] = *(const float4 *)&x[i * pitch + k];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 y = load_4<KV>(lines + (k + j) * line);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float input = j == 0   ? inputs[i].x
                              : j == 1 ? inputs[i].y
                              : j == 2 ? inputs[i].z
                                       : inputs[i].w;
                sums[i][0] = fmaf(input, y.x, sums[i][0]);
                sums[i][1] = fmaf(input, y.y, sums[i][1]);
                sums[i][2] = fmaf(input, y.z, sums[i][2]);
                sums[i][3] = fmaf(input, y.w, sums[i][3]);
            }
        }
    }
#pragma unroll 1
    for (; k < count; k++) {
        float4 y = load_4<KV>(lines + k * line);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i][0] = fmaf(x[i * pitch + k], y.x, sums[i][0]);
            sums[i][1] = fmaf(x[i * pitch + k], y.y, sums[i][1]);
            sums[i][2] = fmaf(x[i * pitch + k], y.z, sums[i][2]);
            sums[i][3] = fmaf(x[i * pitch + k], y.w, sums[i][3]);
        }
    }
}

/* Which lanes of a tile a query sees. */
struct lanes {
    int low, high;
};

/* The softmax of one query of a block, in shared memory. The 16 threads of the query have the same
 * values, and the first of them writes. */
struct query_state {
    float most, sum;             /* of the split */
    float query_most, query_sum; /* of the splits before it */
    fold with_tile;              /* folds the last tile into the split */
    lanes seen;                  /* of that tile */
    int split_seen, query_seen;
};

__device__ void start_split(const ops_attention &a, query_state *state)
{
    state->most = no_maximum(a);
    state->sum = 0.0f;
    state->split_seen = 0;
}

/* Like multiply, when row i has only lines [low, high) of the tile, the first of which is `from`.
 */
template <kv_format KV>
__device__ void multiply_seen(const float *x, int pitch, const char *lines, int from,
                              const query_state *states, float (*sums)[4])
{
    lanes seen[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        seen[i] = states[i].seen;
    const int line = OPS_TILE * (int)sizeof(typename number<KV>::type);
#pragma unroll 1
    for (int k = 0; k < PART; k++) {
        float4 y = load_4<KV>(lines + k * line);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float input = x[i * pitch + k];
            if (from + k >= seen[i].low && from + k < seen[i].high) {
                sums[i][0] = fmaf(input, y.x, sums[i][0]);
                sums[i][1] = fmaf(input, y.y, sums[i][1]);
                sums[i][2] = fmaf(input, y.z, sums[i][2]);
                sums[i][3] = fmaf(input, y.w, sums[i][3]);
            }
        }
    }
}

/* weight and bias by distance: entry i is for query row - key lane = i - 63. */
struct bias_table {
    float weights[2 * OPS_TILE], biases[2 * OPS_TILE];
};

__device__ void fill_biases(const ops_attention &a, int head, int64_t distance, bias_table *table)
{
    int i = (int)threadIdx.x;
    if (a.biases == nullptr || i >= 2 * OPS_TILE)
        return;
    distance += i - (OPS_TILE - 1);
    formula_position_bias(a.bias, &a.biases[head], (float)(distance > 0 ? distance : 0),
                          &table->weights[i], &table->biases[i]);
}

/* Turns scores [4], q.k of row `row` and lanes [lane, lane + 4), into weights, and folds them into
 * the split if the query sees any of these keys. */
__device__ void weigh_row(const ops_attention &a, float *scores, const bias_table *table, int row,
                          int lane, lanes seen, query_state *state)
{
    float most = no_maximum(a), sum;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float score = scale_score(a, scores[j]);
        if (a.biases != nullptr) {
            int i = row - (lane + j) + OPS_TILE - 1;
            score = score * table->weights[i] + table->biases[i];
        }
        scores[j] = lane + j >= seen.low && lane + j < seen.high ? score : -INFINITY;
        most = a.activation != SOFTMAX_ACT_SOFTMAX ? most : greater(most, scores[j]);
    }
#pragma unroll
    for (int other = 1; other < 16; other *= 2)
        most = greater(most, __shfl_xor_sync(FULL_WARP, most, other));
#pragma unroll
    for (int j = 0; j < 4; j++)
        scores[j] = weigh(a, scores[j], most);
    sum = (scores[0] + scores[1]) + (scores[2] + scores[3]);
#pragma unroll
    for (int other = 1; other < 16; other *= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, other);
    if (lane != 0)
        return;
    state->seen = seen;
    if (seen.low < seen.high) {
        float both = state->most;
        state->with_tile = fold_maxima(&both, most);
        state->most = both;
        state->sum = state->with_tile(state->sum, sum);
        state->split_seen = 1;
    }
}

/* Folds a split of one query into h. last: also divides h. */
template <int COLUMN_PARTS>
__device__ void fold_split(const ops_attention &a, int head, float *h, int column, bool last,
                           query_state *state, float (*values)[4][4], int i)
{
    float query_most = state->query_most, query_sum = state->query_sum;
    bool seen = state->split_seen != 0, first = state->query_seen == 0;
    if (seen) {
        fold fold = fold_maxima(&query_most, state->most);
        query_sum = fold(query_sum, state->sum);
        float divisor = last ? value_divisor(a, head, query_sum, query_most) : 1.0f;
#pragma unroll
        for (int c = 0; c < COLUMN_PARTS; c++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int at = c * OPS_TILE + column + j;
                if (h != nullptr && at < a.value_dim)
                    h[at] = fold(first ? 0.0f : h[at], values[c][i][j]) / divisor;
            }
    }
#pragma unroll
    for (int c = 0; c < COLUMN_PARTS; c++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            values[c][i][j] = 0.0f;
    __syncwarp();
    if (seen && column == 0) {
        state->query_most = query_most;
        state->query_sum = query_sum;
        state->query_seen = 1;
        start_split(a, state);
    }
    __syncwarp();
}

/* Floats between two queries in shared memory. */
__host__ __device__ inline int query_pitch(int key_dim)
{
    return (key_dim + 3) / 4 * 4 + 4;
}

template <kv_format KV> size_t group_bytes(int key_dim)
{
    return (size_t)STAGES * PART * OPS_TILE * sizeof(typename number<KV>::type) +
           sizeof(float) * QUERIES * (size_t)(PITCH + query_pitch(key_dim)) + sizeof(bias_table) +
           sizeof(query_state) * QUERIES;
}

/* The parts of the keys that a group sees, before any is loaded. */
template <kv_format KV, bool RING>
__device__ part_stream<KV, RING> stream_of(const ops_attention &a, const query_group &group,
                                           char *stages, int parts_each)
{
    int64_t last = group.first + group.n - 1;
    part_stream<KV, RING> stream;
    stream.stages = stages;
    stream.low = first_seen(a, group.first);
    stream.end = last + 1;
    stream.tile = (int)(stream.low / OPS_TILE);
    stream.end_tile = (int)(last / OPS_TILE) + 1;
    stream.part = stream.ask = stream.take = 0;
    stream.parts_each = parts_each;
    return stream;
}

/* q [64][pitch] in shared memory, rows past the group's zero. */
__device__ void load_queries(const ops_attention &a, const query_group &group, int head, float *q,
                             int pitch)
{
    for (int e = (int)threadIdx.x; e < QUERIES * a.key_dim; e += THREADS) {
        int i = e / a.key_dim, f = e % a.key_dim;
        q[i * pitch + f] =
            i < group.n ? a.q.data[(group.row + i) * a.q.stride + (int64_t)head * a.key_dim + f]
                        : 0.0f;
    }
}

/* Up to 64 queries of one head. Grid: [at least the number of groups, H]. */
template <kv_format KV, bool RING, int COLUMN_PARTS>
__global__ void __launch_bounds__(THREADS, RING || COLUMN_PARTS > 1 ? 1 : 2)
    group_kernel(const ops_attention a, const device_batch batch)
{
    SHARED_MEMORY(char, memory);
    grid_wait();
    query_group group;
    if (!find_group(batch, (int)(gridDim.x - 1 - blockIdx.x), &group)) /* the last have most keys */
        return;
    int tid = (int)threadIdx.x, lane = tid % 16 * 4, row = tid / 16 * 4, head = (int)blockIdx.y;
    keys all = keys_of<false>(a, group.span, head / (a.num_heads / a.num_kv_heads));
    int64_t last = group.first + group.n - 1;
    int key_parts = (a.key_dim + PART - 1) / PART, pitch = query_pitch(a.key_dim);
    int length = split_tiles(a, group.first);
    part_stream<KV, RING> stream =
        stream_of<KV, RING>(a, group, memory, key_parts + 2 * COLUMN_PARTS);
    float *weights = (float *)(memory + STAGES * part_stream<KV, RING>::BYTES); /* [64][PITCH] */
    float *q = weights + QUERIES * PITCH;                                       /* [64][pitch] */
    bias_table *table = (bias_table *)(q + QUERIES * pitch);
    query_state *states = (query_state *)(table + 1);

    load_queries(a, group, head, q, pitch);
    float values[COLUMN_PARTS][4][4] = {};
    if (tid < QUERIES) {
        start_split(a, &states[tid]);
        states[tid].query_most = no_maximum(a);
        states[tid].query_sum = 0.0f;
        states[tid].query_seen = 0;
    }
    int end_tile = stream.end_tile, tile = stream.tile;
    for (int i = 0; i < STAGES - 1; i++)
        stream.request(a, all);
    for (; tile < end_tile; tile++) {
        int64_t base = (int64_t)tile * OPS_TILE;
        bool whole = base + OPS_TILE <= group.first + 1 && first_seen(a, last) <= base;
        float scores[4][4] = {};
        fill_biases(a, head, group.first - base, table);
        for (int part = 0; part < key_parts; part++)
            multiply<KV>(q + row * pitch + part * PART, pitch,
                         stream.next(a, all) + lane * (int)sizeof(typename number<KV>::type),
                         (int)smaller(a.key_dim - part * PART, PART), scores);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t position = smaller(group.first + row + i, last);
            int64_t low = first_seen(a, position) - base;
            lanes seen = {low < 0 ? 0 : (int)smaller(low, OPS_TILE),
                          (int)smaller(position - base + 1, OPS_TILE)};
            weigh_row(a, scores[i], table, row + i, lane, seen, &states[row + i]);
            *(float4 *)&weights[(row + i) * PITCH + lane] =
                make_float4(scores[i][0], scores[i][1], scores[i][2], scores[i][3]);
        }
#pragma unroll
        for (int c = 0; c < COLUMN_PARTS; c++) {
            float sums[4][4] = {};
            for (int from = 0; from < OPS_TILE; from += PART) {
                const char *part =
                    stream.next(a, all) + lane * (int)sizeof(typename number<KV>::type);
                const float *x = weights + row * PITCH + from;
                if (whole)
                    multiply<KV>(x, PITCH, part, PART, sums);
                else
                    multiply_seen<KV>(x, PITCH, part, from, states + row, sums);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const query_state &state = states[row + i];
                if (state.seen.low < state.seen.high)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        values[c][i][j] = state.with_tile(values[c][i][j], sums[i][j]);
            }
        }
        if ((tile + 1) % length != 0 && tile + 1 < end_tile)
            continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *h = row + i < group.n ? a.h.data + (group.row + row + i) * a.h.stride +
                                               (int64_t)head * a.value_dim
                                         : nullptr;
            fold_split<COLUMN_PARTS>(a, head, h, lane, tile + 1 == end_tile, &states[row + i],
                                     values, i);
        }
    }
    copy_async_wait<0>();
}

} // namespace

#endif
