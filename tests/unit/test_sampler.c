/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler: its generator, each filter against a naive reference, penalties, log-probabilities.
 */
#include "engine/ops/sampler.h"
#include "lib/base/philox.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 500

static const struct sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static struct sampler *create(const struct sampling *sampling, int32_t vocab_size,
                              const int32_t *prompt, size_t num_prompt)
{
    struct sampler *sampler = NULL;
    struct error err = ERROR_INIT;
    cr_assert_eq(sampler_create(&sampler, sampling, vocab_size, prompt, num_prompt, &err), 0, "%s",
                 err.message);
    return sampler;
}

static int32_t pick_but(struct sampler *sampler, const float *logits, const int32_t *banned,
                        size_t num_banned, struct error *err)
{
    struct draw draw = {.sampler = sampler, .banned = banned, .num_banned = num_banned};
    sampler_draw(&draw, logits);
    return draw_check(&draw, err) == 0 ? draw.id : -1;
}

static int32_t pick(struct sampler *sampler, const float *logits)
{
    struct error err = ERROR_INIT;
    int32_t id = pick_but(sampler, logits, NULL, 0, &err);
    cr_assert_geq(id, 0, "%s", err.message);
    return id;
}

/* The first pick of a new sampler. */
static int32_t pick_once(const struct sampling *sampling, const float *logits, int32_t vocab_size)
{
    struct sampler *sampler = create(sampling, vocab_size, NULL, 0);
    int32_t id = pick(sampler, logits);
    sampler_free(sampler);
    return id;
}

/* In [0, 1), of a fixed sequence. */
static double next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* Logits with a spread, a few ties and a few that are impossible. */
static void random_logits(float *logits, int32_t vocab_size, uint64_t *state)
{
    for (int32_t i = 0; i < vocab_size; i++) {
        logits[i] = (float)(8 * next_random(state) - 4);
        if (next_random(state) < 0.2)
            logits[i] = roundf(logits[i]);
        if (next_random(state) < 0.02)
            logits[i] = -INFINITY;
    }
}

Test(sampler, philox_gives_the_vectors_of_its_authors)
{
    const struct {
        struct philox counter;
        uint32_t key[2];
        struct philox expected;
    } cases[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct philox got = philox4x32_10(cases[i].counter, cases[i].key[0], cases[i].key[1]);
        cr_expect_arr_eq(got.word, cases[i].expected.word, sizeof got.word);
    }
}

Test(sampler, greedy_takes_the_largest_and_the_smallest_id_of_a_tie)
{
    const float logits[] = {-1, 3, 2, 3, -INFINITY};
    struct sampling greedy = plain;
    greedy.temperature = 0;
    cr_expect_eq(pick_once(&greedy, logits, 5), 1);
    greedy.top_k = 2;
    greedy.top_p = 0.1f;
    greedy.min_p = 0.9f;
    cr_expect_eq(pick_once(&greedy, logits, 5), 1);
    const float infinite[] = {0, INFINITY, 5, INFINITY};
    cr_expect_eq(pick_once(&greedy, infinite, 4), 1);
}

Test(sampler, a_nan_is_an_error)
{
    const float logits[] = {1, 2, NAN, 4};
    for (int temperature = 0; temperature < 2; temperature++) {
        struct sampling s = plain;
        s.temperature = (float)temperature;
        struct sampler *sampler = create(&s, 4, NULL, 0);
        struct error err = ERROR_INIT;
        cr_expect_eq(pick_but(sampler, logits, NULL, 0, &err), -1);
        cr_expect_eq(err.code, ERROR_INTERNAL);
        cr_expect_str_eq(err.message, "the logit of token 2 is NaN");
        sampler_free(sampler);
    }
}

