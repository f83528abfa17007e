/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/chat_job.h"

#include "api/chat.h"
#include "api/chat_rules.h"
#include "api/chat_shorten.h"
#include "api/request.h"
#include "api/responses_turns.h"
#include "lib/text/detokenize.h"
#include "server/log.h"
#include "server/own_tokens.h"

#include <stdlib.h>
#include <string.h>

static int out_of_memory(struct api_error *err)
{
    return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this chat");
}

static int reserve(struct job *job, size_t bytes, struct api_error *err)
{
    struct error full = ERROR_INIT;
    return job_reserve(job, bytes, &full) ? api_error_from_engine(err, &full, "messages") : 0;
}

/* Of a response that goes on from another, the body has all messages itself. */
static struct chat_history history_of(const struct job *job)
{
    if (job->asked.request.begins_with)
        return (struct chat_history){0};
    return (struct chat_history){.turns = job->chat.turns, .length = job->chat.turns_length};
}

int chat_job_take(struct job *job, const struct session *session, struct api_error *err)
{
    struct chat_turn last;
    int64_t length = 0, count = 0;
    const char *turns = session ? session_turns(session, &length) : NULL;
    if (session)
        session_tokens(session, &count);
    if (chat_turns_last(turns, (size_t)length, &last))
        return api_error_set(err, API_INTERNAL, NULL,
                             "the turns that the session keeps are damaged");
    if (last.position != count)
        return api_error_set(err, API_SESSION_NOT_CHAT, NULL,
                             "the session \"%s\" holds %lld tokens, the last turn of a chat in it "
                             "ends at %lld: rewind it to there, or use another session",
                             job->asked.request.session_id, (long long)count,
                             (long long)last.position);
    job->chat.turns = malloc((size_t)length + 1);
    if (!job->chat.turns)
        return out_of_memory(err);
    if (length)
        memcpy(job->chat.turns, turns, (size_t)length);
    job->chat.turns_length = (size_t)length;
    return 0;
}

/* Puts the messages of the responses before into the body. */
static int gather(struct job *job, struct completion_limits *limits, struct api_error *err)
{
    struct completion_request *request = &job->asked.request;
    if (!request->begins_with)
        return 0;
    request->chat_replied = true;
    limits->warnings = NULL; /* they have been warned of */
    int result = responses_turns_gather(&request->chat, job->chat.turns, job->chat.turns_length,
                                        request->echoed, limits, err);
    limits->warnings = &job->task.warnings;
    return result == 0 ? reserve(job, request->chat.length, err) : -1;
}

int chat_job_render(struct job *job, struct api_error *err)
{
    struct completion_request *request = &job->asked.request;
    struct completion_prompt *prompt = &request->prompts[0];
    struct job_chat *chat = &job->chat;
    const struct chat_history history = history_of(job);
    struct completion_limits limits = job->task.service->limits;
    limits.warnings = &job->task.warnings;
    size_t from = 0;
    struct chat_turn last;
    struct completion_prompt whole;
    if (gather(job, &limits, err))
        return -1;
    if (chat_render_body(&whole, &request->chat_rules, &request->chat, &history, &limits, err))
        return -1;
    chat->text = whole.text;
    chat->text_length = whole.length;
    prompt->input = whole.input;
    if (chat_demand_constrain(&request->chat_rules->demand, request->chat_rules->syntax,
                              &request->constraint, err) ||
        reserve(job, request->constraint.length, err))
        return -1;
    if (chat->turns_length > 0)
        job->prepared.prompts[0].replaces = !chat_turns_begin(chat->turns, chat->turns_length,
                                                              chat->text, chat->text_length, &last);
    if (chat->turns_length > 0 && !job->prepared.prompts[0].replaces)
        from = last.text_length;
    span_list_cut(&prompt->input, from, chat->text_length);
    if (reserve(job,
                chat->text_length + chat->turns_length +
                    prompt->input.capacity * sizeof *prompt->input.items,
                err))
        return -1;
    char *text = malloc(chat->text_length - from + 1);
    if (!text)
        return out_of_memory(err);
    memcpy(text, chat->text + from, chat->text_length - from + 1);
    free(prompt->text);
    prompt->text = text;
    prompt->length = chat->text_length - from;
    return 0;
}

/* ---- turns that go ---- */

/* With a session the turn goes by all of the text. */
static int take_text(struct job *job, struct api_error *err)
{
    const struct completion_prompt *prompt = &job->asked.request.prompts[0];
    struct job_chat *chat = &job->chat;
    if (!chat->text)
        return 0;
    char *text = malloc(prompt->length + 1);
    if (!text)
        return out_of_memory(err);
    memcpy(text, prompt->text, prompt->length + 1);
    free(chat->text);
    chat->text = text;
    chat->text_length = prompt->length;
    return 0;
}

/* The body and the text of a chat that has become shorter. The rules of its replies, and what
 * constrains them, go by its tools and its end, which are as they were. */
