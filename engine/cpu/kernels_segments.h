/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of long-short windows (ops.h, struct ops_segments): their running sums, their vectors in
 * the pages, and the queries that meet them in tiles of 64.
 *
 * A token costs 2 r (d + dv) operations and r exponentials. A vector costs a query what a key does
 * in kernels_attention.h; copying it costs 8 (d + dv) bytes for QUERY_GROUP queries. */
#ifndef ENGINE_CPU_KERNELS_SEGMENTS_H
#define ENGINE_CPU_KERNELS_SEGMENTS_H

#include "engine/cpu/kernels_attention.h"

/* ---- which lanes of a tile a row may see ---- */

struct lanes {
    int low, high;
};

static int lane_of(int64_t position, int64_t base)
{
    int64_t lane = position - base;
    return lane < 0 ? 0 : lane > OPS_TILE ? OPS_TILE : (int)lane;
}

static void add_lanes(int n, const float *scores, int from, int to, const float *wide,
                      int64_t width, float *sums, int64_t stride)
{
    if (from < to)
        tile_matrix(n, scores + from, OPS_TILE, to - from, wide + from * OPS_TILE, OPS_TILE, width,
                    sums, stride, true);
}

/* sums [n, width] += each row's values, in order: `width` columns of a tile, wide [OPS_TILE][
 * OPS_TILE]. Values that all rows see are added together. */
static void add_columns_seen(int n, const struct lanes *lanes, const float *scores,
                             const float *wide, int64_t width, float *sums, int64_t stride)
{
    int low = lanes[n - 1].low; /* neither bound falls from row to row */
    int high = lanes[0].high > low ? lanes[0].high : low;
    for (int i = 0; i < n; i++)
        add_lanes(1, scores + i * OPS_TILE, lanes[i].low, lanes[i].high < low ? lanes[i].high : low,
                  wide, width, sums + i * stride, stride);
    add_lanes(n, scores, low, high, wide, width, sums, stride);
    for (int i = 0; i < n; i++)
        add_lanes(1, scores + i * OPS_TILE, lanes[i].low > high ? lanes[i].low : high,
                  lanes[i].high, wide, width, sums + i * stride, stride);
}

/* ---- the segment in hand ---- */

/* sums [n] = sums * old + x * fresh; first: x. */
static void add_weighed(float *sums, const float *x, int n, float old, float fresh, bool first)
{
    if (first)
        memcpy(sums, x, (size_t)n * sizeof(float));
    else
        for (int j = 0; j < n; j++)
            sums[j] = sums[j] * old + x[j] * fresh;
}

static void divide(const float *x, int n, float divisor, float *out)
{
    for (int j = 0; j < n; j++)
        out[j] = x[j] / divisor;
}

/* Takes a whole span of one kv head into the sums of one of its r vectors. */
static void sum_vector(const struct ops_segments *a, const struct batch_span *span, int kv_head,
                       int vector, float *state)
{
    float *k_sums = state + 2, *v_sums = k_sums + a->key_dim;
    for (int t = 0; t < span->num_rows; t++) {
        int64_t position = span->position + t, row = span->first_row + t;
        const float *k = a->k.data + row * a->k.stride + (int64_t)kv_head * a->key_dim;
        const float *v = a->v.data + row * a->v.stride + (int64_t)kv_head * a->value_dim;
        float score = a->scores.data[row * a->scores.stride + kv_head * a->rank + vector];
        bool first = position % a->length == 0;
        float most = first || score > state[0] ? score : state[0];
        float old = first ? 0.0f : formula_exp(state[0] - most), fresh = formula_exp(score - most);
        add_weighed(k_sums, k, a->key_dim, old, fresh, first);
        add_weighed(v_sums, v, a->value_dim, old, fresh, first);
        state[1] = first ? 1.0f : state[1] * old + fresh;
        state[0] = most;
        if ((position + 1) % a->length != 0)
            continue;
        float *vectors = a->vectors.data + row * a->vectors.stride;
        int64_t head = (int64_t)vector * a->num_heads + kv_head;
        divide(k_sums, a->key_dim, state[1], vectors + head * a->key_dim);
        vectors += (int64_t)a->rank * a->num_heads * a->key_dim;
        divide(v_sums, a->value_dim, state[1], vectors + head * a->value_dim);
    }
}

