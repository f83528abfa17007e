/* SPDX-License-Identifier: Apache-2.0 */
/* What a step of the engine holds: budgets kept, nobody starved, tenants served alike. */
#include "server/schedule/plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct plan_time any = {.most = INFINITY};

static void sums(const struct plan_row *rows, size_t count, int *tokens, int *logits)
{
    *tokens = *logits = 0;
    for (size_t i = 0; i < count; i++) {
        *tokens += rows[i].tokens;
        *logits += rows[i].logits;
    }
}

Test(scheduler_plan, decoding_goes_first_and_the_prompt_gets_the_rest)
{
    struct plan_row rows[4] = {{0}, {.prefill = 1000}, {0}, {0}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 4, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 1);
    cr_assert_eq(rows[2].tokens, 1);
    cr_assert_eq(rows[3].tokens, 1);
    cr_assert_eq(rows[1].tokens, 61);
    cr_assert_eq(rows[1].logits, 0);
}

Test(scheduler_plan, the_last_chunk_asks_for_the_last_positions_logits)
{
    struct plan_row rows[1] = {{.prefill = 10}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 1, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 10);
    cr_assert_eq(rows[0].logits, 1);
    rows[0] = (struct plan_row){.prefill = 10, .wants_none = true};
    plan_step(rows, 1, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 10);
    cr_assert_eq(rows[0].logits, 0);
}

Test(scheduler_plan, all_logits_are_bounded_by_the_step)
{
    struct plan_row rows[2] = {{.prefill = 100, .wants_all = true}, {0}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 2, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 15);
    cr_assert_eq(rows[0].logits, 15);
    cr_assert_eq(rows[1].tokens, 1);
}

Test(scheduler_plan, a_chunk_has_its_own_limit)
{
    struct plan_row rows[2] = {{.prefill = 100}, {.prefill = 5}};
    struct plan_limits limits = {64, 16, 3, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 2, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 3);
    cr_assert_eq(rows[1].tokens, 3);
}

Test(scheduler_plan, a_chunk_ends_where_a_checkpoint_is_due)
{
    struct plan_row rows[2] = {{.prefill = 100, .until = 7}, {.prefill = 10, .until = 10}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 2, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 7);
    cr_assert_eq(rows[0].logits, 0);
    cr_assert_eq(rows[1].tokens, 10);
    cr_assert_eq(rows[1].logits, 1);
}

Test(scheduler_plan, a_short_prompt_overtakes_a_long_one_which_still_moves)
{
    struct plan_row rows[3] = {{.prefill = 100000}, {.prefill = 20}, {.prefill = 40}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 3, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 32);
    cr_assert_eq(rows[1].tokens, 20);
    cr_assert_eq(rows[1].logits, 1);
    cr_assert_eq(rows[2].tokens, 12);
}

