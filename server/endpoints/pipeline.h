/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a completion from thread to thread. Only this module knows which stage comes next:
 *
 *   parse    HTTP thread; if long a worker;         the body becomes a completion_request
 *            of a chat a renderer                   and messages become a text
 *   enter    the same                               a place in the queue, a name in the registry
 *   bind     engine thread, with a session          what it holds goes before the prompt
 *   render   renderer, of a chat with a session     messages behind what it holds become a text
 *   prepare  worker                                 tokenizes, cuts, measures
 *   admit    engine thread, with a session          weighs it against the owner's quota
 *   run      engine thread                          the scheduler's (schedule/scheduler.h)
 *   settle   engine thread, with a session          its tokens are on disk
 *   remember worker, of some chats without one      where its special tokens are
 *   locate   renderer, of some chats                where its text left what was known
 *   reply    worker, if it is long or to be kept    JSON; else the HTTP thread makes it
 *
 * A stage that fails sets the job's error and goes to the end, which gives back what the job has
 * taken by then. */
#ifndef SERVER_ENDPOINTS_PIPELINE_H
#define SERVER_ENDPOINTS_PIPELINE_H

#include "server/endpoints/completion.h"

/* request_id: borrowed for the call; owner: index of the API key; tenant: as
 * tenant.h has it; replay is taken over. NULL: out
 * of memory, replay is the caller's. The caller holds the first reference. */
struct completion *pipeline_create(struct service *service, const struct completion_format *format,
                                   const char *request_id, bool request_id_given, int owner,
                                   uint64_t tenant, struct replay_entry *replay);

/* HTTP thread, with the body in the task: starts the completion, which may be done on return. */
void pipeline_start(struct completion *completion);

/* HTTP thread: the request has ended. Work whose reply is to be kept for a later one continues. */
void pipeline_leave(struct completion *completion);

#endif