static void kernel_segments(const struct ops_segments *a, const struct batch_span *span,
                            int kv_head)
{
    float *state = (float *)(void *)(span->slot + a->sums_offset +
                                     (size_t)kv_head * ops_segment_sums_bytes(a));
    for (int vector = 0; vector < a->rank; vector++)
        sum_vector(a, span, kv_head, vector, state + vector * (2 + a->key_dim + a->value_dim));
}

/* ---- the vectors in the pages ---- */

/* The vectors of a kv head in one page: K [d][n], V [n][value stride]. */
static struct head_tile segment_tile(const struct ops_segments *a, char *page, int kv_head)
{
    char *k = page + a->page_offset + (size_t)kv_head * ops_segment_bytes(a);
    size_t places = (size_t)ops_segment_page(a);
    return (struct head_tile){k, k + (size_t)a->key_dim * places * ops_kv_bytes(a->kv)};
}

static void narrow_to(enum kv_format kv, const float *from, char *to, int64_t n)
{
    if (kv == KV_F16)
        narrow(KV_F16, from, to, n);
    else if (kv == KV_BF16)
        narrow(KV_BF16, from, to, n);
    else
        narrow(KV_F32, from, to, n);
}

INLINE void to_floats_as(const enum kv_format kv, const char *from, float *to, int64_t n)
{
    const uint16_t *halves = (const uint16_t *)(const void *)from;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        vec_store(to + j, load_numbers(kv, from + j * (int64_t)ops_kv_bytes(kv)));
    for (; j < n; j++)
        to[j] = kv == KV_F16 ? f16_to_f32(halves[j]) : bf16_to_f32(halves[j]);
}

/* Converts [n] numbers of the format to f32. */
static void to_floats(enum kv_format kv, const char *from, float *to, int64_t n)
{
    if (kv == KV_F32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (kv == KV_F16)
        to_floats_as(KV_F16, from, to, n);
    else
        to_floats_as(KV_BF16, from, to, n);
}

/* Appends the vectors of the segments that end in a span. */
static void put_segments(const struct ops_segments *a, const struct batch_span *span, int kv_head)
{
    size_t bytes = ops_kv_bytes(a->kv), stride = ops_value_stride(a->value_dim) * bytes;
    int places = ops_segment_page(a);
    for (int t = a->length - 1 - (int)(span->position % a->length); t < span->num_rows;
         t += a->length) {
        int64_t first = ops_segments_before(a, span->position + t);
        struct head_tile to = segment_tile(a, span->pages[first / places], kv_head);
        const float *row = a->vectors.data + (span->first_row + t) * a->vectors.stride;
        for (int i = 0; i < a->rank; i++) {
            size_t place = (size_t)(first % places + i);
            int64_t head = (int64_t)i * a->num_heads + kv_head;
            const float *k = row + head * a->key_dim;
            const float *v =
                row + (int64_t)a->rank * a->num_heads * a->key_dim + head * a->value_dim;
            for (int j = 0; j < a->key_dim; j++)
                narrow_to(a->kv, k + j, to.k + ((size_t)j * (size_t)places + place) * bytes, 1);
            char *values = to.v + place * stride;
            narrow_to(a->kv, v, values, a->value_dim);
            memset(values + (size_t)a->value_dim * bytes, 0, stride - (size_t)a->value_dim * bytes);
        }
    }
}

/* Vectors [from, to) of one text and kv head, of one tile. */
struct segment_vectors {
    const struct ops_segments *a;
    char *const *pages;
    int kv_head;
    int64_t from, to;
};

/* The vectors from `at` on that lie in one page: how many, and the first one's place there. */
static int64_t segment_run(const struct segment_vectors *vectors, int64_t at,
                           struct head_tile *tile, int64_t *place)
{
    int64_t places = ops_segment_page(vectors->a);
    *tile = segment_tile(vectors->a, vectors->pages[at / places], vectors->kv_head);
    *place = at % places;
    return places - *place < vectors->to - at ? places - *place : vectors->to - at;
}

/* Features [first, first + count) of the vectors: [count][OPS_TILE], each vector at its place. */
static void lay_segment_keys(const struct segment_vectors *vectors, int64_t first, int64_t count,
                             float *wide)
{
    const struct ops_segments *a = vectors->a;
    int64_t places = ops_segment_page(a), place, run;
    struct head_tile tile;
    float page[OPS_TILE * OPS_TILE]; /* its features, [count][places] */
    for (int64_t at = vectors->from; at < vectors->to; at += run) {
        run = segment_run(vectors, at, &tile, &place);
        to_floats(a->kv, tile.k + first * places * (int64_t)ops_kv_bytes(a->kv), page,
                  count * places);
        for (int64_t j = 0; j < count; j++)
            for (int64_t i = 0; i < run; i++)
                wide[j * OPS_TILE + at % OPS_TILE + i] = page[j * places + place + i];
    }
}

/* Elements [first, first + count) of the values: [OPS_TILE][OPS_TILE]. */
static void lay_segment_values(const struct segment_vectors *vectors, int64_t first, int64_t count,
                               float *wide)
{
    const struct ops_segments *a = vectors->a;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim), place, run;
    struct head_tile tile;
    for (int64_t at = vectors->from; at < vectors->to; at += run) {
        run = segment_run(vectors, at, &tile, &place);
        for (int64_t i = 0; i < run; i++)
            to_floats(a->kv, tile.v + ((place + i) * stride + first) * (int64_t)ops_kv_bytes(a->kv),
                      wide + (at + i) % OPS_TILE * OPS_TILE, count);
    }
}

