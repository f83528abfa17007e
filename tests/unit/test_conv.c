/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions over rows against their definition in float64, the same bits in any chunks and on
 * any threads, rows in the slot that follow from the position alone, and texts that see only their
 * own rows. */
#include "engine/cpu/device.h"
#include "engine/ops/perform.h"
#include "tests/unit/ops_bench.h"
#include "tests/unit/sanitized.h"

#include <stdio.h>

enum { MOST_TOKENS = 40, MOST_SLOT = 7 * 700 };

struct conv_case {
    int width, channels, length;
    bool biased, silu;
};

static const struct conv_case cases[] = {
    {2, 1, 9, false, false},    {3, 7, 12, true, false},   {4, 64, 40, false, true},
    {4, 300, 21, true, true},   {5, 256, 17, true, false}, {6, 257, 13, false, true},
    {7, 700, 40, false, false}, {8, 19, 30, true, true},
};

struct arrays {
    float *u, *x, *weight, *bias;
    float *whole;
    size_t size; /* numbers of u and x, whose rows are `stride` apart */
    int64_t stride;
};

static struct arrays make_arrays(const struct conv_case *c)
{
    const size_t channels = (size_t)c->channels;
    const int64_t stride = c->channels + 3; /* other columns stand behind them */
    const size_t size = (size_t)(c->length * stride);
    return (struct arrays){.u = bench_floats(size, -2, 2, 1),
                           .x = bench_floats(size, 0, 0, 1),
                           .weight = bench_floats((size_t)c->width * channels, -1, 1, 2),
                           .bias = c->biased ? bench_floats(channels, -1, 1, 3) : NULL,
                           .whole = malloc(size * sizeof(float)),
                           .size = size,
                           .stride = stride};
}

static void free_arrays(struct arrays *x)
{
    float *all[] = {x->u, x->x, x->weight, x->bias, x->whole};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static struct ops_conv operation(const struct conv_case *c, const struct arrays *x)
{
    return (struct ops_conv){
        .width = c->width,
        .channels = c->channels,
        .activation = c->silu ? FORMULA_SILU : FORMULA_IDENTITY,
        .weight = x->weight,
        .bias = x->bias,
        .x = {x->x, x->stride},
    };
}

static void check_values(const struct conv_case *c, const struct arrays *x, const char *set)
{
    for (int t = 0; t < c->length; t++)
        for (int i = 0; i < c->channels; i++) {
            double sum = c->biased ? (double)x->bias[i] : 0.0;
            for (int j = 0; j < c->width; j++) {
                const int from = t - c->width + 1 + j;
                sum += from < 0 ? 0.0
                                : (double)x->weight[j * c->channels + i] *
                                      (double)x->u[from * x->stride + i];
            }
            const double expected = c->silu ? sum / (1.0 + exp(-sum)) : sum;
            const double got = (double)x->x[t * x->stride + i];
            /* sums of up to 9 numbers of at most 2, in f32 */
            cr_assert(fabs(got - expected) < 1e-5,
                      "%s: K %d, channel %d at %d: expected %g, got %g", set, c->width, i, t,
                      expected, got);
        }
}

/* The whole text, `chunk` tokens a step; other columns must stay. */
static void run(struct backend *backend, const struct conv_case *c, const struct arrays *x,
                int chunk, float *slot)
{
    static struct bench_text text;
    struct ops_conv a = operation(c, x);
    memcpy(x->x, x->u, x->size * sizeof(float));
    memset(slot, 0, ops_conv_bytes(c->width, c->channels));
    for (int first = 0; first < c->length; first += chunk) {
        const int n = c->length - first < chunk ? c->length - first : chunk;
        bench_text(&text, n, first, (char *)slot, NULL);
        a.x.data = x->x + first * x->stride;
        cpu_ops.begin(backend, &text.batch);
        perform_conv(&cpu_ops, backend, &a);
        cpu_ops.send(backend, NULL, 0);
        cpu_ops.receive(backend);
    }
    for (int t = 0; t < c->length; t++)
        cr_assert(memcmp(x->x + t * x->stride + c->channels, x->u + t * x->stride + c->channels,
                         3 * sizeof(float)) == 0);
}

/* Row p mod (K - 1) of the slot has the numbers of the last position p. */
static void check_slot(const struct conv_case *c, const struct arrays *x, const float *slot)
{
    for (int t = c->length - c->width + 1; t < c->length; t++) {
        const float *row = slot + t % (c->width - 1) * c->channels;
        for (int i = 0; i < c->channels; i++)
            cr_assert(row[i] == (t < 0 ? 0.0f : x->u[t * x->stride + i]), "K %d: row of %d",
                      c->width, t);
    }
}

static void check_case(const struct conv_case *c, const char *set)
{
    struct backend *one = bench_open(set, 1), *three = bench_open(set, 3);
    float slot[MOST_SLOT];
    if (one == NULL)
        return;
    struct arrays x = make_arrays(c);
    run(one, c, &x, c->length, slot);
    check_values(c, &x, set);
    check_slot(c, &x, slot);
    memcpy(x.whole, x.x, x.size * sizeof(float));
    for (int chunk = 1; chunk <= c->length; chunk++) {
        run(chunk % 2 == 0 ? one : three, c, &x, chunk, slot);
        cr_assert(memcmp(x.whole, x.x, x.size * sizeof(float)) == 0, "%s: K %d, %d channels: %d",
                  set, c->width, c->channels, chunk);
        check_slot(c, &x, slot);
    }
    free_arrays(&x);
    cpu_ops.close(one);
    cpu_ops.close(three);
}

Test(conv, every_case_follows_the_definition_in_any_chunks)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t set = 0; set < sizeof bench_sets / sizeof *bench_sets; set++)
            if (!SANITIZED || set == i % 3)
                check_case(&cases[i], bench_sets[set]);
}

