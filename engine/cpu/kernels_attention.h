/* Softmax attention over tiles of 64 keys, with a running maximum per query.
 *
 * A tile lies as K [m2][64] and V [64][value stride]: both are k-major panels, so scores and the
 * weighted sum of values are the products of kernels_product.h. A query meets the tiles of its
 * window in order, always whole ones (what a query may not see weighs exactly 0), so its sums do
 * not depend on the queries beside it. */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_H
#define ENGINE_CPU_KERNELS_ATTENTION_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels_product.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct head_tile {
    float *k; /* [key_dim][OPS_TILE] */
    float *v; /* [OPS_TILE][value stride] */
};

static struct head_tile tile_of(const struct ops_attention *a, char *base, int kv_head)
{
    size_t bytes = ops_tile_bytes(a->key_dim, a->value_dim);
    float *k = (float *)(void *)(base + a->offset + (size_t)kv_head * bytes);
    struct head_tile tile = {k, k + (size_t)a->key_dim * OPS_TILE};
    return tile;
}

/* Tile number `index` of a ring; the ring of a kv head is its tiles one after the other. */
static struct head_tile ring_tile(const struct ops_attention *a, const struct batch_span *span,
                                  int kv_head, int64_t index)
{
    size_t bytes = ops_tile_bytes(a->key_dim, a->value_dim);
    size_t tiles = ((size_t)a->window_size + OPS_TILE - 1) / OPS_TILE;
    char *base = span->slot + a->offset + ((size_t)kv_head * tiles + (size_t)index) * bytes;
    float *k = (float *)(void *)base;
    struct head_tile tile = {k, k + (size_t)a->key_dim * OPS_TILE};
    return tile;
}

static void put_key(const struct ops_attention *a, struct head_tile to, int lane, int row,
                    int kv_head)
{
    const float *k = a->k.data + row * a->k.stride + (int64_t)kv_head * a->key_dim;
    const float *v = a->v.data + row * a->v.stride + (int64_t)kv_head * a->value_dim;
    size_t stride = ops_value_stride(a->value_dim);
    float *values = to.v + (size_t)lane * stride;
    for (int j = 0; j < a->key_dim; j++)
        to.k[(size_t)j * OPS_TILE + (size_t)lane] = k[j];
    memcpy(values, v, (size_t)a->value_dim * sizeof(float));
    for (size_t j = (size_t)a->value_dim; j < stride; j++)
        values[j] = 0.0f;
}

static void kernel_append(const struct ops_attention *a, const struct batch_span *span, int kv_head)
{
    for (int t = 0; t < span->num_rows; t++) {
        int64_t position = span->position + t;
        struct head_tile to = tile_of(a, span->pages[position / OPS_TILE], kv_head);
        put_key(a, to, (int)(position % OPS_TILE), span->first_row + t, kv_head);
    }
}

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

/* What a query has of softmax so far. */
struct running {
    float maximum, sum;
};

/* The least finite number, not -infinity: a tile may hold nothing but scores of -infinity, from
 * which a maximum of -infinity could not be subtracted. */
static const struct running nothing_yet = {-FLT_MAX, 0.0f};

/* scores [64], q.k on entry, become the weights of the values; keys [low, high) are allowed.
 * Returns the factor that what has been summed so far takes. */
static float weigh(const struct ops_attention *a, float *scores, const float *weights,
                   const float *biases, int low, int high, struct running *running)
{
    for (int j = 0; j < OPS_TILE; j++)
        scores[j] *= a->scale;
    if (a->biases != NULL)
        for (int j = 0; j < OPS_TILE; j++)
            scores[j] = scores[j] * weights[j] + biases[j];
    for (int j = 0; j < OPS_TILE; j++)
        scores[j] = ((j >= low) & (j < high)) ? scores[j] : -INFINITY;
    if (a->activation == SOFTMAX_ACT_RELU) {
        for (int j = 0; j < OPS_TILE; j++)
            scores[j] = formula_relu(scores[j]);
        return 1.0f;
    }
    float most[16];
    for (int j = 0; j < 16; j++)
        most[j] = scores[j];
    for (int i = 16; i < OPS_TILE; i += 16)
        for (int j = 0; j < 16; j++)
            most[j] = scores[i + j] > most[j] ? scores[i + j] : most[j];
    float maximum = formula_max(most, 16);
    maximum = maximum > running->maximum ? maximum : running->maximum;
    float factor = formula_exp(running->maximum - maximum);
    for (int j = 0; j < OPS_TILE; j++)
        scores[j] = formula_exp(scores[j] - maximum);
    running->sum = running->sum * factor + formula_sum(scores, OPS_TILE);
    running->maximum = maximum;
    return factor;
}

static void finish_query(const struct ops_attention *a, const struct running *running,
                         const float *sums, int row, int head)
{
    float *h = a->h.data + row * a->h.stride + (int64_t)head * a->value_dim;
    float divisor = a->activation == SOFTMAX_ACT_RELU ? 1.0f : running->sum;
    for (int j = 0; j < a->value_dim; j++)
        h[j] = sums[j] / divisor;
}

static void scale_sums(float *sums, int64_t n, float factor)
{
    if (factor != 1.0f)
        for (int64_t j = 0; j < n; j++)
            sums[j] *= factor;
}

