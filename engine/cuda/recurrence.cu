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
 * Decode steps of many texts are bound by how many bytes of S are on their way. So there a kernel
 * computes phi and the gates before (recurrence_features.cuh): what is left needs fewer registers.
 * Where the device has bulk copies, S then passes through buffers in shared memory
 * (recurrence_bulk.cuh); else through registers, as above. Not so steps in which a text has several
 * tokens, heads of more than 256 features, and those whose row of c several pieces would hold.
 *
 * nvcc 13.0 for sm_90, no spills. A multiprocessor with 64 K registers and 228 KiB of shared memory
 * holds for ReGLA (12 heads, d = dv = 64), one token of each text:
 *   recurrence_kernel that computes all     96 registers   2 blocks of 8 warps, 32 KiB of S
 *   recurrence_kernel, inputs given         64             4                    64 KiB
 *   bulk_kernel                             64             4                   192 KiB in buffers
 *   features_kernel                         64             4
 * Others that compute all take 87 to 123. On an H200 this is 9.5 us of one text of it, and the
 * tokens of a prompt, one after the other, are two thirds of its time (loadtest/FIGURES.md). */
#include "engine/cuda/recurrence_bulk.cuh"
#include "engine/cuda/recurrence_features.cuh"
#include "engine/cuda/switches.h"

/* The block's piece of S in memory, and the block of c's that it holds beside its own. */
__device__ static struct owner owner_here(const struct recurrence_call &call,
                                          const struct piece &piece)
{
    struct owner owner = owner_of(call, piece, state_of(call, piece));
    size_t head = blockIdx.x * gridDim.y + blockIdx.y;
    if (owner.works && warp_index() / call.wide >= piece.owned)
        owner.state = call.normalizers +
                      (head * (call.pieces - 1) + blockIdx.z) * block_floats(call) +
                      lane_index() % 4 * 4;
    return owner;
}

/* Copies the inputs that were computed before. */
__device__ static void read_inputs(const struct recurrence_call &call, float *shared)
{
    size_t item = (blockIdx.x * gridDim.y + blockIdx.y) * gridDim.z + blockIdx.z;
    const float *from = call.given + item * call.at.inputs;
    for (int i = (int)threadIdx.x * 4; i < call.at.inputs; i += (int)blockDim.x * 4)
        *reinterpret_cast<float4 *>(shared + i) = *reinterpret_cast<const float4 *>(from + i);
}

/* GIVEN: spans of one row whose inputs were computed before. */
template <int GROUPS, bool DECAYS, bool FEATURES, enum erasing ERASES, bool GIVEN>
__global__ static void __launch_bounds__(MOST_WARPS * 32, GIVEN ? 2 : 1)
    recurrence_kernel(const struct recurrence_call call, const struct device_batch batch)
{
    SHARED_MEMORY(float, shared);
    __shared__ struct piece piece; /* rather than in everybody's registers */
    grid_wait();
    if (threadIdx.x == 0)
        piece = piece_of(call, batch, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z);
    __syncthreads();
    if (piece.span.slot == NULL)
        return;
    const struct owner owner = owner_here(call, piece);
    const bool raises = !GIVEN && call.exponential;
    float *kept = maxima_of(call, piece.span);
    float maximum = 0.0f;
    if (raises)
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
        if (raises)
            maximum = fill_maxima(call, piece, shared, done, n, maximum);
        if (GIVEN)
            read_inputs(call, shared);
        else
            fill_chunk(call, piece, shared, FEATURES, done, n);
        __syncthreads();
        for (int t = 0; t < n; t++)
            if (ERASES != ERASES_NOTHING)
                recur_erasing<GROUPS, GIVEN, ERASES == ERASES_BY_ANOTHER>(call, owner, slices,
                                                                          shared, t);
            else if (owner.works)
                recur<GROUPS, DECAYS, FEATURES, GIVEN>(call, owner, slices, shared, t);
        __syncthreads();
        write_chunk(call, piece, shared, done, n);
    }
    if (owner.works)
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            store_slice(slices.of[n], owner, call.a.features, n);
    int sharing = call.a.num_heads / ops_recurrence_key_heads(&call.a);
    if (raises && piece.first == 0 && piece.head % sharing == 0 && threadIdx.x == 0)
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
    const float *kept = maxima_of(call, span);
    if (call.exponential && head < key_heads && threadIdx.x == 0)
        maxima[blockIdx.x * key_heads + head] = kept[head];
    if (call.normalizers == NULL)
        return;
    size_t floats = block_floats(call), copies = (size_t)call.pieces - 1;
    const float *state = reinterpret_cast<const float *>(span.slot + call.a.state_offset) +
                         (((size_t)head + 1) * call.blocks - 1) * floats;
    float *out = call.normalizers + ((size_t)blockIdx.x * gridDim.y + head) * copies * floats;
    for (size_t copy = 0; copy < copies; copy++)
        for (size_t i = threadIdx.x; i < floats; i += blockDim.x)
            out[copy * floats + i] = state[i];
}

