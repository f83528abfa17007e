/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/session_job.h"

#include "api/responses_echo.h"
#include "server/schedule/chat_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Puts what the session holds before the request's own prompt. */
static int take_context(struct job *job, const struct session *session, struct api_error *err)
{
    struct job_prompt *prompt = &job->prepared.prompts[0];
    int64_t count = 0;
    const int32_t *tokens = session ? session_tokens(session, &count) : NULL;
    if (session)
        snprintf(job->bound.salt, sizeof job->bound.salt, "%s", session_salt(session));
    if (chat_job(job) && chat_job_take(job, session, err))
        return -1;
    if (count == 0)
        return 0;
    size_t bytes = (size_t)count * sizeof *tokens;
    prompt->tokens.ids = malloc(bytes);
    if (!prompt->tokens.ids)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL,
                             "out of memory for the session's tokens");
    memcpy(prompt->tokens.ids, tokens, bytes);
    prompt->tokens.count = prompt->tokens.capacity = prompt->context = (size_t)count;
    return 0;
}

/* The response that it goes on from is only read: *session stays NULL if there is none to be. */
static int find_previous(struct job *job, const struct session **session, struct api_error *err)
{
    struct sessions *sessions = job->task.service->sessions;
    const char *id = job->asked.request.begins_with;
    if (!id)
        return 0;
    if (!sessions_find(sessions, job->asked.owner, id, NULL))
        return api_error_set(err, API_PREVIOUS_NOT_FOUND, NULL, "there is no response \"%s\"", id);
    return sessions_peek(sessions, job->asked.owner, id, -1, session, err);
}

int session_job_bind(struct job *job, struct api_error *err)
{
    struct sessions *sessions = job->task.service->sessions;
    const struct completion_request *request = &job->asked.request;
    const struct session *session = NULL;
    if (find_previous(job, &session, err))
        return -1;
    if (!request->store) {
        if (sessions_peek(sessions, job->asked.owner, request->session_id,
                          request->expected_position, &session, err))
            return -1;
        if (session)
            session_view(sessions, session, &job->bound.view);
        return take_context(job, session, err);
    }
    if (sessions_bind(sessions, job->asked.owner, request->session_id, request->expected_position,
                      &job->bound.session, err))
        return -1;
    return take_context(job, request->kept ? session : job->bound.session, err);
}

int session_job_admit(struct job *job, struct api_error *err)
{
    /* An estimate of what a token adds to a turn; and what a reply without max_tokens is promised
     * where room is scarce. */
    enum { BYTES_OF_TOKEN = 8, PROMISED_TOKENS = 2048 };
    struct completion_request *request = &job->asked.request;
    struct sessions *sessions = job->task.service->sessions;
    int64_t least = request->min_tokens > PROMISED_TOKENS ? request->min_tokens : PROMISED_TOKENS;
    int64_t count = (int64_t)job->prepared.prompts[0].count;
    bool shrinks = request->any_length && request->max_tokens > least;
    /* Under a quota all of the reply counts: others of the key are not to be refused for it. */
    if (shrinks && sessions_have_quota(sessions))
        request->max_tokens = least;
    for (;;) {
        struct api_error refusal = {0};
        int64_t turn = chat_job(job)
                           ? (int64_t)request->chat.length + request->max_tokens * BYTES_OF_TOKEN
                           : 0;
        if (request->kept)
            turn += (int64_t)(job->chat.turns_length + responses_echo_bytes(request->echoed));
        if (sessions_admit(sessions, job->bound.session, count + request->max_tokens, turn,
                           &refusal) == 0)
            return 0;
        if (!shrinks || request->max_tokens == least) {
            *err = refusal;
            return -1;
        }
        request->max_tokens = least;
    }
}

struct space *session_job_space(struct state_tree *tree, const struct job *job)
{
    const struct completion_request *request = &job->asked.request;
    return job->bound.salt[0]
               ? state_tree_space(tree, job->asked.owner, job->bound.salt, strlen(job->bound.salt))
               : state_tree_space(tree, job->asked.owner, request->cache_salt,
                                  request->cache_salt_length);
}

void session_job_take(struct job *job, int32_t *tokens, int64_t count)
{
    struct api_error err = {0};
    if (!tokens) {
        api_error_set(&err, API_OUT_OF_MEMORY, NULL,
                      "out of memory for the tokens of the session, which stays as it was");
        job_fail(job, &err);
        return;
    }
    job->bound.taken = (struct token_list){tokens, (size_t)count, (size_t)count};
}

static void on_settled(void *context, const struct api_error *err)
{
    struct job *job = context;
    if (err)
        job_fail(job, err);
    if (err && err->code != API_DRAINING)
        job->bound.changed = false;
    struct sessions *sessions = job->task.service->sessions;
    /* By name: a session that was made for a request that failed is gone. */
    const struct session *session =
        sessions_find(sessions, job->asked.owner, job->asked.request.session_id, NULL);
    if (session)
        session_view(sessions, session, &job->bound.view);
    job->bound.session = NULL;
    job->bound.settled(job);
}

void session_job_settle(struct job *job, void (*done)(struct job *job))
{
    /* What has been generated stays, also when a client or a drain ends the job. But a response
     * that a drain ends has failed: its client asks again. */
    bool keeps = job->task.error.code == API_OK || job->task.error.code == API_CANCELLED ||
                 (job->task.error.code == API_DRAINING && !job->asked.request.kept);
    struct session_content content = {0};
    job->bound.settled = done;
    if (keeps) {
        content = (struct session_content){.tokens = job->bound.taken.ids,
                                           .count = (int64_t)job->bound.taken.count,
                                           .turns = job->chat.record.data,
                                           .turns_length = (int64_t)job->chat.record.length};
        job->bound.taken = (struct token_list){0};
        job->chat.record = (struct strbuf){0};
    }
    job->bound.changed = content.tokens != NULL;
    sessions_settle(job->bound.session, &content, job->bound.claim, on_settled, job);
}
