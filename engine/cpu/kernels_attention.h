/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention over tiles of 64 keys, with a running maximum per query.
 *
 * A tile is K [m2][64] and V [64][value stride], both k-major panels, so scores and the weighted
 * sum of values are matrix products. Numbers of two bytes become f32 in registers for one row
 * (decoding), and in scratch, once for all rows, for several.
 *
 * A query meets the tiles of its window in order. Its values are summed over the keys that it may
 * see, in order, and over no others, not even with weight 0. So its sums depend neither on the
 * queries beside it nor on lanes that it may not see, even if these are NaN. How tiles of AMX keep
 * to that, with another order of sums: kernels_amx_attention.h.
 *
 * One query of one head reads (m2 + dv) b bytes a key, b = 2 or 4. It does 2 (m2 + dv) operations
 * with them and one exponential. Heads of one kv head share these reads, and so do up to
 * QUERY_GROUP queries of a head. One thread computes a head of a text, so no sum is divided. How
 * fast that is: loadtest/FIGURES.md, "Kernels". */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_H
#define ENGINE_CPU_KERNELS_ATTENTION_H

#include "engine/cpu/kernels_kv.h"

#include <float.h>
#include <math.h>

/* weight and bias for distances last, last - 1, ...: [n] each. */
static void fill_biases(const struct ops_attention *a, int head, int64_t last, int n,
                        float *weights, float *biases)
{
    struct formula_bias parameters = a->biases[head];
    float distance[OPS_TILE + QUERY_GROUP];
    for (int x = 0; x < n; x++)
        distance[x] = (float)(last - x > 0 ? last - x : 0);
#define BIAS_CASE(kind)                                                                     \
    case kind:                                                                              \
        for (int x = 0; x < n; x++)                                                         \
            formula_position_bias(kind, &parameters, distance[x], &weights[x], &biases[x]); \
        break;
    switch (a->bias) {
        FORMULA_BIASES(BIAS_CASE)
    default:
        break;
    }
#undef BIAS_CASE
}

/* The state of softmax so far, of the rows that meet tiles together. */
struct running {
    float maximum[QUERY_GROUP], sum[QUERY_GROUP];
};

/* The least finite number, not -infinity: all scores of a tile may be -infinity, from which a
 * maximum of -infinity could not be subtracted. */
static void running_start(struct running *running)
{
    for (int i = 0; i < QUERY_GROUP; i++) {
        running->maximum[i] = -FLT_MAX;
        running->sum[i] = 0.0f;
    }
}

/* scores [width] are q.k on entry. Keys [low, high) are allowed; the scores of the others become
 * -infinity, whatever they were. */
static void finish_scores(const struct ops_attention *a, float *scores, int width,
                          const float *weights, const float *biases, int low, int high)
{
    for (int j = 0; j < width; j++)
        scores[j] *= a->scale;
    const float cap = a->softcap;
    for (int j = 0; j < width && cap != 0.0f; j++)
        scores[j] = formula_softcap(scores[j], cap);
    if (a->biases != NULL)
        for (int j = 0; j < width; j++)
            scores[j] = scores[j] * weights[j] + biases[j];
    if (low > 0 || high < width)
        for (int j = 0; j < width; j++)
            scores[j] = ((j >= low) & (j < high)) ? scores[j] : -INFINITY;
}

typedef float four_lanes __attribute__((vector_size(16)));
typedef int32_t four_masks __attribute__((vector_size(16)));

static inline four_lanes greater_of(four_lanes a, four_lanes b)
{
    four_masks above = a > b;
    return (four_lanes)(((four_masks)a & above) | ((four_masks)b & ~above));
}

/* The greatest of `least` and scores [width]; width is a multiple of 16. */
static float greatest(const float *scores, int width, float least)
{
    vec most = vec_load(scores);
    for (int j = LANES; j < width; j += LANES)
        most = vec_max(vec_load(scores + j), most);
    four_lanes lanes[LANES / 4];
    memcpy(lanes, &most, sizeof lanes);
    for (int i = 1; i < LANES / 4; i++)
        lanes[0] = greater_of(lanes[i], lanes[0]);
    four_lanes fold = greater_of(__builtin_shufflevector(lanes[0], lanes[0], 2, 3, 0, 1), lanes[0]);
    float result = fold[1] > fold[0] ? fold[1] : fold[0];
    return result > least ? result : least;
}

