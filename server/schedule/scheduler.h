/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread: takes jobs from its inbox, decides what each step of the engine holds, and
 * ends them. It alone touches the engine and its states. */
#ifndef SERVER_SCHEDULE_SCHEDULER_H
#define SERVER_SCHEDULE_SCHEDULER_H

#include "server/schedule/job.h"

struct scheduler;

/* Starts the thread; service->engine and ->tree must be there. max_texts: most texts that run at
 * once; prefill_chunk: most tokens of one prompt in a step, 0: as many as fit. */
int scheduler_create(struct scheduler **out, struct service *service, int max_texts,
                     int prefill_chunk, struct error *err);

/* Ends the thread once nothing runs or waits. The caller makes sure that no job comes after; a poke
 * may. NULL is allowed, twice too. */
void scheduler_stop(struct scheduler *scheduler);
void scheduler_free(struct scheduler *scheduler); /* stops it first */

/* Takes a job whose prompts are prepared, with the worker's reference; job->ended is called when it
 * has run. */
void scheduler_submit(struct scheduler *scheduler, struct job *job);

/* Runs the work on the engine thread, between steps and in order; from any thread, that one too. */
void scheduler_post(struct scheduler *scheduler, struct work *work);

/* Engine thread: the work waits for a file; it is run again in each turn, and the thread does not
 * end before it has gone on. */
void scheduler_park(struct scheduler *scheduler, struct work *work);

/* Engine thread: brings the metrics of memory up to date, before somebody is told of a change. */
void scheduler_publish(struct scheduler *scheduler);

/* Something has been cancelled: the thread looks, also when it sleeps. */
void scheduler_poke(struct scheduler *scheduler);

#endif
