/* SPDX-License-Identifier: Apache-2.0 */
/* How long steps of the engine take, learned from those that have run, so that the plan can size
 * them by time (plan.h): a prompt's token costs the more the deeper it stands, where layers look
 * back at all positions. */
#ifndef SERVER_SCHEDULE_PACE_H
#define SERVER_SCHEDULE_PACE_H

#include "engine/engine.h"
#include "server/schedule/plan.h"

struct pace {
    double max_step_s;      /* of a step; 0: twice one without prompts, at least 10 ms, and more
                               for a prompt that is alone */
    double token, position; /* operations of a prompt's token, and more for each before it */
    double decode_s;        /* a step without prompts takes so long */
    double seconds_per_operation; /* of prompts */
};

/* Runs some tokens, so that the first request does not pay for memory that is touched for the first
 * time, and times them. max_step_s: as above. ERROR_NO_MEMORY: not even these fit the memory for
 * states. */
int pace_measure(struct pace *pace, struct engine *engine, double max_step_s, struct error *err);

/* Runs so many tokens of a new text in one step, and times it. 1: there is no memory for them. */
typedef int pace_timer(void *context, int tokens, double *seconds, struct error *err);

/* What pace_measure does, on any timer: steps of one token and of `count` take turns. */
int pace_time(struct pace *pace, pace_timer *timer, void *context, int count, struct error *err);

/* Seconds of a prompt's tokens [from, to), beside the steps' own time. */
double pace_prompt_seconds(const struct pace *pace, double from, double to);

/* What prompts cost, and may cost in the next step. alone_s: for so long it has been one prompt, or
 * nothing, that ran; 0: there is more. */
struct plan_time pace_plan(const struct pace *pace, double alone_s);

/* A step has taken so long; prompt_s: of it, by pace_prompt_seconds; 0: it held no prompt. */
void pace_learn(struct pace *pace, double step_s, double prompt_s);

#endif