/* Two texts in one step, of 5 and 4 tokens, one of them in the middle of its text. */
Test(conv, texts_of_a_step_see_their_own_rows_alone)
{
    enum { FIRST = 5, SECOND = 4, BEFORE = 6 };
    const struct conv_case c = {4, 300, BEFORE + SECOND, true, true};
    struct backend *backend = bench_open("generic", 1);
    struct arrays x = make_arrays(&c);
    float slots[2][MOST_SLOT] = {{0}};
    const size_t row = (size_t)x.stride * sizeof(float);
    run(backend, &c, &x, c.length, slots[0]);
    memcpy(x.whole, x.x, x.size * sizeof(float));
    struct conv_case before = c;
    before.length = BEFORE;
    memset(slots[0], 0, sizeof slots[0]);
    run(backend, &before, &x, BEFORE, slots[1]);
    memcpy(x.x, x.u, FIRST * row);
    memcpy(x.x + FIRST * x.stride, x.u + BEFORE * x.stride, SECOND * row);
    const struct batch_span spans[2] = {
        {.num_rows = FIRST, .slot = (char *)slots[0]},
        {.first_row = FIRST, .num_rows = SECOND, .position = BEFORE, .slot = (char *)slots[1]}};
    const struct batch batch = {.num_rows = FIRST + SECOND, .num_spans = 2, .spans = spans};
    const struct ops_conv a = operation(&c, &x);
    cpu_ops.begin(backend, &batch);
    perform_conv(&cpu_ops, backend, &a);
    cpu_ops.send(backend, NULL, 0);
    cpu_ops.receive(backend);
    cr_expect(memcmp(x.x, x.whole, FIRST * row) == 0);
    cr_expect(memcmp(x.x + FIRST * x.stride, x.whole + BEFORE * x.stride, SECOND * row) == 0);
    free_arrays(&x);
    cpu_ops.close(backend);
}
