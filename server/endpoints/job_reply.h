/* SPDX-License-Identifier: Apache-2.0 */
/* Makes replies of jobs that have ended: the parts that whole replies and streams share, and the
 * whole reply. */
#ifndef SERVER_ENDPOINTS_JOB_REPLY_H
#define SERVER_ENDPOINTS_JOB_REPLY_H

#include "server/endpoints/completion.h"

/* These borrow from the job. Of a head `ended` is still to be set. */
struct reply_head job_reply_head(const struct job *job);
struct reply_usage job_reply_usage(struct job *job, int64_t generated, int64_t reasoning);
struct reply_timings job_reply_timings(const struct job *job);

/* What a whole reply and the last frame of a stream say of the session, in *card. NULL: the job has
 * no session. */
const struct session_card *job_reply_session(const struct job *job, struct session_card *card);

/* If the request has prompt_logprobs. */
struct reply_prompt_logprobs job_reply_prompt_logprobs(const struct job *job,
                                                       const struct job_prompt *prompt);

/* Writes into *reply how a choice ended. */
void job_reply_ending(struct reply_choice *reply, const struct job *job, enum finish_reason finish,
                      int32_t stop_index, int32_t stop_token);

/* Appends the reply of a job without stream that ended well. -1: out of memory; *body is empty. */
int job_reply_encode(struct strbuf *body, struct completion *completion);

/* The same of a response that is kept, as its turn has it: without warnings and
 * log-probabilities. */
int job_reply_encode_kept(struct strbuf *body, struct completion *completion);

/* About how many bytes job_reply_encode will make. */
size_t job_reply_bytes(const struct job *job);

#endif