Test(sampler, nothing_left_is_an_error)
{
    const float impossible[] = {-INFINITY, -INFINITY};
    const float two[] = {1, 2};
    const int32_t both[] = {0, 1};
    for (int temperature = 0; temperature < 2; temperature++) {
        struct sampling s = plain;
        s.temperature = (float)temperature;
        struct sampler *sampler = create(&s, 2, NULL, 0);
        struct error err = ERROR_INIT;
        cr_expect_eq(pick_but(sampler, impossible, NULL, 0, &err), -1);
        cr_expect_eq(err.code, ERROR_INTERNAL);
        cr_expect_str_eq(err.message, "no token is left to draw");
        cr_expect_eq(pick_but(sampler, two, both, 2, NULL), -1);
        sampler_free(sampler);
    }
}

Test(sampler, bad_ids_are_refused)
{
    struct sampler *sampler;
    const int32_t prompt[] = {3};
    struct sampling s = plain;
    s.repetition_penalty = 2;
    cr_expect_eq(sampler_create(&sampler, &s, 3, prompt, 1, NULL), -1);
    const struct logit_bias bias = {3, 1};
    s = plain;
    s.logit_bias = &bias;
    s.num_logit_bias = 1;
    cr_expect_eq(sampler_create(&sampler, &s, 3, NULL, 0, NULL), -1);
    cr_expect_eq(sampler_create(&sampler, &plain, 0, NULL, 0, NULL), -1);
    cr_expect_null(sampler);
}

Test(sampler, infinite_logits_and_tiny_temperatures)
{
    const float infinite[] = {0, INFINITY, 5, -INFINITY};
    const float close[] = {1, 1.0001f, -3.4e38f, 0};
    for (int ranked = 0; ranked < 2; ranked++) {
        struct sampling s = plain;
        s.top_p = ranked ? 0.999f : 1;
        cr_expect_eq(pick_once(&s, infinite, 4), 1);
        s.temperature = 1e-30f;
        cr_expect_eq(pick_once(&s, close, 4), 1);
    }
}

Test(sampler, a_draw_depends_on_seed_choice_and_position_only)
{
    float logits[VOCAB];
    uint64_t state = 1;
    random_logits(logits, VOCAB, &state);
    struct sampling s = plain;
    s.seed = -42;
    struct sampler *alone = create(&s, VOCAB, NULL, 0);
    int32_t expected[32];
    for (int i = 0; i < 32; i++)
        expected[i] = pick(alone, logits);
    sampler_free(alone);
    struct sampling other = s;
    other.choice = 1;
    struct sampling elsewhere = s;
    elsewhere.seed = -43;
    struct sampler *same = create(&s, VOCAB, NULL, 0);
    struct sampler *choice = create(&other, VOCAB, NULL, 0);
    struct sampler *seed = create(&elsewhere, VOCAB, NULL, 0);
    int equal_choice = 0;
    int equal_seed = 0;
    int repeated = 0;
    for (int i = 0; i < 32; i++) {
        equal_choice += pick(choice, logits) == expected[i];
        cr_expect_eq(pick(same, logits), expected[i]);
        equal_seed += pick(seed, logits) == expected[i];
        repeated += i > 0 && expected[i] == expected[i - 1];
    }
    /* Of 500 tokens, 32 draws of two independent sequences agree at one place in most runs. */
    cr_expect_lt(equal_choice, 5);
    cr_expect_lt(equal_seed, 5);
    cr_expect_lt(repeated, 5);
    sampler_free(same);
    sampler_free(choice);
    sampler_free(seed);
}

/* Pearson's statistic of counts [n] against probabilities [n]. */
static double chi_square(const int *counts, const double *p, int n, int draws)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double expected = p[i] * draws;
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return sum;
}