static int take_shorter(struct job *job, const json_t *fields, struct api_error *err)
{
    struct completion_request *request = &job->asked.request;
    struct completion_prompt *prompt = &request->prompts[0];
    struct completion_limits limits = job->task.service->limits;
    struct completion_prompt shorter;
    char *body = NULL;
    size_t length;
    limits.warnings = NULL; /* it has been warned */
    if (request_dump(fields, &body, &length, err))
        return -1;
    if (chat_render(&shorter, NULL, fields, length, NULL, &limits, err)) {
        free(body);
        return -1;
    }
    free(request->chat.text);
    request->chat = (struct completion_string){body, length};
    free(prompt->text);
    span_list_clear(&prompt->input);
    *prompt = shorter;
    return take_text(job, err);
}

int chat_job_shorten(struct job *job, struct api_error *err)
{
    struct completion_request *request = &job->asked.request;
    struct job_chat *chat = &job->chat;
    size_t dropped = 0;
    json_t *fields = request_load_dump(request->chat.text, request->chat.length, err);
    if (!fields)
        return -1;
    int result = chat_shorten(fields, chat->tokens, chat->most, chat->attempts++, &dropped, err);
    request->chat_shortens = dropped > 0;
    chat->dropped += dropped;
    if (result == 0 && dropped > 0)
        result = take_shorter(job, fields, err);
    json_decref(fields);
    return result;
}

void chat_job_warn(struct job *job)
{
    if (job->chat.dropped > 0)
        reply_warnings_add(&job->task.warnings, WARNING_CONTENT,
                           "truncation: the %zu oldest turns are left out: there is no room for "
                           "them",
                           job->chat.dropped);
}

/* ---- the turn ---- */

static int write_response(struct job *job, const struct chat_turn *turn, struct api_error *err)
{
    enum { COPIES = 2 };
    struct job_chat *chat = &job->chat;
    const struct responses_echo *asked = job->asked.request.echoed;
    const struct responses_telling telling = {.object = chat->object.data,
                                              .length = chat->object.length,
                                              .events = chat->events,
                                              .told = &chat->told};
    if (reserve(job,
                COPIES * (chat->turns_length + chat->object.length + chat->told.length +
                          asked->asked_length),
                err) ||
        responses_turns_inherit(&chat->record, chat->turns, chat->turns_length, turn->position,
                                err))
        return -1;
    return responses_turns_write(&chat->record, turn, asked, &telling, err);
}

/* Those of the history, less those whose tokens are no longer what they were, which end with the
 * new turn; then this. */
static int write_turns(struct job *job, const struct chat_turn_reply *reply, struct api_error *err)
{
    enum { COPIES = 2, SPAN = 48 }; /* the buffer doubles where it has no room; digits of a span */
    static const struct chat_turn_reply none = {0};
    struct job_chat *chat = &job->chat;
    const struct job_prompt *prompt = &job->prepared.prompts[0];
    const struct chat_turn turn = {
        .position = (int64_t)job->bound.taken.count,
        .text_length = chat->text_length + reply->length,
        .text_hash = chat_turns_hash(chat->text, chat->text_length, reply->text, reply->length)};
    size_t kept = chat->turns_length, length = reply->length + reply->special.count * SPAN;
    if (job->asked.request.kept)
        return write_response(job, &turn, err);
    if (reserve(job, length + COPIES * (kept + job->asked.request.chat.length + length), err))
        return -1;
    if (prompt->replaces)
        kept = chat_turns_until(chat->turns, kept, (int64_t)prompt->context);
    strbuf_append(&chat->record, chat->turns, kept);
    chat_turns_move(&chat->record, chat->turns, chat->turns_length, kept, turn.position);
    return chat_write_turn(&chat->record, &turn, &job->asked.request.chat,
                           job->asked.request.max_tokens > 0 ? reply : &none, err);
}

void chat_job_record(struct job *job)
{
    const struct job_prompt *prompt = &job->prepared.prompts[0];
    const struct token_list *taken = &job->bound.taken;
    struct error error = ERROR_INIT;
    struct api_error err = {0};
    char *text;
    struct chat_turn_reply reply = {0};
    if (!taken->ids)
        return;
    /* As the session's tokens have it: also special tokens, and a stop string. */
    if (detokenizer_behind(job->task.service->tokenizer, prompt->ids, prompt->count,
                           taken->ids + prompt->count, taken->count - prompt->count, &text,
                           &reply.length, &reply.special, &error))
        api_error_from_engine(&err, &error, NULL);
    reply.text = text;
    if (err.code == API_OK)
        write_turns(job, &reply, &err);
    free(text);
    span_list_clear(&reply.special);
    if (err.code == API_OK && chat_job_said(job))
        chat_job_remember(job);
    if (err.code == API_OK)
        return;
    /* The session stays as it was. */
    token_list_clear(&job->bound.taken);
    job_fail(job, &err);
}

