/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in block, sliding and long-short windows. Keys and values are in a ring of W in the
 * slot, in f32.
 *
 * A single query reads the ring in place. Several queries meet each tile of 64 positions together:
 * the tile's keys are copied into scratch, earlier ones from the ring and the group's own from the
 * step's rows. Only then do the group's own keys enter the ring. Either way a query's sums run over
 * the same keys in the same order. A key costs what it does in kernels_attention.h; copying it
 * costs 8 (m2 + dv) bytes for QUERY_GROUP queries. Rings are small: loadtest/FIGURES.md, "Kernels".
 */
#ifndef ENGINE_CPU_KERNELS_WINDOW_H
#define ENGINE_CPU_KERNELS_WINDOW_H

#include "engine/cpu/kernels_segments.h"

/* What the queries of one text and kv head share. */
struct ring {
    const struct ops_attention *a;
    char *tiles; /* one after the other */
    size_t tile_bytes;
    int kv_head;
    char *const *pages; /* with the vectors of segments */
};

/* Keys that are adjacent in the ring. */
struct ring_run {
    const float *k, *v; /* of the first: [key_dim] with OPS_TILE between, [value stride] */
    int64_t n;
};

static struct head_tile ring_tile(const struct ring *ring, int slot)
{
    return tile_at(ring->a, ring->tiles + (size_t)(slot / OPS_TILE) * ring->tile_bytes);
}

/* The longest run of adjacent keys in [from, to) that begins with `from`. */
static struct ring_run ring_run(const struct ring *ring, int64_t from, int64_t to)
{
    int window = ring->a->window_size, slot = (int)(from % window), lane = slot % OPS_TILE;
    struct head_tile tile = ring_tile(ring, slot);
    int64_t n = OPS_TILE - lane < window - slot ? OPS_TILE - lane : window - slot;
    struct ring_run run = {
        .k = (const float *)(const void *)tile.k + lane,
        .v = (const float *)(const void *)tile.v +
             (size_t)lane * ops_value_stride(ring->a->value_dim),
        .n = n < to - from ? n : to - from,
    };
    return run;
}

/* Writes the keys of rows [row, row + n), at positions from `position` on, into the ring. */
static void ring_put(const struct ring *ring, int64_t position, int row, int n)
{
    int window = ring->a->window_size;
    for (int i = 0; i < n;) {
        int slot = (int)((position + i) % window), lane = slot % OPS_TILE;
        int run = OPS_TILE - lane < window - slot ? OPS_TILE - lane : window - slot;
        run = run < n - i ? run : n - i;
        put_keys(ring->a, ring_tile(ring, slot), lane, row + i, run, ring->kv_head);
        i += run;
    }
}

/* ---- one query ---- */

/* Scores of keys [from, to) of one absolute tile, at their places in the tile. */
static void ring_scores(const struct ring *ring, const float *q, int64_t from, int64_t to,
                        float *scores)
{
    memset(scores, 0, OPS_TILE * sizeof(float));
    while (from < to) {
        struct ring_run run = ring_run(ring, from, to);
        int lane = (int)(from % ring->a->window_size) % OPS_TILE;
        float all[OPS_TILE];
        struct panel k = {.data = (const char *)(run.k - lane), .stride = OPS_TILE};
        row_product(KV_F32, q, ring->a->key_dim, k, OPS_TILE, all, false);
        memcpy(scores + from % OPS_TILE, all + lane, (size_t)run.n * sizeof(float));
        from += run.n;
    }
}

static void ring_values(const struct ring *ring, const float *scores, int64_t from, int64_t to,
                        float *sums)
{
    int64_t stride = (int64_t)ops_value_stride(ring->a->value_dim);
    while (from < to) {
        struct ring_run run = ring_run(ring, from, to);
        struct panel v = {.data = (const char *)run.v, .stride = stride};
        row_product(KV_F32, scores + from % OPS_TILE, run.n, v, stride, sums, true);
        from += run.n;
    }
}

