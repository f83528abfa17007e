/* SPDX-License-Identifier: Apache-2.0 */
/* What the cuts keep against a full sort, and the passes over logits against libm. */
#include "engine/ops/cut.h"
#include "engine/ops/logits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 3000, KINDS = 8 };

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Logits of a kind: spread, flat, two values, a few ties, a falling and a rising slope, floats of
 * all sizes and infinities, one far above the rest. */
static void fill(float *logits, int32_t count, int kind, uint32_t *state)
{
    for (int32_t i = 0; i < count; i++) {
        float u = (float)next(state) * 0x1p-24f;
        float integer = floorf(u * 9);
        float scale = ldexpf(u - 0.5f, (int)(next(state) % 200) - 100);
        const float kinds[KINDS] = {
            12 * u - 6,
            1.5f,
            u < 0.5f ? -0.0f : 0.0f,
            integer,
            (float)-i * 0.01f,
            (float)i * 1e-4f,
            u < 0.05f ? -INFINITY : scale,
            i == count / 3 ? 40.0f : u,
        };
        logits[i] = kinds[kind];
    }
}

struct ranked {
    float logit, weight;
    int32_t id;
};

static int falling(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

struct bench {
    float logits[MOST], weights[MOST], original[MOST];
    int32_t ids[MOST];
    struct ranked sorted[MOST];
    struct candidates c;
    float max;
    double total;
};

static struct bench *prepare(int32_t count, int kind, float temperature, uint32_t *state)
{
    struct bench *b = malloc(sizeof *b);
    fill(b->logits, count, kind, state);
    memcpy(b->original, b->logits, sizeof b->original);
    b->max = logits_max(b->logits, count);
    b->total = logits_weights(b->logits, count, b->max, temperature, b->weights);
    b->c = (struct candidates){count, b->logits, b->weights, b->ids};
    for (int32_t i = 0; i < count; i++) {
        b->ids[i] = i;
        b->sorted[i] = (struct ranked){b->logits[i], b->weights[i], i};
    }
    qsort(b->sorted, (size_t)count, sizeof *b->sorted, falling);
    return b;
}

/* That the candidates are the `kept` first of the sorted, in the order of their ids. */
static void expect_best(const struct bench *b, int32_t kept, const char *what)
{
    bool best[MOST] = {false};
    for (int32_t i = 0; i < kept; i++)
        best[b->sorted[i].id] = true;
    cr_assert(b->c.count == kept, "%s: expected %d, got %d", what, kept, b->c.count);
    for (int32_t i = 0; i < b->c.count; i++) {
        int32_t id = b->c.ids[i];
        cr_assert(best[id] && (i == 0 || id > b->c.ids[i - 1]), "%s: %d at %d", what, id, i);
        cr_assert(b->c.logits[i] == b->original[id], "%s: logit of %d", what, id);
    }
}

Test(cut, a_count_keeps_the_first_of_the_sorted)
{
    static const int32_t counts[] = {1, 2, 7, 40, 187, 188, 189, 1000, 2999, 3000, 5000};
    uint32_t state = 1;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            struct bench *b = prepare(MOST, kind, 1, &state);
            cut_to_count(&b->c, counts[i]);
            char what[64];
            snprintf(what, sizeof what, "kind %d, best %d", kind, counts[i]);
            expect_best(b, counts[i] < MOST ? counts[i] : MOST, what);
            free(b);
        }
}

Test(cut, a_share_keeps_the_fewest_of_the_sorted_that_reach_it)
{
    static const float shares[] = {0, 1e-6f, 0.25f, 0.5f, 0.9f, 0.999f, 0.9999999f};
    static const int32_t sizes[] = {1, 3, 16, 500, MOST};
    uint32_t state = 2;
    for (int round = 0; round < KINDS * 7 * 5 * 3; round++) {
        int kind = round % KINDS;
        float temperature = (float)(1 << round / (KINDS * 35) * 2) * 0.25f;
        double share = (double)shares[round / KINDS % 7];
        struct bench *b = prepare(sizes[round / (KINDS * 7) % 5], kind, temperature, &state);
        double wanted = share * b->total;
        /* bounds, as the order of a sum changes its last bits */
        double sum = 0;
        int32_t fewest = 0, most = 0;
        for (int32_t i = 0; i < b->c.count && b->sorted[i].weight > 0; i++) {
            fewest += sum < wanted * (1 - 1e-12);
            most += sum < wanted * (1 + 1e-12);
            sum += (double)b->sorted[i].weight;
        }
        fewest = fewest == 0 ? 1 : fewest;
        most = most == 0 ? 1 : most;
        char what[64];
        snprintf(what, sizeof what, "round %d, kind %d, share %g", round, kind, share);
        cut_to_weight(&b->c, wanted);
        cr_assert(b->c.count >= fewest && b->c.count <= most, "%s: %d to %d, got %d", what, fewest,
                  most, b->c.count);
        expect_best(b, b->c.count, what);
        free(b);
    }
}

