/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/tokenize.h"

#include "api/llama_cpp.h"
#include "api/messages.h"
#include "api/messages_reply.h"
#include "api/responses.h"
#include "api/responses_reply.h"
#include "api/tokenizer.h"
#include "server/own_tokens.h"
#include "server/schedule/prompt.h"
#include "server/schedule/scheduler.h"
#include "server/states/session_ask.h"
#include "server/task.h"

#include <stdlib.h>
#include <string.h>

/* An endpoint that only tells how many tokens there are: functions of api/. */
struct counting {
    int (*parse)(struct tokenize_request *request, const char *body, size_t length,
                 const struct completion_limits *limits, struct api_error *err);
    void (*encode)(struct strbuf *buf, size_t count, const struct reply_warnings *warnings);
};

struct text_task {
    struct task task;
    struct tokenize_request wanted;  /* of /tokenize */
    const struct counting *counting; /* NULL: of an endpoint that tells the tokens */
    const char *owner;               /* service_owner */
    int64_t admitted_tokens;
    char *
        turns; /* [turns_length]: of the response that it goes on from; NULL: not yet, or of none */
    size_t turns_length;
};

static struct text_task *of_task(struct task *task)
{
    return (struct text_task *)task;
}

static void no_room(struct task *task)
{
    api_error_set(&task->error, API_OUT_OF_MEMORY, NULL,
                  "the requests that are being answered hold as much as --max-body-memory allows");
}

/* The reply takes the body's place in the budget for bodies and replies. */
static void account_for_reply(struct task *task)
{
    strbuf_clear(&task->body);
    if (task_reserve(task, (int64_t)task->reply.length - task->reserved))
        return;
    strbuf_clear(&task->reply);
    no_room(task);
}

static void finish(struct task *task)
{
    tokenize_request_clear(&of_task(task)->wanted);
    account_for_reply(task);
    admission_leave(&task->service->admission, task->tenant, of_task(task)->admitted_tokens);
    task_done(task);
}

/* What its request is checked against. A body may be read twice: the last time counts. */
static struct completion_limits limits_of(struct task *task)
{
    struct completion_limits limits = task->service->limits;
    reply_warnings_clear(&task->warnings);
    limits.warnings = &task->warnings;
    return limits;
}

/* As a chat of these messages has it. */
static int find_own(const struct text_task *text, struct tokenize_request *wanted,
                    struct error *err)
{
    const struct own_text own = {text->owner, wanted->cache_salt, wanted->cache_salt_length,
                                 wanted->prompt, wanted->length};
    return wanted->input.count == 0 || wanted->before > 0
               ? 0
               : own_tokens_find(text->task.service->own_tokens, &own, &wanted->input, err);
}

static void encode(struct task *task, struct tokenize_request *wanted)
{
    struct service *service = task->service;
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    if (find_own(of_task(task), wanted, &err) ||
        tokenizer_encode_input(service->tokenizer, wanted->prompt, wanted->length,
                               wanted->input.items, wanted->input.count, wanted->add_special_tokens,
                               &ids, &err))
        api_error_from_engine(&task->error, &err, "prompt");
    else if (of_task(task)->counting)
        of_task(task)->counting->encode(&task->reply, (size_t)wanted->before + ids.count,
                                        &task->warnings);
    else
        tokenize_reply_encode(&task->reply, ids.ids, ids.count, service->limits.max_model_len,
                              wanted->return_token_strs ? service->tokenizer : NULL,
                              &task->warnings);
    token_list_clear(&ids);
}

/* The reply is made with the memory that tokenizing has given back. */
static void run_encode(struct task *task)
{
    struct tokenize_request *wanted = &of_task(task)->wanted;
    int64_t work = prompt_encode_begin(task->service, wanted->length, "prompt", &task->error);
    if (work >= 0)
        encode(task, wanted);
    if (work > 0)
        prompt_encode_end(task->service, work);
    finish(task);
}