/* ---- several queries ---- */

/* Keys [from, to) of the absolute tile that holds them. Those from `rows->position` on are not in
 * the ring yet; they are in the step's rows, from `first_row` on. */
struct window_keys {
    const struct ring *ring;
    int64_t from, to, position;
    int first_row;
};

/* Features [first, first + count) of the keys: [count][OPS_TILE], each key at its place. */
static void lay_keys(const struct window_keys *keys, int64_t first, int64_t count, float *wide)
{
    const struct ops_attention *a = keys->ring->a;
    int64_t s = keys->from, old = keys->to < keys->position ? keys->to : keys->position;
    while (s < old) {
        struct ring_run run = ring_run(keys->ring, s, old);
        for (int64_t j = 0; j < count; j++)
            memcpy(wide + j * OPS_TILE + s % OPS_TILE, run.k + (first + j) * OPS_TILE,
                   (size_t)run.n * sizeof(float));
        s += run.n;
    }
    for (; s < keys->to; s++) {
        const float *k = a->k.data + (keys->first_row + s - keys->position) * a->k.stride +
                         (int64_t)keys->ring->kv_head * a->key_dim + first;
        for (int64_t j = 0; j < count; j++)
            wide[j * OPS_TILE + s % OPS_TILE] = k[j];
    }
}

/* Elements [first, first + count) of the values: [OPS_TILE][OPS_TILE], zero past value_dim. */
static void lay_values(const struct window_keys *keys, int64_t first, int64_t count, float *wide)
{
    const struct ops_attention *a = keys->ring->a;
    int64_t s = keys->from, old = keys->to < keys->position ? keys->to : keys->position;
    while (s < old) {
        struct ring_run run = ring_run(keys->ring, s, old);
        for (int64_t i = 0; i < run.n; i++)
            memcpy(wide + (s + i) % OPS_TILE * OPS_TILE,
                   run.v + i * (int64_t)ops_value_stride(a->value_dim) + first,
                   (size_t)count * sizeof(float));
        s += run.n;
    }
    int64_t there = a->value_dim - first < count ? a->value_dim - first : count;
    for (; s < keys->to; s++) {
        const float *v = a->v.data + (keys->first_row + s - keys->position) * a->v.stride +
                         (int64_t)keys->ring->kv_head * a->value_dim + first;
        float *line = wide + s % OPS_TILE * OPS_TILE;
        memcpy(line, v, (size_t)there * sizeof(float));
        memset(line + there, 0, (size_t)(count - there) * sizeof(float));
    }
}

/* sums [n, value stride] += each row's values, in order. */
static void add_window_values(const struct window_keys *keys, int n, const struct lanes *lanes,
                              const float *scores, float *sums)
{
    int64_t stride = (int64_t)ops_value_stride(keys->ring->a->value_dim);
    _Alignas(64) float wide[OPS_TILE * OPS_TILE];
    for (int64_t c = 0; c < stride; c += OPS_TILE) {
        int64_t width = stride - c < OPS_TILE ? stride - c : OPS_TILE;
        lay_values(keys, c, width, wide);
        add_columns_seen(n, lanes, scores, wide, width, sums + c, stride);
    }
}

/* q.k of n rows with the keys: [n][OPS_TILE]. */
static void window_scores(const struct window_keys *keys, int n, const float *q, float *scores)
{
    const struct ops_attention *a = keys->ring->a;
    _Alignas(64) float wide[OPS_TILE * OPS_TILE];
    if (keys->to - keys->from < OPS_TILE) /* the other lanes' scores are computed too */
        memset(wide, 0, sizeof wide);
    for (int64_t first = 0; first < a->key_dim; first += OPS_TILE) {
        int64_t count = a->key_dim - first < OPS_TILE ? a->key_dim - first : OPS_TILE;
        lay_keys(keys, first, count, wide);
        tile_matrix(n, q + first, a->q.stride, count, wide, OPS_TILE, OPS_TILE, scores, OPS_TILE,
                    first > 0);
    }
}

