/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread. It takes jobs from its inbox, decides which of them run, and ends them. No
 * other thread touches the engine and its states while it runs. */
#ifndef SERVER_SCHEDULE_SCHEDULER_H
#define SERVER_SCHEDULE_SCHEDULER_H

#include "server/schedule/job.h"

struct pace;
struct scheduler;

/* Starts the thread. service->engine, tree and sessions must be there. max_texts: most texts that
 * run at once; prefill_chunk: most tokens of one prompt in a step, 0: as many as fit.
 * pace: as measured; the scheduler goes on learning. */
int scheduler_create(struct scheduler **out, struct service *service, int max_texts,
                     int prefill_chunk, const struct pace *pace, struct error *err);

/* Ends the thread once nothing runs or waits. No job may come after this; a poke may. May be called
 * twice, and with NULL. */
void scheduler_stop(struct scheduler *scheduler);
void scheduler_free(struct scheduler *scheduler); /* stops it first */

/* Takes over a job whose prompts are prepared, with the worker's reference. Calls job->ended once
 * its texts have ended. */
void scheduler_submit(struct scheduler *scheduler, struct job *job);

/* Any thread: runs the work on the engine thread, between two steps and in order. False: that has
 * ended. */
bool scheduler_post(struct scheduler *scheduler, struct work *work);

/* Engine thread: runs the work again in the next turn, since it waits for a file. The thread does
 * not end while work is parked. */
void scheduler_park(struct scheduler *scheduler, struct work *work);

/* Engine thread: updates the metrics of memory. Call it before a client is told of a change. */
void scheduler_publish(struct scheduler *scheduler);

/* Any thread: wakes the engine thread, which looks for what has been cancelled or read. */
void scheduler_poke(struct scheduler *scheduler);

#endif