Test(scheduler_plan, idle_rows_take_no_part)
{
    struct plan_row rows[2] = {{.prefill = 10, .idle = true}, {.idle = true}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    int tokens, logits;
    plan_step(rows, 2, &limits, &any, &turn);
    sums(rows, 2, &tokens, &logits);
    cr_assert_eq(tokens, 0);
    plan_step(rows, 0, &limits, &any, &turn);
}

Test(scheduler_plan, more_decoding_texts_than_fit_take_turns)
{
    enum { COUNT = 50, STEPS = 100 };
    struct plan_row rows[COUNT];
    int got[COUNT] = {0};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    memset(rows, 0, sizeof rows);
    for (int step = 0; step < STEPS; step++) {
        plan_step(rows, COUNT, &limits, &any, &turn);
        for (int i = 0; i < COUNT; i++)
            got[i] += rows[i].tokens;
    }
    /* 16 of 50 a step: 32 each in 100 steps. */
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(got[i], 32, "text %d got %d tokens", i, got[i]);
}

Test(scheduler_plan, a_prompt_is_not_starved_by_decoding)
{
    enum { COUNT = 65 };
    struct plan_row rows[COUNT];
    memset(rows, 0, sizeof rows);
    rows[COUNT - 1].prefill = 30;
    struct plan_limits limits = {64, 64, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, COUNT, &limits, &any, &turn);
    cr_assert_eq(rows[COUNT - 1].tokens, 16);
    for (int steps = 0; rows[COUNT - 1].prefill > 0; steps++) {
        cr_assert_lt(steps, 3);
        plan_step(rows, COUNT, &limits, &any, &turn);
        rows[COUNT - 1].prefill -= rows[COUNT - 1].tokens;
    }
}

Test(scheduler_plan, texts_whose_pages_do_not_fit_take_turns)
{
    enum { COUNT = 5, STEPS = 20 };
    static const int64_t pages[COUNT] = {10, 4, 4, 2, 9};
    struct plan_row rows[COUNT] = {{0}};
    int got[COUNT] = {0};
    struct plan_limits limits = {64, 16, 0, 10, 0};
    struct plan_turn turn = {0};
    for (int i = 0; i < COUNT; i++)
        rows[i].pages = pages[i];
    for (int step = 0; step < STEPS; step++) {
        plan_step(rows, COUNT, &limits, &any, &turn);
        for (int i = 0; i < COUNT; i++)
            got[i] += rows[i].tokens;
    }
    /* by itself, three together, by itself */
    for (int i = 0; i < COUNT; i++)
        cr_assert_geq(got[i], STEPS / 3, "text %d got %d tokens", i, got[i]);
}

Test(scheduler_plan, a_prompt_has_the_pages_it_needs)
{
    struct plan_row rows[4] = {
        {.pages = 3}, {.prefill = 100, .pages = 8}, {.pages = 2}, {.prefill = 9, .pages = 1}};
    struct plan_limits limits = {64, 16, 0, 10, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 4, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 0);
    cr_assert_eq(rows[2].tokens, 1, "it has room where another has none");
    cr_assert_eq(rows[1].tokens, 63);
    cr_assert_eq(rows[3].tokens, 0);
    plan_step(rows, 4, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 1, "the first that did not fit is the first of the next step");
    cr_assert_eq(rows[1].tokens, 0);
    plan_step(rows, 4, &limits, &any, &turn);
    cr_assert_gt(rows[1].tokens, 0);
}

Test(scheduler_plan, nobody_waits_for_pages_until_another_has_ended)
{
    enum { COUNT = 7, STEPS = 60 };
    struct plan_row rows[COUNT] = {{.prefill = 1 << 20, .pages = 7},
                                   {.pages = 8},
                                   {.pages = 6},
                                   {.pages = 1},
                                   {.pages = 1},
                                   {.prefill = 99, .pages = 6},
                                   {.prefill = 100, .pages = 1}};
    int got[COUNT] = {0};
    struct plan_limits limits = {64, 16, 0, 10, 0};
    struct plan_turn turn = {0};
    for (int step = 0; step < STEPS; step++) {
        plan_step(rows, COUNT, &limits, &any, &turn);
        for (int i = 0; i < COUNT; i++)
            got[i] += rows[i].tokens > 0;
    }
    /* but the prompt of 6 pages for that of 7, which is older */
    for (int i = 0; i < COUNT; i++)
        cr_expect(got[i] >= STEPS / 5 || i == 5, "text %d took part in %d steps", i, got[i]);
}

Test(scheduler_plan, budgets_hold_for_random_batches)
{
    unsigned seed = 3;
    struct plan_turn turn = {0};
    for (int round = 0; round < 20000; round++) {
        struct plan_row rows[24];
        size_t count = (size_t)rand_r(&seed) % 24;
        struct plan_limits limits = {2 + rand_r(&seed) % 60, 2 + rand_r(&seed) % 20,
                                     rand_r(&seed) % 3 ? 0 : 1 + rand_r(&seed) % 9,
                                     rand_r(&seed) % 4 ? 1 + rand_r(&seed) % 50 : INT64_MAX,
                                     rand_r(&seed) % 20};
        int64_t most = limits.max_pages < 50 ? limits.max_pages : 50, pages = 0;
        int drafts = 0;
        bool work = false;
        for (size_t i = 0; i < count; i++) {
            rows[i] = (struct plan_row){.prefill = rand_r(&seed) % 2 ? rand_r(&seed) % 200 : 0,
                                        .wants_all = rand_r(&seed) % 5 == 0,
                                        .wants_none = rand_r(&seed) % 7 == 0,
                                        .idle = rand_r(&seed) % 9 == 0,
                                        .drafts = rand_r(&seed) % 17,
                                        .position = rand_r(&seed) % 3 ? 0 : rand_r(&seed) % 9999,
                                        .pages = rand_r(&seed) % (most + 1)};
            work = work || !rows[i].idle;
        }
        const struct plan_time time = {.token = rand_r(&seed) % 5,
                                       .position = 1e-3 * (rand_r(&seed) % 5),
                                       .most = rand_r(&seed) % 3 ? rand_r(&seed) % 99 : INFINITY};
        plan_step(rows, count, &limits, &time, &turn);
        int tokens, logits;
        sums(rows, count, &tokens, &logits);
        cr_assert_leq(tokens, limits.max_tokens);
        cr_assert_leq(logits, limits.max_logits);
        for (size_t i = 0; i < count; i++)
            pages += rows[i].tokens > 0 ? rows[i].pages : 0;
        cr_assert_leq(pages, limits.max_pages);
        cr_assert(!work || tokens > 0, "work to do, and a step without any");
        for (size_t i = 0; i < count; i++) {
            const struct plan_row *row = &rows[i];
            bool ends = row->prefill > 0 && row->tokens == row->prefill;
            int expected = row->prefill == 0          ? row->tokens
                           : row->wants_all           ? row->tokens
                           : ends && !row->wants_none ? 1
                                                      : 0;
            cr_assert_eq(row->logits, expected);
            cr_assert_leq(row->tokens, row->prefill ? row->prefill : 1 + row->drafts);
            drafts += row->prefill == 0 && row->tokens > 0 ? row->tokens - 1 : 0;
        }
        cr_assert_leq(drafts, limits.max_drafts);
    }
}

/* ---- by time ---- */

/* A token costs 1 s at the beginning of a text, and 2 s at position 1,000. */
static const struct plan_time by_time = {.token = 1, .position = 1e-3, .most = 100};

Test(scheduler_plan, prompts_take_as_long_as_they_should)
{
    struct plan_row rows[2] = {{.prefill = 5000}, {0}};
    struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 2, &limits, &by_time, &turn);
    cr_assert_eq(rows[1].tokens, 1);
    cr_assert(plan_seconds(&by_time, &rows[0], rows[0].tokens) <= 100 &&
                  plan_seconds(&by_time, &rows[0], rows[0].tokens + 2) > 100,
              "%d tokens", rows[0].tokens);
    rows[0] = (struct plan_row){.prefill = 5000, .position = 3000};
    plan_step(rows, 2, &limits, &by_time, &turn);
    cr_assert(rows[0].tokens >= 24 && rows[0].tokens <= 25, "%d tokens", rows[0].tokens);
}