/* ---- both ---- */

/* The first position that a query sees. */
static int64_t window_low(const struct ops_attention *a, int64_t position)
{
    int64_t low = a->window == WINDOW_BLOCK ? position / a->window_size * a->window_size
                                            : position - a->window_size + 1;
    return low > 0 ? low : 0;
}

/* Answers the queries of rows [row, row + n) of one head, the first at `position`. A single query
 * finds its own key in the ring; the keys of several are not there yet. */
static void window_queries(const struct ring *ring, int64_t position, int row, int n, int head,
                           float *sums)
{
    const struct ops_attention *a = ring->a;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim), end = position + n;
    const float *q = a->q.data + row * a->q.stride + (int64_t)head * a->key_dim;
    _Alignas(64) float scores[QUERY_GROUP][OPS_TILE];
    float weights[OPS_TILE + QUERY_GROUP], biases[OPS_TILE + QUERY_GROUP];
    struct running running;
    running_start(&running);
    memset(sums, 0, (size_t)(n * stride) * sizeof(float));
    if (a->segments != NULL)
        meet_segments(a, ring->pages, ring->kv_head, position, n, q, &running, sums);
    for (int64_t base = window_low(a, position) / OPS_TILE * OPS_TILE; base < end;
         base += OPS_TILE) {
        int64_t low = window_low(a, position);
        struct window_keys keys = {ring, base < low ? low : base,
                                   end < base + OPS_TILE ? end : base + OPS_TILE, position, row};
        struct lanes lanes[QUERY_GROUP];
        if (n == 1)
            ring_scores(ring, q, keys.from, keys.to, scores[0]);
        else
            window_scores(&keys, n, q, scores[0]);
        if (a->biases != NULL)
            fill_biases(a, head, end - 1 - base, OPS_TILE + n - 1, weights, biases);
        for (int i = 0; i < n; i++) {
            lanes[i] = (struct lanes){lane_of(window_low(a, position + i), base),
                                      lane_of(position + i + 1, base)};
            finish_scores(a, scores[i], OPS_TILE, weights + n - 1 - i, biases + n - 1 - i,
                          lanes[i].low, lanes[i].high);
        }
        weigh(a, n, OPS_TILE, scores, &running, sums, stride);
        if (n == 1)
            ring_values(ring, scores[0], keys.from, keys.to, sums);
        else
            add_window_values(&keys, n, lanes, scores[0], sums);
    }
    for (int i = 0; i < n; i++)
        finish_query(a, &running, i, sums + i * stride, row + i, head);
}

static void kernel_window(const struct ops_attention *a, const struct batch_span *span, int kv_head,
                          float *sums)
{
    int heads = a->num_heads / a->num_kv_heads, window = a->window_size;
    size_t bytes = ops_tile_bytes(a->key_dim, a->value_dim, KV_F32);
    size_t tiles = ((size_t)window + OPS_TILE - 1) / OPS_TILE;
    struct ring ring = {a, span->slot + a->offset + (size_t)kv_head * tiles * bytes, bytes, kv_head,
                        span->pages};
    if (a->segments != NULL)
        put_segments(a->segments, span, kv_head);
    for (int t = 0; t < span->num_rows;) {
        int64_t position = span->position + t;
        int row = span->first_row + t, n = span->num_rows - t;
        n = n < QUERY_GROUP ? n : QUERY_GROUP;
        if (a->window == WINDOW_BLOCK && n > window - (int)(position % window))
            n = window - (int)(position % window);
        if (n == 1)
            ring_put(&ring, position, row, n);
        for (int head = kv_head * heads; head < (kv_head + 1) * heads; head++)
            window_queries(&ring, position, row, n, head, sums);
        if (n > 1)
            ring_put(&ring, position, row, n);
        t += n;
    }
}

#endif