Test(cut, keys_keep_the_fewest_that_reach_a_share_and_what_equals_the_last)
{
    static const float shares[] = {1e-6f, 0.3f, 0.9f, 0.9999f};
    uint32_t state = 5;
    for (int round = 0; round < KINDS * 4 * 3; round++) {
        double share = (double)shares[round / KINDS % 4];
        struct bench *b = prepare(round < KINDS * 4 ? MOST : 300, round % KINDS, 1, &state);
        float keys[MOST], of_id[MOST];
        fill(keys, b->c.count, (round + 1 + round / KINDS) % KINDS, &state);
        memcpy(of_id, keys, sizeof keys);
        for (int32_t i = 0; i < b->c.count; i++)
            b->sorted[i] = (struct ranked){keys[i], b->weights[i], i};
        qsort(b->sorted, (size_t)b->c.count, sizeof *b->sorted, falling);
        double sum = 0;
        int32_t fewest = 0, most = 0, count = b->c.count;
        for (int32_t i = 0; i < count; i++) {
            fewest += sum < share * b->total * (1 - 1e-12);
            most += sum < share * b->total * (1 + 1e-12);
            sum += (double)b->sorted[i].weight;
        }
        while (most < count && b->sorted[most].logit == b->sorted[most - 1].logit)
            most++;
        cut_by(&b->c, keys, share * b->total);
        char what[64];
        snprintf(what, sizeof what, "round %d, share %g", round, share);
        cr_assert(b->c.count >= fewest && b->c.count <= most, "%s: %d to %d, got %d", what, fewest,
                  most, b->c.count);
        expect_best(b, b->c.count, what);
        cr_assert(b->c.count == count ||
                      b->sorted[b->c.count].logit < of_id[b->sorted[b->c.count - 1].id],
                  "%s: a tie was cut", what);
        free(b);
    }
}

Test(cut, infinite_logits_share_everything)
{
    float logits[] = {1, INFINITY, -INFINITY, INFINITY, 2}, weights[5];
    int32_t ids[] = {0, 1, 2, 3, 4};
    double total = logits_weights(logits, 5, INFINITY, 1, weights);
    cr_expect(total == 2);
    struct candidates c = {5, logits, weights, ids};
    cut_to_weight(&c, 0.75 * total);
    cr_expect(c.count == 2 && ids[0] == 1 && ids[1] == 3);
    cut_to_weight(&c, 0.5 * total);
    cr_expect(c.count == 1 && ids[0] == 1);
}

Test(cut, weights_are_those_of_libm)
{
    enum { COUNT = 1001 };
    float logits[COUNT], weights[COUNT];
    double sum = 0, rounded = 0;
    for (int i = 0; i < COUNT; i++)
        logits[i] = 3.0f - (float)i * 0.0937f;
    double exact = logits_weights(logits, COUNT, 3.0f, 1, NULL);
    double stored = logits_weights(logits, COUNT, 3.0f, 1, weights);
    for (int i = 0; i < COUNT; i++) {
        double expected = exp((double)logits[i] - 3.0);
        expected = expected > 1.2e-38 ? expected : 0; /* FLT_MIN, and logits[] reach e^-93 */
        cr_assert(fabs((double)weights[i] - expected) <= 0x1.001p-24 * expected, "%d: %a, %a", i,
                  (double)weights[i], expected);
        sum += expected;
        rounded += (double)weights[i];
    }
    cr_expect(weights[0] == 1);
    cr_expect(fabs(exact - sum) < 1e-14 * sum);
    cr_expect(fabs(stored - rounded) < 1e-14 * rounded);
    cr_expect(fabs(logits_sum(weights, COUNT) - rounded) < 1e-14 * rounded);
}

Test(cut, the_largest_is_found_anywhere_and_a_nan_is_not_missed)
{
    enum { COUNT = 37 };
    for (int i = 0; i < COUNT; i++) {
        float logits[COUNT];
        for (int j = 0; j < COUNT; j++)
            logits[j] = (float)-j - 5;
        logits[i] = -4;
        cr_expect(logits_max(logits, COUNT) == -4);
        cr_expect_eq(logits_best(logits, COUNT), i);
        logits[(i + 5) % COUNT] = -4;
        cr_expect_eq(logits_best(logits, COUNT), i < (i + 5) % COUNT ? i : (i + 5) % COUNT);
        logits[i] = NAN;
        cr_expect(isnan(logits_max(logits, COUNT)));
        cr_expect_eq(logits_best(logits, COUNT), 0);
    }
}
