/* SPDX-License-Identifier: Apache-2.0 */
/* The row recurrence against its definition in float64: every gate as numbers, feature maps with a
 * running maximum, positions before and after the map, heads that share queries, keys or values. */
#include "engine/ops/perform.h"
#include "tests/unit/ops_bench.h"

enum { TOKENS = 37, WIDEST = 64 };

enum place { NOWHERE, BEFORE, AFTER }; /* rope before the map, or LRPE type 1 after */

struct recurrence_case {
    int heads, kv_heads, value_dim, m;
    int qk_heads; /* 0: all heads have their own */
    enum feature_map map;
    enum place place;
    bool sum_norm, row_decay, per_head, feature_decay, input_scale, delta, skip;
};

static const struct recurrence_case cases[] = {
    {.heads = 2, .kv_heads = 2, .value_dim = 16, .m = 16},
    {.heads = 3, .kv_heads = 1, .value_dim = 12, .m = 9, .sum_norm = true},
    {.heads = 2, .kv_heads = 2, .value_dim = 16, .m = 8, .map = FEATURE_EXP, .sum_norm = true},
    {.heads = 4,
     .kv_heads = 2,
     .value_dim = 40,
     .m = 24,
     .map = FEATURE_EXP,
     .place = BEFORE,
     .row_decay = true},
    {.heads = 2,
     .kv_heads = 2,
     .value_dim = 33,
     .m = 10,
     .place = AFTER,
     .row_decay = true,
     .feature_decay = true},
    {.heads = 2, .kv_heads = 1, .value_dim = 64, .m = 13, .feature_decay = true},
    {.heads = 2,
     .kv_heads = 2,
     .value_dim = 31,
     .m = 16,
     .place = AFTER,
     .sum_norm = true,
     .row_decay = true,
     .per_head = true,
     .input_scale = true,
     .skip = true},
    {.heads = 2,
     .kv_heads = 2,
     .value_dim = 18,
     .m = 12,
     .place = BEFORE,
     .input_scale = true,
     .delta = true},
    {.heads = 2,
     .kv_heads = 2,
     .value_dim = 18,
     .m = 6,
     .place = AFTER,
     .row_decay = true,
     .feature_decay = true,
     .input_scale = true,
     .delta = true},
    /* values in groups of heads that share q and k: Gated DeltaNet's, and Mamba-2's */
    {.heads = 4,
     .qk_heads = 2,
     .kv_heads = 4,
     .value_dim = 18,
     .m = 12,
     .place = BEFORE,
     .row_decay = true,
     .per_head = true,
     .input_scale = true,
     .delta = true},
    {.heads = 6,
     .qk_heads = 1,
     .kv_heads = 6,
     .value_dim = 33,
     .m = 16,
     .row_decay = true,
     .per_head = true,
     .input_scale = true,
     .skip = true},
    {.heads = 6,
     .qk_heads = 3,
     .kv_heads = 6,
     .value_dim = 20,
     .m = 9,
     .map = FEATURE_EXP,
     .place = AFTER,
     .sum_norm = true,
     .feature_decay = true},
    /* q, k and v of three, one and two heads */
    {.heads = 6,
     .qk_heads = 3,
     .kv_heads = 2,
     .value_dim = 16,
     .m = 8,
     .map = FEATURE_EXP,
     .row_decay = true,
     .feature_decay = true},
};

struct arrays {
    float *q, *k, *v, *a, *f, *b, *g, *skip, *cosines, *sines, *maxima, *h;
};

/* Heads of q, and of k, f and M. */
static int query_heads(const struct recurrence_case *c)
{
    return c->qk_heads > 0 ? c->qk_heads : c->heads;
}

static int key_heads(const struct recurrence_case *c)
{
    return query_heads(c) < c->kv_heads ? query_heads(c) : c->kv_heads;
}

static int features_of(const struct recurrence_case *c)
{
    return c->place == AFTER ? 2 * c->m : c->m;
}