Test(sampler, draws_follow_the_distribution)
{
    enum { N = 10, DRAWS = 50000 };
    const float logits[N] = {0, 1, 2, -1, 0.5f, 0.25f, -2, 1.5f, -0.5f, 0.75f};
    const float temperatures[] = {1, 0.5f, 2};
    for (int t = 0; t < 3; t++) {
        for (int ranked = 0; ranked < 2; ranked++) {
            double p[N];
            double total = 0;
            for (int i = 0; i < N; i++)
                total += p[i] = exp((double)logits[i] / (double)temperatures[t]);
            struct sampling s = plain;
            s.temperature = temperatures[t];
            s.top_p = ranked ? 0.9999999f : 1; /* in the other order, all kept */
            s.seed = 5 + t;
            struct sampler *sampler = create(&s, N, NULL, 0);
            int along[N] = {0};  /* positions of one text */
            int across[N] = {0}; /* first tokens of many seeds */
            for (int i = 0; i < DRAWS; i++) {
                along[pick(sampler, logits)]++;
                s.seed = i;
                across[pick_once(&s, logits, N)]++;
            }
            sampler_free(sampler);
            for (int i = 0; i < N; i++)
                p[i] /= total;
            /* 9 degrees of freedom: 27.9 is exceeded once in 1000; the seeds are fixed. */
            cr_expect_lt(chi_square(along, p, N, DRAWS), 27.9);
            cr_expect_lt(chi_square(across, p, N, DRAWS), 27.9);
        }
    }
}

struct candidate {
    int32_t id;
    float logit;
};

static int falling(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* What TypicalLogitsWarper of transformers keeps of the sorted [n], in their order: by -log p,
 * sorted by its distance from the entropy. Returns how many, and moves their p to the front. */
static int reference_typical(const struct sampling *s, struct candidate *sorted, double *p, int n,
                             double *total)
{
    double away[VOCAB], entropy = 0, mass = 0, worst = 0;
    bool taken[VOCAB] = {false};
    for (int i = 0; i < n; i++)
        entropy -= p[i] > 0 ? p[i] / *total * log(p[i] / *total) : 0;
    for (int i = 0; i < n; i++)
        away[i] = p[i] > 0 ? fabs(-log(p[i] / *total) - entropy) : INFINITY;
    while (mass < (double)s->typical_p * *total) { /* the nearest of what is left */
        int nearest = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (nearest < 0 || away[i] < away[nearest]))
                nearest = i;
        if (nearest < 0)
            break;
        taken[nearest] = true;
        worst = away[nearest];
        mass += p[nearest];
    }
    int kept = 0;
    *total = 0;
    for (int i = 0; i < n; i++) {
        if (away[i] > worst + 1e-6)
            continue;
        sorted[kept] = sorted[i];
        p[kept++] = p[i];
        *total += p[i];
    }
    return kept;
}

/* Which tokens may be drawn, by sorting everything and cutting; returns how many. *least is the
 * probability of the last of them. */
static int reference_kept(const struct sampling *s, const float *logits, bool *kept, double *least)
{
    struct candidate sorted[VOCAB];
    double p[VOCAB];
    for (int32_t i = 0; i < VOCAB; i++)
        sorted[i] = (struct candidate){i, logits[i]};
    qsort(sorted, VOCAB, sizeof *sorted, falling);
    int n = s->top_k > 0 && s->top_k < VOCAB ? s->top_k : VOCAB;
    double total = 0;
    for (int i = 0; i < n; i++) {
        p[i] = exp(((double)sorted[i].logit - (double)sorted[0].logit) / (double)s->temperature);
        total += p[i];
    }
    if (s->typical_p > 0 && s->typical_p < 1)
        n = reference_typical(s, sorted, p, n, &total);
    double sum = 0;
    int nucleus = 0;
    while (nucleus < n && (nucleus == 0 || sum < (double)s->top_p * total))
        sum += p[nucleus++];
    memset(kept, 0, VOCAB * sizeof *kept);
    double mass = 0;
    int count = 0;
    for (; count < nucleus && p[count] > 0 && p[count] >= (double)s->min_p * p[0]; count++) {
        kept[sorted[count].id] = true;
        mass += p[count];
    }
    *least = p[count - 1] / mass;
    return count;
}