/* Of inputs that are computed before the recurrence. */
enum {
    HEADS_AT_ONCE = 2,    /* of each multiprocessor. No more heads of texts than that run at once in
                             recurrence_kernel: then another kernel before it would only cost time */
    MOST_GIVEN_ROWS = 256 /* for which there is memory: as many as a graph has */
};

int recurrence_check(const struct ops_limits *limits, struct error *err)
{
    const bool erased = limits->max_erased_features > MOST_ERASED_FEATURES;
    if (limits->max_features <= MOST_FEATURES && !erased)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "features of a linear mixer's head: expected at most %d%s on a CUDA device, "
                     "got %d",
                     erased ? MOST_ERASED_FEATURES : MOST_FEATURES,
                     erased ? " with the gate rwkv7" : "",
                     erased ? limits->max_erased_features : limits->max_features);
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
    const bool apart = call->a.erase.data != NULL;
    at.erase = place(apart ? (int64_t)tokens * call->padded : 0);
    at.write = place(apart ? (int64_t)tokens * call->padded : 0);
    at.decay = place((int64_t)tokens * call->height);
    at.value = place((int64_t)tokens * call->height);
    at.delta = place(tokens);
    at.rescale = place(1);
    at.inputs = next;
    at.sums = place((int64_t)tokens * call->wide * call->height);
    at.dots = place(apart || call->a.delta.u.data != NULL ? 2 * call->wide * call->height : 0);
    at.most = place(tokens);
    at.running = place(tokens + 1);
    at.mapped = place(call->a.phi.after != NULL ? (int64_t)mappers * call->a.phi.features : 0);
    at.total = next;
    return at;
}

/* Cuts heads into pieces of so many blocks. */
static void cut(struct recurrence_call *call, int per_piece)
{
    call->per_piece = per_piece;
    call->pieces = ceiling(call->blocks, per_piece);
    int held = per_piece + (call->a.sum_norm && call->pieces > 1 ? 1 : 0);
    call->height = held * OPS_ROW_BLOCK;
}

