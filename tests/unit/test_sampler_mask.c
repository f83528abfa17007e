/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of draws: a token that is masked never comes, and a mask is the list of what it lets
 * through, whatever other settings there are. */
#include "engine/ops/sampler.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { VOCAB = 1003, WORDS = (VOCAB + 31) / 32, DRAWS = 40 };

static const struct logit_bias biases[] = {{5, 100}, {64, -3}, {999, 6}};

/* Each cut by itself, and all of them. */
static const struct sampling settings[] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 2, .top_p = 1, .top_k = 7, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 0.8f, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .min_p = 0.3f, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 0.7f, .repetition_penalty = 1},
    {.temperature = 0, .top_p = 1, .presence_penalty = 2, .repetition_penalty = 1.5f},
    {.temperature = 1.5f,
     .top_p = 0.95f,
     .min_p = 0.01f,
     .typical_p = 0.9f,
     .top_k = 60,
     .presence_penalty = 0.5f,
     .frequency_penalty = 0.2f,
     .repetition_penalty = 1.2f,
     .logit_bias = biases,
     .num_logit_bias = 3},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static uint32_t next(uint32_t *state)
{
    return *state = *state * 1664525u + 1013904223u;
}

static void fill_logits(float *logits, uint32_t *state)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(next(state) >> 8) / (1 << 21) - 4;
}

/* Whole words of nothing and of everything, and others. Returns how many ids it lists. */
static size_t fill_mask(uint32_t *mask, int32_t *ids, int round, uint32_t *state)
{
    size_t count = 0;
    for (int i = 0; i < WORDS; i++)
        mask[i] = next(state) % 3 == 0 ? 0 : next(state) % 4 == 0 ? UINT32_MAX : next(state);
    if (round == 0) /* one token only */
        memset(mask, 0, WORDS * sizeof *mask);
    mask[31] |= 1u << 7;
    for (int32_t i = 0; i < VOCAB; i++)
        if (mask[i / 32] >> i % 32 & 1)
            ids[count++] = i;
    return count;
}

static struct sampler *create(struct sampling s, const int32_t *allowed, size_t count, bool masked,
                              int seed)
{
    static const int32_t prompt[] = {999, 1, 5};
    struct sampler *sampler = NULL;
    struct error err = ERROR_INIT;
    s.seed = seed;
    s.allowed = allowed;
    s.num_allowed = count;
    s.masked = masked;
    cr_assert(sampler_create(&sampler, &s, VOCAB, prompt, 3, &err) == 0, "%s", err.message);
    return sampler;
}

static void expect_equal(const struct draw *a, const struct draw *b, int setting, int round)
{
    cr_assert(a->id >= 0 && a->id == b->id, "settings %d, draw %d: %d, %d", setting, round, a->id,
              b->id);
    cr_expect(a->logprob == b->logprob && memcmp(a->top, b->top, 3 * sizeof *a->top) == 0);
}

Test(sampler_mask, draws_what_a_list_of_allowed_tokens_draws)
{
    float logits[VOCAB];
    uint32_t mask[WORDS], state = 7;
    int32_t ids[VOCAB];
    for (int s = 0; s < SETTINGS; s++)
        for (int round = 0; round < 3; round++) {
            size_t count = fill_mask(mask, ids, round, &state);
            struct draw by_mask = {.sampler = create(settings[s], NULL, 0, true, s),
                                   .mask = mask,
                                   .wants_logprob = true,
                                   .num_top = 3};
            struct draw by_list = {.sampler = create(settings[s], ids, count, false, s),
                                   .wants_logprob = true,
                                   .num_top = 3};
            for (int i = 0; i < DRAWS; i++) {
                fill_logits(logits, &state);
                sampler_draw(&by_mask, logits);
                sampler_draw(&by_list, logits);
                expect_equal(&by_mask, &by_list, s, i);
                cr_expect(mask[by_mask.id / 32] >> by_mask.id % 32 & 1);
                cr_expect_eq(by_mask.logprob, logprob_of(logits, VOCAB, by_mask.id));
            }
            sampler_free(by_mask.sampler);
            sampler_free(by_list.sampler);
        }
}

Test(sampler_mask, changes_no_bit_where_it_lets_all_through)
{
    float logits[VOCAB];
    uint32_t mask[WORDS], state = 3;
    memset(mask, 0xff, sizeof mask);
    for (int s = 0; s < SETTINGS; s++) {
        struct draw draws[] = {{.sampler = create(settings[s], NULL, 0, true, 1), .mask = mask},
                               {.sampler = create(settings[s], NULL, 0, true, 1)},
                               {.sampler = create(settings[s], NULL, 0, false, 1), .mask = mask}};
        for (int i = 0; i < DRAWS; i++) {
            fill_logits(logits, &state);
            for (int j = 0; j < 3; j++)
                sampler_draw(&draws[j], logits);
            expect_equal(&draws[0], &draws[1], s, i);
            expect_equal(&draws[0], &draws[2], s, i);
        }
        for (int j = 0; j < 3; j++)
            sampler_free(draws[j].sampler);
    }
}

/* With allowed tokens, bias and bans: a token must pass all of them. */
Test(sampler_mask, composes_with_lists_and_bans)
{
    float logits[VOCAB] = {0};
    uint32_t mask[WORDS] = {[0] = 0xf0, [1] = 1};
    static const int32_t allowed[] = {3, 4, 5, 32, 500}, banned[] = {4};
    for (int temperature = 0; temperature < 2; temperature++) {
        struct sampling s = {.temperature = (float)temperature,
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .logit_bias = (const struct logit_bias[]){{3, 100}, {500, 100}},
                             .num_logit_bias = 2};
        struct draw draw = {.sampler = create(s, allowed, 5, true, 2),
                            .mask = mask,
                            .banned = banned,
                            .num_banned = 1};
        bool drawn[VOCAB] = {false};
        for (int i = 0; i < 200; i++) {
            sampler_draw(&draw, logits);
            cr_assert(draw.id == 5 || draw.id == 32, "%d", draw.id);
            drawn[draw.id] = true;
        }
        cr_expect(drawn[5] && drawn[32] == (temperature > 0));
        cr_expect(sampler_looks_back(draw.sampler));
        memset(mask + 1, 0, sizeof mask - sizeof *mask);
        mask[0] = 1u << 4; /* which is banned */
        struct error err = ERROR_INIT;
        sampler_draw(&draw, logits);
        cr_expect(draw.id == -1 && draw.nan_id == -1 && draw_check(&draw, &err) == -1);
        mask[0] = 0xf0;
        mask[1] = 1;
        sampler_free(draw.sampler);
    }
}