/* ---- special tokens of replies without a session ---- */

static struct own_text own_text(const struct job *job, const char *text, size_t length)
{
    const struct completion_request *request = &job->asked.request;
    return (struct own_text){job->asked.owner, request->cache_salt, request->cache_salt_length,
                             text, length};
}

/* Whether its prompt is all of its text, and no session says what of that are special tokens. */
static bool is_whole(const struct job *job)
{
    const struct completion_request *request = &job->asked.request;
    return !request->session_id ||
           (request->kept && request->prompts[0].length == job->chat.text_length);
}

int chat_job_find_own(struct job *job, struct api_error *err)
{
    struct completion_prompt *prompt = &job->asked.request.prompts[0];
    const struct own_text text = own_text(job, prompt->text, prompt->length);
    struct error error = ERROR_INIT;
    size_t before = prompt->input.capacity;
    if (!chat_job(job) || !is_whole(job))
        return 0;
    if (own_tokens_find(job->task.service->own_tokens, &text, &prompt->input, &error))
        return api_error_from_engine(err, &error, "messages");
    size_t now = prompt->input.capacity;
    return now > before ? reserve(job, (now - before) * sizeof *prompt->input.items, err) : 0;
}

/* Whether the reply's text has the token. */
static bool shows(const struct job *job, int32_t id)
{
    const struct completion_request *request = &job->asked.request;
    const struct chat_rules *rules = request->chat_rules;
    return tokenizer_is_special(job->task.service->tokenizer, id) &&
           (!request->skip_special_tokens || token_list_contains(rules->kept, rules->num_kept, id));
}

void chat_job_say(const struct job *job, struct job_choice *choice, struct token_list *ids)
{
    if (!chat_job(job) || !is_whole(job) || !job->task.service->own_tokens)
        return;
    for (size_t i = 0; i < ids->count; i++)
        if (shows(job, ids->ids[i])) {
            choice->said = *ids;
            *ids = (struct token_list){0};
            return;
        }
}

bool chat_job_said(const struct job *job)
{
    for (size_t i = 0; i < job->run.num_choices; i++)
        if (job->run.choices[i].said.count > 0)
            return true;
    return false;
}

/* Of a reply with this text [length], behind that of the prompt. */
static int remember(struct job *job, const char *reply, size_t length,
                    const struct span_list *special, struct error *err)
{
    const struct completion_prompt *prompt = &job->asked.request.prompts[0];
    if (job_reserve(job, prompt->length + length, err))
        return -1;
    char *all = malloc(prompt->length + length + 1);
    if (!all)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for its text");
    memcpy(all, prompt->text, prompt->length);
    memcpy(all + prompt->length, reply, length);
    const struct own_text text = own_text(job, all, prompt->length + length);
    own_tokens_add(job->task.service->own_tokens, &text, job->task.tenant, &prompt->input,
                   prompt->length, special);
    free(all);
    return 0;
}

void chat_job_remember(struct job *job)
{
    const struct job_prompt *prompt = &job->prepared.prompts[0];
    struct error err = ERROR_INIT;
    for (size_t i = 0; i < job->run.num_choices && err.code == ERROR_NONE; i++) {
        const struct token_list *said = &job->run.choices[i].said;
        struct span_list special = {0};
        char *reply = NULL;
        size_t length;
        if (said->count > 0 &&
            detokenizer_behind(job->task.service->tokenizer, prompt->ids, prompt->count, said->ids,
                               said->count, &reply, &length, &special, &err) == 0)
            remember(job, reply, length, &special, &err);
        span_list_clear(&special);
        free(reply);
    }
    if (err.code != ERROR_NONE)
        log_message(LOG_LEVEL_WARN, "%s: if its reply comes back, its special tokens are text: %s",
                    job->asked.id, err.message);
}

/* ---- where it leaves what was known ---- */

void chat_job_locate(struct job *job)
{
    const struct job_prompt *prompt = &job->prepared.prompts[0];
    const struct chat_history history = history_of(job);
    int64_t at = atomic_load(&job->shared.diverged_at), index;
    struct error error = ERROR_INIT;
    struct api_error err = {0};
    char *text = NULL;
    size_t length;
    /* Else the tokens are not those of the text. */
    bool whole =
        job->asked.request.truncate_prompt_tokens == 0 && !job->asked.request.add_special_tokens;
    if (at < 0 || at > (int64_t)prompt->count || !whole)
        return;
    if (tokenizer_decode(job->task.service->tokenizer, prompt->ids, (size_t)at, false, &text,
                         &length, &error))
        api_error_from_engine(&err, &error, NULL);
    else if (chat_locate(&index, &job->asked.request.chat, &history, length,
                         &job->task.service->limits, &err) == 0)
        atomic_store(&job->shared.diverged_message, index);
    free(text);
    if (err.code != API_OK)
        log_message(LOG_LEVEL_WARN, "%s: which message diverged is not known: %s", job->asked.id,
                    err.message);
}
