/* SPDX-License-Identifier: Apache-2.0 */
/* What steps take is learned: from a start that is far off, and where attention costs the most. */
#include "server/schedule/pace.h"

#include <criterion/criterion.h>
#include <math.h>

/* An engine that takes 2 ms for a step's texts, and for a token of a prompt 10 us and 1 ns for each
 * before it. */
static double step_seconds(double from, double tokens)
{
    return 2e-3 + tokens * (1e-5 + 1e-9 * (from + tokens / 2));
}

static struct pace of_model(double seconds_per_operation)
{
    return (struct pace){.token = 1e4,
                         .position = 1,
                         .decode_s = 2e-3,
                         .seconds_per_operation = seconds_per_operation};
}

/* Reads a prompt by what the plan gives; returns the longest step after the first few. */
static double read_prompt(struct pace *pace, int64_t end, double *last)
{
    double longest = 0;
    struct plan_turn turn = {0};
    const struct plan_limits limits = {512, 16, 0, INT64_MAX};
    int step = 0;
    for (int64_t at = 0; at < end; step++) {
        struct plan_row rows[2] = {{.prefill = end - at, .position = at}, {0}};
        const struct plan_time time = pace_plan(pace);
        plan_step(rows, 2, &limits, &time, &turn);
        double took = step_seconds((double)at, rows[0].tokens);
        pace_learn(pace, took,
                   rows[0].tokens > 0 ? plan_seconds(&time, &rows[0], rows[0].tokens) : 0);
        if (step >= 10 && took > longest)
            longest = took;
        at += rows[0].tokens;
        *last = took;
    }
    return longest;
}

Test(pace, steps_take_what_they_should_after_a_few)
{
    for (int off = -3; off <= 3; off++) {
        double last;
        struct pace pace = of_model(1e-9 * pow(4, off));
        double longest = read_prompt(&pace, 200000, &last);
        cr_assert(longest < 0.012, "%g s, from %d", longest, off);
        cr_assert_float_eq(pace_prompt_seconds(&pace, 0, 1000), 1e-2 + 5e-4, 2e-3);
    }
}

/* --max-step-ms */
Test(pace, the_limit_can_be_set)
{
    double last;
    struct pace pace = of_model(1e-9);
    pace.max_step_s = 0.1;
    double longest = read_prompt(&pace, 2000000, &last);
    cr_assert(longest > 0.08 && longest < 0.12, "%g s", longest);
}

/* A step that is slow without prompts: they add as much again. */
Test(pace, a_slow_step_is_no_reason_to_stop_prompts)
{
    struct pace pace = of_model(1e-9);
    pace.decode_s = 0.2;
    cr_assert_float_eq(pace_plan(&pace).most, 0.2, 1e-9);
    pace.max_step_s = 0.1; /* which no step can keep */
    cr_assert_float_eq(pace_plan(&pace).most, 0.025, 1e-9);
}

Test(pace, a_stall_is_forgotten)
{
    struct pace pace = of_model(1e-9);
    pace_learn(&pace, 5, 0.005);
    for (int i = 0; i < 40; i++) {
        double expected = pace_prompt_seconds(&pace, 0, 500);
        pace_learn(&pace, step_seconds(0, 500), expected);
    }
    cr_assert_float_eq(pace_prompt_seconds(&pace, 0, 500), 5.1e-3, 1e-3);
}
