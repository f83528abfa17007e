/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs and outputs of a chunk of tokens for a part of one head's S. The warps of a block
 * compute the inputs into shared memory: phi of queries and keys (with positions, feature map and
 * running maximum) and the gates. The output is h. */
#ifndef ENGINE_CUDA_RECURRENCE_CHUNK_CUH
#define ENGINE_CUDA_RECURRENCE_CHUNK_CUH

#include "engine/cuda/positions.cuh"

enum {
    TOKENS = 16, /* most of a chunk */
    MOST_WARPS = 16,
    WARP_FEATURES = 32,
    WIDE_WARPS = 8,                           /* most warps beside each other over the features */
    LARGEST = 2 * WIDE_WARPS * WARP_FEATURES, /* most features in registers */
    MOST_FEATURES = 4096,        /* a token's arrays then take some 84 KB; every device has 99 */
    MOST_ERASED_FEATURES = 3072, /* the same with the arrays of erase and write */
    CHUNK_FLOATS = 48 * 1024 / 4 /* of all arrays, unless one token's take more */
};

/* Where the arrays of a chunk of tokens begin in shared memory, in floats. */
struct chunk_layout {
    int q, k, f;      /* [tokens, padded] */
    int erase, write; /* [tokens, padded], where they are */
    int decay, value; /* [tokens, height]: a, b v_i */
    int delta;        /* [tokens]: g */
    int rescale;      /* [1]: exp(M before - M after), where a lacks it */
    int inputs;       /* floats of the arrays up to here */
    int sums;         /* [tokens, wide, height]: of each warp's features, s.phi_q */
    int dots;         /* [2, wide, height]: s.phi_k of a token; the delta rule */
    int most;         /* [tokens]: the largest exponent of a key */
    int running;      /* [tokens + 1]: M before and after each token */
    int mapped;       /* [mappers, m]: phi before its position */
    int total;
};

struct recurrence_call {
    struct ops_recurrence a;
    struct ops_positions before, after; /* what a.phi's point to on the host */
    struct chunk_layout at;
    int tokens;            /* of a chunk */
    int wide, groups;      /* warps over the features, and 32s of features of each */
    int padded;            /* m2, to 32 * wide * groups */
    int blocks;            /* of 16 rows of a head's S */
    int per_piece, pieces; /* blocks that a block of threads has of its own; of these, in a head */
    int height;            /* rows of a piece, c's block with them */
    bool exponential;
    /* Of chunks of C positions (ops_state_features): phi(q) is read against the first half of S,
     * phi(k) adds to the second. Here a.features counts both, and half is m2; 0: no chunks. A
     * launch takes the rows of each span in chunk number `chunk` of those that it touches. */
    int half, chunk;
    const float *maxima; /* [num_spans, Hk]: M before the step; NULL: the slots' are read by one */
    float *normalizers;  /* [num_spans, H, pieces - 1, m2 * 16]: c's block for the pieces that do
                            not own it */
    float *given; /* [num_spans, H, pieces, at.inputs]: the inputs of spans of one row, where a
                     kernel has computed them before */
};

/* The work of a block of threads. */
struct piece {
    struct device_span span;
    int head, q_head, k_head, v_head; /* of S, and what it reads: of q, of k and f, of v */
    int first, owned, held; /* blocks of 16 rows; with sum_norm the last one held is c's */
};

/* q or k of one token. */
struct side {
    const float *z, *y; /* of the head; y NULL: the map has no matrix */
    int row, head;
    bool key;
    struct head_position before; /* the map */
    int place;                   /* of phi in its row of shared memory: 0, or half */
};

/* What all features of one token share. */
struct map_terms {
    float scale, shift, divisor;
    float most; /* of the exponents */
    float unit; /* of y */
};

__device__ static inline int lane_index()
{
    return threadIdx.x % 32;
}

__device__ static inline int warp_index()
{
    return threadIdx.x / 32;
}

/* The place of feature j in a row of phi in shared memory: a thread's 4 of 32 are adjacent. */
__device__ static inline int place_of(int j)
{
    return (j & ~31) | (j & 7) << 2 | (j >> 3 & 3);
}

__device__ static inline size_t block_floats(const struct recurrence_call &call)
{
    return (size_t)call.a.features * OPS_ROW_BLOCK;
}

/* The block of S with number i in a piece. */
__device__ static inline int block_of(const struct recurrence_call &call, const struct piece &piece,
                                      int i)
{
    return i < piece.owned ? piece.first + i : call.blocks - 1;
}

