/* SPDX-License-Identifier: Apache-2.0 */
/* What a chat has beyond a completion. With a session its messages are rendered behind those that
 * the session holds, and become a turn of it (api/chat_turns.h). Without one the special tokens of
 * its replies are known when these come back (own_tokens.h). Where its text leaves what the tree
 * knows, it says at which message. */
#ifndef SERVER_SCHEDULE_CHAT_JOB_H
#define SERVER_SCHEDULE_CHAT_JOB_H

#include "server/schedule/job.h"

static inline bool chat_job(const struct job *job)
{
    return job->asked.request.chat.text != NULL;
}

/* What a rendering or a turn of it goes through. */
static inline size_t chat_job_bytes(const struct job *job)
{
    return job->asked.request.chat.length + job->chat.turns_length;
}

/* Engine thread: takes the turns of the session that the job is bound to, or reads (NULL: it is an
 * empty one). API_SESSION_NOT_CHAT: it holds tokens that belong to no turn. */
int chat_job_take(struct job *job, const struct session *session, struct api_error *err);

/* A renderer, of a chat with a session: makes the text of its prompt. It is what the template puts
 * behind the text of the turns; where that text is another now, it is the whole text. */
int chat_job_render(struct job *job, struct api_error *err);

/* A renderer, of a chat whose prompt has no room, and no session but its own: drops the oldest
 * turns of it, and makes the text of the rest. If there is but one turn, no more will go. */
int chat_job_shorten(struct job *job, struct api_error *err);
/* Warns of the turns that went. */
void chat_job_warn(struct job *job);

/* A worker, before the session of a chat is settled: makes the turns that it is to hold. */
void chat_job_record(struct job *job);

/* A worker, before the prompt of a chat without a session is tokenized: finds the special tokens
 * that its messages have from earlier replies. */
int chat_job_find_own(struct job *job, struct api_error *err);
/* Engine thread, when a text has ended: of such a chat, takes over what was generated if the reply
 * shows special tokens. */
void chat_job_say(const struct job *job, struct job_choice *choice, struct token_list *ids);
/* Whether a text of the job has shown some. */
bool chat_job_said(const struct job *job);
/* A worker, before that job's reply is complete: remembers them. */
void chat_job_remember(struct job *job);

/* A renderer, at the end: finds the message at which the job's text has left what the tree knew. */
void chat_job_locate(struct job *job);

#endif