static void kernel_attention(const struct ops_attention *a, const struct batch_span *span,
                             const struct query_group *group, int head, float *scratch)
{
    int kv_head = head / (a->num_heads / a->num_kv_heads);
    int n = group->num_rows;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    int64_t last = group->position + n - 1;
    const float *q = a->q.data + group->first_row * a->q.stride + (int64_t)head * a->key_dim;
    struct running running[QUERY_GROUP];
    float scores[QUERY_GROUP][OPS_TILE];
    float weights[OPS_TILE + QUERY_GROUP], biases[OPS_TILE + QUERY_GROUP];

    for (int i = 0; i < n; i++)
        running[i] = nothing_yet;
    memset(scratch, 0, (size_t)(n * stride) * sizeof(float));
    for (int64_t base = 0; base <= last; base += OPS_TILE) {
        struct head_tile tile = tile_of(a, span->pages[base / OPS_TILE], kv_head);
        tile_matrix(n, q, a->q.stride, a->key_dim, tile.k, OPS_TILE, OPS_TILE, scores[0], OPS_TILE,
                    false);
        if (a->biases != NULL)
            fill_biases(a, head, last - base, OPS_TILE + n - 1, weights, biases);
        for (int i = 0; i < n; i++) {
            int64_t seen = group->position + i - base + 1;
            int shift = n - 1 - i; /* the distances of query i begin here */
            float factor = weigh(a, scores[i], weights + shift, biases + shift, 0,
                                 seen < OPS_TILE ? (int)seen : OPS_TILE, &running[i]);
            scale_sums(scratch + i * stride, stride, factor);
        }
        tile_matrix(n, scores[0], OPS_TILE, OPS_TILE, tile.v, stride, stride, scratch, stride,
                    true);
    }
    for (int i = 0; i < n; i++)
        finish_query(a, &running[i], scratch + i * stride, group->first_row + i, head);
}

/* Scores of keys [from, to) of one absolute tile, out of the ring, at their places in the tile. */
static void ring_scores(const struct ops_attention *a, const struct batch_span *span, int kv_head,
                        const float *q, int64_t from, int64_t to, float *scores)
{
    int window = a->window_size;
    for (int64_t s = from; s < to;) {
        int slot = (int)(s % window), lane = slot % OPS_TILE;
        int64_t run = OPS_TILE - lane < window - slot ? OPS_TILE - lane : window - slot;
        run = run < to - s ? run : to - s;
        float all[OPS_TILE];
        struct head_tile tile = ring_tile(a, span, kv_head, slot / OPS_TILE);
        tile_matrix(1, q, 0, a->key_dim, tile.k, OPS_TILE, OPS_TILE, all, OPS_TILE, false);
        memcpy(scores + s % OPS_TILE, all + lane, (size_t)run * sizeof(float));
        s += run;
    }
}

static void ring_values(const struct ops_attention *a, const struct batch_span *span, int kv_head,
                        const float *scores, int64_t from, int64_t to, float *sums)
{
    int window = a->window_size;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    for (int64_t s = from; s < to;) {
        int slot = (int)(s % window), lane = slot % OPS_TILE;
        int64_t run = OPS_TILE - lane < window - slot ? OPS_TILE - lane : window - slot;
        run = run < to - s ? run : to - s;
        struct head_tile tile = ring_tile(a, span, kv_head, slot / OPS_TILE);
        tile_matrix(1, scores + s % OPS_TILE, 0, run, tile.v + lane * stride, stride, stride, sums,
                    stride, true);
        s += run;
    }
}

/* Block and sliding windows: the ring holds the last W keys only, so a key is put and its queries
 * are answered before the next key takes an old one's place. */
static void kernel_window(const struct ops_attention *a, const struct batch_span *span, int kv_head,
                          float *sums)
{
    int group = a->num_heads / a->num_kv_heads, window = a->window_size;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    float scores[OPS_TILE] = {0}, weights[OPS_TILE + QUERY_GROUP], biases[OPS_TILE + QUERY_GROUP];
    for (int t = 0; t < span->num_rows; t++) {
        int64_t position = span->position + t;
        int row = span->first_row + t, slot = (int)(position % window);
        put_key(a, ring_tile(a, span, kv_head, slot / OPS_TILE), slot % OPS_TILE, row, kv_head);
        int64_t low =
            a->window == WINDOW_BLOCK ? position / window * window : position - window + 1;
        low = low < 0 ? 0 : low;
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const float *q = a->q.data + row * a->q.stride + (int64_t)head * a->key_dim;
            struct running running = nothing_yet;
            memset(sums, 0, (size_t)stride * sizeof(float));
            for (int64_t base = low / OPS_TILE * OPS_TILE; base <= position; base += OPS_TILE) {
                int64_t from = base < low ? low : base;
                int64_t to = position + 1 < base + OPS_TILE ? position + 1 : base + OPS_TILE;
                ring_scores(a, span, kv_head, q, from, to, scores);
                if (a->biases != NULL)
                    fill_biases(a, head, position - base, OPS_TILE, weights, biases);
                float factor = weigh(a, scores, weights, biases, (int)(from - base),
                                     (int)(to - base), &running);
                scale_sums(sums, stride, factor);
                ring_values(a, span, kv_head, scores, from, to, sums);
            }
            finish_query(a, &running, sums, row, head);
        }
    }
}

#endif