/* A span's rows in the launch's chunk. Without any it has no slot. */
__device__ static struct device_span in_chunk(const struct recurrence_call &call,
                                              struct device_span span)
{
    if (call.half == 0)
        return span;
    int64_t size = call.a.chunk_size, end = span.position + span.num_rows;
    int64_t low = (span.position / size + call.chunk) * size, high = low + size;
    low = low < span.position ? span.position : low;
    high = high < end ? high : end;
    if (low >= high) {
        span.slot = NULL;
        span.num_rows = 0;
        return span;
    }
    span.first_row += (int)(low - span.position);
    span.num_rows = (int)(high - low);
    span.position = low;
    return span;
}

/* Piece number `number` of a head of a span. */
__device__ static struct piece piece_of(const struct recurrence_call &call,
                                        const struct device_batch &batch, int span, int head,
                                        int number)
{
    struct piece piece;
    piece.span = in_chunk(call, batch.spans[span]);
    piece.head = head;
    piece.q_head = ops_shared_head(&call.a, call.a.num_qk_heads, head);
    piece.k_head = ops_shared_head(&call.a, ops_recurrence_key_heads(&call.a), head);
    piece.v_head = ops_shared_head(&call.a, call.a.num_kv_heads, head);
    piece.first = number * call.per_piece;
    piece.owned = min(call.per_piece, call.blocks - piece.first);
    bool has_last = piece.first + piece.owned == call.blocks;
    piece.held = piece.owned + (call.a.sum_norm && !has_last ? 1 : 0);
    return piece;
}

/* A piece's own blocks in its text's slot. */
__device__ static inline float *state_of(const struct recurrence_call &call,
                                         const struct piece &piece)
{
    return reinterpret_cast<float *>(piece.span.slot + call.a.state_offset) +
           ((size_t)piece.head * call.blocks + piece.first) * block_floats(call);
}

/* M of a text, by heads of k. */
__device__ static inline float *maxima_of(const struct recurrence_call &call,
                                          const struct device_span &span)
{
    return reinterpret_cast<float *>(span.slot + call.a.phi.maxima_offset);
}

/* ---- features ---- */

__device__ static inline float turned(const struct recurrence_call &call, const struct side &side,
                                      int j)
{
    if (call.a.phi.before == NULL)
        return side.z[j];
    return position_element(call.before, side.before, j, side.z);
}

/* relu of element j of [z; -z]. */
__device__ static inline float dpfp_half(const struct recurrence_call &call,
                                         const struct side &side, int j)
{
    int d = call.a.phi.head_dim;
    float z = turned(call, side, j % d);
    return formula_relu(j < d ? z : -z);
}

/* phi_j, before the divisor and the exponential of an exponential map (formula_features). */
__device__ static inline float feature(const struct recurrence_call &call, const struct side &side,
                                       const struct map_terms &terms, int j)
{
    const struct ops_features &phi = call.a.phi;
    switch (phi.map) {
#define OF_ONE(map, formula) case map:
        FORMULA_MAPS_OF_ONE(OF_ONE)
#undef OF_ONE
        break; /* turning z_j is much code: once, below */
    case FEATURE_FAVOR:
        return FORMULA_FMA(side.y[j], terms.scale, -terms.shift);
    case FEATURE_COS_SIN:
    case FEATURE_UNIT_COS_SIN: {
        float cosine, sine;
        formula_cos_sin((double)(side.y[j % phi.feature_rows] * terms.unit), &cosine, &sine);
        return (j < phi.feature_rows ? cosine : sine) * terms.scale;
    }
    case FEATURE_HEDGEHOG: {
        float y = side.y[j % phi.feature_rows];
        return formula_exp((j < phi.feature_rows ? y : -y) - terms.shift);
    }
    case FEATURE_DPFP: {
        int size = 2 * phi.head_dim, here = j % size, rolled = (here - j / size - 1) % size;
        return dpfp_half(call, side, here) *
               dpfp_half(call, side, rolled < 0 ? rolled + size : rolled);
    }
    }
    float z = turned(call, side, j);
    switch (phi.map) {
#define OF_ONE(map, formula) \
    case map:                \
        return formula(z);
        FORMULA_MAPS_OF_ONE(OF_ONE)
#undef OF_ONE
    default:
        return z;
    }
}

__device__ static inline bool map_divides(enum feature_map map)
{
    return map == FEATURE_HEDGEHOG || map == FEATURE_DPFP;
}

/* What features need before the first is computed. The whole warp calls this and all functions
 * below. */