/* formula_sum of weights [width], in registers; width is a multiple of 16. */
static float weight_sum(const float *weights, int width)
{
    vec sums[16 / LANES];
    for (int i = 0; i < 16 / LANES; i++)
        sums[i] = vec_load(weights + i * LANES);
    for (int j = 16; j < width; j += 16)
        for (int i = 0; i < 16 / LANES; i++)
            sums[i] += vec_load(weights + j + i * LANES);
    four_lanes lanes[4];
    memcpy(lanes, sums, sizeof lanes);
    four_lanes sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1);
    return sum[0] + sum[1];
}

/* Turns scores [n][width] into the weights of the values. Earlier sums are multiplied by a factor.
 */
INLINE void weigh(const struct ops_attention *a, int n, int width, float (*scores)[OPS_TILE],
                  struct running *running, float *sums, int64_t stride)
{
    if (a->activation != SOFTMAX_ACT_SOFTMAX) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < width; j++)
                scores[i][j] = formula_relu_weight(a->activation, scores[i][j]);
        return;
    }
    float factor[QUERY_GROUP];
    for (int i = 0; i < QUERY_GROUP; i++)
        factor[i] = running->maximum[i];
    for (int i = 0; i < n; i++)
        running->maximum[i] = greatest(scores[i], width, running->maximum[i]);
    for (int i = 0; i < QUERY_GROUP; i++)
        factor[i] = formula_exp(factor[i] - running->maximum[i]);
    for (int i = 0; i < n; i++) {
        float maximum = running->maximum[i];
        for (int j = 0; j < width; j++)
            scores[i][j] = formula_exp(scores[i][j] - maximum);
        running->sum[i] = running->sum[i] * factor[i] + weight_sum(scores[i], width);
        if (factor[i] != 1.0f)
            for (int64_t j = 0; j < stride; j++)
                sums[i * stride + j] *= factor[i];
    }
}

/* Of row i of those that meet tiles together. */
static void finish_query(const struct ops_attention *a, const struct running *running, int i,
                         const float *sums, int row, int head)
{
    float *h = a->h.data + row * a->h.stride + (int64_t)head * a->value_dim;
    float divisor = a->activation != SOFTMAX_ACT_SOFTMAX ? 1.0f : running->sum[i];
    if (a->sinks != NULL)
        divisor = formula_with_sink(divisor, a->sinks[head], running->maximum[i]);
    for (int j = 0; j < a->value_dim; j++)
        h[j] = sums[j] / divisor;
}

/* Rows of the step that meet tiles together: n queries of one head, or one query of n heads. The
 * heads share a kv head or have one each. */
struct query_rows {
    const float *q;   /* of row 0 */
    int64_t q_stride; /* from row to row */
    int64_t position; /* of row 0 */
    int n, first_head;
    bool by_head;
    int kv_head, kv_heads; /* the first one, and how many: 1 or n */
    int parts;             /* where tiles multiply: what q and weights are rounded to */
    const float *pairs;    /* and q as they take it */
    char *values;          /* room for V of values in keys */
};

/* No two of several heads share a tile. */
static bool tiles_apart(const struct query_rows *rows)
{
    return rows->kv_heads == rows->n;
}

/* How queries meet a tile, of which row 0 sees `seen` keys, and each query one more than that
 * before it. */
struct attention_way {
    /* Fills rows->pairs, in `scratch`. NULL: q stays as it is. */
    void (*prepare)(const struct ops_attention *, struct query_rows *rows, float *scratch);
    /* scores [n][OPS_TILE], of which `width` keys, = q.k. */
    void (*scores)(const struct ops_attention *, const struct query_rows *, struct panel k,
                   int width, float *scores);
    /* sums [n, sums_stride] += the values that each row sees, weighted. */
    void (*values)(const struct ops_attention *, const struct query_rows *, int64_t seen,
                   const float *weights, struct panel v, float *sums);
};

static int64_t sums_stride(const struct ops_attention *a)
{
    return attention_sums_stride(a->value_dim);
}

