/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/pace.h"

#include "engine/cost.h"
#include "lib/base/clock.h"

#include <math.h>

/* Without --max-step-ms a step with prompts may take so long, even if that is more than twice one
 * without them. */
static const double SMOOTH_S = 0.01;
/* Where one prompt is all there is, a step may take as long as that has been so, up to that: a step
 * of few tokens costs more a token, and nobody waits for it but who comes meanwhile. */
static const double ALONE_S = 0.2;
/* How much a new measurement counts, and how many times slower than expected it may be. */
static const double NEW = 0.2, MOST_SLOWER = 4;
/* Of a prompt, at the start: so many that their operations take the time, and not the weights' way
 * from memory. */
enum { TIMED_TOKENS = 32 };
/* Of such steps: what else the machine does only ever adds to their time, so the least counts. */
enum { LEAST_TRIES = 3, MOST_TRIES = 5 };
static const double MEASURE_S = 0.05;

/* Operations of one more token of a prompt at a depth. */
static double operations_at(const struct engine *engine, int depth)
{
    const struct cost_texts one = {.tokens = 1, .depth = depth, .batch = 1};
    const struct cost_texts none = {.depth = depth, .batch = 1};
    const struct program *program = engine_program(engine);
    return cost_of(program, &one).operations - cost_of(program, &none).operations;
}

/* Windows are full at the first depth, and cost no more at the second. */
static void count_operations(struct pace *pace, const struct engine *engine)
{
    enum { FIRST = 1 << 17, SECOND = 1 << 18 };
    double first = operations_at(engine, FIRST), second = operations_at(engine, SECOND);
    pace->position = (second - first) / (SECOND - FIRST);
    pace->token = first - pace->position * FIRST;
}

/* Takes so many tokens of a new text in one step. */
static int time_tokens(void *context, int count, double *seconds, struct error *err)
{
    static const int32_t tokens[TIMED_TOKENS] = {0};
    struct engine *engine = context;
    struct state *state;
    if (state_create(&state, engine, count, err))
        return 1;
    struct span span = {.state = state, .tokens = tokens, .num_tokens = count, .num_logits = 1};
    double began = clock_seconds();
    int result = engine_step(engine, &span, 1, err);
    *seconds = clock_seconds() - began;
    state_free(state);
    return result;
}

/* A step is never wholly its texts that decode: a prompt's tokens cost something. */
static double prompts_part(const struct pace *pace, double step_s)
{
    double part = step_s - pace->decode_s;
    return part > step_s / 4 ? part : step_s / 4;
}

int pace_time(struct pace *pace, pace_timer *timer, void *context, int count, struct error *err)
{
    double one, all, least = INFINITY, spent = 0;
    pace->decode_s = INFINITY;
    for (int tries = 0; tries < LEAST_TRIES || (tries < MOST_TRIES && spent < MEASURE_S);) {
        struct error full = ERROR_INIT;
        int result = timer(context, 1, &one, err);
        if (result != 0)
            return result > 0 ? error_prefix(err, "--state-memory: not even one token fits") : -1;
        result = timer(context, count, &all, &full);
        if (result > 0 && count > 1) {
            count /= 2;
            tries = 0; /* those of more tokens say nothing of fewer */
            least = INFINITY;
            continue;
        }
        if (result != 0) {
            *err = full;
            return result > 0 ? error_prefix(err, "--state-memory: not even one token fits") : -1;
        }
        tries++;
        pace->decode_s = fmin(pace->decode_s, one);
        least = fmin(least, all);
        spent += one + all;
    }
    pace->seconds_per_operation = fmax(least - pace->decode_s, least / 2) / (count * pace->token);
    return 0;
}

int pace_measure(struct pace *pace, struct engine *engine, double max_step_s, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    int count = info->max_step_tokens < TIMED_TOKENS ? info->max_step_tokens : TIMED_TOKENS;
    if (info->max_positions > 0 && info->max_positions < count)
        count = (int)info->max_positions;
    *pace = (struct pace){.max_step_s = max_step_s};
    count_operations(pace, engine);
    return pace_time(pace, time_tokens, engine, count, err);
}

double pace_prompt_seconds(const struct pace *pace, double from, double to)
{
    double before = (to * to - from * from) / 2; /* positions before each, all together */
    return pace->seconds_per_operation * (pace->token * (to - from) + pace->position * before);
}

struct plan_time pace_plan(const struct pace *pace, double alone_s)
{
    double most = pace->max_step_s;
    if (most == 0)
        most = fmax(fmax(2 * pace->decode_s, SMOOTH_S), fmin(alone_s, ALONE_S));
    double left = most - pace->decode_s;
    return (struct plan_time){.token = pace->seconds_per_operation * pace->token,
                              .position = pace->seconds_per_operation * pace->position,
                              .most = left > most / 4 ? left : most / 4};
}

/* A machine that stood still is no new pace. */
static double as_if_awake(double seconds, double expected)
{
    return seconds < MOST_SLOWER * expected ? seconds : MOST_SLOWER * expected;
}

void pace_learn(struct pace *pace, double step_s, double prompt_s)
{
    double part = as_if_awake(prompts_part(pace, step_s), prompt_s);
    if (prompt_s > 0)
        pace->seconds_per_operation *= 1 + NEW * (part / prompt_s - 1);
    else
        pace->decode_s += NEW * (as_if_awake(step_s, pace->decode_s) - pace->decode_s);
}