Test(sampler, filters_keep_what_a_full_sort_keeps)
{
    const float top_p[] = {1, 0.95f, 0.5f, 0.01f};
    const int32_t top_k[] = {0, 1, 7, 100, VOCAB};
    const float min_p[] = {0, 0.05f, 0.5f, 1};
    const float temperature[] = {0.3f, 1, 2}, typical_p[] = {1, 0.9f, 0.2f};
    uint64_t state = 3;
    for (int round = 0; round < 4 * 5 * 4 * 3 * 3; round++) {
        struct sampling s = plain;
        s.top_p = top_p[round % 4];
        s.top_k = top_k[round / 4 % 5];
        s.min_p = min_p[round / 20 % 4];
        s.temperature = temperature[round / 80 % 3];
        s.typical_p = typical_p[round / 240];
        s.seed = round;
        float logits[VOCAB];
        float before[VOCAB];
        random_logits(logits, VOCAB, &state);
        memcpy(before, logits, sizeof logits);
        bool kept[VOCAB];
        double least;
        int count = reference_kept(&s, logits, kept, &least);
        bool drawn[VOCAB] = {false};
        int distinct = 0;
        struct sampler *sampler = create(&s, VOCAB, NULL, 0);
        for (int i = 0; i < 300; i++) {
            int32_t id = pick(sampler, logits);
            cr_expect(kept[id], "round %d: token %d is outside", round, (int)id);
            distinct += !drawn[id];
            drawn[id] = true;
        }
        sampler_free(sampler);
        cr_expect_arr_eq(logits, before, sizeof logits);
        /* A token that is missed by 300 draws although 15 are expected: once in 3 million. */
        if (300 * least >= 15)
            cr_expect_eq(distinct, count, "round %d: %d of %d", round, distinct, count);
    }
}

Test(sampler, the_boundary_of_each_filter)
{
    /* Probabilities 0.4, 0.3, 0.2, 0.1. */
    const float logits[] = {logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f)};
    const struct {
        struct sampling s;
        int kept; /* the first so many */
    } cases[] = {
        {{.temperature = 1, .top_p = 0.39f, .repetition_penalty = 1}, 1},
        {{.temperature = 1, .top_p = 0.41f, .repetition_penalty = 1}, 2},
        {{.temperature = 1, .top_p = 0.69f, .repetition_penalty = 1}, 2},
        {{.temperature = 1, .top_p = 0.71f, .repetition_penalty = 1}, 3},
        {{.temperature = 1, .top_p = 0.91f, .repetition_penalty = 1}, 4},
        {{.temperature = 1, .top_p = 1, .top_k = 3, .repetition_penalty = 1}, 3},
        /* top_p is a share of what top_k left: 0.4 / 0.7 = 0.57 */
        {{.temperature = 1, .top_p = 0.56f, .top_k = 2, .repetition_penalty = 1}, 1},
        {{.temperature = 1, .top_p = 0.58f, .top_k = 2, .repetition_penalty = 1}, 2},
        {{.temperature = 1, .top_p = 1, .min_p = 0.51f, .repetition_penalty = 1}, 2},
        {{.temperature = 1, .top_p = 1, .min_p = 0.49f, .repetition_penalty = 1}, 3},
        {{.temperature = 1, .top_p = 0.99f, .min_p = 0.51f, .repetition_penalty = 1}, 2},
        /* temperature comes first: at 0.5 they are 0.533, 0.3, 0.133, 0.033 */
        {{.temperature = 0.5f, .top_p = 0.52f, .repetition_penalty = 1}, 1},
        {{.temperature = 0.5f, .top_p = 0.84f, .repetition_penalty = 1}, 3},
        {{.temperature = 0.5f, .top_p = 1, .min_p = 0.3f, .repetition_penalty = 1}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler *sampler = create(&cases[i].s, 4, NULL, 0);
        int counts[4] = {0};
        for (int draw = 0; draw < 2000; draw++)
            counts[pick(sampler, logits)]++;
        sampler_free(sampler);
        for (int id = 0; id < 4; id++)
            cr_expect_eq(counts[id] > 0, id < cases[i].kept, "case %zu, token %d", i, id);
    }
}

Test(sampler, a_tie_goes_to_the_smaller_id_whatever_the_sign_of_zero)
{
    const float logits[] = {-1, -0.0f, 0.0f, -INFINITY};
    struct sampling s = plain;
    s.top_k = 1;
    for (int seed = 0; seed < 20; seed++) {
        s.seed = seed;
        cr_expect_eq(pick_once(&s, logits, 4), 1);
    }
}

