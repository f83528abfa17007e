/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention: ops_attention (engine/ops/ops.h), with the same meaning as in engine/cpu/.
 *
 * The order of a query's sums follows from its position alone:
 *   tile    64 keys: score_j = q.k_j, one running sum over the features; p_j = exp(score_j - m),
 *           where m is the greatest score of the tile; l = sum of p by halves of neighbours;
 *           o = sum of p_j v_j, one running sum over the keys that the query sees
 *   split   4 tiles, or twice, four times, ... as many for far positions: tiles folded in order
 *   query   splits folded in order, from the first that the query sees; then o / l
 * where folding (m', l', o') into (m, l, o) gives M = max(m, m') and
 * (M, l exp(m - M) + l' exp(m' - M), o exp(m - M) + o' exp(m' - M)).
 *
 * Spans of a few tokens have one block per query, group of heads of one kv head, and stripe of
 * splits. A warp takes a tile, whose numbers it reads from memory to registers once for all heads
 * of the group. With several stripes a second kernel folds the splits. Longer spans have one block
 * per head and 64 queries at absolute positions [64 i, 64 i + 64); all of them get K and V through
 * shared memory. Both ways give the same bits. Where values are in keys, all spans go the first
 * way, by up to 4 heads.
 *
 * Per key, a query of one head does 2 (m2 + dv) operations and one exponential. The keys' bytes are
 * read once per query and group of heads (few tokens), or once per head and 64 queries.
 *
 * A multiprocessor has 64 Ki registers (ptxas 13.0, sm_90). Blocks of one query take 104 to 128
 * registers per thread: 4 blocks = 16 warps (pages, 8 heads: 145 to 168, 3 blocks). Blocks of 64
 * queries take 128 to 150 where dv <= 64 (2 blocks = 16 warps; rings 1), up to 244 beyond (1 block
 * = 8 warps). Their shared memory: 12 KiB of parts (24 of f32), 17 of weights, 4 (m2 / 4 + 1) of
 * queries. */
#include "engine/cuda/attention_group.cuh"
#include "engine/cuda/attention_query.cuh"
#include "engine/cuda/attention_segments.cuh"

