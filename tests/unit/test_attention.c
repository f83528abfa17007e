/* SPDX-License-Identifier: Apache-2.0 */
/* Attention against its definition in float64: windows, biases, lengths around tiles and rings, KV
 * formats; the same bits in any chunks; and nothing from keys that a query may not see. */
#include "engine/cpu/device.h"
#include "engine/ops/perform.h"
#include "lib/base/half.h"
#include "tests/unit/ops_bench.h"
#include "tests/unit/sanitized.h"

#include <stdio.h>

enum { HEADS = 6, MOST_TOKENS = 300, MOST_PAGES = 5, MOST_DIM = 256 };

struct attention_case {
    int key_dim, value_dim, length;
    enum softmax_activation activation;
    enum window_kind window;
    int window_size;
    enum position_kind bias;
    int kv_heads;
    enum kv_format kv;
    float softcap;
};

static const struct attention_case cases[] = {
    {8, 8, 1, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 2, KV_F32, 0},
    {8, 12, 2, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, 2, KV_F32, 0},
    {16, 16, 63, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_LOG, 2, KV_F32, 0},
    {13, 40, 64, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_POWER, 2, KV_F32, 0},
    {16, 5, 65, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_3PARA_LOG, 2, KV_F32, 0},
    {32, 64, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_BIAS_WHT, 2, KV_F32, 0},
    {16, 16, 200, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE, 2, KV_F32, 0},
    {16, 16, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_T5, 2, KV_F32, 0},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 64, POSITION_NONE, 2, KV_F32, 0},
    {16, 24, 150, SOFTMAX_ACT_RELU, WINDOW_BLOCK, 8, POSITION_ALIBI, 2, KV_F32, 0},
    {16, 24, 150, SOFTMAX_ACT_RELU2, WINDOW_BLOCK, 70, POSITION_T5, 1, KV_F32, 0},
    {8, 40, 150, SOFTMAX_ACT_RELU2, WINDOW_FULL, 0, POSITION_NONE, HEADS, KV_F32, 0},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 100, POSITION_KERPLE_LOG, 2, KV_F32, 0},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 1, POSITION_NONE, 2, KV_F32, 0},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 9, POSITION_NONE, 2, KV_F32, 0},
    {16, 16, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 64, POSITION_KERPLE_LOG, 2, KV_F32, 0},
    {12, 20, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 130, POSITION_ALIBI, 2, KV_F32, 0},
    {12, 20, 300, SOFTMAX_ACT_RELU, WINDOW_SLIDING, 1000, POSITION_NONE, 2, KV_F32, 0},
};

/* Scores that the cap bends: q.k / sqrt(d) reaches some 10. */
static const struct attention_case capped_cases[] = {
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 2, KV_F32, 5.0f},
    {64, 64, 130, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 1, KV_F16, 2.0f},
    {256, 256, 140, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 3, KV_BF16, 5.0f},
    {80, 33, 131, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, HEADS, KV_F32, 0.25f},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_BIAS_WHT, 2, KV_F32, 3.0f},
    {16, 16, 200, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE, 2, KV_F32, 3.0f},
    {16, 16, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 64, POSITION_NONE, 2, KV_F32, 5.0f},
    {256, 256, 140, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 100, POSITION_NONE, 3, KV_F32, 2.0f},
    {12, 20, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 130, POSITION_ALIBI, 1, KV_F32, 1.0f},
    {16, 24, 150, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 70, POSITION_T5, 1, KV_F32, 4.0f},
};

/* Beyond a few keys these biases are -infinity in f32: whole tiles weigh nothing. */
static const struct attention_case steep_cases[] = {
    {8, 8, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_POWER, 2, KV_F32, 0},
    {8, 8, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 150, POSITION_KERPLE_BIAS_WHT, 2, KV_F32, 0},
};

static bool allowed(const struct attention_case *c, int t, int s)
{
    switch (c->window) {
    case WINDOW_FULL:
        return true;
    case WINDOW_BLOCK:
        return t / c->window_size == s / c->window_size;
    case WINDOW_SLIDING:
    case WINDOW_LONG_SHORT: /* without its segments: test_segments.c has those */
        return t - s < c->window_size;
    }
    return false;
}

