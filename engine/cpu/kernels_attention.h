/* Softmax attention over tiles of 64 keys, with a running maximum per query.
 *
 * A tile lies as K [m2][64] and V [64][value stride], both k-major panels: scores and the weighted
 * sum of values are matrix products. Numbers of two bytes become f32 in registers for one row
 * (decoding), and once for all rows in scratch for several. A query meets the tiles of its window
 * in order; its values are summed over the keys it may see, in order, and over no others, not even
 * with weight 0. So its sums depend neither on the queries beside it nor on what lies in lanes that
 * it may not see, be it NaN.
 *
 * One query of one head reads (m2 + dv) b bytes a key, b = 2 or 4, does 2 (m2 + dv) operations with
 * them, and takes one exponential; heads of one kv head read those bytes together, and so do up to
 * QUERY_GROUP queries of a head. A head of a text is one thread's: a sum is never divided.
 *
 * `regla bench --preset gpt_neox-160m --weights bf16 --kv f16 --pp 0 --tg 32 --depth 8000
 * --operations` on 2 threads: 57 to 63 % of the time at 50 to 57 tokens/s, that is the keys' 296 MB
 * at 25 to 28 GB/s (five runs), three quarters of what the memory reads at its slower pace (34
 * GB/s) and half at its faster one (54 GB/s). Without asking for the next page's lines a thread
 * gets two thirds of that; heads page by page, whose tiles lie beside each other, gave one thread
 * 1.15 times as much and two of them less. On a Zen 5, kernels by themselves after 8,000 tokens:
 * 0.70 to 0.75 of the speed of reading on one thread, 0.78 to 0.90 on two (52 to 80 GB/s where K
 * and V lie in the second cache). */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_H
#define ENGINE_CPU_KERNELS_ATTENTION_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels_tile.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* A matrix of a tile: row r begins at data + r * stride (in numbers). */
struct panel {
    const char *data;
    int64_t stride;
    int64_t ahead; /* bytes from here to what will be read next, after all of this */
    int64_t asked; /* rows of that which are on their way */
};

struct head_tile {
    char *k, *v; /* [key_dim][OPS_TILE], [OPS_TILE][value stride] */
};

static struct head_tile tile_at(const struct ops_attention *a, char *k)
{
    struct head_tile tile = {k, k + (size_t)a->key_dim * OPS_TILE * ops_kv_bytes(a->kv)};
    return tile;
}

static struct head_tile tile_of(const struct ops_attention *a, char *page, int kv_head)
{
    size_t bytes = ops_tile_bytes(a->key_dim, a->value_dim, a->kv);
    return tile_at(a, page + a->offset + (size_t)kv_head * bytes);
}

/* ---- appending ---- */