/* Whether it has gone well, and the client is still there. */
static bool parse(struct task *task, bool renders)
{
    const struct completion_limits limits = limits_of(task);
    return ticket_cancelled(&task->ticket) == CANCEL_NONE &&
           tokenize_parse(&of_task(task)->wanted, task->body.data, task->body.length, renders,
                          &limits, &task->error) == 0;
}

/* On a renderer: the body once more, with the text of its messages. */
static void run_render(struct task *task)
{
    tokenize_request_clear(&of_task(task)->wanted); /* its salt */
    if (parse(task, true))
        task_to_workers(task, run_encode, of_task(task)->wanted.length);
    else
        finish(task);
}

static void run_tokenize(struct task *task)
{
    if (!parse(task, false))
        finish(task);
    else if (of_task(task)->wanted.unrendered)
        task_to_renderers(task, run_render, task->body.length);
    else
        run_encode(task);
}

/* ---- behind a kept response ---- */

static void run_behind(struct task *task)
{
    struct completion_limits limits = task->service->limits;
    struct text_task *text = of_task(task);
    limits.warnings = &task->warnings; /* those of the first reading stay */
    if (ticket_cancelled(&task->ticket) == CANCEL_NONE &&
        responses_count_behind(&text->wanted, text->turns, text->turns_length, &limits,
                               &task->error) == 0)
        task_to_workers(task, run_encode, text->wanted.length);
    else
        finish(task);
}

/* -1, with the task's error. */
static int take_turns(struct text_task *text, const struct session *session)
{
    enum { COPIES = 4 }; /* this, JSON of it, the chat's body, its text */
    struct task *task = &text->task;
    int64_t length;
    const char *turns = session_turns(session, &length);
    if (!task_reserve(task, COPIES * length)) {
        no_room(task);
        return -1;
    }
    text->turns = malloc((size_t)length + 1);
    if (!text->turns)
        return api_error_set(&task->error, API_OUT_OF_MEMORY, NULL,
                             "out of memory for this request");
    memcpy(text->turns, turns, (size_t)length);
    text->turns_length = (size_t)length;
    return 0;
}

/* On the engine thread, once the response is here if it is anywhere. */
static void look(void *context, const struct api_error *not_there)
{
    struct task *task = context;
    struct text_task *text = context;
    const char *id = text->wanted.goes_on->begins_with;
    const struct session *session =
        not_there ? NULL : sessions_find(task->service->sessions, text->owner, id, NULL);
    if (not_there)
        task->error = *not_there;
    else if (!session)
        api_error_set(&task->error, API_PREVIOUS_NOT_FOUND, NULL, "there is no response \"%s\"",
                      id);
    if (session && take_turns(text, session) == 0)
        task_to_renderers(task, run_behind, text->turns_length);
    else
        finish(task);
}

static void run_look(struct task *task)
{
    struct text_task *text = of_task(task);
    struct sessions *sessions = task->service->sessions;
    const char *id = text->wanted.goes_on->begins_with;
    if (atomic_load(&task->service->giving_up)) {
        api_error_set(&task->error, API_DRAINING, NULL, "the server is shutting down");
        finish(task);
    } else {
        session_ask(sessions, text->owner, id, SESSION_READS, NULL, NULL, look, task);
    }
}

/* On a renderer. */
static void run_count(struct task *task, const struct counting *counting)
{
    const struct completion_limits limits = limits_of(task);
    struct text_task *text = of_task(task);
    text->counting = counting;
    if (ticket_cancelled(&task->ticket) != CANCEL_NONE ||
        counting->parse(&text->wanted, task->body.data, task->body.length, &limits, &task->error))
        finish(task);
    else if (text->wanted.goes_on)
        scheduler_post(task->service->scheduler, task_work(task, run_look));
    else
        task_to_workers(task, run_encode, text->wanted.length);
}

static void run_count_messages(struct task *task)
{
    static const struct counting COUNTING = {messages_count_parse, messages_count_encode};
    run_count(task, &COUNTING);
}

static void run_count_responses(struct task *task)
{
    static const struct counting COUNTING = {responses_count_parse, responses_count_encode};
    run_count(task, &COUNTING);
}

