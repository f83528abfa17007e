/* The row recurrence (engine/ops.h) with all that leads to it: positions, feature map, gates and S.
 *
 * A block of threads has some of the 16-row blocks of one head's S of one text, in registers from
 * the span's first token to its last. A chunk of tokens at a time, its warps first put phi and the
 * gates into shared memory (a warp per token and side), then walk through the tokens. A thread has
 * 4 rows and 4 features of every 32 (of its warp's), so a load of S is 16 bytes and a warp's is 512
 * bytes in a row. Where a head has more features than warps hold (LARGEST), S stays in memory.
 *
 * s.phi: a sum per thread over its features in order, a tree over the 8 lanes of a row, then the
 * warps in order: fixed by the number of features alone. Chunks, pieces of a head and other texts
 * change no bit.
 *
 * Per head and token 3 multiply-adds' cost for each of dv * m2 elements of S (4 with feature
 * decays) and, per piece of a head, d + m formulas for q and k; per call 2 * 4 * dv * m2 bytes of S
 * and 4 * (2 d + 3 dv) per token of projections (refined gate). ReGLA with d = dv = 64, one token:
 * 33.8 KB and 24,600 operations, so bound by memory.
 * No speed has been measured: there was no device. */
#include "engine/cuda/positions.cuh"

enum {
    TOKENS = 16, /* most of a chunk */
    MOST_WARPS = 16,
    WARP_FEATURES = 32,
    WIDE_WARPS = 8,                           /* most warps beside each other over the features */
    LARGEST = 2 * WIDE_WARPS * WARP_FEATURES, /* most features in registers */
    CHUNK_FLOATS = 48 * 1024 / 4
};

/* Where the arrays of a chunk of tokens begin in shared memory, in floats. */
struct chunk_layout {
    int q, k, f;      /* [tokens, padded] */
    int decay, value; /* [tokens, height]: a, b v_i */
    int sums;         /* [tokens, wide, height]: of each warp's features, s.phi_q */
    int dots;         /* [2, wide, height]: s.phi_k of a token; the delta rule */
    int delta;        /* [tokens]: g */
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
    const float *maxima; /* [num_spans, Hkv]: M before the step; NULL: the slots' are read by one */
    float *normalizers;  /* [num_spans, H, pieces - 1, m2 * 16]: c's block for the pieces that do
                            not own it */
};

/* What a block of threads works on. */
struct piece {
    struct device_span span;
    int head, kv_head;
    int first, owned, held; /* blocks of 16 rows; with sum_norm the last one held is c's */
};

/* q or k of one token. */
struct side {
    const float *z, *y; /* of the head; y NULL: the map has no matrix */
    int row, head;
    struct head_position before; /* the map */
};

/* What the features of one token have in common. */
struct map_terms {
    float scale, shift, divisor;
    float most; /* of the exponents */
};

__device__ static inline int lane_index()
{
    return threadIdx.x % 32;
}

__device__ static inline int warp_index()
{
    return threadIdx.x / 32;
}

/* Where feature j lies in a row of phi in shared memory: a thread's 4 of 32 beside each other. */
__device__ static inline int place_of(int j)
{
    return (j & ~31) | (j & 7) << 2 | (j >> 3 & 3);
}

/* The block of S that is number i in a piece. */
__device__ static inline int block_of(const struct recurrence_call &call, const struct piece &piece,
                                      int i)
{
    return i < piece.owned ? piece.first + i : call.blocks - 1;
}