Test(sampler, logit_bias_moves_a_token)
{
    const float logits[] = {1, 2, 3};
    const struct logit_bias bias[] = {{0, 2.5f}, {2, -100}};
    struct sampling s = plain;
    s.temperature = 0;
    s.logit_bias = bias;
    s.num_logit_bias = 2;
    cr_expect_eq(pick_once(&s, logits, 3), 0);
    const struct logit_bias forced[] = {{1, 100}};
    s = plain;
    s.logit_bias = forced;
    s.num_logit_bias = 1;
    for (int seed = 0; seed < 50; seed++) {
        s.seed = seed;
        cr_expect_eq(pick_once(&s, logits, 3), 1);
    }
}

Test(sampler, banned_tokens_do_not_come)
{
    const float logits[] = {5, 1, 4, 3};
    const int32_t banned[] = {0, 2, -1, 99};
    const struct sampling settings[] = {
        {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 0, .top_p = 1, .repetition_penalty = 1.0001f},
        {.temperature = 1, .top_p = 1, .top_k = 1, .repetition_penalty = 1},
        {.temperature = 0.01f, .top_p = 1, .repetition_penalty = 1},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct sampler *sampler = create(&settings[i], 4, NULL, 0);
        cr_expect_eq(pick_but(sampler, logits, banned, 4, NULL), 3, "settings %zu", i);
        cr_expect_eq(pick_but(sampler, logits, NULL, 0, NULL), 0, "settings %zu", i);
        sampler_free(sampler);
    }
}

/* The tokens that greedy picks give, one after the other, on unchanged logits. */
static void expect_greedy(struct sampling s, const float *logits, int32_t vocab_size,
                          const int32_t *prompt, size_t num_prompt, const int32_t *expected,
                          int count)
{
    s.temperature = 0;
    s.top_p = 1;
    struct sampler *sampler = create(&s, vocab_size, prompt, num_prompt);
    for (int i = 0; i < count; i++)
        cr_expect_eq(pick(sampler, logits), expected[i], "pick %d", i);
    sampler_free(sampler);
}

Test(sampler, only_allowed_tokens_come)
{
    float logits[VOCAB];
    uint64_t state = 21;
    random_logits(logits, VOCAB, &state);
    logits[17] = 30; /* never, since it is not allowed */
    const int32_t allowed[] = {400, 3, 250, 3}, banned[] = {250};
    logits[400] = 1;
    logits[3] = logits[250] = 2;
    const struct logit_bias bias = {17, 100};
    for (int round = 0; round < 3; round++) {
        struct sampling s = plain;
        s.temperature = round == 0 ? 0 : 1.5f;
        s.typical_p = round == 2 ? 0.9999f : 0;
        s.allowed = allowed;
        s.num_allowed = 4;
        s.logit_bias = &bias;
        s.num_logit_bias = 1;
        bool drawn[VOCAB] = {false};
        struct sampler *sampler = create(&s, VOCAB, NULL, 0);
        for (int i = 0; i < 200; i++)
            drawn[pick(sampler, logits)] = true;
        cr_expect(drawn[3] && drawn[400] == (round > 0) && drawn[250] == (round > 0));
        for (int i = 0; i < VOCAB; i++)
            cr_expect(!drawn[i] || i == 3 || i == 250 || i == 400, "%d", i);
        for (int i = 0; i < 200; i++)
            cr_expect_neq(pick_but(sampler, logits, banned, 1, NULL), 250);
        cr_expect_eq(pick_but(sampler, logits, allowed, 4, NULL), -1);
        sampler_free(sampler);
    }
}

