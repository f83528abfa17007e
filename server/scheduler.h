/* The engine thread: takes jobs from its inbox, decides what each step of the engine holds, and
 * ends them. It alone touches the engine and its states. */
#ifndef SERVER_SCHEDULER_H
#define SERVER_SCHEDULER_H

#include "server/job.h"

struct scheduler;

/* Starts the thread; service->engine must be open. max_texts: most texts that run at once;
 * prefill_chunk: most tokens of one prompt in a step, 0: as many as fit. */
int scheduler_create(struct scheduler **out, struct service *service, int max_texts,
                     int prefill_chunk, struct error *err);

/* Ends the thread once nothing runs or waits. The caller makes sure that no job comes after. */
void scheduler_free(struct scheduler *scheduler);

/* Takes a job that job_prepare has made ready, with the worker's reference. */
void scheduler_submit(struct scheduler *scheduler, struct job *job);

/* Something has been cancelled: the thread looks, also when it sleeps. */
void scheduler_poke(struct scheduler *scheduler);

#endif