__device__ static struct piece piece_of(const struct recurrence_call &call,
                                        const struct device_batch &batch)
{
    struct piece piece;
    piece.span = batch.spans[blockIdx.x];
    piece.head = (int)blockIdx.y;
    piece.kv_head = piece.head / (call.a.num_heads / call.a.num_kv_heads);
    piece.first = (int)blockIdx.z * call.per_piece;
    piece.owned = min(call.per_piece, call.blocks - piece.first);
    bool has_last = piece.first + piece.owned == call.blocks;
    piece.held = piece.owned + (call.a.sum_norm && !has_last ? 1 : 0);
    return piece;
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
    if (phi.map == FEATURE_DPFP) {
        int size = 2 * phi.head_dim, here = j % size, rolled = (here - j / size - 1) % size;
        return dpfp_half(call, side, here) *
               dpfp_half(call, side, rolled < 0 ? rolled + size : rolled);
    }
    if (phi.map == FEATURE_FAVOR)
        return FORMULA_FMA(side.y[j], terms.scale, -terms.shift);
    if (phi.map == FEATURE_HEDGEHOG) {
        float y = side.y[j % phi.feature_rows];
        return formula_exp((j < phi.feature_rows ? y : -y) - terms.shift);
    }
    if (phi.map == FEATURE_COS_SIN) {
        float cosine, sine;
        formula_cos_sin((double)side.y[j % phi.feature_rows], &cosine, &sine);
        return (j < phi.feature_rows ? cosine : sine) * terms.scale;
    }
    float z = turned(call, side, j);
    if (phi.map == FEATURE_RELU)
        return formula_relu(z);
    if (phi.map == FEATURE_ELU)
        return formula_elu(z);
    if (phi.map == FEATURE_ELU_PLUS_1)
        return formula_elu(z) + 1.0f;
    return z; /* identity, exp */
}

/* Of a whole warp, like all that follows. */
__device__ static struct map_terms terms_of(const struct recurrence_call &call,
                                            const struct side &side)
{
    const struct ops_features &phi = call.a.phi;
    struct map_terms terms = {1.0f, 0.0f, 1.0f, -INFINITY};
    bool divides = phi.map == FEATURE_HEDGEHOG || phi.map == FEATURE_DPFP;
    if (phi.map == FEATURE_FAVOR) {
        float squares = 0.0f;
        for (int j = lane_index(); j < phi.head_dim; j += 32) {
            float z = turned(call, side, j);
            squares = FORMULA_FMA(z, z, squares);
        }
        float root = sqrtf((float)phi.head_dim);
        terms.scale = 1.0f / sqrtf(root);
        terms.shift = warp_sum(squares) / (2.0f * root);
    } else if (phi.map == FEATURE_COS_SIN) {
        terms.scale = 1.0f / sqrtf((float)phi.feature_rows);
    } else if (phi.map == FEATURE_HEDGEHOG) {
        float most = 0.0f;
        for (int j = lane_index(); j < phi.feature_rows; j += 32)
            most = fmaxf(most, fabsf(side.y[j]));
        terms.shift = warp_max(most);
    }
    if (!divides && !call.exponential)
        return terms;
    float sum = 0.0f;
    for (int j = lane_index(); j < phi.features; j += 32) {
        float value = feature(call, side, terms, j);
        sum += value;
        terms.most = fmaxf(terms.most, value);
    }
    if (divides)
        terms.divisor = warp_sum(sum) + (phi.map == FEATURE_DPFP ? 1e-6f : 0.0f);
    else
        terms.most = warp_max(terms.most);
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
    struct side side = {NULL, NULL, row, key ? piece.kv_head : piece.head, {}};
    side.z = z.data + row * z.stride + (int64_t)side.head * phi.head_dim;
    if (y.data != NULL)
        side.y = y.data + row * y.stride + (int64_t)side.head * phi.feature_rows;
    if (phi.before != NULL)
        side.before = position_of(call.before, piece, side, side.z);
    return side;
}