static struct rows from_row(float *data, int row, int width)
{
    return (struct rows){data + (ptrdiff_t)row * width, width};
}

static struct ops_factor as_it_is(bool present, float *data, int row, int width)
{
    struct ops_factor factor = {.formula = FORMULA_IDENTITY};
    if (present)
        factor.u = from_row(data, row, width);
    return factor;
}

/* The call for the rows from `first` on; position: room for what it points to. */
static struct ops_recurrence arguments(const struct recurrence_case *c, const struct arrays *x,
                                       int first, struct ops_positions *position)
{
    *position = (struct ops_positions){
        .kind = c->place == BEFORE ? POSITION_ROPE : POSITION_LRPE_UNITARY,
        .dim = c->m,
        .rotary_dims = c->m / 2 * 2,
        .cosines = from_row(x->cosines, first, c->m),
        .sines = from_row(x->sines, first, c->m),
    };
    return (struct ops_recurrence){
        .num_heads = c->heads,
        .num_qk_heads = query_heads(c),
        .num_kv_heads = c->kv_heads,
        .value_dim = c->value_dim,
        .features = features_of(c),
        .sum_norm = c->sum_norm,
        .row_decay_per_head = c->per_head,
        .phi = {.map = c->map,
                .query_scale = 0.5f,
                .head_dim = c->m,
                .features = c->m,
                .before = c->place == BEFORE ? position : NULL,
                .after = c->place == AFTER ? position : NULL,
                .maxima = from_row(x->maxima, first, key_heads(c))},
        .q = from_row(x->q, first, query_heads(c) * c->m),
        .k = from_row(x->k, first, key_heads(c) * c->m),
        .v = from_row(x->v, first, c->kv_heads * c->value_dim),
        .h = from_row(x->h, first, c->heads * c->value_dim),
        .row_decay =
            as_it_is(c->row_decay, x->a, first, c->per_head ? c->heads : c->heads * c->value_dim),
        .feature_decay = as_it_is(c->feature_decay, x->f, first, key_heads(c) * c->m),
        .input_scale = as_it_is(c->input_scale, x->b, first, c->heads),
        .delta = as_it_is(c->delta, x->g, first, c->heads),
        .skip = c->skip ? x->skip : NULL,
        .state_offset = 64, /* after the maxima */
    };
}

/* phi [m2] of z [m] at token t; *maximum: NULL for a query. Returns the factor of S. */
static double reference_phi(const struct recurrence_case *c, const struct arrays *x, int t,
                            const float *z, double *maximum, double *phi)
{
    const float *cosine = x->cosines + (ptrdiff_t)t * c->m;
    const float *sine = x->sines + (ptrdiff_t)t * c->m;
    double out[WIDEST], most = -INFINITY, rescale = 1.0;
    for (int j = 0; j < c->m; j++)
        out[j] = z[j];
    for (int i = 0; c->place == BEFORE && i < c->m / 2; i++) {
        out[i] = z[i] * (double)cosine[i] - z[i + c->m / 2] * (double)sine[i];
        out[i + c->m / 2] = z[i + c->m / 2] * (double)cosine[i] + z[i] * (double)sine[i];
    }
    for (int j = 0; j < c->m; j++)
        most = fmax(most, out[j]);
    if (maximum != NULL) {
        most = fmax(most, *maximum);
        rescale = c->map == FEATURE_EXP ? exp(*maximum - most) : 1.0;
        *maximum = most;
    }
    for (int j = 0; j < c->m; j++) {
        double value = c->map == FEATURE_EXP ? exp(out[j] - most) : out[j];
        value *= maximum == NULL ? 0.5 : 1.0;
        phi[j] = c->place == AFTER ? value * cosine[j] : value;
        if (c->place == AFTER)
            phi[c->m + j] = value * sine[j];
    }
    return rescale;
}

