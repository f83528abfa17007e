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
 * gets two thirds of that. On a Zen 5, kernels by themselves after 8,000 tokens: 0.77 of the speed
 * of reading on one thread, 0.84 to 0.91 on two, f32 0.97 (f16 122 GB/s a thread where K and V lie
 * in the second cache). */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_H
#define ENGINE_CPU_KERNELS_ATTENTION_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels_tile.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* What a single query asks for while it reads: so much further, or a tile if that is less, for all
 * the heads that read tiles in turns; and into which caches, 0: past the second. Against a tile
 * ahead into the second cache, on a Zen 5 with AVX-512, 2 threads, two bytes a number: 1.12 times
 * as fast (f32: 1.05), with two heads' tiles in turns. AVX2 gained nothing from either. */
enum {
    KV_AHEAD = LANES < 16 ? 1 << 20 : 4096,
    KV_CACHES = LANES < 16 ? 2 : 0,
};

/* A matrix of a tile: row r begins at data + r * stride (in numbers). Zeros beyond these say that
 * nothing is read after it, and that all rows of x share it. */
struct panel {
    const char *data;
    int64_t stride;
    int64_t next;   /* bytes from a place in this tile to the same one in the tile read next */
    int64_t left;   /* bytes from data to the tile's end */
    int64_t ahead;  /* bytes from what a single row of x reads to what it asks for, but `turned` */
    int64_t turned; /* where those reach past the tile's end, and go on in the next one */
    int64_t apart;  /* bytes to the matrix of the next row of x */
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

enum {
    ROW_VECTORS = LANES < 16 ? 8 : 4,   /* of a tile's row, that one row multiplies at a time */
    TILES_TOGETHER = LANES < 16 ? 1 : 2 /* of heads that read one each */
};

/* sum [nv] += x * the nv vectors at `at`. */
INLINE void add_columns(const enum kv_format kv, const int nv, float x, const char *at, vec *sum)
{
#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        sum[i] = vec_fma(vec_set(x), load_numbers(kv, at + i * LANES * (int64_t)ops_kv_bytes(kv)),
                         sum[i]);
}

/* out [m, nv * LANES] (+)= x [m, n] * w [n, nv * LANES], a w for each row of x; asks for what comes
 * next. */
INLINE void row_columns(const enum kv_format kv, const int m, const int nv, const float *x,
                        int64_t x_stride, int64_t n, struct panel w, float *out, int64_t out_stride,
                        bool add)
{
    const int64_t bytes = (int64_t)ops_kv_bytes(kv), row = w.stride * bytes;
    vec sum[TILES_TOGETHER][ROW_VECTORS];
#pragma GCC unroll 2
    for (int r = 0; r < m; r++)
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++)
            sum[r][i] = add ? vec_load(out + r * out_stride + i * LANES) : vec_set(0.0f);
    int64_t turn = (w.left - w.ahead) / row, k = 0;
    turn = turn < 0 ? 0 : turn < n ? turn : n;
    for (int part = 0; part < 2; part++)
        for (int64_t end = part == 0 ? turn : n, at = k * row,
                     ahead = part == 0 ? w.ahead : w.turned;
             k < end; k++, at += row) {
#pragma GCC unroll 2
            for (int r = 0; r < m; r++) {
                const char *tile = w.data + r * w.apart;
                add_columns(kv, nv, x[r * x_stride + k], tile + at, sum[r]);
#pragma GCC unroll 4
                for (int line = 0; line < nv * LANES * bytes; line += 64)
                    __builtin_prefetch(tile + at + ahead + line, 0, KV_CACHES);
            }
        }
#pragma GCC unroll 2
    for (int r = 0; r < m; r++)
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++)
            vec_store(out + r * out_stride + i * LANES, sum[r][i]);
}

/* The same for any number of columns that is a multiple of 16. One running sum per output over n,
 * in order, here and for rows that share w. */
INLINE void row_panels(const enum kv_format kv, const int m, const float *x, int64_t x_stride,
                       int64_t n, struct panel w, int64_t columns, float *out, int64_t out_stride,
                       bool add)
{
    int64_t c = 0;
#define COLUMNS(vectors)                                                          \
    for (; c + (vectors)*LANES <= columns; c += (vectors)*LANES) {                \
        row_columns(kv, m, vectors, x, x_stride, n, w, out + c, out_stride, add); \
        w.data += (vectors)*LANES * (int64_t)ops_kv_bytes(kv);                    \
    }
    if (ROW_VECTORS == 8)
        COLUMNS(ROW_VECTORS)
    COLUMNS(4)
    COLUMNS(2)
    COLUMNS(1)
#undef COLUMNS
}

static void row_product(enum kv_format kv, const float *x, int64_t n, struct panel w,
                        int64_t columns, float *out, bool add)
{
    if (kv == KV_F16)
        row_panels(KV_F16, 1, x, 0, n, w, columns, out, 0, add);
    else if (kv == KV_BF16)
        row_panels(KV_BF16, 1, x, 0, n, w, columns, out, 0, add);
    else
        row_panels(KV_F32, 1, x, 0, n, w, columns, out, 0, add);
}