/* phi of one side to out [padded] of shared memory; mapped: [m] of shared memory, this warp's. */
__device__ static void write_phi(const struct recurrence_call &call, const struct piece &piece,
                                 const struct side &side, const struct map_terms &terms,
                                 float scale, float *mapped, float *out)
{
    const struct ops_features &phi = call.a.phi;
    for (int j = lane_index(); j < phi.features; j += 32) {
        float value = feature(call, side, terms, j) / terms.divisor;
        if (call.exponential)
            value = formula_exp(value - terms.most);
        value *= scale;
        if (phi.after != NULL)
            mapped[j] = value;
        else
            out[place_of(j)] = value;
    }
    for (int j = call.a.features + lane_index(); j < call.padded; j += 32)
        out[place_of(j)] = 0.0f;
    if (phi.after == NULL)
        return;
    __syncwarp();
    const struct head_position after = position_of(call.after, piece, side, mapped);
    for (int j = lane_index(); j < call.a.features; j += 32)
        out[place_of(j)] = position_element(call.after, after, j, mapped);
    __syncwarp();
}

/* ---- a chunk of tokens ---- */

__device__ static inline float factor_at(const struct ops_factor &factor, int row, int64_t column)
{
    if (factor.u.data == NULL)
        return 1.0f;
    float u = factor.u.data[row * factor.u.stride + column];
    float w = factor.w.data == NULL ? 0.0f : factor.w.data[row * factor.w.stride + column];
    return formula_apply(factor.formula, u, w, factor.constant);
}

/* M before and after each of n tokens, from `maximum` on, and what it is in the end. */
__device__ static float fill_maxima(const struct recurrence_call &call, const struct piece &piece,
                                    float *shared, int done, int n, float maximum)
{
    float *most = shared + call.at.most, *running = shared + call.at.running;
    for (int t = warp_index(); t < n; t += blockDim.x / 32) {
        struct side key = side_of(call, piece, true, piece.span.first_row + done + t);
        float value = terms_of(call, key).most;
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

/* a, b v and g of token t, row `row` of the step. */
__device__ static void fill_rows(const struct recurrence_call &call, const struct piece &piece,
                                 float *shared, int t, int row)
{
    const struct ops_recurrence &a = call.a;
    float *decay = shared + call.at.decay + t * call.height;
    float *value = shared + call.at.value + t * call.height;
    float scale = factor_at(a.input_scale, row, piece.head), rescale = 1.0f;
    const float *running = shared + call.at.running + t;
    if (call.exponential)
        rescale = formula_exp(running[0] - running[1]);
    for (int i = lane_index(); i < piece.held * OPS_ROW_BLOCK; i += 32) {
        int of_head = block_of(call, piece, i / OPS_ROW_BLOCK) * OPS_ROW_BLOCK + i % OPS_ROW_BLOCK;
        float all = 1.0f, v = a.sum_norm && of_head == a.value_dim ? scale : 0.0f;
        if (a.row_decay_per_head)
            all = factor_at(a.row_decay, row, piece.head);
        else if (of_head < a.value_dim)
            all = factor_at(a.row_decay, row, (int64_t)piece.head * a.value_dim + of_head);
        if (of_head < a.value_dim)
            v = a.v.data[row * a.v.stride + (int64_t)piece.kv_head * a.value_dim + of_head] * scale;
        decay[i] = all * rescale;
        value[i] = v;
    }
    if (a.delta.u.data != NULL && lane_index() == 0)
        shared[call.at.delta + t] = factor_at(a.delta, row, piece.head);
}

__device__ static void fill_phi(const struct recurrence_call &call, const struct piece &piece,
                                float *shared, bool key, int t, int row)
{
    const struct side side = side_of(call, piece, key, row);
    struct map_terms terms = terms_of(call, side);
    if (key && call.exponential)
        terms.most = shared[call.at.running + t + 1];
    write_phi(call, piece, side, terms, key ? 1.0f : call.a.phi.query_scale,
              shared + call.at.mapped + warp_index() * call.a.phi.features,
              shared + (key ? call.at.k : call.at.q) + t * call.padded);
}

__device__ static void fill_decays(const struct recurrence_call &call, const struct piece &piece,
                                   float *shared, int t, int row)
{
    int m = call.a.phi.features;
    for (int j = lane_index(); j < call.padded; j += 32)
        shared[call.at.f + t * call.padded + place_of(j)] =
            j < call.a.features
                ? factor_at(call.a.feature_decay, row, (int64_t)piece.kv_head * m + j % m)
                : 1.0f;
}

/* What n tokens bring, from number `done` of the span on: a task for a warp each. */
__device__ static void fill_chunk(const struct recurrence_call &call, const struct piece &piece,
                                  float *shared, bool features, int done, int n)
{
    int tasks = features ? 4 * n : 3 * n;
    for (int task = warp_index(); task < tasks; task += blockDim.x / 32) {
        int t = task % n, kind = task / n, row = piece.span.first_row + done + t;
        if (kind < 2)
            fill_phi(call, piece, shared, kind == 1, t, row);
        else if (kind == 2)
            fill_rows(call, piece, shared, t, row);
        else
            fill_decays(call, piece, shared, t, row);
    }
}

/* h of n tokens: the warps' sums together, and the division by c's. */
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
        for (int i = lane_index(); i < piece.owned * OPS_ROW_BLOCK; i += 32) {
            int of_head = piece.first * OPS_ROW_BLOCK + i;
            float sum = 0.0f;
            for (int w = 0; w < call.wide; w++)
                sum += sums[w * call.height + i];
            if (of_head < a.value_dim)
                h[of_head] = a.sum_norm ? sum / divisor : sum;
        }
    }
}

