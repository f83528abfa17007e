/* SPDX-License-Identifier: Apache-2.0 */
/* Long-short windows against their definition in float64, the same bits in any chunks and on any
 * threads, and nothing from memory that the text has not written. */
#include "engine/cpu/device.h"
#include "engine/ops/perform.h"
#include "lib/base/half.h"
#include "tests/unit/ops_bench.h"
#include "tests/unit/sanitized.h"

#include <stdio.h>

enum { HEADS = 3, MOST_TOKENS = 300, MOST_PAGES = 5, MOST_VECTORS = 300 };

struct segments_case {
    int dim, length, window, segment, rank;
    enum kv_format kv;
    double softcap; /* 0: none */
};

static const struct segments_case cases[] = {
    {8, 1, 4, 4, 1, KV_F32, 0},      {8, 3, 1, 1, 1, KV_F32, 0},
    {16, 70, 9, 4, 3, KV_F32, 0},    {12, 300, 30, 2, 2, KV_F16, 0},
    {70, 200, 100, 8, 5, KV_F32, 0}, {16, 300, 64, 16, 1, KV_BF16, 0},
    {5, 300, 300, 64, 7, KV_F16, 0}, {33, 130, 3, 32, 32, KV_F32, 0},
    {8, 257, 200, 1, 1, KV_F32, 0},  {16, 140, 70, 4, 3, KV_F32, 2},
    {12, 131, 9, 2, 2, KV_F16, 0.5},
};

/* A text's arrays: rows of tokens. */
struct arrays {
    float *q, *k, *v, *scores; /* [length, HEADS * dim] three times, [length, HEADS * rank] */
    float *vectors;            /* [length, 2 * rank * HEADS * dim] */
    float *h;                  /* [length, HEADS * dim] */
    size_t size;               /* bytes of h */
};

static struct arrays make_arrays(const struct segments_case *c)
{
    size_t n = (size_t)c->length, row = HEADS * (size_t)c->dim;
    return (struct arrays){.q = bench_floats(n * row, -2, 2, 1),
                           .k = bench_floats(n * row, -2, 2, 2),
                           .v = bench_floats(n * row, -1, 1, 3),
                           .scores = bench_floats(n * HEADS * (size_t)c->rank, -9, 9, 4),
                           .vectors = bench_nans(n * 2 * (size_t)c->rank * row),
                           .h = bench_nans(n * row),
                           .size = n * row * sizeof(float)};
}

