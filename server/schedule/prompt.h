/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a job for the engine, on a worker's thread. It tokenizes, cuts and measures the prompts
 * against the limits; for echo it finds where in a prompt's string each token begins. It also
 * prepares what ends a text, stop strings and stop tokens, and compiles what constrains it. */
#ifndef SERVER_SCHEDULE_PROMPT_H
#define SERVER_SCHEDULE_PROMPT_H

#include "server/schedule/job.h"

/* Around the tokenizing of so many bytes: takes what that needs of memory, at most (for each byte a
 * place, a pair, a token, and copies where the tokenizer changes the text), from the budget for
 * bodies. Returns it for prompt_encode_end; -1: none is left. */
int64_t prompt_encode_begin(struct service *service, size_t length, const char *param,
                            struct api_error *err);
void prompt_encode_end(struct service *service, int64_t work);

/* Bytes and ids of its prompts, before they are prepared. */
size_t prompt_bytes(const struct job *job);
/* Fills job->prepared. A job that is cancelled meanwhile is left as it is. */
int prompt_prepare(struct job *job, struct api_error *err);

#endif