/* The long one gets half of the time, and what others leave. */
Test(scheduler_plan, short_prompts_share_the_time_with_a_long_one)
{
    struct plan_row rows[3] = {{.prefill = 5000}, {.prefill = 300}, {.prefill = 20}};
    struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 3, &limits, &by_time, &turn);
    cr_assert_eq(rows[2].tokens, 20);
    cr_assert(rows[0].tokens >= 45 && rows[0].tokens <= 50, "%d tokens", rows[0].tokens);
    cr_assert(rows[1].tokens >= 20 && rows[1].tokens <= 35, "%d tokens", rows[1].tokens);
    rows[1].prefill = 0;
    plan_step(rows, 3, &limits, &by_time, &turn);
    cr_assert(rows[0].tokens >= 75 && rows[0].tokens <= 80, "%d tokens", rows[0].tokens);
}

/* At a depth where 16 tokens take too long, the long prompt and the others alternate. */
Test(scheduler_plan, beyond_that_a_prompt_gets_every_other_step)
{
    struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    for (int step = 0; step < 6; step++) {
        struct plan_row rows[3] = {{.prefill = 1000000, .position = 20000}, {.prefill = 40}, {0}};
        plan_step(rows, 3, &limits, &by_time, &turn);
        cr_assert_eq(rows[0].tokens, step % 2 == 0 ? PLAN_LEAST_CHUNK : 0, "step %d", step);
        cr_assert_geq(rows[1].tokens, PLAN_LEAST_CHUNK);
        cr_assert_eq(rows[2].tokens, 1);
    }
    turn = (struct plan_turn){0};
    for (int step = 0; step < 3; step++) { /* alone it goes on */
        struct plan_row row = {.prefill = 1000000, .position = 20000};
        plan_step(&row, 1, &limits, &by_time, &turn);
        cr_assert_eq(row.tokens, PLAN_LEAST_CHUNK);
    }
}

/* Two of them take turns, and nobody else waits for both. */
Test(scheduler_plan, slow_prompts_take_turns)
{
    struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    for (int step = 0; step < 8; step++) {
        struct plan_row rows[3] = {
            {.prefill = 1000000, .position = 20000}, {.prefill = 900000, .position = 20000}, {0}};
        plan_step(rows, 3, &limits, &by_time, &turn);
        cr_assert_eq(rows[0].tokens, step % 4 == 0 ? PLAN_LEAST_CHUNK : 0, "step %d", step);
        cr_assert_eq(rows[1].tokens, step % 4 == 2 ? PLAN_LEAST_CHUNK : 0, "step %d", step);
        cr_assert_eq(rows[2].tokens, 1);
    }
}

/* A slow prompt with little left, as that of a long session's turn, between a long one and a fresh
 * one: none waits for another's end. */
