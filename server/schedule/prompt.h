/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a job for the engine, on a worker's thread. It tokenizes, cuts and measures the prompts
 * against the limits; for echo it finds where in a prompt's string each token begins. It also
 * prepares what ends a text: stop strings and stop tokens. */
#ifndef SERVER_SCHEDULE_PROMPT_H
#define SERVER_SCHEDULE_PROMPT_H

#include "server/schedule/job.h"

/* Fills job->prepared. A job that is cancelled meanwhile is left as it is. */
int prompt_prepare(struct job *job, struct api_error *err);

#endif