/* ---- S ---- */

/* A thread's 4 features of 32 by 4 rows. */
struct slice {
    float s[4][4];
};

/* Where a thread's part of S begins, and which feature it is at. */
struct owner {
    bool works; /* the other threads only fill */
    float *state;
    int feature;     /* its first; the others of a slice are 8, 16 and 24 on */
    int row, column; /* of the piece's rows: its warp's first, and its own */
    int warp;        /* over the features */
};

__device__ static inline void load4(float out[4], const float *from)
{
    float4 v = *reinterpret_cast<const float4 *>(from);
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}

__device__ static struct owner owner_of(const struct recurrence_call &call,
                                        const struct piece &piece)
{
    int lane = lane_index(), block = warp_index() / call.wide;
    struct owner owner = {};
    owner.works = block < piece.held;
    if (!owner.works)
        return owner;
    owner.warp = warp_index() % call.wide;
    owner.row = block * OPS_ROW_BLOCK;
    owner.column = owner.row + lane % 4 * 4;
    owner.feature = owner.warp * call.groups * WARP_FEATURES + lane / 4;
    size_t block_floats = (size_t)call.a.features * OPS_ROW_BLOCK;
    size_t head = blockIdx.x * gridDim.y + blockIdx.y;
    if (block >= piece.owned)
        owner.state = call.normalizers + (head * (call.pieces - 1) + blockIdx.z) * block_floats;
    else
        owner.state = reinterpret_cast<float *>(piece.span.slot + call.a.state_offset) +
                      ((size_t)piece.head * call.blocks + piece.first + block) * block_floats;
    owner.state += lane % 4 * 4;
    return owner;
}

__device__ static inline void load_slice(struct slice &slice, const struct owner &owner,
                                         int features, int group)
{
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int j = owner.feature + group * WARP_FEATURES + c * 8;
        for (int r = 0; r < 4; r++)
            slice.s[c][r] = 0.0f;
        if (j < features)
            load4(slice.s[c], owner.state + (int64_t)j * OPS_ROW_BLOCK);
    }
}

__device__ static inline void store_slice(const struct slice &slice, const struct owner &owner,
                                          int features, int group)
{
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int j = owner.feature + group * WARP_FEATURES + c * 8;
        const float *s = slice.s[c];
        if (j < features)
            *reinterpret_cast<float4 *>(owner.state + (int64_t)j * OPS_ROW_BLOCK) =
                make_float4(s[0], s[1], s[2], s[3]);
    }
}

