/* The row recurrence against its definition in float64, for every combination of gates. */
#include "tests/unit/ops_bench.h"

enum { TOKENS = 37 };

struct recurrence_case {
    int heads, value_dim, m, m2;
    bool sum_norm, row_decay, per_head, feature_decay, input_scale, delta, rescale;
};

static const struct recurrence_case cases[] = {
    {.heads = 2, .value_dim = 16, .m = 16, .m2 = 16},
    {.heads = 3, .value_dim = 12, .m = 9, .m2 = 9, .sum_norm = true},
    {.heads = 2, .value_dim = 16, .m = 8, .m2 = 8, .sum_norm = true, .rescale = true},
    {.heads = 2, .value_dim = 20, .m = 24, .m2 = 24, .row_decay = true, .rescale = true},
    {.heads = 2, .value_dim = 33, .m = 10, .m2 = 20, .row_decay = true, .feature_decay = true},
    {.heads = 1, .value_dim = 64, .m = 13, .m2 = 13, .feature_decay = true},
    {.heads = 2,
     .value_dim = 31,
     .m = 16,
     .m2 = 32,
     .sum_norm = true,
     .row_decay = true,
     .per_head = true,
     .input_scale = true},
    {.heads = 2, .value_dim = 18, .m = 12, .m2 = 12, .input_scale = true, .delta = true},
    {.heads = 2,
     .value_dim = 18,
     .m = 6,
     .m2 = 12,
     .row_decay = true,
     .feature_decay = true,
     .input_scale = true,
     .delta = true},
};

struct arrays {
    float *q, *k, *v, *a, *f, *b, *g, *r, *h;
};

static struct ops_recurrence arguments(const struct recurrence_case *c, const struct arrays *x,
                                       int first)
{
    const int64_t rows = c->heads * c->value_dim, row_decays = c->per_head ? c->heads : rows;
    struct ops_recurrence call = {
        .num_heads = c->heads,
        .num_kv_heads = c->heads,
        .value_dim = c->value_dim,
        .features = c->m2,
        .gate_features = c->m,
        .sum_norm = c->sum_norm,
        .row_decay_per_head = c->per_head,
        .q = {x->q + (int64_t)first * c->heads * c->m2, (int64_t)c->heads * c->m2},
        .k = {x->k + (int64_t)first * c->heads * c->m2, (int64_t)c->heads * c->m2},
        .v = {x->v + first * rows, rows},
        .h = {x->h + first * rows, rows},
    };
    if (c->row_decay)
        call.row_decay = (struct rows){x->a + first * row_decays, row_decays};
    if (c->feature_decay)
        call.feature_decay =
            (struct rows){x->f + (int64_t)first * c->heads * c->m, (int64_t)c->heads * c->m};
    if (c->input_scale)
        call.input_scale = (struct rows){x->b + first * c->heads, c->heads};
    if (c->delta)
        call.delta = (struct rows){x->g + first * c->heads, c->heads};
    if (c->rescale)
        call.rescale = (struct rows){x->r + first * c->heads, c->heads};
    return call;
}

/* Row i of head h (i = value_dim: c) over all tokens; its outputs in out [TOKENS]. */
static void reference_row(const struct recurrence_case *c, const struct arrays *x, int head, int i,
                          double *out)
{
    double s[64] = {0};
    for (int t = 0; t < TOKENS; t++) {
        const float *q = x->q + ((size_t)t * c->heads + head) * c->m2;
        const float *k = x->k + ((size_t)t * c->heads + head) * c->m2;
        double a = 1.0, dot = 0.0, h = 0.0;
        double v = i == c->value_dim ? 1.0 : x->v[((size_t)t * c->heads + head) * c->value_dim + i];
        if (c->row_decay && c->per_head)
            a = x->a[t * c->heads + head];
        else if (c->row_decay)
            a = x->a[((size_t)t * c->heads + head) * c->value_dim + i];
        a *= c->rescale ? x->r[t * c->heads + head] : 1.0;
        for (int j = 0; j < c->m2; j++) {
            double f =
                c->feature_decay ? x->f[((size_t)t * c->heads + head) * c->m + j % c->m] : 1.0;
            s[j] *= a * f;
            dot += s[j] * k[j];
        }
        v *= c->input_scale ? x->b[t * c->heads + head] : 1.0;
        v -= c->delta ? x->g[t * c->heads + head] * dot : 0.0;
        for (int j = 0; j < c->m2; j++) {
            s[j] += v * k[j];
            h += s[j] * q[j];
        }
        out[t] = h;
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
                double got = x->h[((size_t)t * c->heads + head) * c->value_dim + i];
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
    size_t bytes = ops_recurrent_bytes(c->value_dim, c->sum_norm, c->m2) * (size_t)c->heads;
    char *slot = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(slot, 0, bytes);
    for (int first = 0; first < TOKENS; first += chunk) {
        struct ops_recurrence call = arguments(c, x, first);
        bench_text(&text, TOKENS - first < chunk ? TOKENS - first : chunk, first, slot, NULL);
        cpu_ops.begin(backend, &text.batch);
        cpu_ops.recurrence(backend, &call);
        cpu_ops.finish(backend, NULL, 0);
    }
    free(slot);
}

static void check_case(const struct recurrence_case *c, int number)
{
    const size_t wide = (size_t)TOKENS * c->heads * 64;
    struct arrays x = {
        .q = bench_floats(wide, 0, 0.5f, 1),
        .k = bench_floats(wide, 0, 0.5f, 2),
        .v = bench_floats(wide, -1, 1, 3),
        .a = bench_floats(wide, 0.5f, 1, 4),
        .f = bench_floats(wide, 0.5f, 1, 5),
        .b = bench_floats(wide, 0, 0.3f, 6),
        .g = bench_floats(wide, 0, 0.3f, 7),
        .r = bench_floats(wide, 0.5f, 1, 8),
        .h = bench_nans(wide),
    };
    for (size_t s = 0; s < 3; s++) {
        struct backend *backend = bench_open(bench_sets[s], 2);
        if (backend == NULL)
            continue;
        size_t bytes = (size_t)TOKENS * c->heads * c->value_dim * sizeof(float);
        run(backend, c, &x, TOKENS);
        check_values(c, &x, bench_sets[s], number);
        float *whole = malloc(bytes);
        memcpy(whole, x.h, bytes);
        for (int chunk = 1; chunk < TOKENS; chunk += 3) {
            memset(x.h, 0xff, bytes);
            run(backend, c, &x, chunk);
            cr_assert(memcmp(whole, x.h, bytes) == 0, "%s, case %d: chunks of %d", bench_sets[s],
                      number, chunk);
        }
        free(whole);
        cpu_ops.close(backend);
    }
    float *arrays[] = {x.q, x.k, x.v, x.a, x.f, x.b, x.g, x.r, x.h};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

Test(recurrence, every_gate_follows_the_definition_in_any_chunks)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i], (int)i);
}