/* The sizes that depend on the features; they decide the order of every sum. */
static struct recurrence_call call_of(const struct backend *backend, const struct ops_recurrence *a)
{
    struct recurrence_call call = {};
    call.a = *a;
    call.half = a->chunk_size > 0 ? a->features : 0;
    call.a.features = ops_state_features(a->features, a->chunk_size);
    if (a->phi.before != NULL)
        call.before = *a->phi.before;
    if (a->phi.after != NULL)
        call.after = *a->phi.after;
    call.exponential = formula_is_exponential(a->phi.map);
    call.wide = ceiling(call.a.features, WARP_FEATURES);
    if (call.wide > WIDE_WARPS)
        call.wide = WIDE_WARPS;
    call.groups = ceiling(call.a.features, call.wide * WARP_FEATURES);
    call.padded = call.wide * call.groups * WARP_FEATURES;
    call.blocks = ceiling(a->value_dim + (a->sum_norm ? 1 : 0), OPS_ROW_BLOCK);
    cut(&call, owned_blocks(backend, &call));
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
 * have two or more, all of whose copies are less than S. And enough for what is computed before the
 * recurrence, of heads in two pieces. */
size_t recurrence_scratch(const struct backend *backend)
{
    const struct ops_limits *limits = &backend->limits;
    size_t spans = (size_t)backend->multiprocessors / 2 + 1;
    size_t rows = limits->max_rows < MOST_GIVEN_ROWS ? limits->max_rows : MOST_GIVEN_ROWS;
    size_t features = limits->max_features < WIDE_WARPS * WARP_FEATURES
                          ? limits->max_features
                          : WIDE_WARPS * WARP_FEATURES;
    size_t floats = 2 * (3 * (features + WARP_FEATURES) + 8) +
                    2 * ((size_t)limits->max_value_dim + 2 * OPS_ROW_BLOCK);
    size_t copies = spans * limits->max_shared_state;
    size_t given = rows * (size_t)limits->max_linear_heads * floats * sizeof(float);
    return copies > given ? copies : given;
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

/* ---- the launch where inputs are computed before ---- */

/* Whether heads in buffers of shared memory can be; if so, cuts them. c's rows would have to be in
 * all pieces: then there is one. */
static bool cut_for_buffers(const struct backend *backend, struct recurrence_call *call)
{
    if (!backend->bulk_copies || !switch_on(backend, CUDA_SWITCH_BULK))
        return false;
    if (!call->a.sum_norm) {
        int most = BUFFER_WARPS / call->wide, pieces = ceiling(call->blocks, most);
        cut(call, ceiling(call->blocks, pieces));
    }
    return true;
}

/* Lays out what is computed before, if spans of one row each are enough for it; `call` is as it was
 * otherwise. buffers: for bulk_kernel. */
static bool plan_given(const struct backend *backend, struct recurrence_call *call, bool features,
                       bool *buffers)
{
    const struct device_batch *batch = &backend->batch;
    int64_t heads = (int64_t)batch->num_spans * call->a.num_heads;
    if (!switch_on(backend, CUDA_SWITCH_FEATURES) || batch->max_span_rows != 1 ||
        batch->num_rows != batch->num_spans || (call->a.sum_norm && call->pieces > 1) ||
        heads <= (int64_t)HEADS_AT_ONCE * backend->multiprocessors ||
        features_bytes(*call) + OWN_ARRAYS > backend->shared_bytes)
        return false;
    struct recurrence_call given = *call;
    *buffers = cut_for_buffers(backend, &given);
    given.tokens = 1;
    given.at = layout_of(&given, features, 1, 0);
    if (*buffers &&
        BUFFERS * buffer_floats(given) * sizeof(float) + OWN_ARRAYS > backend->shared_bytes) {
        *buffers = false;
        cut(&given, call->per_piece);
        given.at = layout_of(&given, features, 1, 0);
    }
    size_t bytes = (size_t)heads * given.pieces * given.at.inputs * sizeof(float);
    if (bytes > backend->scratch_bytes)
        return false;
    *call = given;
    return true;
}

/* Blocks of threads of bulk_kernel that the device holds: registers are for 2 * MOST_WARPS warps of
 * each multiprocessor, and every block takes another KiB of shared memory, one more than a single
 * one may have. */
static int blocks_at_once(const struct backend *backend, unsigned threads, size_t bytes)
{
    size_t each = (backend->shared_bytes + 1024) / (bytes + OWN_ARRAYS + 1024);
    size_t most = 2 * MOST_WARPS * 32 / threads;
    return backend->multiprocessors * (int)(each < 1 ? 1 : each < most ? each : most);
}

template <bool DECAYS, bool FEATURES, enum erasing ERASES>
static void launch_given(struct backend *backend, struct recurrence_call *call, bool buffers)
{
    const struct device_batch &batch = backend->batch;
    int items = batch.num_spans * call->a.num_heads * call->pieces;
    int tasks = batch.num_spans * feature_tasks_count(feature_tasks_of(*call));
    unsigned threads = (unsigned)(call->wide * call->height / OPS_ROW_BLOCK) * 32;
    call->given = (float *)device_scratch(backend, (size_t)items * call->at.inputs * sizeof(float));
    launch(backend, features_kernel, dim3((unsigned)ceiling(tasks, FEATURE_WARPS)),
           dim3(FEATURE_WARPS * 32), features_bytes(*call), *call, batch);
    if (!buffers) {
        launch(backend, recurrence_kernel<1, DECAYS, FEATURES, ERASES, true>,
               dim3((unsigned)batch.num_spans, (unsigned)call->a.num_heads, (unsigned)call->pieces),
               dim3(threads), (size_t)call->at.total * sizeof(float), *call, batch);
        return;
    }
    size_t bytes = BUFFERS * buffer_floats(*call) * sizeof(float);
    int resident = blocks_at_once(backend, threads, bytes);
    launch(backend, bulk_kernel<DECAYS, FEATURES, ERASES>,
           dim3((unsigned)(items < resident ? items : resident)), dim3(threads), bytes, *call,
           batch);
}

/* ---- the operation ---- */

template <int GROUPS, bool DECAYS, bool FEATURES, enum erasing ERASES>
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
    launch_spans(backend, call, recurrence_kernel<GROUPS, DECAYS, FEATURES, ERASES, false>, warps);
}

/* Of heads whose S is in registers, in one group. */
template <bool DECAYS, bool FEATURES, enum erasing ERASES>
static void launch_small(struct backend *backend, struct recurrence_call *call)
{
    bool buffers;
    if (plan_given(backend, call, FEATURES, &buffers))
        launch_given<DECAYS, FEATURES, ERASES>(backend, call, buffers);
    else
        launch_recurrence<1, DECAYS, FEATURES, ERASES>(backend, call);
}

/* Where S is large, few models are worth a kernel of their own; absent factors are 1. */
template <int GROUPS>
static void launch_large(struct backend *backend, struct recurrence_call *call)
{
    if (call->a.erase.data != NULL)
        launch_recurrence<GROUPS, true, true, ERASES_BY_ANOTHER>(backend, call);
    else if (call->a.delta.u.data != NULL)
        launch_recurrence<GROUPS, true, true, ERASES_BY_KEY>(backend, call);
    else
        launch_recurrence<GROUPS, true, true, ERASES_NOTHING>(backend, call);
}

/* ---- chunks ---- */

/* Where a span's rows in the launch's chunk begin with its first: the chunk before is finished. */
__global__ static void finish_kernel(const struct recurrence_call call,
                                     const struct device_batch batch)
{
    grid_wait();
    const struct device_span span = in_chunk(call, batch.spans[blockIdx.x]);
    if (span.slot == NULL || span.position % call.a.chunk_size != 0)
        return;
    size_t floats = block_floats(call), half = floats / 2;
    float *state = reinterpret_cast<float *>(span.slot + call.a.state_offset) +
                   (size_t)blockIdx.y * call.blocks * floats;
    for (size_t i = threadIdx.x; i < call.blocks * half; i += blockDim.x) {
        float *finished = state + i / half * floats + i % half;
        *finished += finished[half];
        finished[half] = 0.0f;
    }
}

static void run_call(struct backend *backend, struct recurrence_call call)
{
    bool decays = call.a.row_decay.u.data != NULL || call.exponential;
    bool features = call.a.feature_decay.u.data != NULL;
    if (call.a.features > LARGEST)
        launch_large<0>(backend, &call);
    else if (call.groups > 1)
        launch_large<2>(backend, &call);
    else if (call.a.erase.data != NULL) /* there is no kernel for its inputs before it */
        launch_recurrence<1, true, true, ERASES_BY_ANOTHER>(backend, &call);
    else if (call.a.delta.u.data != NULL)
        launch_small<true, true, ERASES_BY_KEY>(backend, &call);
    else if (decays && features)
        launch_small<true, true, ERASES_NOTHING>(backend, &call);
    else if (decays)
        launch_small<true, false, ERASES_NOTHING>(backend, &call);
    else if (features)
        launch_small<false, true, ERASES_NOTHING>(backend, &call);
    else
        launch_small<false, false, ERASES_NOTHING>(backend, &call);
}

void cuda_recurrence(struct backend *backend, const struct ops_recurrence *a)
{
    struct recurrence_call call = call_of(backend, a);
    if (call.half == 0) {
        run_call(backend, call);
        return;
    }
    const int touched = (backend->batch.max_span_rows - 1) / a->chunk_size + 2;
    const int chunks = backend->batch.max_span_rows == 1 ? 1 : touched;
    for (call.chunk = 0; call.chunk < chunks; call.chunk++) {
        launch(backend, finish_kernel,
               dim3((unsigned)backend->batch.num_spans, (unsigned)a->num_heads), dim3(256), 0, call,
               backend->batch);
        run_call(backend, call);
    }
}