template <bool DECAYS, bool FEATURES>
__device__ static inline void decay_slice(struct slice &slice, const float decay[4], const float *f)
{
    float of_feature[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (FEATURES)
        load4(of_feature, f);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (FEATURES)
                slice.s[c][r] *= of_feature[c];
            if (DECAYS)
                slice.s[c][r] *= decay[r];
        }
}

/* sums += s.phi */
__device__ static inline void weigh_slice(const struct slice &slice, const float *phi,
                                          float sums[4])
{
    float of_feature[4];
    load4(of_feature, phi);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            sums[r] = fmaf(slice.s[c][r], of_feature[c], sums[r]);
}

/* s += value phi_k */
__device__ static inline void add_to_slice(struct slice &slice, const float *k,
                                           const float value[4])
{
    float of_feature[4];
    load4(of_feature, k);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            slice.s[c][r] = fmaf(value[r], of_feature[c], slice.s[c][r]);
}

/* Sums of 4 rows over the 8 lanes that share them, to out [16]. At each step a lane gives away the
 * half of its rows that its partner keeps. */
__device__ static inline void write_sums(const float sums[4], float *out)
{
    int lane = lane_index();
    bool upper = (lane & 16) != 0, second = (lane & 8) != 0;
    float first = upper ? sums[2] : sums[0], last = upper ? sums[3] : sums[1];
    first += __shfl_xor_sync(FULL_WARP, upper ? sums[0] : sums[2], 16);
    last += __shfl_xor_sync(FULL_WARP, upper ? sums[1] : sums[3], 16);
    float sum = second ? last : first;
    sum += __shfl_xor_sync(FULL_WARP, second ? first : last, 8);
    sum += __shfl_xor_sync(FULL_WARP, sum, 4);
    if ((lane & 4) == 0)
        out[lane % 4 * 4 + (upper ? 2 : 0) + (second ? 1 : 0)] = sum;
}

/* GROUPS slices of a thread, in registers; 0: as many as there are, in memory. */
template <int GROUPS> struct slices {
    struct slice of[GROUPS == 0 ? 1 : GROUPS];

    __device__ int count(const struct recurrence_call &call) const
    {
        return GROUPS == 0 ? call.groups : GROUPS;
    }
    __device__ struct slice &open(const struct recurrence_call &call, const struct owner &owner,
                                  int group)
    {
        if (GROUPS != 0)
            return of[group];
        load_slice(of[0], owner, call.a.features, group);
        return of[0];
    }
    __device__ void close(const struct recurrence_call &call, const struct owner &owner, int group)
    {
        if (GROUPS == 0)
            store_slice(of[0], owner, call.a.features, group);
    }
};

/* Token t of the chunk changes S and reads it. */
template <int GROUPS, bool DECAYS, bool FEATURES>
__device__ static inline void recur(const struct recurrence_call &call, const struct owner &owner,
                                    struct slices<GROUPS> &slices, float *shared, int t)
{
    int own = t * call.padded + owner.warp * call.groups * WARP_FEATURES + lane_index() / 4 * 4;
    float decay[4], value[4], sums[4] = {};
    load4(decay, shared + call.at.decay + t * call.height + owner.column);
    load4(value, shared + call.at.value + t * call.height + owner.column);
#pragma unroll
    for (int n = 0; n < slices.count(call); n++) {
        int at = own + n * WARP_FEATURES;
        struct slice &slice = slices.open(call, owner, n);
        decay_slice<DECAYS, FEATURES>(slice, decay, shared + call.at.f + at);
        add_to_slice(slice, shared + call.at.k + at, value);
        weigh_slice(slice, shared + call.at.q + at, sums);
        slices.close(call, owner, n);
    }
    write_sums(sums,
               shared + call.at.sums + (t * call.wide + owner.warp) * call.height + owner.row);
}

/* The same by the delta rule, which needs s.phi_k of all features before it changes one. All
 * threads of the block come here together. */