__device__ static struct map_terms first_terms(const struct recurrence_call &call,
                                               const struct side &side)
{
    const struct ops_features &phi = call.a.phi;
    struct map_terms terms = {1.0f, 0.0f, 1.0f, -INFINITY, 1.0f};
    if (phi.map == FEATURE_FAVOR || phi.map == FEATURE_UNIT_COS_SIN) {
        float squares = 0.0f;
#pragma unroll 1
        for (int j = lane_index(); j < phi.head_dim; j += 32) {
            float z = turned(call, side, j);
            squares = FORMULA_FMA(z, z, squares);
        }
        terms.shift = warp_sum(squares);
    }
    if (phi.map == FEATURE_FAVOR) {
        float root = sqrtf((float)phi.head_dim);
        terms.scale = 1.0f / sqrtf(root);
        terms.shift = terms.shift / (2.0f * root);
    } else if (phi.map == FEATURE_UNIT_COS_SIN) {
        terms.scale = 1.0f / sqrtf((float)phi.feature_rows);
        terms.unit = formula_unit(terms.shift);
    } else if (phi.map == FEATURE_COS_SIN) {
        terms.scale = 1.0f / sqrtf((float)phi.feature_rows);
    } else if (phi.map == FEATURE_HEDGEHOG) {
        float most = 0.0f;
#pragma unroll 1
        for (int j = lane_index(); j < phi.feature_rows; j += 32)
            most = fmaxf(most, fabsf(side.y[j]));
        terms.shift = warp_max(most);
    }
    return terms;
}

/* What depends on all of them: of the sum of a lane's features, and the largest in terms.most. */
__device__ static inline void last_terms(const struct recurrence_call &call, float sum,
                                         struct map_terms *terms)
{
    enum feature_map map = call.a.phi.map;
    if (map_divides(map))
        terms->divisor = warp_sum(sum) + (map == FEATURE_DPFP ? FORMULA_DPFP_ADDED : 0.0f);
    else
        terms->most = warp_max(terms->most);
}

/* largest: also compute an exponential map's `most`. */
__device__ static struct map_terms terms_of(const struct recurrence_call &call,
                                            const struct side &side, bool largest)
{
    struct map_terms terms = first_terms(call, side);
    if (!map_divides(call.a.phi.map) && !(call.exponential && largest))
        return terms;
    float sum = 0.0f;
#pragma unroll 1
    for (int j = lane_index(); j < call.a.phi.features; j += 32) {
        float value = feature(call, side, terms, j);
        sum += value;
        terms.most = fmaxf(terms.most, value);
    }
    last_terms(call, sum, &terms);
    return terms;
}

/* Of a side's token, applied to x of a head. */
__device__ static struct head_position position_of(const struct ops_positions &a,
                                                   const struct piece &piece,
                                                   const struct side &side, const float *x)
{
    int64_t angle = (int64_t)side.head * a.angles_per_head;
    struct head_position position = {};
    if (a.cosines.data != NULL) {
        position.cosines = a.cosines.data + side.row * a.cosines.stride + angle;
        position.sines = a.sines.data + side.row * a.sines.stride + angle;
    }
    position.position = piece.span.position + side.row - piece.span.first_row;
    position.twice = position_reflection(a, x, lane_index());
    return position;
}

/* Row `row` of the step. */
__device__ static struct side side_of(const struct recurrence_call &call, const struct piece &piece,
                                      bool key, int row)
{
    const struct ops_features &phi = call.a.phi;
    const struct rows &z = key ? call.a.k : call.a.q, &y = key ? phi.y_k : phi.y_q;
    struct side side = {NULL, NULL, row, key ? piece.k_head : piece.q_head, key, {}, 0};
    side.place = key ? call.half : 0;
    side.z = z.data + row * z.stride + (int64_t)side.head * phi.head_dim;
    if (y.data != NULL)
        side.y = y.data + row * y.stride + (int64_t)side.head * phi.feature_rows;
    if (phi.before != NULL)
        side.before = position_of(call.before, piece, side, side.z);
    return side;
}

/* Rows of phi or f, in whose order they are in shared memory: one, or the same for several pieces.
 */
struct row_copies {
    float *first;
    int count, stride; /* in floats */

    __device__ void set(int j, float value) const
    {
        for (int i = 0; i < count; i++)
            first[i * stride + place_of(j)] = value;
    }
};

/* Writes phi of one side, [padded]; `get` gives feature j before the divisor. mapped: [m] in shared
 * memory, this warp's. */