/* from [n] f32 to [n] numbers of the format. */
INLINE void narrow(const enum kv_format kv, const float *from, char *to, int64_t n)
{
    uint16_t *out = (uint16_t *)(void *)to;
    if (kv == KV_F32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (kv == KV_F16)
        for (int64_t j = 0; j < n; j++)
            out[j] = f32_to_f16(from[j]);
    else
        for (int64_t j = 0; j < n; j++)
            out[j] = f32_to_bf16(from[j]);
}

/* Puts n <= QUERY_GROUP keys and values, of rows [row, row + n), into lanes [lane, lane + n). */
INLINE void put_keys_as(const enum kv_format kv, const struct ops_attention *a, struct head_tile to,
                        int lane, int row, int n, int kv_head)
{
    enum { PART = 64 };
    const size_t bytes = ops_kv_bytes(kv);
    const size_t stride = ops_value_stride(a->value_dim) * bytes;
    const float *k = a->k.data + row * a->k.stride + (int64_t)kv_head * a->key_dim;
    const float *v = a->v.data + row * a->v.stride + (int64_t)kv_head * a->value_dim;
    char numbers[QUERY_GROUP][PART * sizeof(float)];
    for (int first = 0; first < a->key_dim; first += PART) {
        int count = a->key_dim - first < PART ? a->key_dim - first : PART;
        for (int i = 0; i < n; i++)
            narrow(kv, k + i * a->k.stride + first, numbers[i], count);
        for (int j = 0; j < count; j++) {
            char *line = to.k + ((size_t)(first + j) * OPS_TILE + (size_t)lane) * bytes;
            for (int i = 0; i < n; i++)
                memcpy(line + (size_t)i * bytes, numbers[i] + (size_t)j * bytes, bytes);
        }
    }
    for (int i = 0; i < n; i++) {
        char *values = to.v + (size_t)(lane + i) * stride;
        narrow(kv, v + i * a->v.stride, values, a->value_dim);
        memset(values + (size_t)a->value_dim * bytes, 0, stride - (size_t)a->value_dim * bytes);
    }
}

static void put_keys(const struct ops_attention *a, struct head_tile to, int lane, int row, int n,
                     int kv_head)
{
    if (a->kv == KV_F16)
        put_keys_as(KV_F16, a, to, lane, row, n, kv_head);
    else if (a->kv == KV_BF16)
        put_keys_as(KV_BF16, a, to, lane, row, n, kv_head);
    else
        put_keys_as(KV_F32, a, to, lane, row, n, kv_head);
}

static void kernel_append(const struct ops_attention *a, const struct batch_span *span, int kv_head)
{
    for (int t = 0; t < span->num_rows;) {
        int64_t position = span->position + t;
        int n = QUERY_GROUP - (int)(position % QUERY_GROUP);
        n = n < span->num_rows - t ? n : span->num_rows - t;
        struct head_tile to = tile_of(a, span->pages[position / OPS_TILE], kv_head);
        put_keys(a, to, (int)(position % OPS_TILE), span->first_row + t, n, kv_head);
        t += n;
    }
}

/* ---- products with a tile ---- */

INLINE vec load_numbers(const enum kv_format kv, const char *at)
{
    if (kv == KV_F32)
        return vec_load((const float *)(const void *)at);
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return kv == KV_F16 ? vec_load_f16(halves) : vec_load_bf16(halves);
}

enum { ROW_VECTORS = LANES < 16 ? 8 : 4 }; /* of a tile's row, that one row multiplies at a time */

/* sum [nv] += x * the nv vectors at `at`. */
INLINE void add_columns(const enum kv_format kv, const int nv, float x, const char *at, vec *sum)
{
#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        sum[i] = vec_fma(vec_set(x), load_numbers(kv, at + i * LANES * (int64_t)ops_kv_bytes(kv)),
                         sum[i]);
}