template <int GROUPS>
__device__ static inline void recur_delta(const struct recurrence_call &call,
                                          const struct owner &owner, struct slices<GROUPS> &slices,
                                          float *shared, int t)
{
    int own = t * call.padded + owner.warp * call.groups * WARP_FEATURES + lane_index() / 4 * 4;
    float *dots = shared + call.at.dots + t % 2 * call.wide * call.height;
    float decay[4], value[4], sums[4] = {};
    if (owner.works) {
        load4(decay, shared + call.at.decay + t * call.height + owner.column);
        load4(value, shared + call.at.value + t * call.height + owner.column);
#pragma unroll
        for (int n = 0; n < slices.count(call); n++) {
            struct slice &slice = slices.open(call, owner, n);
            decay_slice<true, true>(slice, decay, shared + call.at.f + own + n * WARP_FEATURES);
            weigh_slice(slice, shared + call.at.k + own + n * WARP_FEATURES, sums);
            slices.close(call, owner, n);
        }
        write_sums(sums, dots + owner.warp * call.height + owner.row);
    }
    __syncthreads();
    if (!owner.works)
        return;
    for (int r = 0; r < 4; r++) {
        float dot = 0.0f;
        for (int w = 0; w < call.wide; w++)
            dot += dots[w * call.height + owner.column + r];
        value[r] = fmaf(-shared[call.at.delta + t], dot, value[r]);
        sums[r] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < slices.count(call); n++) {
        struct slice &slice = slices.open(call, owner, n);
        add_to_slice(slice, shared + call.at.k + own + n * WARP_FEATURES, value);
        weigh_slice(slice, shared + call.at.q + own + n * WARP_FEATURES, sums);
        slices.close(call, owner, n);
    }
    write_sums(sums,
               shared + call.at.sums + (t * call.wide + owner.warp) * call.height + owner.row);
}

template <int GROUPS, bool DECAYS, bool FEATURES, bool DELTA>
__global__ static void __launch_bounds__(MOST_WARPS * 32, 1)
    recurrence_kernel(const struct recurrence_call call, const struct device_batch batch)
{
    SHARED_MEMORY(float, shared);
    const struct piece piece = piece_of(call, batch);
    if (piece.span.slot == NULL)
        return;
    const struct owner owner = owner_of(call, piece);
    float *kept = reinterpret_cast<float *>(piece.span.slot + call.a.phi.maxima_offset);
    float maximum = 0.0f;
    if (call.exponential)
        maximum = call.maxima == NULL
                      ? kept[piece.kv_head]
                      : call.maxima[blockIdx.x * call.a.num_kv_heads + piece.kv_head];
    struct slices<GROUPS> slices;
    for (int n = 0; n < GROUPS && owner.works; n++)
        load_slice(slices.of[n], owner, call.a.features, n);
    for (int done = 0; done < piece.span.num_rows; done += call.tokens) {
        int n = min(call.tokens, piece.span.num_rows - done);
        if (call.exponential)
            maximum = fill_maxima(call, piece, shared, done, n, maximum);
        fill_chunk(call, piece, shared, FEATURES, done, n);
        __syncthreads();
        for (int t = 0; t < n; t++)
            if (DELTA)
                recur_delta<GROUPS>(call, owner, slices, shared, t);
            else if (owner.works)
                recur<GROUPS, DECAYS, FEATURES>(call, owner, slices, shared, t);
        __syncthreads();
        write_chunk(call, piece, shared, done, n);
    }
    for (int n = 0; n < GROUPS && owner.works; n++)
        store_slice(slices.of[n], owner, call.a.features, n);
    int sharing = call.a.num_heads / call.a.num_kv_heads;
    if (call.exponential && piece.first == 0 && piece.head % sharing == 0 && threadIdx.x == 0)
        kept[piece.kv_head] = maximum;
}

/* ---- the launch ---- */

/* What several pieces read and one of them writes, as it was before: M of every kv head, and c's
 * block for each piece that does not own it. */