namespace
{

template <kv_format KV, bool RING, int HEADS, bool IN_KEYS>
void launch_queries(struct backend *backend, const ops_attention &a, striping &striping)
{
    int stride = (int)ops_value_stride(a.value_dim);
    size_t bytes = query_bytes<HEADS>(a.key_dim, stride);
    int group = a.num_heads / a.num_kv_heads;
    if constexpr (HEADS > 1)
        if (group <= HEADS / 2 || bytes > MOST_SHARED)
            return launch_queries<KV, RING, HEADS / 2, IN_KEYS>(backend, a, striping);
    int blocks = striping.numbers * a.num_kv_heads * ((group + HEADS - 1) / HEADS);
    int wanted = blocks_each<RING, HEADS> * backend->multiprocessors;
    striping.stripes = blocks < wanted ? wanted / blocks : 1;
    striping.stripes = striping.stripes < striping.splits ? striping.stripes : striping.splits;
    if (striping.stripes > 1) {
        size_t floats = (size_t)striping.numbers * (size_t)a.num_heads * (size_t)striping.splits *
                        (size_t)part_floats(a.value_dim);
        striping.parts = (float *)device_scratch(backend, floats * sizeof(float));
    }
    launch(backend, query_kernel<KV, RING, HEADS, IN_KEYS>,
           dim3((unsigned)striping.numbers, (unsigned)(blocks / striping.numbers),
                (unsigned)striping.stripes),
           WARPS * 32, bytes, a, backend->batch, striping);
    if (striping.stripes > 1)
        launch(backend, fold_kernel, dim3((unsigned)striping.numbers, (unsigned)a.num_heads),
               WARPS * 32, 0, a, backend->batch, striping);
}

/* The most splits of any position before `end`, when a window sees this many keys. */
int most_splits(int64_t end, int64_t keys, bool window)
{
    int64_t tiles = (end + OPS_TILE - 1) / OPS_TILE, in_window = keys / OPS_TILE + 2;
    if (window && tiles > in_window)
        tiles = in_window;
    int64_t splits = (tiles + SPLIT_TILES - 1) / SPLIT_TILES + window;
    return splits < MOST_SPLITS ? (int)splits : (int)MOST_SPLITS;
}

template <kv_format KV, bool RING>
void launch_groups(struct backend *backend, const ops_attention &a)
{
    const device_batch &batch = backend->batch;
    int most_spans = batch.num_rows / FEW_TOKENS;
    most_spans = most_spans < batch.num_spans ? most_spans : batch.num_spans;
    dim3 grid((unsigned)(batch.num_rows / OPS_TILE + 2 * most_spans), (unsigned)a.num_heads);
    size_t bytes = group_bytes<KV>(a.key_dim);
    if (a.value_dim <= OPS_TILE)
        launch(backend, group_kernel<KV, RING, 1>, grid, THREADS, bytes, a, batch);
    else if (a.value_dim <= 2 * OPS_TILE)
        launch(backend, group_kernel<KV, RING, 2>, grid, THREADS, bytes, a, batch);
    else
        launch(backend, group_kernel<KV, RING, MOST_COLUMNS / OPS_TILE>, grid, THREADS, bytes, a,
               batch);
}

/* Where values are in keys, queries are answered one by one. */
template <kv_format KV, bool RING, bool IN_KEYS>
void run(struct backend *backend, const ops_attention &a)
{
    const device_batch &batch = backend->batch;
    bool few = batch.max_span_rows < FEW_TOKENS;
    bool groups = !few && !IN_KEYS &&
                  a.value_dim <= MOST_COLUMNS && /* no bit depends on this choice */
                  group_bytes<KV>(a.key_dim) <= backend->shared_bytes - OWN_ARRAYS;
    dim3 rows((unsigned)(batch.num_rows + 31) / 32, (unsigned)a.num_kv_heads);
    if (!RING && batch.max_span_rows > 1)
        launch(backend, append_kernel<KV, IN_KEYS>, rows, THREADS, 0, a, batch);
    if (groups)
        launch_groups<KV, RING>(backend, a);
    bool by_row = !few && !groups;
    if (by_row || batch.max_few_rows > 0) {
        striping striping = {};
        striping.by_row = by_row;
        striping.few = batch.max_few_rows;
        striping.numbers = by_row ? batch.num_rows : batch.num_spans * striping.few;
        striping.splits =
            most_splits(batch.max_end, a.window_size, !window_has(a.window, KEEPS_ALL_KEYS));
        launch_queries<KV, RING, IN_KEYS ? 4 : 8, IN_KEYS>(backend, a, striping);
    }
    if (RING && batch.max_span_rows > 1) /* the step's queries need what this overwrites */
        launch(backend, append_kernel<KV, IN_KEYS>, rows, THREADS, 0, a, batch);
}

template <kv_format KV> void run_pages(struct backend *backend, const ops_attention &a)
{
    if (a.values_in_keys)
        run<KV, false, true>(backend, a);
    else
        run<KV, false, false>(backend, a);
}

void run_long_short(struct backend *backend, const ops_attention &a, const ops_segments &segments)
{
    const device_batch &batch = backend->batch;
    unsigned rows = (unsigned)batch.num_rows;
    size_t bytes = WARPS * (OPS_TILE + ops_value_stride(a.value_dim)) * sizeof(float);
    launch(backend, put_segments_kernel, dim3(rows, (unsigned)segments.num_heads), SUM_THREADS, 0,
           segments, batch);
    launch(backend, long_short_kernel, dim3(rows, (unsigned)(a.num_heads + WARPS - 1) / WARPS),
           WARPS * 32, bytes, a, segments, batch);
    if (batch.max_span_rows > 1) /* the step's queries need what this overwrites */
        launch(backend, append_kernel<KV_F32, false>,
               dim3((rows + 31) / 32, (unsigned)a.num_kv_heads), THREADS, 0, a, batch);
}

} // namespace

int attention_check(const struct backend *backend, const struct ops_limits *limits,
                    struct error *err)
{
    size_t bytes =
        query_bytes<1>(limits->max_key_dim, (int)ops_value_stride(limits->max_softmax_value_dim));
    if (limits->max_key_dim == 0 || bytes <= backend->shared_bytes - OWN_ARRAYS)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "softmax head of %d features and %d values: expected that %zu bytes of shared "
                     "memory are enough on this CUDA device, got a need of %zu",
                     limits->max_key_dim, limits->max_softmax_value_dim,
                     backend->shared_bytes - OWN_ARRAYS, bytes);
}

/* The scratch for as many blocks as leave room for a second stripe, with the heads of each. Blocks
 * with a ring's 8 heads need the most. */
size_t attention_scratch(const struct backend *backend)
{
    const ops_limits &limits = backend->limits;
    if (limits.max_key_dim == 0)
        return 0;
    size_t queries = (size_t)backend->multiprocessors * blocks_each<true, 8> * 8 / 2;
    size_t splits = (size_t)most_splits(INT64_MAX / 2, limits.max_keys, true);
    return queries * splits * (size_t)part_floats(limits.max_softmax_value_dim) * sizeof(float);
}

extern "C" void cuda_segments(struct backend *backend, const struct ops_segments *a)
{
    launch(backend, segments_kernel,
           dim3((unsigned)backend->batch.num_spans, (unsigned)a->num_heads), SUM_THREADS,
           2 * (size_t)a->rank * sizeof(float), *a, backend->batch);
}

extern "C" void cuda_attention(struct backend *backend, const struct ops_attention *a)
{
    if (a->segments != NULL)
        run_long_short(backend, *a, *a->segments);
    else if (a->window != WINDOW_FULL)
        run<KV_F32, true, false>(backend, *a);
    else if (a->kv == KV_F32)
        run_pages<KV_F32>(backend, *a);
    else if (a->kv == KV_F16)
        run_pages<KV_F16>(backend, *a);
    else
        run_pages<KV_BF16>(backend, *a);
}