Test(scheduler_plan, a_slow_prompt_holds_up_nobody_and_is_not_held_up)
{
    struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    struct plan_row rows[3] = {
        {.prefill = 50000}, {.prefill = 100, .position = 60000}, {.prefill = 200}};
    int steps[3] = {0};
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < 3; i++)
            rows[i].idle = rows[i].prefill == 0 && i > 0;
        plan_step(rows, 3, &limits, &by_time, &turn);
        cr_assert_gt(rows[0].tokens, 0, "step %d", step);
        for (int i = 0; i < 3; i++) {
            steps[i] += rows[i].prefill > 0 && rows[i].tokens > 0;
            rows[i].position += rows[i].tokens;
            rows[i].prefill -= rows[i].prefill > 0 ? rows[i].tokens : 0;
        }
    }
    cr_assert_eq(rows[1].prefill, 0, "%d left", (int)rows[1].prefill);
    cr_assert_eq(rows[2].prefill, 0, "%d left", (int)rows[2].prefill);
    cr_assert_leq(steps[1], 7); /* of 16 tokens, every other step */
}

Test(scheduler_plan, a_prompt_shorter_than_the_least_chunk_is_no_long_one)
{
    struct plan_row rows[2] = {{.prefill = 2, .position = 20000}, {0}};
    struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {.rests = true};
    plan_step(rows, 2, &limits, &by_time, &turn);
    cr_assert_eq(rows[0].tokens, 2);
    cr_assert_eq(rows[0].logits, 1);
}

Test(scheduler_plan, tenants_that_decode_share_what_does_not_hold_all)
{
    enum { FIRST = 100, COUNT = 110, ROOM = 20, STEPS = 100 };
    struct plan_row rows[COUNT];
    int tokens[COUNT] = {0};
    struct plan_limits limits = {64, ROOM, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    memset(rows, 0, sizeof rows);
    for (int i = FIRST; i < COUNT; i++)
        rows[i].tenant = 1;
    for (int step = 0; step < STEPS; step++) {
        plan_step(rows, COUNT, &limits, &any, &turn);
        for (int i = 0; i < COUNT; i++)
            tokens[i] += rows[i].tokens;
    }
    /* Half of the room each; and within a tenant all alike. */
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(tokens[i], ROOM / 2 * STEPS / (i < FIRST ? FIRST : COUNT - FIRST), "%d", i);
}

Test(scheduler_plan, who_had_less_goes_first)
{
    struct plan_row rows[3] = {{.served = 50}, {.served = 50}, {.tenant = 1, .served = 10}};
    struct plan_limits limits = {64, 2, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 3, &limits, &any, &turn);
    cr_assert_eq(rows[0].tokens, 1);
    cr_assert_eq(rows[1].tokens, 0);
    cr_assert_eq(rows[2].tokens, 1);
}

Test(scheduler_plan, prompts_of_tenants_get_equal_parts_and_what_others_leave)
{
    struct plan_row rows[5] = {{.prefill = 1000},
                               {.prefill = 20},
                               {.prefill = 20},
                               {.prefill = 1000, .tenant = 1},
                               {.prefill = 7, .tenant = 2}};
    struct plan_limits limits = {90, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    plan_step(rows, 5, &limits, &any, &turn);
    cr_assert_eq(rows[4].tokens, 7);
    cr_assert_geq(rows[3].tokens, 30);
    cr_assert_geq(rows[0].tokens + rows[1].tokens + rows[2].tokens, 30);
    cr_assert_eq(rows[0].tokens + rows[1].tokens + rows[2].tokens + rows[3].tokens, 83);
    /* A short prompt is not held up by many that are as short. */
    struct plan_row many[51] = {{0}};
    for (int i = 0; i < 50; i++)
        many[i] = (struct plan_row){.prefill = 40};
    many[50] = (struct plan_row){.prefill = 45, .tenant = 1};
    plan_step(many, 51, &limits, &any, &turn);
    cr_assert_eq(many[50].tokens, 45);
}

Test(scheduler_plan, the_slow_prompt_of_who_had_less_has_its_turn)
{
    const struct plan_time slow = {.token = 1, .most = 2};
    struct plan_row rows[3] = {{.prefill = 500, .served = 9}, {.prefill = 500, .served = 9}, {0}};
    struct plan_limits limits = {64, 16, 0, INT64_MAX, 0};
    struct plan_turn turn = {0};
    rows[2] = (struct plan_row){.prefill = 500, .tenant = 1, .served = 3};
    plan_step(rows, 3, &limits, &slow, &turn);
    cr_assert_eq(rows[2].tokens, PLAN_LEAST_CHUNK);
    cr_assert_eq(rows[0].tokens + rows[1].tokens, 0);
}