/* q.k of n rows with the vectors: [n][OPS_TILE]. */
static void segment_scores(const struct segment_vectors *vectors, int n, const float *q,
                           int64_t q_stride, float *scores)
{
    int64_t dim = vectors->a->key_dim;
    _Alignas(64) float wide[OPS_TILE * OPS_TILE];
    if (vectors->to - vectors->from < OPS_TILE) /* the other lanes' scores are computed too */
        memset(wide, 0, sizeof wide);
    for (int64_t first = 0; first < dim; first += OPS_TILE) {
        int64_t count = dim - first < OPS_TILE ? dim - first : OPS_TILE;
        lay_segment_keys(vectors, first, count, wide);
        tile_matrix(n, q + first, q_stride, count, wide, OPS_TILE, OPS_TILE, scores, OPS_TILE,
                    first > 0);
    }
}

/* The n queries from `position` on, of one head, meet the vectors of the segments before their own.
 * That begins their softmax: running and sums [n, value stride]. */
static void meet_segments(const struct ops_attention *a, char *const *pages, int kv_head,
                          int64_t position, int n, const float *q, struct running *running,
                          float *sums)
{
    const struct ops_segments *segments = a->segments;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    int64_t end = ops_segments_before(segments, position + n - 1);
    _Alignas(64) float scores[QUERY_GROUP][OPS_TILE], wide[OPS_TILE * OPS_TILE];
    for (int64_t base = 0; base < end; base += OPS_TILE) {
        struct segment_vectors vectors = {segments, pages, kv_head, base,
                                          end < base + OPS_TILE ? end : base + OPS_TILE};
        struct lanes lanes[QUERY_GROUP];
        segment_scores(&vectors, n, q, a->q.stride, scores[0]);
        for (int i = 0; i < n; i++) {
            lanes[i] =
                (struct lanes){0, lane_of(ops_segments_before(segments, position + i), base)};
            finish_scores(a, scores[i], OPS_TILE, NULL, NULL, 0, lanes[i].high);
        }
        weigh(a, n, OPS_TILE, scores, running, sums, stride);
        for (int64_t c = 0; c < stride; c += OPS_TILE) {
            int64_t width = stride - c < OPS_TILE ? stride - c : OPS_TILE;
            lay_segment_values(&vectors, c, width, wide);
            add_columns_seen(n, lanes, scores[0], wide, width, sums + c, stride);
        }
    }
}

#endif