/* Row i of head h (i = value_dim: c) over all tokens; its outputs in out [TOKENS]. */
static void reference_row(const struct recurrence_case *c, const struct arrays *x, int head, int i,
                          double *out)
{
    double s[WIDEST] = {0}, q[WIDEST], k[WIDEST], maximum = -INFINITY;
    for (int t = 0; t < TOKENS; t++) {
        int at = t * c->heads + head;
        int q_at = t * query_heads(c) + head * query_heads(c) / c->heads;
        int k_at = t * key_heads(c) + head * key_heads(c) / c->heads;
        int v_at = t * c->kv_heads + head * c->kv_heads / c->heads;
        double a = 1.0, dot = 0.0;
        double v = i == c->value_dim ? 1.0 : x->v[v_at * c->value_dim + i];
        reference_phi(c, x, t, x->q + q_at * c->m, NULL, q);
        double rescale = reference_phi(c, x, t, x->k + k_at * c->m, &maximum, k);
        if (c->row_decay && c->per_head)
            a = x->a[at];
        else if (c->row_decay && i < c->value_dim)
            a = x->a[at * c->value_dim + i];
        out[t] = 0.0;
        for (int j = 0; j < features_of(c); j++) {
            s[j] *= a * rescale * (c->feature_decay ? x->f[k_at * c->m + j % c->m] : 1.0);
            dot += s[j] * k[j];
        }
        v *= c->input_scale ? x->b[at] : 1.0;
        v -= c->delta ? x->g[at] * dot : 0.0;
        for (int j = 0; j < features_of(c); j++) {
            s[j] += v * k[j];
            out[t] += s[j] * q[j];
        }
    }
}

static void check_values(const struct recurrence_case *c, const struct arrays *x, const char *set,
                         int number)
{
    for (int head = 0; head < c->heads; head++) {
        double sums[TOKENS], h[TOKENS];
        if (c->sum_norm)
            reference_row(c, x, head, c->value_dim, sums);
        for (int i = 0; i < c->value_dim; i++) {
            reference_row(c, x, head, i, h);
            for (int t = 0; t < TOKENS; t++) {
                double expected = c->sum_norm ? h[t] / fmax(sums[t], 1e-6) : h[t];
                int v_at = t * c->kv_heads + head * c->kv_heads / c->heads;
                if (c->skip)
                    expected += (double)x->skip[head] * x->v[v_at * c->value_dim + i];
                double got = x->h[(t * c->heads + head) * c->value_dim + i];
                /* sums of some 1000 terms under 1, in f32 */
                cr_assert(fabs(got - expected) <= 2e-5 * (1.0 + fabs(expected)),
                          "%s, case %d: head %d, row %d, token %d: expected %g, got %g", set,
                          number, head, i, t, expected, got);
            }
        }
    }
}

static void run(struct backend *backend, const struct recurrence_case *c, const struct arrays *x,
                int chunk)
{
    static struct bench_text text;
    size_t bytes =
        64 + ops_recurrent_bytes(c->value_dim, c->sum_norm, features_of(c)) * (size_t)c->heads;
    char *slot = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(slot, 0, bytes);
    for (int i = 0; i < key_heads(c); i++)
        ((float *)(void *)slot)[i] = -INFINITY;
    for (int first = 0; first < TOKENS; first += chunk) {
        struct ops_positions position;
        struct ops_recurrence call = arguments(c, x, first, &position);
        bench_text(&text, TOKENS - first < chunk ? TOKENS - first : chunk, first, slot, NULL);
        cpu_ops.begin(backend, &text.batch);
        perform_recurrence(&cpu_ops, backend, &call);
        cpu_ops.send(backend, NULL, 0);
        cpu_ops.receive(backend);
    }
    free(slot);
}

