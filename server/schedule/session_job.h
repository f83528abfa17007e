/* SPDX-License-Identifier: Apache-2.0 */
/* A completion that creates or continues a session. It is bound to the session before its prompt is
 * tokenized, and settled at its end, whatever end that is, before its reply is complete. */
#ifndef SERVER_SCHEDULE_SESSION_JOB_H
#define SERVER_SCHEDULE_SESSION_JOB_H

#include "server/schedule/job.h"

/* Whether the job names a session. */
static inline bool session_job(const struct job *job)
{
    return job->asked.request.session_id != NULL;
}

/* Engine thread: finds or makes the job's session, which is busy from then on, and puts what it
 * holds before the job's prompt; of a response, what that holds which it goes on from. */
int session_job_bind(struct job *job, struct api_error *err);
/* Engine thread: whether the quota of the session's owner allows the prompt and max_tokens. */
int session_job_admit(struct job *job, struct api_error *err);

/* Where the job's texts share their states: its session's space, or that of its cache_salt; with a
 * reference. NULL: no memory. */
struct space *session_job_space(struct state_tree *tree, const struct job *job);

/* Engine thread, when a text of the job is closed that has taken its whole prompt, finished or not.
 * tokens [count] (malloc'd, taken over) are what the session is to hold: the prompt and what was
 * generated, less an EOS or stop token that ended it. NULL: there was no memory for them, and the
 * job fails. If this is never called the session stays as it was. */
void session_job_take(struct job *job, int32_t *tokens, int64_t count);

/* Engine thread: frees the job's session for other requests, and calls done(job) once it is on
 * disk. After an error of the engine, or of the disk (API_STORE_FAILED), the session is as it was
 * before the job. */
void session_job_settle(struct job *job, void (*done)(struct job *job));

#endif
