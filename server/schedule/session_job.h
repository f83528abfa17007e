/* SPDX-License-Identifier: Apache-2.0 */
/* A completion that creates or continues a session: bound to it before its prompt is tokenized,
 * settled at its end, whatever end that is, before its reply is complete. */
#ifndef SERVER_SCHEDULE_SESSION_JOB_H
#define SERVER_SCHEDULE_SESSION_JOB_H

#include "server/schedule/job.h"

/* Whether the job names a session. */
static inline bool session_job(const struct job *job)
{
    return job->asked.request.session_id != NULL;
}

/* Engine thread: finds or makes the job's session, which is busy from then on, and puts what it
 * holds before the job's prompt. */
int session_job_bind(struct job *job, struct api_error *err);
/* Engine thread: whether the quota of the session's owner allows the prompt and max_tokens. */
int session_job_admit(struct job *job, struct api_error *err);

/* Where the job's texts share their states: its session's space, or that of its cache_salt; with a
 * reference. NULL: no memory. */
struct space *session_job_space(struct state_tree *tree, const struct job *job);

/* Engine thread, for each text of a session's job whose prompt has been taken, when it is closed,
 * finished or not: what the session is to hold, the job's prompt and what was generated, without an
 * EOS or stop token that ended it. tokens [count] (malloc'd) are taken over; NULL: there was no
 * memory for them, with which the job fails. Not called: as before the request. */
void session_job_take(struct job *job, int32_t *tokens, int64_t count);

/* Engine thread: lets go of the job's session and calls done(job) once that is on disk. After an
 * error of the engine the session is as before. */
void session_job_settle(struct job *job, void (*done)(struct job *job));

#endif