/* What a number of a page becomes. */
static float rounded(enum kv_format kv, float x)
{
    if (kv == KV_F16)
        return f16_to_f32(f32_to_f16(x));
    return kv == KV_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

/* What a number of a query becomes. */
static float rounded_query(int parts, float x)
{
    if (parts == 0)
        return x;
    float high = float_of_bits(bits_of_float(x) & 0xffff0000);
    return parts == 1 ? rounded(KV_BF16, x) : high + rounded(KV_BF16, x - high);
}

static double score(const struct attention_case *c, int parts, const struct formula_bias *head,
                    const float *q, const float *k, int distance)
{
    double dot = 0.0, weight = 1.0, bias = 0.0, d = distance;
    for (int j = 0; j < c->key_dim; j++)
        dot += (double)rounded_query(parts, q[j]) * (double)rounded(c->kv, k[j]);
    switch (c->bias) {
    case POSITION_ALIBI:
        bias = -head->r1 * d;
        break;
    case POSITION_KERPLE_LOG:
        bias = -head->r1 * log(1 + head->r2 * d);
        break;
    case POSITION_KERPLE_POWER:
        bias = -head->r1 * pow(d, head->r2);
        break;
    case POSITION_KERPLE_3PARA_LOG:
        bias = -head->r1 * log(1 + head->r2 * pow(d, head->r3));
        break;
    case POSITION_KERPLE_BIAS_WHT:
        weight = exp(-head->r3 * pow(d, head->r4));
        bias = -head->r1 * pow(d, head->r2);
        break;
    case POSITION_T5:
        bias = head->table[distance < head->distances ? distance : head->distances - 1];
        break;
    default:
        break;
    }
    double scaled = dot / sqrt(c->key_dim), cap = (double)c->softcap;
    return (cap != 0 ? cap * tanh(scaled / cap) : scaled) * weight + bias;
}

/* A case's input and output; rows of tokens. */
struct arrays {
    float *q, *k, *v; /* [length, HEADS * key_dim], [length, kv_heads * key_dim], and value_dim */
    float *h;         /* [length, HEADS * value_dim] */
    float *table;
    struct formula_bias biases[HEADS];
    size_t size;         /* bytes of h */
    int parts;           /* of bf16, to which queries and weights are rounded; 0: they are not */
    bool values_in_keys; /* v is not given: it is the first part of k */
};

static struct arrays make_arrays(const struct attention_case *c, bool steep)
{
    size_t n = (size_t)c->length, keys = n * (size_t)c->kv_heads;
    struct arrays x = {.q = bench_floats(n * HEADS * (size_t)c->key_dim, -2, 2, 1),
                       .k = bench_floats(keys * (size_t)c->key_dim, -2, 2, 2),
                       .v = bench_floats(keys * (size_t)c->value_dim, -1, 1, 3),
                       .h = bench_nans(n * HEADS * (size_t)c->value_dim),
                       .table = bench_floats(FORMULA_T5_DISTANCES, -1, 1, 9),
                       .size = n * HEADS * (size_t)c->value_dim * sizeof(float)};
    for (int h = 0; h < HEADS; h++)
        x.biases[h] =
            steep ? (struct formula_bias){4.0f, 25.0f, 0.2f, 0.7f, x.table, FORMULA_T5_DISTANCES}
                  : (struct formula_bias){
                        0.1f * (float)(h + 1), 0.3f * (float)(h + 1), 0.2f, 0.7f, x.table,
                        FORMULA_T5_DISTANCES};
    return x;
}

static void free_arrays(struct arrays *x)
{
    float *all[] = {x->q, x->k, x->v, x->h, x->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* h of one head at position t; out [value_dim]. Returns the sum of the weights' sizes. */
static double reference(const struct attention_case *c, const struct arrays *x, int t, int head,
                        double *out)
{
    int kv_head = head / (HEADS / c->kv_heads);
    double scores[MOST_TOKENS], most = -INFINITY, sum = 0.0;
    for (int s = 0; s <= t; s++) {
        scores[s] =
            !allowed(c, t, s)
                ? -INFINITY
                : score(c, x->parts, &x->biases[head], x->q + (t * HEADS + head) * c->key_dim,
                        x->k + (s * c->kv_heads + kv_head) * c->key_dim, t - s);
        most = fmax(most, scores[s]);
    }
    for (int i = 0; i < c->value_dim; i++)
        out[i] = 0.0;
    for (int s = 0; s <= t; s++) {
        double weight = c->activation == SOFTMAX_ACT_SOFTMAX ? exp(scores[s] - most)
                        : c->activation == SOFTMAX_ACT_RELU  ? fmax(scores[s], 0.0)
                                                             : pow(fmax(scores[s], 0.0), 2);
        const float *v = x->v + (s * c->kv_heads + kv_head) * c->value_dim;
        sum += weight;
        for (int i = 0; i < c->value_dim; i++)
            out[i] += weight * (double)rounded(c->kv, v[i]);
    }
    for (int i = 0; i < c->value_dim && c->activation == SOFTMAX_ACT_SOFTMAX; i++)
        out[i] /= sum;
    return c->activation == SOFTMAX_ACT_SOFTMAX ? 1.0 : sum;
}

/* The whole text, `chunk` tokens a step, in memory that is `fill` bytes at first. */
static void run(struct backend *backend, const struct attention_case *c, const struct arrays *x,
                int chunk, int fill)
{
    static struct bench_text text;
    const bool in_keys = x->values_in_keys;
    size_t tile = ops_tile_bytes(c->key_dim, in_keys ? 0 : c->value_dim, c->kv);
    tile *= (size_t)c->kv_heads;
    size_t tiles = c->window == WINDOW_FULL ? 1 : ((size_t)c->window_size + 63) / 64;
    char *slot = malloc(tiles * tile), *pages[MOST_PAGES];
    memset(slot, fill, tiles * tile);
    for (int i = 0; i < MOST_PAGES; i++) {
        pages[i] = malloc(tile);
        memset(pages[i], fill, tile);
    }
    memset(x->h, 0xff, x->size);
    int keys = c->kv_heads * c->key_dim, values = c->kv_heads * c->value_dim;
    for (int first = 0; first < c->length; first += chunk) {
        int n = c->length - first < chunk ? c->length - first : chunk;
        bench_text(&text, n, first, slot, pages);
        cpu_ops.begin(backend, &text.batch);
        perform_attention(&cpu_ops, backend,
                          &(struct ops_attention){
                              .num_heads = HEADS,
                              .num_kv_heads = c->kv_heads,
                              .key_dim = c->key_dim,
                              .value_dim = c->value_dim,
                              .values_in_keys = in_keys,
                              .scale = (float)(1.0 / sqrt(c->key_dim)),
                              .softcap = c->softcap,
                              .activation = c->activation,
                              .window = c->window,
                              .window_size = c->window_size,
                              .kv = c->kv,
                              .bias = c->bias,
                              .biases = c->bias == POSITION_NONE ? NULL : x->biases,
                              .q = {x->q + first * HEADS * c->key_dim, HEADS * c->key_dim},
                              .k = {x->k + first * keys, keys},
                              .v = {in_keys ? NULL : x->v + first * values, values},
                              .h = {x->h + first * HEADS * c->value_dim, HEADS * c->value_dim}});
        cpu_ops.send(backend, NULL, 0);
        cpu_ops.receive(backend);
    }
    for (int i = 0; i < MOST_PAGES; i++)
        free(pages[i]);
    free(slot);
}

static const char *describe(const struct attention_case *c, const char *set)
{
    static char text[200];
    snprintf(text, sizeof text,
             "%s, kv %s, dims %d %d, act %d, window %d %d, bias %d, %d kv heads, softcap %g", set,
             kv_format_name(c->kv), c->key_dim, c->value_dim, (int)c->activation, (int)c->window,
             c->window_size, (int)c->bias, c->kv_heads, (double)c->softcap);
    return text;
}

/* Scores reach some 20 in f32, so a weight has a relative error of 1e-6 and so has the mean of
 * values up to 1; ReLA sums up to 300 weights of that size without a divisor, and relu2 their
 * squares. K, V and queries are rounded in the reference as well, so their formats add nothing.
 * Weights in one number of bf16 have an error of 2^-8, in two 2^-15. */
static void check_values(const struct attention_case *c, const struct arrays *x, const char *set)
{
    double bound = c->activation == SOFTMAX_ACT_SOFTMAX ? 1e-5
                   : c->activation == SOFTMAX_ACT_RELU  ? 3e-4
                                                        : 3e-3;
    for (int t = 0; t < c->length; t++)
        for (int head = 0; head < HEADS; head++) {
            double expected[MOST_DIM];
            double weights = reference(c, x, t, head, expected);
            double rounding = x->parts == 0 ? 0 : x->parts == 1 ? 0x1p-8 : 0x1p-15;
            for (int i = 0; i < c->value_dim; i++) {
                double got = x->h[(t * HEADS + head) * c->value_dim + i];
                cr_assert(fabs(got - expected[i]) < bound + rounding * weights,
                          "%s, %d parts: position %d, head %d: expected %g, got %g, weights of %g",
                          describe(c, set), x->parts, t, head, expected[i], got, weights);
            }
        }
}

/* Tiles multiply keys of two bytes; weights and their activations say to how many parts. */
static const struct {
    const char *set;
    enum weight_format weights;
    enum activation_format activations;
    int parts;
} ways[] = {{"avx512", WEIGHTS_F32, ACTIVATIONS_F32, 0},
            {"avx2", WEIGHTS_F32, ACTIVATIONS_F32, 0},
            {"generic", WEIGHTS_F32, ACTIVATIONS_F32, 0},
            {"amx_emulated", WEIGHTS_BF16, ACTIVATIONS_F32, 0},
            {"amx_emulated", WEIGHTS_Q8, ACTIVATIONS_16BIT, 2},
            {"amx_emulated", WEIGHTS_BF16, ACTIVATIONS_16BIT, 1},
            {"amx", WEIGHTS_BF16, ACTIVATIONS_16BIT, 1}}; /* with the bits of the one before */

/* In every instruction set: right as a whole, and the same bits in chunks of chunk, chunk * 2 + 1,
 * ..., on one thread and on three. */
static void check_case(struct attention_case c, bool steep, int chunk)
{
    struct arrays x = make_arrays(&c, steep);
    float *whole = malloc(x.size);
    for (size_t set = 0; set < sizeof ways / sizeof *ways; set++) {
        const char *name = ways[set].set;
        const bool rounds = c.kv != KV_F32 && c.window == WINDOW_FULL;
        struct backend *one =
            bench_open_rounding(name, 1, ways[set].weights, ways[set].activations);
        struct backend *three =
            bench_open_rounding(name, 3, ways[set].weights, ways[set].activations);
        x.parts = rounds ? ways[set].parts : 0;
        if (one == NULL || (set >= 3 && !rounds)) {
            cpu_ops.close(one);
            cpu_ops.close(three);
            continue;
        }
        run(one, &c, &x, c.length, 0);
        check_values(&c, &x, name);
        cr_assert(strcmp(name, "amx") != 0 || memcmp(whole, x.h, x.size) == 0,
                  "%s: other bits than emulated", describe(&c, name));
        memcpy(whole, x.h, x.size);
        for (int n = chunk; n <= c.length; n = n * 2 + 1) {
            run(n % 2 ? one : three, &c, &x, n, 0xff); /* the memory of another text, all NaN */
            cr_assert(memcmp(whole, x.h, x.size) == 0, "%s: chunks of %d", describe(&c, name), n);
        }
        run(three, &c, &x, chunk, 0xff);
        cr_assert(memcmp(whole, x.h, x.size) == 0, "%s: three threads, chunks of %d",
                  describe(&c, name), chunk);
        cpu_ops.close(one);
        cpu_ops.close(three);
    }
    free_arrays(&x);
    free(whole);
}

enum { LEAST_CHUNK = SANITIZED ? 7 : 1 };

Test(attention, every_window_and_bias_follows_the_definition_in_any_chunks)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (enum kv_format kv = KV_F32; kv <= KV_BF16; kv++) {
            struct attention_case c = cases[i];
            c.kv = kv;
            if (c.window == WINDOW_FULL || kv == KV_F32)
                check_case(c, false, LEAST_CHUNK);
        }
}

Test(attention, a_softcap_bends_scores_before_weight_and_bias_in_any_chunks)
{
    for (size_t i = 0; i < sizeof capped_cases / sizeof *capped_cases; i++)
        check_case(capped_cases[i], false, LEAST_CHUNK);
}

Test(attention, keys_too_far_to_weigh_leave_the_near_ones_as_they_are)
{
    for (size_t i = 0; i < sizeof steep_cases / sizeof *steep_cases; i++)
        check_case(steep_cases[i], true, LEAST_CHUNK);
}

static const enum position_kind all_biases[] = {POSITION_NONE,
#define BIAS_KIND(kind) kind,
                                                FORMULA_BIASES(BIAS_KIND)};

Test(attention, every_kv_format_is_right_for_any_sizes)
{
    static const int key_dims[] = {1, 3, 16, 64, 80}, value_dims[] = {1, 5, 64};
    static const int kv_heads[] = {1, 2, HEADS};
    int step = SANITIZED ? 16 : 1;
    for (int i = 0; i < 5 * 3 * 3; i++)
        for (size_t bias = (size_t)(i % step); bias < sizeof all_biases / sizeof *all_biases;
             bias += (size_t)step)
            for (int relu = 0; relu < 2; relu++)
                check_case((struct attention_case){key_dims[i % 5], value_dims[i / 5 % 3], 70,
                                                   relu ? SOFTMAX_ACT_RELU : SOFTMAX_ACT_SOFTMAX,
                                                   WINDOW_FULL, 0, all_biases[bias],
                                                   kv_heads[((size_t)i + bias) % 3],
                                                   KV_F32 + i / 15, 0},
                           false, 23);
}

static const struct attention_case cases_in_keys[] = {
    {1, 1, 2, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, HEADS, KV_F32, 0},
    {16, 16, 65, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 1, KV_F32, 0},
    {24, 10, 70, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE, HEADS, KV_F32, 0},
    {80, 33, 131, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, 2, KV_F32, 2.0f},
    {72, 64, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 3, KV_F32, 0},
    {256, 201, 140, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, 1, KV_F32, 0},
};

/* In every instruction set: right, with the bits of the same values given by themselves, in any
 * chunks, on one thread and on three. */
static void check_in_keys(const struct attention_case *c, size_t way)
{
    const char *set = ways[way].set;
    const enum activation_format form = ways[way].activations;
    struct backend *one = bench_open_rounding(set, 1, ways[way].weights, form);
    struct backend *three = bench_open_rounding(set, 3, ways[way].weights, form);
    struct arrays x = make_arrays(c, false);
    float *apart = malloc(x.size);
    for (int i = 0; i < c->length * c->kv_heads; i++)
        memcpy(x.v + i * c->value_dim, x.k + i * c->key_dim, (size_t)c->value_dim * sizeof *x.v);
    x.parts = c->kv != KV_F32 ? ways[way].parts : 0;
    if (one != NULL) {
        run(one, c, &x, c->length, 0);
        memcpy(apart, x.h, x.size);
        x.values_in_keys = true;
        for (int chunk = c->length; chunk > 0; chunk /= 3) {
            run(chunk % 2 ? one : three, c, &x, chunk, 0xff);
            cr_assert(memcmp(apart, x.h, x.size) == 0, "%s: values in keys, chunks of %d",
                      describe(c, set), chunk);
        }
        check_values(c, &x, set);
    }
    free(apart);
    free_arrays(&x);
    cpu_ops.close(one);
    cpu_ops.close(three);
}

Test(attention, values_in_keys_have_the_bits_of_the_same_values_by_themselves)
{
    for (size_t i = 0; i < sizeof cases_in_keys / sizeof *cases_in_keys; i++)
        for (enum kv_format kv = KV_F32; kv <= KV_BF16; kv++)
            for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
                struct attention_case c = cases_in_keys[i];
                c.kv = kv;
                check_in_keys(&c, way);
            }
}

/* Zen 4 and 5 ask memory for other lines (engine/cpu/ahead.h); neonmm differs in products alone. */
Test(attention, each_core_gives_the_bits_of_its_instruction_set)
{
    struct backend *backend = bench_open(bench_core_set, 2);
    if (backend == NULL)
        return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 3; i++) {
        struct attention_case c = cases[i / 3];
        c.kv = c.window == WINDOW_FULL ? KV_F32 + i % 3 : KV_F32;
        c.kv_heads = i % 2 == 0 ? 2 : HEADS;
        struct arrays x = make_arrays(&c, false);
        float *first = malloc(x.size);
        backend->kernels = bench_core(0);
        run(backend, &c, &x, 1, 0);
        check_values(&c, &x, bench_core_set);
        memcpy(first, x.h, x.size);
        for (int core = 1; bench_core(core) != NULL; core++) {
            backend->kernels = bench_core(core);
            run(backend, &c, &x, 1, 0xff);
            cr_expect(memcmp(first, x.h, x.size) == 0, "%s", describe(&c, bench_core(core)->name));
        }
        free_arrays(&x);
        free(first);
    }
    cpu_ops.close(backend);
}