/* wide [n, columns] = w, OPS_TILE of each at most; asks for as much of the next tile. */
INLINE void widen_as(const enum kv_format kv, struct panel w, int64_t n, int64_t columns,
                     float (*wide)[OPS_TILE])
{
    const int64_t bytes = (int64_t)ops_kv_bytes(kv);
    for (int64_t k = 0; k < n; k++) {
        const char *at = w.data + k * w.stride * bytes;
        for (int64_t j = 0; j < columns; j += LANES)
            vec_store(&wide[k][j], load_numbers(kv, at + j * bytes));
        for (int64_t line = 0; line < columns * bytes; line += 64)
            __builtin_prefetch(at + w.next + line, 0, 2);
    }
}

/* out [rows, columns] (+)= x [rows, n] * w [n, columns] for rows that share w, which becomes f32
 * once for all of them. */
static void rows_product(enum kv_format kv, int rows, const float *x, int64_t x_stride, int64_t n,
                         struct panel w, int64_t columns, float *out, int64_t out_stride, bool add)
{
    if (kv == KV_F32) {
        for (int64_t at = 0; at < n * w.stride * (int64_t)sizeof(float); at += 64)
            __builtin_prefetch(w.data + w.next + at, 0, 2);
        tile_matrix(rows, x, x_stride, n, (const float *)(const void *)w.data, w.stride, columns,
                    out, out_stride, add);
        return;
    }
    _Alignas(64) float wide[OPS_TILE][OPS_TILE];
    const char *data = w.data;
    for (int64_t first = 0; first < n; first += OPS_TILE)
        for (int64_t c = 0; c < columns; c += OPS_TILE) {
            int64_t count = n - first < OPS_TILE ? n - first : OPS_TILE;
            int64_t width = columns - c < OPS_TILE ? columns - c : OPS_TILE;
            w.data = data + (first * w.stride + c) * (int64_t)ops_kv_bytes(kv);
            if (kv == KV_F16)
                widen_as(KV_F16, w, count, width, wide);
            else
                widen_as(KV_BF16, w, count, width, wide);
            tile_matrix(rows, x + first, x_stride, count, wide[0], OPS_TILE, width, out + c,
                        out_stride, add || first > 0);
        }
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
INLINE void weigh(const struct ops_attention *a, int n, int width, float (*scores)[OPS_TILE],
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

/* Rows of the step that meet tiles together: n queries of one head, or one query of n heads, of one
 * kv head or of a kv head each. */
struct query_rows {
    const float *q;   /* of row 0 */
    int64_t q_stride; /* from row to row */
    int64_t position; /* of row 0 */
    int n, first_head;
    bool by_head;
    int kv_head, kv_heads; /* the first one, and how many: 1 or n */
};

/* sums [n, stride] += the values that each row may see, weighted; row i sees seen + i * step. */
static void add_values(const struct ops_attention *a, const struct query_rows *rows, int64_t seen,
                       const float *scores, struct panel v, float *sums)
{
    int64_t bytes = (int64_t)ops_kv_bytes(a->kv), stride = v.stride;
    int64_t all = seen < OPS_TILE ? seen : OPS_TILE;
    rows_product(a->kv, rows->n, scores, OPS_TILE, all, v, stride, sums, stride, true);
    v.data += all * stride * bytes;
    for (int i = 1; i < rows->n && !rows->by_head && all < OPS_TILE; i++) {
        int64_t more = seen + i < OPS_TILE ? i : OPS_TILE - all;
        row_product(a->kv, scores + i * OPS_TILE + all, more, v, stride, sums + i * stride, true);
    }
}

/* Columns of a tile that hold its first `seen` keys, as many as one pass over its rows takes. */
static int columns_for(int64_t seen)
{
    return seen <= OPS_TILE / 4 ? OPS_TILE / 4 : seen <= OPS_TILE / 2 ? OPS_TILE / 2 : OPS_TILE;
}

/* K and V of a tile, of the rows' first kv head and the keys from `base` to `last`, and where they
 * find what is read after them. */
static void tile_panels(const struct ops_attention *a, const struct batch_span *span,
                        const struct query_rows *rows, int64_t base, int64_t last, struct panel *k,
                        struct panel *v)
{
    struct head_tile tile = tile_of(a, span->pages[base / OPS_TILE], rows->kv_head);
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    int64_t keys = last - base + 1 < OPS_TILE ? last - base + 1 : OPS_TILE;
    int64_t size = tile.v - tile.k + keys * stride * (int64_t)ops_kv_bytes(a->kv);
    int64_t ahead = KV_AHEAD / rows->kv_heads < size ? KV_AHEAD / rows->kv_heads : size;
    *k = (struct panel){.data = tile.k, .stride = OPS_TILE, .left = size, .ahead = ahead};
    if (base + OPS_TILE <= last)
        k->next = span->pages[base / OPS_TILE + 1] - span->pages[base / OPS_TILE];
    else if (rows->kv_head + rows->kv_heads < a->num_kv_heads)
        k->next = tile_of(a, span->pages[0], rows->kv_head + rows->kv_heads).k - tile.k;
    if (k->next != 0)
        k->turned = ahead + k->next - size;
    if (rows->kv_heads > 1)
        k->apart = (int64_t)ops_tile_bytes(a->key_dim, a->value_dim, a->kv);
    *v = *k;
    v->data = tile.v;
    v->stride = stride;
    v->left -= tile.v - tile.k;
}

/* alone: rows that share no tile, 1 or TILES_TOGETHER; 0: they all share theirs. */
INLINE void attend_as(const enum kv_format kv, const int alone, const struct ops_attention *a,
                      const struct batch_span *span, const struct query_rows *rows,
                      struct running *running, float *sums)
{
    const int n = alone > 0 ? alone : rows->n;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    int queries = alone > 0 || rows->by_head ? 1 : n;
    int64_t last = rows->position + queries - 1;
    _Alignas(64) float scores[QUERY_GROUP][OPS_TILE];
    float weights[OPS_TILE + QUERY_GROUP], biases[OPS_TILE + QUERY_GROUP];
    for (int64_t base = 0; base <= last; base += OPS_TILE) {
        struct panel k, v;
        tile_panels(a, span, rows, base, last, &k, &v);
        int64_t seen = rows->position - base + 1; /* by row 0 */
        int width = columns_for(seen + queries - 1);
        if (alone > 0)
            row_panels(kv, alone, rows->q, rows->q_stride, a->key_dim, k, width, scores[0],
                       OPS_TILE, false);
        else
            rows_product(kv, n, rows->q, rows->q_stride, a->key_dim, k, width, scores[0], OPS_TILE,
                         false);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++) {
            int query = queries == 1 ? 0 : i;
            int head = rows->first_head + i - query;
            int shift = queries - 1 - query; /* the distances of row i begin here */
            if (a->biases != NULL && query == 0)
                fill_biases(a, head, last - base, OPS_TILE + queries - 1, weights, biases);
            finish_scores(a, scores[i], width, weights + shift, biases + shift, 0,
                          seen + query < width ? (int)(seen + query) : width);
        }
        weigh(a, n, width, scores, running, sums, stride);
        if (alone > 0)
            row_panels(kv, alone, scores[0], OPS_TILE, seen < OPS_TILE ? seen : OPS_TILE, v, stride,
                       sums, stride, true);
        else
            add_values(a, rows, seen, scores[0], v, sums);
    }
}

static void attend(const struct ops_attention *a, const struct batch_span *span,
                   const struct query_rows *rows, struct running *running, float *sums)
{
#define FORMAT_CASE(format)                                                  \
    case format:                                                             \
        if (rows->n == 1)                                                    \
            attend_as(format, 1, a, span, rows, running, sums);              \
        else                                                                 \
            attend_as(format, TILES_TOGETHER, a, span, rows, running, sums); \
        break;
    if (rows->n > 1 && rows->kv_heads == 1) {
        attend_as(a->kv, 0, a, span, rows, running, sums);
        return;
    }
    switch (a->kv) {
        FORMAT_CASE(KV_F32)
        FORMAT_CASE(KV_F16)
        FORMAT_CASE(KV_BF16)
    default:
        break;
    }
#undef FORMAT_CASE
}

/* Heads from `head` on, before `end`, whose rows meet tiles together: one, of several queries; of a
 * single query as many as share a kv head and fit together, or a few with a kv head each. */
static int heads_together(int per_kv_head, int queries, int head, int end)
{
    int most = per_kv_head == 1 ? TILES_TOGETHER : per_kv_head - head % per_kv_head;
    most = most < QUERY_GROUP ? most : QUERY_GROUP;
    if (queries > 1 || (per_kv_head == 1 && end - head < most))
        return 1;
    return end - head < most ? end - head : most;
}

static void kernel_attention(const struct ops_attention *a, const struct batch_span *span,
                             const struct query_group *group, int first, int end, float *sums)
{
    int per_kv_head = a->num_heads / a->num_kv_heads, heads = 1;
    int64_t stride = (int64_t)ops_value_stride(a->value_dim);
    bool by_head = group->num_rows == 1;
    for (int head = first; head < end; head += heads) {
        heads = heads_together(per_kv_head, group->num_rows, head, end);
        struct query_rows rows = {
            .q = a->q.data + group->first_row * a->q.stride + (int64_t)head * a->key_dim,
            .q_stride = by_head ? a->key_dim : a->q.stride,
            .position = group->position,
            .n = by_head ? heads : group->num_rows,
            .first_head = head,
            .by_head = by_head,
            .kv_head = head / per_kv_head,
            .kv_heads = per_kv_head == 1 ? heads : 1,
        };
        struct running running;
        running_start(&running);
        memset(sums, 0, (size_t)(rows.n * stride) * sizeof(float));
        attend(a, span, &rows, &running, sums);
        for (int i = 0; i < rows.n; i++)
            finish_query(a, running.sum[i], sums + i * stride, group->first_row + (by_head ? 0 : i),
                         head + (by_head ? i : 0));
    }
}

#endif