/* In any chunks the same bits, and on 5 threads, which cut a head's rows otherwise than 1. */
static void check_bits(const struct recurrence_case *c, const struct arrays *x, const char *set,
                       int number, const float *whole, int threads)
{
    size_t bytes = (size_t)(TOKENS * c->heads * c->value_dim) * sizeof(float);
    struct backend *backend = bench_open(set, threads);
    for (int chunk = 1; chunk < TOKENS + 3; chunk += 3) {
        memset(x->h, 0xff, bytes);
        run(backend, c, x, chunk);
        cr_assert(memcmp(whole, x->h, bytes) == 0, "%s, case %d: chunks of %d on %d threads", set,
                  number, chunk, threads);
    }
    cpu_ops.close(backend);
}

/* Each of `shared` heads of `width` as often as heads read it: [TOKENS, heads, width]. */
static float *repeat(const float *from, int shared, int heads, int width)
{
    float *out = malloc((size_t)(TOKENS * heads * width) * sizeof(float));
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < heads; h++)
            memcpy(out + (t * heads + h) * width, from + (t * shared + h * shared / heads) * width,
                   (size_t)width * sizeof(float));
    return out;
}

/* Heads that share are those written out, bit for bit. */
static void check_repeated(struct backend *backend, const struct recurrence_case *c,
                           const struct arrays *x, const char *set, int number, const float *whole)
{
    struct recurrence_case alone = *c;
    struct arrays out = *x;
    alone.qk_heads = alone.kv_heads = c->heads;
    out.q = repeat(x->q, query_heads(c), c->heads, c->m);
    out.k = repeat(x->k, key_heads(c), c->heads, c->m);
    out.v = repeat(x->v, c->kv_heads, c->heads, c->value_dim);
    out.f = repeat(x->f, key_heads(c), c->heads, c->m);
    size_t bytes = (size_t)(TOKENS * c->heads * c->value_dim) * sizeof(float);
    memset(x->h, 0xff, bytes);
    run(backend, &alone, &out, TOKENS);
    cr_assert(memcmp(whole, x->h, bytes) == 0, "%s, case %d: heads written out", set, number);
    free(out.q);
    free(out.k);
    free(out.v);
    free(out.f);
}

static void check_case(const struct recurrence_case *c, int number)
{
    const size_t wide = (size_t)TOKENS * (size_t)c->heads * WIDEST;
    struct arrays x = {
        .q = bench_floats(wide, 0, 0.5f, 1),
        .k = bench_floats(wide, 0, 0.5f, 2),
        .v = bench_floats(wide, -1, 1, 3),
        .a = bench_floats(wide, 0.5f, 1, 4),
        .f = bench_floats(wide, 0.5f, 1, 5),
        .b = bench_floats(wide, 0, 0.3f, 6),
        .g = bench_floats(wide, 0, 0.3f, 7),
        .skip = bench_floats((size_t)c->heads, -1, 1, 10),
        .cosines = bench_floats(wide, 0.3f, 1, 8),
        .sines = bench_floats(wide, 0, 0.7f, 9),
        .maxima = bench_nans(wide),
        .h = bench_nans(wide),
    };
    size_t bytes = (size_t)(TOKENS * c->heads * c->value_dim) * sizeof(float);
    float *whole = malloc(bytes);
    for (size_t s = 0; s < 3; s++) {
        struct backend *backend = bench_open(bench_sets[s], 2);
        if (backend == NULL)
            continue;
        run(backend, c, &x, TOKENS);
        check_values(c, &x, bench_sets[s], number);
        memcpy(whole, x.h, bytes);
        check_repeated(backend, c, &x, bench_sets[s], number, whole);
        cpu_ops.close(backend);
        check_bits(c, &x, bench_sets[s], number, whole, 1);
        check_bits(c, &x, bench_sets[s], number, whole, 5);
    }
    free(whole);
    float *arrays[] = {x.q, x.k,    x.v,       x.a,     x.f,      x.b,
                       x.g, x.skip, x.cosines, x.sines, x.maxima, x.h};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

Test(recurrence, every_gate_follows_the_definition_in_any_chunks)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i], (int)i);
}