/* ---- keys that a query may not see ---- */

/* Equal bits, or NaN both: which NaN is left of two is the hardware's affair. */
static bool same(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* Key and value 40 of a text become `bad`: rows that see it may be anything, the same in any
 * chunks; the others stay as they are. */
static void check_hidden(const struct attention_case *c, bool in_keys, float bad, const char *set,
                         enum activation_format activations)
{
    enum { BAD = 40 };
    struct backend *backend = bench_open_rounding(set, 2, WEIGHTS_Q8, activations);
    if (backend == NULL)
        return;
    struct arrays clean = make_arrays(c, false), dirty = make_arrays(c, false);
    clean.values_in_keys = dirty.values_in_keys = in_keys;
    int row = HEADS * c->value_dim;
    run(backend, c, &clean, c->length, 0);
    for (int i = 0; i < c->kv_heads * c->key_dim; i++)
        dirty.k[BAD * c->kv_heads * c->key_dim + i] = bad;
    for (int i = 0; i < c->kv_heads * c->value_dim; i++)
        dirty.v[BAD * c->kv_heads * c->value_dim + i] = bad;
    float *whole = malloc(dirty.size);
    static const int chunks[] = {200, 1, 7, 33};
    for (size_t n = 0; n < sizeof chunks / sizeof *chunks; n++) {
        run(backend, c, &dirty, chunks[n], 0xff);
        for (int t = 0; t < c->length; t++) {
            bool sees = t >= BAD && allowed(c, t, BAD);
            cr_assert(sees || memcmp(clean.h + t * row, dirty.h + t * row,
                                     (size_t)row * sizeof(float)) == 0,
                      "%s: %g at %d shows at %d in chunks of %d", describe(c, set), (double)bad,
                      BAD, t, chunks[n]);
        }
        cr_assert(c->activation == SOFTMAX_ACT_RELU || !isfinite(dirty.h[BAD * row]));
        if (n == 0)
            memcpy(whole, dirty.h, dirty.size);
        cr_assert(same(whole, dirty.h, c->length * row), "%s: chunks of %d", describe(c, set),
                  chunks[n]);
    }
    free(whole);
    cpu_ops.close(backend);
    free_arrays(&clean);
    free_arrays(&dirty);
}

Test(attention, nothing_comes_from_a_key_that_a_query_may_not_see)
{
    static const struct attention_case hidden[] = {
        {16, 16, 100, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, 2, KV_F32, 0},
        {16, 5, 100, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE, 1, KV_F16, 0},
        {3, 64, 100, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, HEADS, KV_BF16, 5.0f},
        {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 20, POSITION_ALIBI, 2, KV_F32, 3.0f},
        {16, 16, 200, SOFTMAX_ACT_RELU, WINDOW_SLIDING, 70, POSITION_NONE, 1, KV_F32, 0},
        {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 24, POSITION_NONE, 2, KV_F32, 0},
        {16, 5, 200, SOFTMAX_ACT_RELU, WINDOW_BLOCK, 64, POSITION_T5, HEADS, KV_F32, 0},
    };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden * 9; i++)
        check_hidden(&hidden[i / 9], false, bad[i / 3 % 3], bench_sets[i % 3], ACTIVATIONS_F32);
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden * 3; i++)
        for (enum activation_format form = ACTIVATIONS_F32; form <= ACTIVATIONS_8BIT; form++)
            if (hidden[i / 3].kv != KV_F32)
                check_hidden(&hidden[i / 3], false, bad[i % 3], "amx_emulated", form);
    for (size_t i = 0; i < sizeof cases_in_keys / sizeof *cases_in_keys; i++)
        for (enum kv_format kv = KV_F32; kv <= KV_BF16; kv++) {
            struct attention_case c = cases_in_keys[i];
            c.length = 100;
            c.kv = kv;
            check_hidden(&c, true, bad[(i + kv) % 3], bench_sets[i % 3], ACTIVATIONS_F32);
            check_hidden(&c, true, bad[(i + kv) % 3], "amx_emulated", ACTIVATIONS_16BIT);
        }
}
