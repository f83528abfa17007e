/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/session_tokens.h"

#include "lib/text/detokenize.h"
#include "server/endpoints/session_task.h"

#include <stdlib.h>
#include <string.h>

struct tokens_task {
    struct session_task base;
    int32_t *tokens; /* [count] */
    int64_t count;
};

/* Memory of a token: its id here and in the reply, and its text there. */
enum { REPLY_TOKEN_BYTES = 32 };

static enum session_step perform(struct session_task *base)
{
    struct tokens_task *task = (struct tokens_task *)base;
    const struct session *session =
        sessions_find(base->task.service->sessions, base->owner, base->id, &base->task.error);
    if (!session)
        return SESSION_STEP_ENDED;
    const int32_t *tokens = session_tokens(session, &task->count);
    if (session_task_reserve(base, (size_t)task->count * REPLY_TOKEN_BYTES))
        return SESSION_STEP_ENDED;
    task->tokens = malloc((size_t)task->count * sizeof *tokens + 1);
    if (!task->tokens)
        session_task_out_of_memory(base);
    else if (task->count)
        memcpy(task->tokens, tokens, (size_t)task->count * sizeof *tokens);
    return SESSION_STEP_ENDED;
}

/* A token that ends within a character has no text; the one that ends it has all of it. What is
 * still held back at the end goes to the last token. */
static int encode_texts(struct tokens_task *task, struct detokenizer *detokenizer,
                        struct error *err)
{
    struct strbuf last = {0}, *reply = &task->base.task.reply;
    const char *text;
    size_t length;
    for (int64_t i = 0; i < task->count; i++) {
        if (detokenizer_push(detokenizer, task->tokens[i], &text, &length, err))
            return -1;
        if (i + 1 < task->count) {
            session_tokens_add(reply, text, length, i == 0);
            continue;
        }
        strbuf_append(&last, text, length);
        int result = detokenizer_finish(detokenizer, &text, &length, err);
        if (result == 0) {
            strbuf_append(&last, text, length);
            session_tokens_add(reply, last.data, last.length, i == 0);
        }
        reply->failed |= last.failed;
        strbuf_clear(&last);
        if (result)
            return -1;
    }
    return 0;
}

static void encode(struct session_task *base)
{
    struct tokens_task *task = (struct tokens_task *)base;
    const struct service *service = base->task.service;
    bool ids_only = service->limits.token_ids_only;
    struct detokenizer *detokenizer = NULL;
    struct error err = ERROR_INIT;
    session_tokens_begin(&base->task.reply, base->id, task->tokens, (size_t)task->count, ids_only);
    if (!ids_only && (detokenizer_create(&detokenizer, service->tokenizer, false, &err) ||
                      encode_texts(task, detokenizer, &err)))
        api_error_from_engine(&base->task.error, &err, NULL);
    if (detokenizer)
        detokenizer_free(detokenizer);
    session_tokens_end(&base->task.reply, ids_only);
    size_t length = base->task.reply.length;
    if (length > (size_t)base->task.reserved)
        session_task_reserve(base, length - (size_t)base->task.reserved);
}

static void destroy(struct session_task *base)
{
    free(((struct tokens_task *)base)->tokens);
}

static const struct session_task_kind TOKENS = {.size = sizeof(struct tokens_task),
                                                .status = 200,
                                                .content_type = "application/json",
                                                .names_session = true,
                                                .perform = perform,
                                                .encode = encode,
                                                .destroy = destroy};

void session_tokens_handle(struct http_request *request)
{
    session_task_handle(request, &TOKENS);
}