__global__ static void copy_kernel(const struct recurrence_call call,
                                   const struct device_batch batch, float *maxima)
{
    const struct device_span span = batch.spans[blockIdx.x];
    if (span.slot == NULL)
        return;
    int head = (int)blockIdx.y;
    const float *kept = reinterpret_cast<const float *>(span.slot + call.a.phi.maxima_offset);
    if (call.exponential && head < call.a.num_kv_heads && threadIdx.x == 0)
        maxima[blockIdx.x * call.a.num_kv_heads + head] = kept[head];
    if (call.normalizers == NULL)
        return;
    size_t block_floats = (size_t)call.a.features * OPS_ROW_BLOCK;
    size_t copies = (size_t)call.pieces - 1;
    const float *state = reinterpret_cast<const float *>(span.slot + call.a.state_offset) +
                         (((size_t)head + 1) * call.blocks - 1) * block_floats;
    float *out = call.normalizers + ((size_t)blockIdx.x * gridDim.y + head) * copies * block_floats;
    for (size_t copy = 0; copy < copies; copy++)
        for (size_t i = threadIdx.x; i < block_floats; i += blockDim.x)
            out[copy * block_floats + i] = state[i];
}

static int ceiling(int64_t count, int64_t size)
{
    return (int)((count + size - 1) / size);
}

/* Blocks of a head that a piece owns: as many pieces as fill the device twice, but one where a
 * second would cost more than it brings. No bit depends on it. */
static int owned_blocks(const struct backend *backend, const struct recurrence_call *call)
{
    const struct device_batch *batch = &backend->batch;
    int most = MOST_WARPS / call->wide;
    int64_t heads = (int64_t)batch->num_spans * call->a.num_heads;
    int wanted = ceiling(2 * backend->multiprocessors, heads == 0 ? 1 : heads);
    if (call->a.sum_norm || (call->exponential && batch->max_span_rows < TOKENS))
        wanted = 1;
    int owned = wanted > call->blocks ? 1 : ceiling(call->blocks, wanted);
    if (owned > most)
        owned = most;
    if (call->a.sum_norm && owned < call->blocks && owned == most)
        owned--; /* c's has to be held too */
    return owned;
}

/* The arrays of a chunk of tokens. */
static struct chunk_layout layout_of(const struct recurrence_call *call, bool features, int tokens,
                                     int warps)
{
    struct chunk_layout at = {};
    int next = 0;
    auto place = [&next](int64_t floats) {
        int begin = next;
        next += ceiling(floats, 4) * 4;
        return begin;
    };
    int mappers = warps < 2 * tokens ? warps : 2 * tokens;
    at.q = place((int64_t)tokens * call->padded);
    at.k = place((int64_t)tokens * call->padded);
    at.f = place(features ? (int64_t)tokens * call->padded : 0);
    at.decay = place((int64_t)tokens * call->height);
    at.value = place((int64_t)tokens * call->height);
    at.sums = place((int64_t)tokens * call->wide * call->height);
    at.dots = place(call->a.delta.u.data != NULL ? 2 * call->wide * call->height : 0);
    at.delta = place(tokens);
    at.most = place(tokens);
    at.running = place(tokens + 1);
    at.mapped = place(call->a.phi.after != NULL ? (int64_t)mappers * call->a.phi.features : 0);
    at.total = next;
    return at;
}

/* The sizes that the features decide, and so the order of every sum. */
static struct recurrence_call call_of(const struct backend *backend, const struct ops_recurrence *a)
{
    struct recurrence_call call = {};
    call.a = *a;
    if (a->phi.before != NULL)
        call.before = *a->phi.before;
    if (a->phi.after != NULL)
        call.after = *a->phi.after;
    call.exponential = formula_is_exponential(a->phi.map);
    call.wide = ceiling(a->features, WARP_FEATURES);
    if (call.wide > WIDE_WARPS)
        call.wide = WIDE_WARPS;
    call.groups = ceiling(a->features, call.wide * WARP_FEATURES);
    call.padded = call.wide * call.groups * WARP_FEATURES;
    call.blocks = ceiling(a->value_dim + (a->sum_norm ? 1 : 0), OPS_ROW_BLOCK);
    call.per_piece = owned_blocks(backend, &call);
    call.pieces = ceiling(call.blocks, call.per_piece);
    int held = call.per_piece + (a->sum_norm && call.pieces > 1 ? 1 : 0);
    call.height = held * OPS_ROW_BLOCK;
    return call;
}