static void free_arrays(struct arrays *x)
{
    float *all[] = {x->q, x->k, x->v, x->scores, x->vectors, x->h};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static float rounded(enum kv_format kv, double x)
{
    if (kv == KV_F16)
        return f16_to_f32(f32_to_f16((float)x));
    return kv == KV_BF16 ? bf16_to_f32(f32_to_bf16((float)x)) : (float)x;
}

/* Vector j of segment `segment`, of keys or values x, as a page has it; out [dim]. */
static void reference_vector(const struct segments_case *c, const struct arrays *x, const float *of,
                             int head, int segment, int j, double *out)
{
    double sum = 0.0;
    for (int i = 0; i < c->dim; i++)
        out[i] = 0.0;
    for (int t = segment * c->segment; t < (segment + 1) * c->segment; t++) {
        double weight = exp((double)x->scores[(t * HEADS + head) * c->rank + j]);
        sum += weight;
        for (int i = 0; i < c->dim; i++)
            out[i] += weight * (double)of[(t * HEADS + head) * c->dim + i];
    }
    for (int i = 0; i < c->dim; i++)
        out[i] = (double)rounded(c->kv, out[i] / sum);
}

/* Adds exp(cap(q.k / sqrt d)) v to out [dim], and the weight to *sum. */
static void add_key(const struct segments_case *c, const float *q, const double *k, const double *v,
                    double *out, double *sum)
{
    double dot = 0.0;
    for (int i = 0; i < c->dim; i++)
        dot += (double)q[i] * k[i];
    double score = dot / sqrt(c->dim);
    double weight = exp(c->softcap != 0 ? c->softcap * tanh(score / c->softcap) : score);
    *sum += weight;
    for (int i = 0; i < c->dim; i++)
        out[i] += weight * v[i];
}

/* h of one head at all positions against x->h. K and V are rounded in the reference as well, but
 * of sums with other last bits: a number between two of the format may fall to either side, one
 * of them in 2^-11 (2^-8) of its size. */
static void check_head(const struct segments_case *c, const struct arrays *x, int head,
                       const char *set)
{
    enum { MOST_DIM = 70 };
    static double keys[MOST_VECTORS][MOST_DIM], values[MOST_VECTORS][MOST_DIM];
    double bound = c->kv == KV_F32 ? 1e-5 : c->kv == KV_F16 ? 2e-3 : 2e-2;
    for (int s = 0; s < c->length / c->segment * c->rank; s++) {
        reference_vector(c, x, x->k, head, s / c->rank, s % c->rank, keys[s]);
        reference_vector(c, x, x->v, head, s / c->rank, s % c->rank, values[s]);
    }
    for (int t = 0; t < c->length; t++) {
        double out[MOST_DIM] = {0}, sum = 0.0, k[MOST_DIM], v[MOST_DIM];
        const float *q = x->q + (t * HEADS + head) * c->dim;
        for (int s = 0; s < t / c->segment * c->rank; s++)
            add_key(c, q, keys[s], values[s], out, &sum);
        for (int s = t - c->window + 1 < 0 ? 0 : t - c->window + 1; s <= t; s++) {
            for (int i = 0; i < c->dim; i++) {
                k[i] = (double)x->k[(s * HEADS + head) * c->dim + i];
                v[i] = (double)x->v[(s * HEADS + head) * c->dim + i];
            }
            add_key(c, q, k, v, out, &sum);
        }
        for (int i = 0; i < c->dim; i++) {
            double got = (double)x->h[(t * HEADS + head) * c->dim + i];
            cr_assert(fabs(got - out[i] / sum) < bound,
                      "%s: d %d, l %d, r %d, W %d, head %d at %d: expected %g, got %g", set, c->dim,
                      c->segment, c->rank, c->window, head, t, out[i] / sum, got);
        }
    }
}

/* The whole text, `chunk` tokens a step, in memory that is `fill` bytes at first. */
static void run(struct backend *backend, const struct segments_case *c, const struct arrays *x,
                int chunk, int fill)
{
    static struct bench_text text;
    int row = HEADS * c->dim, wide = 2 * c->rank * row;
    struct ops_segments segments = {.num_heads = HEADS,
                                    .key_dim = c->dim,
                                    .value_dim = c->dim,
                                    .length = c->segment,
                                    .rank = c->rank,
                                    .kv = c->kv};
    size_t tiles = ((size_t)c->window + OPS_TILE - 1) / OPS_TILE;
    size_t ring = tiles * ops_tile_bytes(c->dim, c->dim, KV_F32) * HEADS;
    size_t slot_bytes = ring + ops_segment_sums_bytes(&segments) * HEADS;
    size_t page_bytes = ops_segment_bytes(&segments) * HEADS;
    char *slot = malloc(slot_bytes), *pages[MOST_PAGES];
    memset(slot, fill, slot_bytes);
    for (int i = 0; i < MOST_PAGES; i++) {
        pages[i] = malloc(page_bytes);
        memset(pages[i], fill, page_bytes);
    }
    memset(x->h, 0xff, x->size);
    segments.sums_offset = ring;
    for (int first = 0; first < c->length; first += chunk) {
        int n = c->length - first < chunk ? c->length - first : chunk;
        const struct rows k = {x->k + first * row, row}, v = {x->v + first * row, row};
        bench_text(&text, n, first, slot, pages);
        segments.scores = (struct rows){x->scores + first * HEADS * c->rank, HEADS * c->rank};
        segments.k = k;
        segments.v = v;
        segments.vectors = (struct rows){x->vectors + first * wide, wide};
        cpu_ops.begin(backend, &text.batch);
        perform_segments(&cpu_ops, backend, &segments);
        perform_attention(&cpu_ops, backend,
                          &(struct ops_attention){
                              .num_heads = HEADS,
                              .num_kv_heads = HEADS,
                              .key_dim = c->dim,
                              .value_dim = c->dim,
                              .scale = (float)(1.0 / sqrt(c->dim)),
                              .softcap = (float)c->softcap,
                              .window = WINDOW_LONG_SHORT,
                              .window_size = c->window,
                              .kv = KV_F32,
                              .q = {x->q + first * row, row},
                              .k = k,
                              .v = v,
                              .h = {x->h + first * row, row},
                              .segments = &segments,
                          });
        cpu_ops.send(backend, NULL, 0);
        cpu_ops.receive(backend);
    }
    for (int i = 0; i < MOST_PAGES; i++)
        free(pages[i]);
    free(slot);
}

/* Right as a whole, and the same bits in chunks of 1, 3, 7, ..., on one thread and on three. */
static void check_case(const struct segments_case *c, const char *set)
{
    struct backend *one = bench_open(set, 1), *three = bench_open(set, 3);
    if (one == NULL)
        return;
    struct arrays x = make_arrays(c);
    float *whole = malloc(x.size);
    run(one, c, &x, c->length, 0);
    for (int head = 0; head < HEADS; head++)
        check_head(c, &x, head, set);
    memcpy(whole, x.h, x.size);
    for (int chunk = 1; chunk < c->length + 2; chunk = 2 * chunk + 1) {
        run(chunk % 4 == 1 ? one : three, c, &x, chunk, 0xff);
        cr_assert(memcmp(whole, x.h, x.size) == 0, "%s: d %d, l %d, r %d: chunks of %d", set,
                  c->dim, c->segment, c->rank, chunk);
    }
    free(whole);
    free_arrays(&x);
    cpu_ops.close(one);
    cpu_ops.close(three);
}

Test(segments, every_case_follows_the_definition_in_any_chunks)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t set = 0; set < sizeof bench_sets / sizeof *bench_sets; set++)
            if (!SANITIZED || set == i % 3)
                check_case(&cases[i], bench_sets[set]);
}
