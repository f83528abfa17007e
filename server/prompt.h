/* A prompt on its way to the engine: tokenized, cut, measured against the limits, and with echo its
 * text and where in it each token begins. Runs on the workers' threads. */
#ifndef SERVER_PROMPT_H
#define SERVER_PROMPT_H

#include "server/job.h"

/* Fills *prompt (zeroed by the caller) from request->prompts[index], which it borrows from. */
int prompt_prepare(struct job_prompt *prompt, const struct service *service,
                   const struct completion_request *request, size_t index, struct api_error *err);
void prompt_clear(struct job_prompt *prompt);

#endif