/* out [nv * LANES] (+)= x [n] * w [n, nv * LANES], for one row; asks for what comes next. */
INLINE void row_columns(const enum kv_format kv, const int nv, const float *x, int64_t n,
                        struct panel w, float *out, bool add)
{
    const int64_t bytes = (int64_t)ops_kv_bytes(kv), row = w.stride * bytes;
    const int64_t ahead = w.ahead + w.asked * row;
    const char *at = w.data;
    vec sum[ROW_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        sum[i] = add ? vec_load(out + i * LANES) : vec_set(0.0f);
    int64_t k = 0;
    for (; k + w.asked < n; k++, at += row) {
        add_columns(kv, nv, x[k], at, sum);
#pragma GCC unroll 4
        for (int line = 0; line < nv * LANES * bytes; line += 64)
            __builtin_prefetch(at + ahead + line, 0, 2);
    }
    for (; k < n; k++, at += row)
        add_columns(kv, nv, x[k], at, sum);
#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        vec_store(out + i * LANES, sum[i]);
}

/* out [rows, columns] (+)= x [rows, n] * w [n, columns]; columns: a multiple of 16. One running sum
 * per output over n, in order, however many rows there are. */
INLINE void panel_product_as(const enum kv_format kv, int rows, const float *x, int64_t x_stride,
                             int64_t n, struct panel w, int64_t columns, float *out,
                             int64_t out_stride, bool add)
{
    const int64_t bytes = (int64_t)ops_kv_bytes(kv);
    struct panel part = w;
    if (rows == 1) {
        int64_t c = 0;
        for (; c + 8 * LANES <= columns && ROW_VECTORS == 8;
             c += 8 * LANES, part.data += 8 * LANES * bytes)
            row_columns(kv, ROW_VECTORS, x, n, part, out + c, add);
        for (; c + 4 * LANES <= columns; c += 4 * LANES, part.data += 4 * LANES * bytes)
            row_columns(kv, 4, x, n, part, out + c, add);
        for (; c + 2 * LANES <= columns; c += 2 * LANES, part.data += 2 * LANES * bytes)
            row_columns(kv, 2, x, n, part, out + c, add);
        for (; c < columns; c += LANES, part.data += LANES * bytes)
            row_columns(kv, 1, x, n, part, out + c, add);
        return;
    }
    if (kv == KV_F32) {
        for (int64_t at = 0; at < n * w.stride * bytes; at += 64)
            __builtin_prefetch(w.data + w.ahead + at, 0, 2);
        tile_matrix(rows, x, x_stride, n, (const float *)(const void *)w.data, w.stride, columns,
                    out, out_stride, add);
        return;
    }
    _Alignas(64) float wide[OPS_TILE][OPS_TILE];
    for (int64_t first = 0; first < n; first += OPS_TILE)
        for (int64_t c = 0; c < columns; c += OPS_TILE) {
            int64_t count = n - first < OPS_TILE ? n - first : OPS_TILE;
            int64_t width = columns - c < OPS_TILE ? columns - c : OPS_TILE;
            for (int64_t k = 0; k < count; k++) {
                const char *at = w.data + ((first + k) * w.stride + c) * bytes;
                for (int64_t j = 0; j < width; j += LANES)
                    vec_store(&wide[k][j], load_numbers(kv, at + j * bytes));
                for (int64_t line = 0; line < width * bytes; line += 64)
                    __builtin_prefetch(at + w.ahead + line, 0, 2);
            }
            tile_matrix(rows, x + first, x_stride, count, wide[0], OPS_TILE, width, out + c,
                        out_stride, add || first > 0);
        }
}

static void panel_product(enum kv_format kv, int rows, const float *x, int64_t x_stride, int64_t n,
                          struct panel w, int64_t columns, float *out, int64_t out_stride, bool add)
{
    if (kv == KV_F16)
        panel_product_as(KV_F16, rows, x, x_stride, n, w, columns, out, out_stride, add);
    else if (kv == KV_BF16)
        panel_product_as(KV_BF16, rows, x, x_stride, n, w, columns, out, out_stride, add);
    else
        panel_product_as(KV_F32, rows, x, x_stride, n, w, columns, out, out_stride, add);
}

/* ---- weights ---- */

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

/* What the rows that meet tiles together have of softmax so far. */
struct running {
    float maximum[QUERY_GROUP], sum[QUERY_GROUP];
};

/* The least finite number, not -infinity: a tile may hold nothing but scores of -infinity, from
 * which a maximum of -infinity could not be subtracted. */
static void running_start(struct running *running)
{
    for (int i = 0; i < QUERY_GROUP; i++) {
        running->maximum[i] = -FLT_MAX;
        running->sum[i] = 0.0f;
    }
}

/* scores [width], q.k on entry; keys [low, high) are allowed, the others become -infinity, whatever
 * they were. */
static void finish_scores(const struct ops_attention *a, float *scores, int width,
                          const float *weights, const float *biases, int low, int high)
{
    for (int j = 0; j < width; j++)
        scores[j] *= a->scale;
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

/* The greatest of scores [width], a multiple of 16, and of least. */
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

/* formula_sum of weights [width], a multiple of 16, in registers. */
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

/* Scores [n][width] become the weights of the values; what has been summed so far takes a factor.
 */
static void weigh(const struct ops_attention *a, int n, int width, float (*scores)[OPS_TILE],
                  struct running *running, float *sums, int64_t stride)
{
    if (a->activation == SOFTMAX_ACT_RELU) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < width; j++)
                scores[i][j] = formula_relu(scores[i][j]);
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

static void finish_query(const struct ops_attention *a, float sum, const float *sums, int row,
                         int head)
{
    float *h = a->h.data + row * a->h.stride + (int64_t)head * a->value_dim;
    float divisor = a->activation == SOFTMAX_ACT_RELU ? 1.0f : sum;
    for (int j = 0; j < a->value_dim; j++)
        h[j] = sums[j] / divisor;
}

/* Rows of the step that meet tiles together: n queries of one head, or one query of n heads. */
struct query_rows {
    const float *q;   /* of row 0 */
    int64_t q_stride; /* from row to row */
    int64_t position; /* of row 0 */
    int n, first_head;
    bool by_head;
};

/* sums [n, stride] += the values that each row may see, weighted; row i sees seen + i * step. */
static void add_values(const struct ops_attention *a, const struct query_rows *rows, int64_t seen,
                       const float *scores, struct panel v, float *sums)
{
    int64_t bytes = (int64_t)ops_kv_bytes(a->kv), stride = v.stride;
    int64_t all = seen < OPS_TILE ? seen : OPS_TILE;
    panel_product(a->kv, rows->n, scores, OPS_TILE, all, v, stride, sums, stride, true);
    v.data += all * stride * bytes;
    for (int i = 1; i < rows->n && !rows->by_head && all < OPS_TILE; i++) {
        int64_t more = seen + i < OPS_TILE ? i : OPS_TILE - all;
        panel_product(a->kv, 1, scores + i * OPS_TILE + all, 0, more, v, stride, sums + i * stride,
                      stride, true);
    }
}

/* Columns of a tile that hold its first `seen` keys, as many as one pass over its rows takes. */
static int columns_for(int64_t seen)
{
    return seen <= OPS_TILE / 4 ? OPS_TILE / 4 : seen <= OPS_TILE / 2 ? OPS_TILE / 2 : OPS_TILE;
}

/* While a query's scores become weights nothing else would ask memory for anything: so that much of
 * the next values, which is what a core can wait for at a time (after 8,000 tokens a step is 1.017
 * times as fast, with 48 or 64 lines 0.97). Returns rows. */
static int64_t ask_values(const struct panel *v, size_t number_bytes)
{
    enum { ASKED_BYTES = 32 * 64 };
    int64_t row = v->stride * (int64_t)number_bytes;
    int64_t rows = ASKED_BYTES / row < OPS_TILE ? ASKED_BYTES / row : OPS_TILE;
    for (int64_t at = 0; at < rows * row; at += 64)
        __builtin_prefetch(v->data + v->ahead + at, 0, 2);
    return rows;
}

static void attend(const struct ops_attention *a, const struct batch_span *span, int kv_head,
                   const struct query_rows *rows, struct running *running, float *sums)
{
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    int queries = rows->by_head ? 1 : rows->n;
    int64_t last = rows->position + queries - 1;
    _Alignas(64) float scores[QUERY_GROUP][OPS_TILE];
    float weights[OPS_TILE + QUERY_GROUP], biases[OPS_TILE + QUERY_GROUP];
    for (int64_t base = 0; base <= last; base += OPS_TILE) {
        struct head_tile tile = tile_of(a, span->pages[base / OPS_TILE], kv_head);
        int64_t ahead = 0; /* to the next tile, or the first one of the head that comes next */
        if (base + OPS_TILE <= last)
            ahead = span->pages[base / OPS_TILE + 1] - span->pages[base / OPS_TILE];
        else if (kv_head + 1 < a->num_kv_heads)
            ahead = tile_of(a, span->pages[0], kv_head + 1).k - tile.k;
        struct panel k = {tile.k, OPS_TILE, ahead, 0}, v = {tile.v, stride, ahead, 0};
        int64_t seen = rows->position - base + 1; /* by row 0 */
        int width = columns_for(seen + queries - 1);
        panel_product(a->kv, rows->n, rows->q, rows->q_stride, a->key_dim, k, width, scores[0],
                      OPS_TILE, false);
        for (int i = 0; i < rows->n; i++) {
            int query = rows->by_head ? 0 : i;
            int head = rows->first_head + i - query;
            int shift = queries - 1 - query; /* the distances of row i begin here */
            if (a->biases != NULL && query == 0)
                fill_biases(a, head, last - base, OPS_TILE + queries - 1, weights, biases);
            finish_scores(a, scores[i], width, weights + shift, biases + shift, 0,
                          seen + query < width ? (int)(seen + query) : width);
        }
        if (rows->n == 1)
            v.asked = ask_values(&v, ops_kv_bytes(a->kv));
        weigh(a, rows->n, width, scores, running, sums, stride);
        add_values(a, rows, seen, scores[0], v, sums);
    }
}

/* Queries of a group of several, head by head; heads of a single one, as many as fit together. */
static void kernel_attention(const struct ops_attention *a, const struct batch_span *span,
                             const struct query_group *group, int first, int end, float *sums)
{
    int kv_head = first / (a->num_heads / a->num_kv_heads);
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    bool by_head = group->num_rows == 1;
    int most = by_head ? QUERY_GROUP : 1;
    for (int head = first; head < end; head += most) {
        int heads = end - head < most ? end - head : most;
        struct query_rows rows = {
            .q = a->q.data + group->first_row * a->q.stride + (int64_t)head * a->key_dim,
            .q_stride = by_head ? a->key_dim : a->q.stride,
            .position = group->position,
            .n = by_head ? heads : group->num_rows,
            .first_head = head,
            .by_head = by_head,
        };
        struct running running;
        running_start(&running);
        memset(sums, 0, (size_t)(rows.n * stride) * sizeof(float));
        attend(a, span, kv_head, &rows, &running, sums);
        for (int i = 0; i < rows.n; i++)
            finish_query(a, running.sum[i], sums + i * stride, group->first_row + (by_head ? 0 : i),
                         head + (by_head ? i : 0));
    }
}

#endif
