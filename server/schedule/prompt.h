/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts of a job on their way to the engine: tokenized, cut, measured against the limits, and
 * with echo their text and where in it each token begins; and what ends a text: stop strings and
 * stop tokens. Runs on the workers' threads. */
#ifndef SERVER_SCHEDULE_PROMPT_H
#define SERVER_SCHEDULE_PROMPT_H

#include "server/schedule/job.h"

/* Fills job->prepared. A job that is cancelled meanwhile is left as it is. */
int prompt_prepare(struct job *job, struct api_error *err);

#endif