Test(sampler, a_typical_token_need_not_be_the_likeliest)
{
    /* Of 3.6 : 1 : 1 : 1 : 1 the entropy is nearer to -log p of the four, of 4.4 : ... of the one.
     */
    const float ratio[] = {3.6f, 4.4f};
    struct sampling s = plain;
    s.typical_p = 0.4f;
    struct sampler *sampler;
    for (int round = 0; round < 2; round++) {
        float logits[] = {logf(ratio[round]), 0, 0, 0, 0, -INFINITY};
        int first = 0;
        sampler = create(&s, 6, NULL, 0);
        for (int i = 0; i < 100; i++)
            first += pick(sampler, logits) == 0;
        cr_expect_eq(first, round * 100);
        sampler_free(sampler);
    }
    /* Many unlikely ones: each is nearer to what is expected than the likeliest, and min_p counts
     * from the likeliest that is left. */
    float many[VOCAB] = {4.0f};
    s.typical_p = 0.5f;
    s.min_p = 0.5f;
    sampler = create(&s, VOCAB, NULL, 0);
    for (int i = 0; i < 100; i++)
        cr_expect_neq(pick(sampler, many), 0);
    sampler_free(sampler);
}

Test(sampler, presence_is_charged_once)
{
    const float logits[] = {3, 2.5f, 2};
    const int32_t prompt[] = {0, 0};
    struct sampling s = {.presence_penalty = 0.75f, .repetition_penalty = 1};
    /* 3, then 2.25 < 2.5, then 1.75 < 2; all charged once: the first leads again, for ever */
    const int32_t expected[] = {0, 1, 0, 0, 0};
    expect_greedy(s, logits, 3, prompt, 2, expected, 5);
    s.repetition_penalty = 1.0001f; /* which does look at the prompt */
    expect_greedy(s, logits, 3, prompt, 2, expected, 2);
}

Test(sampler, frequency_is_charged_each_time)
{
    const float logits[] = {3, 2.5f};
    struct sampling s = {.frequency_penalty = 0.4f, .repetition_penalty = 1};
    /* 3 | 2.6 | 2.2 < 2.5 | 2.2 > 2.1 | 1.8 < 2.1 */
    const int32_t expected[] = {0, 0, 1, 0, 1};
    expect_greedy(s, logits, 2, NULL, 0, expected, 5);
}

Test(sampler, repetition_counts_the_prompt_and_divides_or_multiplies)
{
    const float logits[] = {3, 2, -1, -1.5f};
    const int32_t prompt[] = {0};
    struct sampling s = {.repetition_penalty = 2};
    const int32_t expected[] = {1, 0, 0}; /* 1.5 < 2, then 1.5 > 1 */
    expect_greedy(s, logits, 4, prompt, 1, expected, 3);
    const float negative[] = {-1, -1.5f, -1.75f};
    const int32_t second[] = {1, 2, 0}; /* -2 < -1.5; -3 < -1.75; -3.5 < -2 */
    expect_greedy(s, negative, 3, prompt, 1, second, 3);
    s.repetition_penalty = 0.5f; /* below 1 it encourages */
    const int32_t encouraged[] = {2, 2};
    const int32_t seen[] = {2};
    expect_greedy(s, negative, 3, seen, 1, encouraged, 2);
}

Test(sampler, bias_comes_before_the_penalties)
{
    const float logits[] = {1, 1.2f};
    const int32_t prompt[] = {0};
    const struct logit_bias bias = {0, 1};
    /* (1 + 1) / 2 = 1 < 1.2; the other way 1/2 + 1 = 1.5 */
    struct sampling s = {.repetition_penalty = 2, .logit_bias = &bias, .num_logit_bias = 1};
    const int32_t expected[] = {1};
    expect_greedy(s, logits, 2, prompt, 1, expected, 1);
}

Test(sampler, a_penalty_may_be_as_small_as_a_float)
{
    const float logits[] = {-INFINITY, 1, 0};
    const int32_t prompt[] = {0, 1, 2};
    struct sampling s = {.repetition_penalty = 1e-45f};
    const int32_t expected[] = {1};
    expect_greedy(s, logits, 3, prompt, 3, expected, 1);
}