template <typename G>
__device__ static void write_phi(const struct recurrence_call &call, const struct piece &piece,
                                 const struct side &side, const struct map_terms &terms,
                                 float scale, const G &get, float *mapped,
                                 const struct row_copies &out)
{
    const struct ops_features &phi = call.a.phi;
#pragma unroll 1
    for (int j = lane_index(); j < phi.features; j += 32) {
        float value = get(j) / terms.divisor;
        if (call.exponential)
            value = formula_exp(value - terms.most);
        value *= scale;
        if (phi.after != NULL)
            mapped[j] = value;
        else
            out.set(side.place + j, value);
    }
    const int m2 = call.half > 0 ? call.half : call.a.features;
#pragma unroll 1
    for (int j = lane_index(); j < side.place; j += 32)
        out.set(j, 0.0f);
#pragma unroll 1
    for (int j = side.place + m2 + lane_index(); j < call.padded; j += 32)
        out.set(j, 0.0f);
    if (phi.after == NULL)
        return;
    __syncwarp();
    const struct head_position after = position_of(call.after, piece, side, mapped);
#pragma unroll 1
    for (int j = lane_index(); j < m2; j += 32)
        out.set(side.place + j,
                call.after.kind == POSITION_SPE
                    ? position_encoded(call.after, after, side.key, side.head, j, mapped)
                    : position_element(call.after, after, j, mapped));
    __syncwarp();
}

/* ---- a chunk of tokens ---- */

/* The operands of a factor. */
struct factor_inputs {
    float u, w;
};

__device__ static inline struct factor_inputs load_factor(const struct ops_factor &factor, int row,
                                                          int64_t column)
{
    struct factor_inputs inputs = {};
    if (factor.u.data != NULL)
        inputs.u = factor.u.data[row * factor.u.stride + column];
    if (factor.w.data != NULL)
        inputs.w = factor.w.data[row * factor.w.stride + column];
    return inputs;
}

__device__ static inline float factor_of(const struct ops_factor &factor,
                                         struct factor_inputs inputs)
{
    return factor.u.data == NULL
               ? 1.0f
               : formula_apply(factor.formula, inputs.u, inputs.w, factor.constant);
}

__device__ static inline float factor_at(const struct ops_factor &factor, int row, int64_t column)
{
    return factor_of(factor, load_factor(factor, row, column));
}

/* Computes M before and after each of n tokens, beginning with `maximum`, and returns the last. */
__device__ static float fill_maxima(const struct recurrence_call &call, const struct piece &piece,
                                    float *shared, int done, int n, float maximum)
{
    float *most = shared + call.at.most, *running = shared + call.at.running;
    for (int t = warp_index(); t < n; t += blockDim.x / 32) {
        struct side key = side_of(call, piece, true, piece.span.first_row + done + t);
        float value = terms_of(call, key, true).most;
        if (lane_index() == 0)
            most[t] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        running[0] = maximum;
        for (int t = 0; t < n; t++)
            running[t + 1] = most[t] > running[t] ? most[t] : running[t];
    }
    __syncthreads();
    return running[n];
}

/* Computes a rescale and b v of 32 rows of the piece, those of number `part`, and g, for token t,
 * row `row` of the step. Their operands are loaded together. */
__device__ static void fill_rows(const struct recurrence_call &call, const struct piece &piece,
                                 float *shared, int part, int t, int row, float rescale)
{
    const struct ops_recurrence &a = call.a;
    int i = part * 32 + lane_index();
    if (a.delta.u.data != NULL && i == 0)
        shared[call.at.delta + t] = factor_at(a.delta, row, piece.head);
    if (i >= piece.held * OPS_ROW_BLOCK)
        return;
    int of_head = block_of(call, piece, i / OPS_ROW_BLOCK) * OPS_ROW_BLOCK + i % OPS_ROW_BLOCK;
    bool there = of_head < a.value_dim;
    struct factor_inputs scales = load_factor(a.input_scale, row, piece.head), decays = {};
    if (a.row_decay_per_head)
        decays = load_factor(a.row_decay, row, piece.head);
    else if (there)
        decays = load_factor(a.row_decay, row, (int64_t)piece.head * a.value_dim + of_head);
    float v = a.sum_norm && of_head == a.value_dim ? 1.0f : 0.0f;
    if (there)
        v = a.v.data[row * a.v.stride + (int64_t)piece.v_head * a.value_dim + of_head];
    float all = there || a.row_decay_per_head ? factor_of(a.row_decay, decays) : 1.0f;
    shared[call.at.decay + t * call.height + i] = all * rescale;
    shared[call.at.value + t * call.height + i] = v * factor_of(a.input_scale, scales);
}

__device__ static void fill_phi(const struct recurrence_call &call, const struct piece &piece,
                                float *shared, bool key, int t, int row)
{
    const struct side side = side_of(call, piece, key, row);
    struct map_terms terms = terms_of(call, side, !key);
    if (key && call.exponential)
        terms.most = shared[call.at.running + t + 1];
    write_phi(call, piece, side, terms, key ? 1.0f : call.a.phi.query_scale,
              [&](int j) { return feature(call, side, terms, j); },
              shared + call.at.mapped + warp_index() * call.a.phi.features,
              {shared + (key ? call.at.k : call.at.q) + t * call.padded, 1, 0});
}