/* Copies what more than one block of threads reads, if there is such a thing. */
static void copy_shared(struct backend *backend, struct recurrence_call *call)
{
    const struct ops_recurrence *a = &call->a;
    size_t spans = (size_t)backend->batch.num_spans, copies = (size_t)call->pieces - 1;
    bool maxima = call->exponential && (copies > 0 || a->num_kv_heads < a->num_heads);
    size_t kept = maxima ? (spans * (size_t)a->num_kv_heads + 3) / 4 * 4 : 0;
    size_t blocks = a->sum_norm ? spans * (size_t)a->num_heads * copies : 0;
    size_t floats = kept + blocks * (size_t)a->features * OPS_ROW_BLOCK;
    if (floats == 0)
        return;
    float *scratch = static_cast<float *>(device_scratch(backend, floats * sizeof(float)));
    if (scratch == NULL)
        return;
    call->maxima = maxima ? scratch : NULL;
    call->normalizers = blocks > 0 ? scratch + kept : NULL;
    launch(backend, copy_kernel, dim3((unsigned)spans, (unsigned)a->num_heads), dim3(256), 0, *call,
           backend->batch, scratch);
}

template <int GROUPS, bool DECAYS, bool FEATURES, bool DELTA>
static void launch_recurrence(struct backend *backend, struct recurrence_call *call)
{
    int most = backend->batch.max_span_rows < TOKENS ? backend->batch.max_span_rows : TOKENS;
    int working = call->wide * call->height / OPS_ROW_BLOCK, filling = 4 * most < 8 ? 4 * most : 8;
    int warps = working > filling ? working : filling;
    for (call->tokens = most < 1 ? 1 : most;; call->tokens = (call->tokens + 1) / 2) {
        call->at = layout_of(call, FEATURES, call->tokens, warps);
        if (call->at.total <= CHUNK_FLOATS || call->tokens == 1)
            break;
    }
    copy_shared(backend, call);
    launch(backend, recurrence_kernel<GROUPS, DECAYS, FEATURES, DELTA>,
           dim3((unsigned)backend->batch.num_spans, (unsigned)call->a.num_heads,
                (unsigned)call->pieces),
           dim3((unsigned)warps * 32), (size_t)call->at.total * sizeof(float), *call,
           backend->batch);
}

/* Where S is large, few models are worth a kernel of their own: what is absent is 1. */
template <int GROUPS>
static void launch_large(struct backend *backend, struct recurrence_call *call)
{
    if (call->a.delta.u.data != NULL)
        launch_recurrence<GROUPS, true, true, true>(backend, call);
    else
        launch_recurrence<GROUPS, true, true, false>(backend, call);
}

void cuda_recurrence(struct backend *backend, const struct ops_recurrence *a)
{
    struct recurrence_call call = call_of(backend, a);
    bool decays = a->row_decay.u.data != NULL || call.exponential;
    bool features = a->feature_decay.u.data != NULL;
    if (a->features > LARGEST)
        launch_large<0>(backend, &call);
    else if (call.groups > 1)
        launch_large<2>(backend, &call);
    else if (a->delta.u.data != NULL)
        launch_recurrence<1, true, true, true>(backend, &call);
    else if (decays && features)
        launch_recurrence<1, true, true, false>(backend, &call);
    else if (decays)
        launch_recurrence<1, true, false, false>(backend, &call);
    else if (features)
        launch_recurrence<1, false, true, false>(backend, &call);
    else
        launch_recurrence<1, false, false, false>(backend, &call);
}
