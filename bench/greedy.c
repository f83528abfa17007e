/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/greedy.h"

#include "engine/ops/sampler.h"
#include "lib/base/clock.h"

#include <stdlib.h>

/* A step that is under way, or was. */
struct greedy_step {
    struct span *spans; /* [capacity] */
    struct draw *draws; /* [capacity] */
};

struct greedy {
    struct engine *engine;
    int capacity, count;
    struct sampler **samplers;   /* [capacity] */
    struct greedy_step steps[2]; /* by the step's number */
};

int greedy_open(struct greedy **out, struct engine *engine, int count, struct error *err)
{
    const struct sampling sampling = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    struct greedy *greedy = calloc(1, sizeof *greedy);
    bool memory = greedy != NULL;
    if (memory) {
        greedy->engine = engine;
        greedy->capacity = count;
        greedy->samplers = calloc((size_t)count, sizeof(struct sampler *));
        memory = greedy->samplers != NULL;
        for (int i = 0; i < 2; i++) {
            struct greedy_step *step = &greedy->steps[i];
            step->spans = calloc((size_t)count, sizeof *step->spans);
            step->draws = calloc((size_t)count, sizeof *step->draws);
            memory = memory && step->spans != NULL && step->draws != NULL;
        }
    }
    int result = memory ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for %d texts", count);
    for (int i = 0; i < count && result == 0; i++)
        result = sampler_create(&greedy->samplers[i], &sampling, engine_info(engine)->vocab_size,
                                NULL, 0, err);
    if (result == 0)
        *out = greedy;
    else
        greedy_close(greedy);
    return result;
}

void greedy_close(struct greedy *greedy)
{
    if (greedy == NULL)
        return;
    for (int i = 0; greedy->samplers != NULL && i < greedy->capacity; i++)
        sampler_free(greedy->samplers[i]);
    for (int i = 0; i < 2; i++) {
        free(greedy->steps[i].spans);
        free(greedy->steps[i].draws);
    }
    free(greedy->samplers);
    free(greedy);
}

static struct greedy_step *step_of(struct greedy *greedy, int64_t number)
{
    return &greedy->steps[number % 2];
}

/* spans: of the first step; NULL: each text takes what the step before drew, which the engine knows
 * if that is still under way. */
static int submit(struct greedy *greedy, int64_t number, const struct span *spans, bool ahead,
                  struct error *err)
{
    struct greedy_step *step = step_of(greedy, number);
    const struct greedy_step *before = step_of(greedy, number + 1);
    for (int i = 0; i < greedy->count; i++) {
        struct span span = {.state = before->spans[i].state, .num_tokens = 1};
        if (spans != NULL)
            span = (struct span){.state = spans[i].state,
                                 .tokens = spans[i].tokens,
                                 .num_tokens = spans[i].num_tokens};
        else if (!ahead)
            span.tokens = &before->draws[i].id;
        step->draws[i] = (struct draw){.sampler = greedy->samplers[i]};
        span.draw = &step->draws[i];
        step->spans[i] = span;
    }
    return engine_submit(greedy->engine, step->spans, greedy->count, err);
}

static int collect(struct greedy *greedy, int64_t number, struct error *err)
{
    int result = engine_collect(greedy->engine, err);
    for (int i = 0; i < greedy->count && result == 0; i++)
        result = draw_check(&step_of(greedy, number)->draws[i], err);
    return result;
}

int greedy_run(struct greedy *greedy, const struct span *spans, int count, int64_t steps,
               double *first_s, struct error *err)
{
    const int64_t most_ahead = engine_info(greedy->engine)->overlaps ? 1 : 0;
    struct error later = ERROR_INIT; /* of what was under way when something failed */
    int64_t submitted = 0, collected = 0;
    int result = 0;
    greedy->count = count;
    double began = clock_seconds();
    do {
        while (result == 0 && submitted < steps && submitted <= collected + most_ahead) {
            result = submit(greedy, submitted, submitted == 0 ? spans : NULL, submitted > collected,
                            err);
            submitted += result == 0;
        }
        if (collected < submitted && collect(greedy, collected++, result == 0 ? err : &later) != 0)
            result = -1;
        if (collected == 1 && first_s != NULL)
            *first_s = clock_seconds() - began;
    } while (collected < submitted || (result == 0 && collected < steps));
    return result;
}