/* f of a head of k. */
__device__ static void fill_decays(const struct recurrence_call &call, int k_head, int row,
                                   const struct row_copies &out)
{
    int m = call.a.phi.features;
#pragma unroll 1
    for (int j = lane_index(); j < call.padded; j += 32)
        out.set(j, j < call.a.features
                       ? factor_at(call.a.feature_decay, row, (int64_t)k_head * m + j % m)
                       : 1.0f);
}

/* Rows that are as wide as phi of a key, of its head. */
__device__ static void fill_columns(const struct recurrence_call &call, const struct rows &rows,
                                    int k_head, int row, const struct row_copies &out)
{
    const float *from = rows.data + row * rows.stride + (int64_t)k_head * call.a.features;
#pragma unroll 1
    for (int j = lane_index(); j < call.padded; j += 32)
        out.set(j, j < call.a.features ? from[j] : 0.0f);
}

/* What a raised maximum leaves of S. */
__device__ static inline float rescale_of(const struct recurrence_call &call, const float *shared,
                                          int t)
{
    const float *running = shared + call.at.running + t;
    return call.exponential ? formula_exp(running[0] - running[1]) : 1.0f;
}

/* Computes the inputs of n tokens, from number `done` of the span on. Each warp takes one task at a
 * time. phi's tasks come first, since only so many warps have room for them (chunk_layout, mapped).
 */
__device__ static void fill_chunk(const struct recurrence_call &call, const struct piece &piece,
                                  float *shared, bool features, int done, int n)
{
    const struct ops_recurrence &a = call.a;
    int parts = (piece.held * OPS_ROW_BLOCK + 31) / 32, phi = features ? 3 : 2;
    int others = phi + (a.erase.data != NULL ? 2 : 0);
    for (int task = warp_index(); task < (others + parts) * n; task += blockDim.x / 32) {
        int t = task % n, kind = task / n, row = piece.span.first_row + done + t;
        if (kind < 2)
            fill_phi(call, piece, shared, kind == 1, t, row);
        else if (kind < phi)
            fill_decays(call, piece.k_head, row, {shared + call.at.f + t * call.padded, 1, 0});
        else if (kind < others)
            fill_columns(
                call, kind == phi ? a.erase : a.write, piece.k_head, row,
                {shared + (kind == phi ? call.at.erase : call.at.write) + t * call.padded, 1, 0});
        else
            fill_rows(call, piece, shared, kind - others, t, row, rescale_of(call, shared, t));
    }
}

/* What h_i has beside s.phi_q, of a row of the step. */
__device__ static inline float skipped(const struct ops_recurrence &a, const struct piece &piece,
                                       int64_t row, int i, float h)
{
    if (a.skip == NULL)
        return h;
    return FORMULA_FMA(a.skip[piece.head],
                       a.v.data[row * a.v.stride + (int64_t)piece.v_head * a.value_dim + i], h);
}

/* Computes h of n tokens: adds the warps' sums, and divides by c's. */
__device__ static void write_chunk(const struct recurrence_call &call, const struct piece &piece,
                                   const float *shared, int done, int n)
{
    const struct ops_recurrence &a = call.a;
    int c = (piece.held - 1) * OPS_ROW_BLOCK + a.value_dim % OPS_ROW_BLOCK;
    for (int t = warp_index(); t < n; t += blockDim.x / 32) {
        const float *sums = shared + call.at.sums + t * call.wide * call.height;
        float divisor = 1.0f;
        if (a.sum_norm) {
            float normalizer = 0.0f;
            for (int w = 0; w < call.wide; w++)
                normalizer += sums[w * call.height + c];
            divisor = normalizer > 1e-6f ? normalizer : 1e-6f;
        }
        int64_t row = piece.span.first_row + done + t;
        float *h = a.h.data + row * a.h.stride + (int64_t)piece.head * a.value_dim;
#pragma unroll 1
        for (int i = lane_index(); i < piece.owned * OPS_ROW_BLOCK; i += 32) {
            int of_head = piece.first * OPS_ROW_BLOCK + i;
            float sum = 0.0f;
            for (int w = 0; w < call.wide; w++)
                sum += sums[w * call.height + i];
            if (of_head < a.value_dim)
                h[of_head] = skipped(a, piece, row, of_head, a.sum_norm ? sum / divisor : sum);
        }
    }
}

#endif