static void add_scores(const struct ops_attention *a, const struct query_rows *rows, struct panel k,
                       int width, float *scores)
{
    if (tiles_apart(rows))
        apart_product(a->kv, rows->n, rows->q, rows->q_stride, a->key_dim, k, width, scores,
                      OPS_TILE, false);
    else
        rows_product(a->kv, rows->n, rows->q, rows->q_stride, a->key_dim, k, width, scores,
                     OPS_TILE, false);
}

/* Moves to row `first` of a tile's matrix. */
static struct panel panel_from(const struct ops_attention *a, struct panel w, int64_t first)
{
    int64_t bytes = first * w.stride * (int64_t)ops_kv_bytes(a->kv);
    w.data += bytes;
    w.left -= bytes;
    return w;
}

/* The values of keys `first` and after, in order. */
static void add_values_from(const struct ops_attention *a, const struct query_rows *rows,
                            int64_t first, int64_t seen, const float *weights, struct panel v,
                            float *sums)
{
    const int64_t all = seen < OPS_TILE ? seen : OPS_TILE; /* that all rows see */
    const int64_t stride = sums_stride(a), count = all - first;
    const struct panel from = panel_from(a, v, first), more = panel_from(a, v, all);
    if (tiles_apart(rows)) {
        apart_product(a->kv, rows->n, weights + first, OPS_TILE, count, from, v.stride, sums,
                      stride, true);
        return;
    }
    rows_product(a->kv, rows->n, weights + first, OPS_TILE, count, from, v.stride, sums, stride,
                 true);
    for (int i = 1; i < rows->n && !rows->by_head && all < OPS_TILE; i++)
        row_product(a->kv, weights + i * OPS_TILE + all, seen + i < OPS_TILE ? i : OPS_TILE - all,
                    more, v.stride, sums + i * stride, true);
}

static void add_values(const struct ops_attention *a, const struct query_rows *rows, int64_t seen,
                       const float *weights, struct panel v, float *sums)
{
    add_values_from(a, rows, 0, seen, weights, v, sums);
}

/* The number of columns for the first `seen` keys of a tile, rounded up to what one pass takes. */
static int columns_for(int64_t seen)
{
    return seen <= OPS_TILE / 4 ? OPS_TILE / 4 : seen <= OPS_TILE / 2 ? OPS_TILE / 2 : OPS_TILE;
}

/* The reach of `ahead` bytes, at most a tile of `size`, into the next tile, which lies `next` bytes
 * away; 0: there is none. */
static struct reach reach(int64_t ahead, int64_t size, int64_t next)
{
    ahead = ahead < size ? ahead : size;
    return (struct reach){ahead, next == 0 ? 0 : ahead + next - size};
}

/* K and V of the tile with keys `base` to `last`, for the rows' first kv head, and the addresses of
 * what is read after them. Values in keys have become a V of their own. */
static void tile_panels(const struct ops_attention *a, const struct batch_span *span,
                        const struct query_rows *rows, int64_t base, int64_t last, struct panel *k,
                        struct panel *v)
{
    struct head_tile tile = tile_of(a, span->pages[base / OPS_TILE], rows->kv_head);
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    int64_t keys = last - base + 1 < OPS_TILE ? last - base + 1 : OPS_TILE;
    int64_t size = tile.v - tile.k;
    if (!a->values_in_keys)
        size += keys * stride * (int64_t)ops_kv_bytes(a->kv);
    int64_t ahead = KV_AHEAD / rows->kv_heads;
    *k = (struct panel){.data = tile.k, .stride = OPS_TILE, .left = size};
    if (base + OPS_TILE <= last)
        k->next = span->pages[base / OPS_TILE + 1] - span->pages[base / OPS_TILE];
    else if (rows->kv_head + rows->kv_heads < a->num_kv_heads)
        k->next = tile_of(a, span->pages[0], rows->kv_head + rows->kv_heads).k - tile.k;
    k->near = reach(ahead, size, k->next);
    k->far = reach(2 * ahead, size, k->next);
    if (rows->kv_heads > 1)
        k->apart = (int64_t)ops_tile_bytes(a->key_dim, a->value_dim, a->kv);
    if (a->values_in_keys) {
        turn_values(a, tile.k, keys, rows->values);
        *v = (struct panel){.data = rows->values, .stride = stride};
        return;
    }
    *v = *k;
    v->data = tile.v;
    v->stride = stride;
    v->left -= tile.v - tile.k;
}

