/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt on its way to the engine: tokenized, cut, measured against the limits, and with echo its
 * text and where in it each token begins. Runs on the workers' threads. */
#ifndef SERVER_SCHEDULE_PROMPT_H
#define SERVER_SCHEDULE_PROMPT_H

#include "server/schedule/job.h"

/* Fills job->prompts[index] from the request's prompt of that index, which it borrows from. */
int prompt_prepare(struct job *job, size_t index, struct api_error *err);
void prompt_clear(struct job_prompt *prompt);

#endif