static void run_detokenize(struct task *task)
{
    const struct completion_limits limits = limits_of(task);
    struct detokenize_request wanted = {0};
    struct error err = ERROR_INIT;
    char *text = NULL;
    size_t length = 0;
    if (ticket_cancelled(&task->ticket) == CANCEL_NONE &&
        detokenize_parse(&wanted, task->body.data, task->body.length, &limits, &task->error) == 0) {
        if (tokenizer_decode(task->service->tokenizer, wanted.ids, wanted.count, false, &text,
                             &length, &err))
            api_error_from_engine(&task->error, &err, "tokens");
        else
            detokenize_reply_encode(&task->reply, text, length, &task->warnings);
    }
    detokenize_request_clear(&wanted);
    free(text);
    finish(task);
}

static void run_template(struct task *task)
{
    const struct completion_limits limits = limits_of(task);
    struct completion_prompt prompt;
    if (ticket_cancelled(&task->ticket) == CANCEL_NONE &&
        llama_cpp_template_parse(&prompt, task->body.data, task->body.length, &limits,
                                 &task->error) == 0) {
        detokenize_reply_encode(&task->reply, prompt.text, prompt.length, &task->warnings);
        free(prompt.text);
        span_list_clear(&prompt.input);
    }
    finish(task);
}

/* To the workers or the renderers. */
typedef void (*task_to)(struct task *task, void (*run)(struct task *task), size_t bytes);

static void destroy(struct task *task)
{
    free(of_task(task)->turns);
}

/* A token has about four bytes of text, or as an id a few more. */
static int start(struct http_request *request, task_to to, void (*run)(struct task *task),
                 struct api_error *err)
{
    struct service *service = request->service;
    if (service_check_tokenizer(service, err) || service_check_ready(service, err))
        return -1;
    struct text_task *text = task_create(sizeof *text, service, request->tenant, destroy);
    if (!text)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    struct task *task = &text->task;
    text->owner = service_owner(service, request->owner);
    text->admitted_tokens = (int64_t)(request->body.length / 4);
    if (admission_enter(&service->admission, task->tenant, text->admitted_tokens, err)) {
        ticket_release(&task->ticket);
        return -1;
    }
    http_take_body(request, &task->body, &task->reserved);
    http_attach(request, &task->ticket);
    ticket_hold(&task->ticket);
    to(task, run, task->body.length);
    return 0;
}

static void answer(struct http_request *request, struct task *task)
{
    if (!http_work_done(request))
        return;
    request->warnings = &task->warnings;
    if (task->error.code != API_OK)
        http_reply_error(request, &task->error);
    else
        http_reply_json(request, &task->reply);
}

static void handle(struct http_request *request, task_to to, void (*run)(struct task *task))
{
    struct api_error err = {0};
    if (!request->ticket && start(request, to, run, &err))
        http_reply_error(request, &err);
    else
        answer(request, (struct task *)request->ticket);
}

void tokenize_handle(struct http_request *request)
{
    handle(request, task_to_workers, run_tokenize);
}

void tokenize_handle_messages(struct http_request *request)
{
    handle(request, task_to_renderers, run_count_messages);
}

void tokenize_handle_responses(struct http_request *request)
{
    handle(request, task_to_renderers, run_count_responses);
}

void tokenize_handle_detokenize(struct http_request *request)
{
    handle(request, task_to_workers, run_detokenize);
}

void tokenize_handle_template(struct http_request *request)
{
    handle(request, task_to_renderers, run_template);
}

void tokenize_handle_info(struct http_request *request)
{
    struct service *service = request->service;
    struct strbuf body = {0};
    struct api_error err = {0};
    if (service_check_tokenizer(service, &err)) {
        http_reply_error(request, &err);
        return;
    }
    struct tokenizer_info info = {.tokenizer = service->tokenizer,
                                  .bos_token_id = service->bos_token_id,
                                  .eos_token_id = service->num_eos ? service->eos_ids[0] : -1,
                                  .max_model_len = service->limits.max_model_len,
                                  .vocab_size = service->limits.vocab_size};
    tokenizer_info_encode(&body, &info);
    http_reply_json(request, &body);
}
