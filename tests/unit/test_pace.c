/* SPDX-License-Identifier: Apache-2.0 */
/* What steps take is learned: from a start that is far off, and where attention costs the most. */
#include "server/schedule/pace.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

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
    const struct plan_limits limits = {512, 16, 0, INT64_MAX, 0};
    int step = 0;
    for (int64_t at = 0; at < end; step++) {
        struct plan_row rows[2] = {{.prefill = end - at, .position = at}, {0}};
        const struct plan_time time = pace_plan(pace, 0);
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
    cr_assert_float_eq(pace_plan(&pace, 0).most, 0.2, 1e-9);
    pace.max_step_s = 0.1; /* which no step can keep */
    cr_assert_float_eq(pace_plan(&pace, 0).most, 0.025, 1e-9);
}

/* As long as it has been alone, up to 0.2 s. */
Test(pace, a_prompt_that_is_alone_gets_longer_steps)
{
    struct pace pace = of_model(1e-9);
    cr_assert_float_eq(pace_plan(&pace, 0).most, 0.01 - pace.decode_s, 1e-9);
    cr_assert_float_eq(pace_plan(&pace, 0.005).most, 0.01 - pace.decode_s, 1e-9);
    cr_assert_float_eq(pace_plan(&pace, 0.05).most, 0.05 - pace.decode_s, 1e-9);
    cr_assert_float_eq(pace_plan(&pace, 1000).most, 0.2 - pace.decode_s, 1e-9);
    pace.decode_s = 0.3; /* slow as it is */
    cr_assert_float_eq(pace_plan(&pace, 1000).most, 0.3, 1e-9);
    pace.max_step_s = 0.05;
    pace.decode_s = 0.01;
    cr_assert_float_eq(pace_plan(&pace, 1000).most, 0.04, 1e-9);
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

/* What is measured at the start, on a machine where two of three steps meet another process: so
 * both kinds of steps, which take turns, have one that does not. */
struct machine {
    double one, token; /* seconds of a step, and more for each of its tokens */
    double disturbed;  /* so many times as long */
    int room, fails;   /* tokens that a text may have; the step that fails, 0: none */
    int steps, most;   /* out: steps, and the most tokens of one */
};

static int take_step(void *context, int tokens, double *seconds, struct error *err)
{
    struct machine *machine = context;
    if (tokens > machine->room) {
        error_set(err, ERROR_NO_MEMORY, "no room");
        return 1;
    }
    if (++machine->steps == machine->fails)
        return error_set(err, ERROR_IO, "the device is gone");
    if (tokens > machine->most)
        machine->most = tokens;
    *seconds = machine->one + tokens * machine->token;
    if (machine->steps % 3 != 0)
        *seconds *= machine->disturbed;
    return 0;
}

Test(pace, what_else_runs_at_the_start_does_not_count)
{
    for (int times = 1; times <= 64; times *= 2) {
        struct machine machine = {1e-4, 1e-5, .disturbed = times, .room = 1000};
        struct error err = ERROR_INIT;
        struct pace pace = of_model(0);
        cr_assert_eq(pace_time(&pace, take_step, &machine, 32, &err), 0);
        cr_assert_float_eq(pace.decode_s, 1.1e-4, 1e-9, "%d times", times);
        cr_assert_float_eq(pace_plan(&pace, 0).token, 31e-5 / 32, 1e-9, "%d times", times);
    }
}

/* Where reading the weights takes nearly all of a step, tokens cost something all the same. */
Test(pace, a_step_of_many_tokens_is_never_wholly_one_of_one)
{
    struct machine machine = {1e-2, 1e-9, .disturbed = 1, .room = 1000};
    struct error err = ERROR_INIT;
    struct pace pace = of_model(0);
    cr_assert_eq(pace_time(&pace, take_step, &machine, 32, &err), 0);
    cr_assert_float_eq(pace_plan(&pace, 0).token, 1e-2 / 2 / 32, 1e-7);
}

Test(pace, the_start_is_not_held_up)
{
    struct error err = ERROR_INIT;
    struct pace pace = of_model(0);
    struct machine slow = {1, 0.1, .disturbed = 1, .room = 1000}, fast = slow;
    fast.one = fast.token = 1e-6;
    cr_assert_eq(pace_time(&pace, take_step, &slow, 32, &err), 0);
    cr_assert_eq(slow.steps, 6);
    cr_assert_eq(pace_time(&pace, take_step, &fast, 32, &err), 0);
    cr_assert_eq(fast.steps, 10);
}

Test(pace, a_text_that_has_no_room_is_timed_shorter)
{
    for (int room = 0; room <= 32; room++) {
        struct machine machine = {1e-4, 1e-5, .disturbed = 1, .room = room};
        struct error err = ERROR_INIT;
        struct pace pace = of_model(0);
        int result = pace_time(&pace, take_step, &machine, 32, &err);
        if (room == 0) {
            cr_assert_eq(result, -1);
            cr_assert(strstr(err.message, "--state-memory: not even one token fits") != NULL, "%s",
                      err.message);
            continue;
        }
        cr_assert_eq(result, 0);
        cr_assert(machine.most <= room && 2 * machine.most > room, "%d of %d", machine.most, room);
        cr_assert(pace_plan(&pace, 0).token >= 0.5e-5 && pace_plan(&pace, 0).token < 12e-5);
    }
}

Test(pace, a_step_that_fails_at_the_start_is_told)
{
    for (int step = 1; step <= 10; step++) {
        struct machine machine = {1e-4, 1e-5, .disturbed = 1, .room = 1000, .fails = step};
        struct error err = ERROR_INIT;
        struct pace pace = of_model(0);
        cr_assert_eq(pace_time(&pace, take_step, &machine, 32, &err), -1);
        cr_assert_str_eq(err.message, "the device is gone");
    }
}
