/* SPDX-License-Identifier: Apache-2.0 */
/* The row recurrence (engine/ops/ops.h) with everything before it: positions, feature map and
 * gates.
 *
 * A block of threads has some of the 16-row blocks of S, of one head of one text, in registers from
 * the span's first token to its last. It takes a chunk of tokens at a time. Its warps first compute
 * phi and the gates into shared memory (a warp per token and side), then walk through the tokens. A
 * thread has 4 rows and 4 features of every 32 (of its warp's), so it loads 16 bytes of S at a time
 * and a warp 512 adjacent bytes. If a head has more features than warps hold (LARGEST), S stays in
 * memory.
 *
 * s.phi is a sum per thread over its features in order, then a tree over the 8 lanes of a row, then
 * the warps in order. The number of features alone decides this order. Chunks, pieces of a head and
 * other texts change no bit.
 *
 * Cost per head and token: 3 multiply-adds for each of dv * m2 elements of S (4 with feature
 * decays) and, per piece of a head, d + m formulas for q and k. A call moves 2 * 4 * dv * m2 bytes
 * of S, and per token 4 * (2 d + 3 dv) bytes of projections (refined gate). ReGLA with d = dv = 64,
 * one token: 33.8 KB and 24,600 operations, so memory bounds it.
 *
 * nvcc 13.0 for sm_90: 86 to 124 registers and no spills, so two blocks of 8 warps share a
 * multiprocessor (25 % of its threads). No speed has been measured: there was no device. */
#include "engine/cuda/recurrence_chunk.cuh"

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

/* Adds 4 rows over the 8 lanes that share them, into out [16]. At each step a lane gives away the
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

/* The same with the delta rule, which needs s.phi_k over all features before it changes one. All
 * threads of the block call it together. */
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
    __shared__ struct piece piece; /* rather than in everybody's registers */
    grid_wait();
    if (threadIdx.x == 0)
        piece = piece_of(call, batch);
    __syncthreads();
    if (piece.span.slot == NULL)
        return;
    const struct owner owner = owner_of(call, piece);
    float *kept = reinterpret_cast<float *>(piece.span.slot + call.a.phi.maxima_offset);
    float maximum = 0.0f;
    if (call.exponential)
        maximum = call.maxima == NULL
                      ? kept[piece.k_head]
                      : call.maxima[blockIdx.x * ops_recurrence_key_heads(&call.a) + piece.k_head];
    struct slices<GROUPS> slices;
    if (owner.works)
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
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
    if (owner.works)
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            store_slice(slices.of[n], owner, call.a.features, n);
    int sharing = call.a.num_heads / ops_recurrence_key_heads(&call.a);
    if (call.exponential && piece.first == 0 && piece.head % sharing == 0 && threadIdx.x == 0)
        kept[piece.k_head] = maximum;
}

/* ---- the launch ---- */

/* Copies what several pieces read and one of them writes, as it was before: M of every head of k,
 * and c's block for each piece that does not own it. */
__global__ static void copy_kernel(const struct recurrence_call call,
                                   const struct device_batch batch, float *maxima)
{
    grid_wait();
    const struct device_span span = batch.spans[blockIdx.x];
    if (span.slot == NULL)
        return;
    int head = (int)blockIdx.y, key_heads = ops_recurrence_key_heads(&call.a);
    const float *kept = reinterpret_cast<const float *>(span.slot + call.a.phi.maxima_offset);
    if (call.exponential && head < key_heads && threadIdx.x == 0)
        maxima[blockIdx.x * key_heads + head] = kept[head];
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

int recurrence_check(const struct ops_limits *limits, struct error *err)
{
    if (limits->max_features <= MOST_FEATURES)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "features of a linear mixer's head: expected at most %d on a CUDA device, got "
                     "%d",
                     MOST_FEATURES, limits->max_features);
}

static int ceiling(int64_t count, int64_t size)
{
    return (int)((count + size - 1) / size);
}

/* The number of a head's blocks that a piece owns. As many pieces are made as fill the device
 * twice, but only one if a second would cost more than it gains. No bit depends on this choice. */
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

/* The sizes that depend on the features; they decide the order of every sum. */
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

/* Floats of what more than one block of threads reads of a span: M, and copies of c. */
struct shared_state {
    size_t maxima, normalizers;
};

static struct shared_state shared_state_of(const struct recurrence_call *call)
{
    const struct ops_recurrence *a = &call->a;
    size_t copies = (size_t)call->pieces - 1, block = (size_t)a->features * OPS_ROW_BLOCK;
    int key_heads = ops_recurrence_key_heads(a);
    bool maxima = call->exponential && (copies > 0 || key_heads < a->num_heads);
    return {maxima ? (size_t)key_heads : 0,
            a->sum_norm ? (size_t)a->num_heads * copies * block : 0};
}

/* Enough for spans whose blocks of threads are one for each multiprocessor: those that need copies
 * have two or more, all of whose copies are less than S. */
size_t recurrence_scratch(const struct backend *backend)
{
    size_t spans = (size_t)backend->multiprocessors / 2 + 1;
    return spans * backend->limits.max_shared_state;
}

/* Launches as many spans at once as there is memory for copies of what they share. */
template <typename... P>
static void launch_spans(struct backend *backend, struct recurrence_call *call,
                         void (*kernel)(P...), int warps)
{
    const struct shared_state shared = shared_state_of(call);
    size_t bytes = (shared.maxima + shared.normalizers) * sizeof(float);
    size_t most = bytes > 0 ? backend->scratch_bytes / bytes : SIZE_MAX;
    struct device_batch batch = backend->batch;
    int left = batch.num_spans;
    for (; left > 0; left -= batch.num_spans, batch.spans += batch.num_spans) {
        batch.num_spans = (size_t)left < most ? left : most > 0 ? (int)most : 1;
        unsigned spans = (unsigned)batch.num_spans, heads = (unsigned)call->a.num_heads;
        if (bytes > 0) {
            float *scratch = (float *)device_scratch(backend, spans * bytes);
            float *behind = scratch + spans * shared.normalizers;
            call->normalizers = shared.normalizers > 0 ? scratch : NULL;
            call->maxima = shared.maxima > 0 ? behind : NULL;
            launch(backend, copy_kernel, dim3(spans, heads), dim3(256), 0, *call, batch, behind);
        }
        launch(backend, kernel, dim3(spans, heads, (unsigned)call->pieces),
               dim3((unsigned)warps * 32), (size_t)call->at.total * sizeof(float), *call, batch);
    }
}

template <int GROUPS, bool DECAYS, bool FEATURES, bool DELTA>
static void launch_recurrence(struct backend *backend, struct recurrence_call *call)
{
    int most = backend->batch.max_span_rows < TOKENS ? backend->batch.max_span_rows : TOKENS;
    int working = call->wide * call->height / OPS_ROW_BLOCK;
    int filling = most == TOKENS ? MOST_WARPS : 4 * most < 8 ? 4 * most : 8;
    int warps = working > filling ? working : filling;
    for (call->tokens = most < 1 ? 1 : most;; call->tokens = (call->tokens + 1) / 2) {
        call->at = layout_of(call, FEATURES, call->tokens, warps);
        if (call->at.total <= CHUNK_FLOATS || call->tokens == 1)
            break;
    }
    launch_spans(backend, call, recurrence_kernel<GROUPS, DECAYS, FEATURES, DELTA>, warps);
}

/* Where S is large, few models are worth a kernel of their own; absent factors are 1. */
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