static void attend(const struct attention_way *way, const struct ops_attention *a,
                   const struct batch_span *span, const struct query_rows *rows,
                   struct running *running, float *sums)
{
    const int n = rows->n;
    int queries = rows->by_head ? 1 : n;
    int64_t last = rows->position + queries - 1;
    _Alignas(64) float scores[QUERY_GROUP][OPS_TILE];
    float weights[OPS_TILE + QUERY_GROUP], biases[OPS_TILE + QUERY_GROUP];
    for (int64_t base = 0; base <= last; base += OPS_TILE) {
        struct panel k, v;
        tile_panels(a, span, rows, base, last, &k, &v);
        int64_t seen = rows->position - base + 1; /* by row 0 */
        int width = columns_for(seen + queries - 1);
        way->scores(a, rows, k, width, scores[0]);
        for (int i = 0; i < n; i++) {
            int query = queries == 1 ? 0 : i;
            int head = rows->first_head + i - query;
            int shift = queries - 1 - query; /* the distances of row i begin here */
            if (a->biases != NULL && query == 0)
                fill_biases(a, head, last - base, OPS_TILE + queries - 1, weights, biases);
            finish_scores(a, scores[i], width, weights + shift, biases + shift, 0,
                          seen + query < width ? (int)(seen + query) : width);
        }
        weigh(a, n, width, scores, running, sums, sums_stride(a));
        way->values(a, rows, seen, scores[0], v, sums);
    }
}

/* How many heads in [head, end) meet tiles together. Of several queries: one head. Of a single
 * query: as many as share a kv head and fit, or a few with a kv head each and values of its own. */
static int heads_together(const struct ops_attention *a, int queries, int head, int end)
{
    const int per_kv_head = a->num_heads / a->num_kv_heads;
    if (queries > 1 || (per_kv_head == 1 && a->values_in_keys))
        return 1;
    int most = per_kv_head == 1 ? TILES_TOGETHER : per_kv_head - head % per_kv_head;
    most = most < QUERY_GROUP ? most : QUERY_GROUP;
    return end - head < most ? end - head : most;
}

static void attention_by(const struct attention_way *way, const struct ops_attention *a,
                         const struct batch_span *span, const struct query_group *group, int first,
                         int end, int parts, float *sums)
{
    int per_kv_head = a->num_heads / a->num_kv_heads, heads = 1;
    int64_t stride = sums_stride(a);
    bool by_head = group->num_rows == 1;
    for (int head = first; head < end; head += heads) {
        heads = heads_together(a, group->num_rows, head, end);
        struct query_rows rows = {
            .q = a->q.data + group->first_row * a->q.stride + (int64_t)head * a->key_dim,
            .q_stride = by_head ? a->key_dim : a->q.stride,
            .position = group->position,
            .n = by_head ? heads : group->num_rows,
            .first_head = head,
            .by_head = by_head,
            .kv_head = head / per_kv_head,
            .kv_heads = per_kv_head == 1 ? heads : 1,
            .parts = parts,
            .values = (char *)(sums + attention_query_scratch(a->key_dim, a->value_dim)),
        };
        struct running running;
        running_start(&running);
        memset(sums, 0, (size_t)(rows.n * stride) * sizeof(float));
        if (way->prepare != NULL)
            way->prepare(a, &rows, sums + QUERY_GROUP * stride);
        attend(way, a, span, &rows, &running, sums);
        for (int i = 0; i < rows.n; i++)
            finish_query(a, &running, i, sums + i * stride, group->first_row + (by_head ? 0 : i),
                         head + (by_head ? i : 0));
    }
}

static void kernel_attention(const struct ops_attention *a, const struct batch_span *span,
                             const struct query_group *group, int first, int end, int parts,
                             float *scratch)
{
    static const struct attention_way way = {NULL, add_scores, add_values};
    attention_by(&way, a, span, group, first, end, parts, scratch);
}

#endif