Test(sampler, log_probabilities_are_those_of_softmax)
{
    const float logits[] = {0, logf(2), logf(3), -INFINITY};
    cr_expect_float_eq(logprob_of(logits, 4, 0), logf(1.0f / 6), 1e-6); /* of float logits */
    cr_expect_float_eq(logprob_of(logits, 4, 2), logf(0.5f), 1e-6);
    cr_expect_eq(logprob_of(logits, 4, 3), -INFINITY);
    float random[VOCAB];
    uint64_t state = 9;
    random_logits(random, VOCAB, &state);
    double sum = 0;
    for (int32_t i = 0; i < VOCAB; i++)
        sum += exp((double)logprob_of(random, VOCAB, i));
    cr_expect_float_eq(sum, 1,
                       1e-6); /* each is rounded to a float: 2^-24 relative of |log p| < 10 */
}

Test(sampler, the_best_come_in_order_with_the_same_bits)
{
    uint64_t state = 11;
    for (int round = 0; round < 50; round++) {
        float logits[VOCAB];
        random_logits(logits, VOCAB, &state);
        struct candidate sorted[VOCAB];
        for (int32_t i = 0; i < VOCAB; i++)
            sorted[i] = (struct candidate){i, logits[i]};
        qsort(sorted, VOCAB, sizeof *sorted, falling);
        int count = round % 21;
        int32_t id = round % VOCAB;
        struct token_logprob top[20];
        float got = logprobs_top(logits, VOCAB, id, count, top);
        float alone = logprob_of(logits, VOCAB, id);
        cr_expect_eq(memcmp(&got, &alone, sizeof got), 0);
        for (int i = 0; i < count; i++) {
            cr_expect_eq(top[i].id, sorted[i].id, "round %d, rank %d", round, i);
            alone = logprob_of(logits, VOCAB, top[i].id);
            cr_expect_eq(memcmp(&top[i].logprob, &alone, sizeof alone), 0);
        }
    }
}

Test(sampler, wanted_tokens_get_their_log_probabilities_and_all_have_a_rank)
{
    float logits[VOCAB];
    uint64_t state = 8;
    random_logits(logits, VOCAB, &state);
    const int32_t wanted[] = {499, 0, 123};
    struct sampler *sampler = create(&plain, VOCAB, NULL, 0);
    struct draw draw = {.sampler = sampler, .wants_logprob = true, .num_top = 3, .wanted = wanted};
    sampler_draw(&draw, logits);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(draw.top[i].id, wanted[i]);
        float expected = logprob_of(logits, VOCAB, wanted[i]);
        cr_expect_eq(memcmp(&draw.top[i].logprob, &expected, sizeof expected), 0);
    }
    cr_expect_eq(draw.logprob, logprob_of(logits, VOCAB, draw.id));
    sampler_free(sampler);
    struct token_logprob top[SAMPLER_MOST_TOP];
    logprobs_top(logits, VOCAB, 0, SAMPLER_MOST_TOP, top);
    for (int i = 0; i < SAMPLER_MOST_TOP; i++)
        cr_expect_eq(logprob_rank(logits, VOCAB, top[i].id), i + 1);
}

Test(sampler, log_probabilities_at_the_edges)
{
    struct token_logprob top[5];
    const float two[] = {1, 1};
    cr_expect_float_eq(logprobs_top(two, 2, 1, 5, top), logf(0.5f), 1e-7);
    cr_expect_eq(top[0].id, 0);
    cr_expect_eq(top[1].id, 1);
    cr_expect_eq(top[2].id, -1);
    cr_expect_eq(top[4].logprob, -INFINITY);
    const float infinite[] = {0, INFINITY};
    cr_expect_eq(logprob_of(infinite, 2, 1), 0);
    cr_expect_eq(logprob_of(infinite, 2, 0), -INFINITY);
    const float impossible[] = {-INFINITY, -INFINITY};
    cr_expect_eq(logprob_of(impossible, 2, 0), -INFINITY);
    const float nan[] = {0, NAN};
    cr_expect(isnan(logprob_of(nan, 2, 0)));
    const float huge[] = {3e38f, -3e38f}; /* no overflow in between */
    cr_expect_eq(logprob_of(huge, 2, 0), 0);
}
