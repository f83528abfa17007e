#include "server/text_task.h"

#include "api/tokenizer.h"

#include <stddef.h>
#include <stdlib.h>

struct text_task {
    struct ticket ticket; /* its lock guards reply and error until done */
    struct work work;
    struct service *service;
    int64_t admitted_tokens;
    struct tokenize_request tokenize; /* one of the two is empty */
    struct detokenize_request detokenize;
    struct strbuf reply;
    struct api_error error;
};

static void task_destroy(struct ticket *ticket)
{
    struct text_task *task = (struct text_task *)ticket;
    tokenize_request_clear(&task->tokenize);
    detokenize_request_clear(&task->detokenize);
    strbuf_clear(&task->reply);
    ticket_clear(&task->ticket);
    free(task);
}

static struct text_task *task_of(struct work *work)
{
    return (struct text_task *)((char *)work - offsetof(struct text_task, work));
}

static void finish(struct text_task *task)
{
    admission_leave(&task->service->admission, task->admitted_tokens);
    ticket_lock(&task->ticket);
    task->ticket.done = true;
    ticket_wake(&task->ticket);
    ticket_unlock(&task->ticket);
    ticket_release(&task->ticket);
}

static void run_tokenize(struct work *work)
{
    struct text_task *task = task_of(work);
    const struct tokenize_request *wanted = &task->tokenize;
    const struct tokenizer *tokenizer = task->service->tokenizer;
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    if (ticket_cancelled(&task->ticket) == CANCEL_NONE) {
        if (tokenizer_encode(tokenizer, wanted->prompt, wanted->length, wanted->add_special_tokens,
                             &ids, &err))
            api_error_from_engine(&task->error, &err, "prompt");
        else
            tokenize_reply_encode(&task->reply, ids.ids, ids.count,
                                  task->service->limits.max_model_len,
                                  wanted->return_token_strs ? tokenizer : NULL);
    }
    token_list_clear(&ids);
    finish(task);
}

static void run_detokenize(struct work *work)
{
    struct text_task *task = task_of(work);
    struct error err = ERROR_INIT;
    char *text = NULL;
    size_t length = 0;
    if (ticket_cancelled(&task->ticket) == CANCEL_NONE) {
        if (tokenizer_decode(task->service->tokenizer, task->detokenize.ids, task->detokenize.count,
                             false, &text, &length, &err))
            api_error_from_engine(&task->error, &err, "tokens");
        else
            detokenize_reply_encode(&task->reply, text, length);
    }
    free(text);
    finish(task);
}

/* Takes what `parsed` holds. tokens: what it is estimated to cost. */
static int start(struct http_request *request, const struct text_task *parsed, int64_t tokens,
                 void (*run)(struct work *work), struct api_error *err)
{
    struct text_task *task = malloc(sizeof *task);
    if (!task) {
        struct text_task copy = *parsed;
        tokenize_request_clear(&copy.tokenize);
        detokenize_request_clear(&copy.detokenize);
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    }
    *task = *parsed;
    ticket_init(&task->ticket, task_destroy);
    task->work.run = run;
    task->service = request->service;
    task->admitted_tokens = tokens;
    if (admission_enter(&task->service->admission, tokens, err)) {
        ticket_release(&task->ticket);
        return -1;
    }
    http_attach(request, &task->ticket);
    ticket_hold(&task->ticket);
    worker_submit(task->service->workers, &task->work);
    return 0;
}

/* Replies if the task is done, else waits for it. */
static void answer(struct http_request *request)
{
    struct text_task *task = (struct text_task *)request->ticket;
    ticket_lock(&task->ticket);
    bool done = task->ticket.done;
    if (!done)
        http_wait(request);
    ticket_unlock(&task->ticket);
    if (!done)
        return;
    if (task->error.code != API_OK)
        http_reply_error(request, &task->error);
    else
        http_reply_json(request, &task->reply);
}

void tokenize_handle(struct http_request *request)
{
    struct api_error err = {0};
    struct text_task parsed = {0};
    struct service *service = request->service;
    if (!request->ticket &&
        (service_check_ready(service, &err) ||
         tokenize_parse(&parsed.tokenize, request->body.data, request->body.length,
                        &service->limits, &err) ||
         start(request, &parsed, (int64_t)(parsed.tokenize.length / 4), run_tokenize, &err)))
        http_reply_error(request, &err);
    else
        answer(request);
}

void detokenize_handle(struct http_request *request)
{
    struct api_error err = {0};
    struct text_task parsed = {0};
    struct service *service = request->service;
    if (!request->ticket &&
        (service_check_ready(service, &err) ||
         detokenize_parse(&parsed.detokenize, request->body.data, request->body.length,
                          &service->limits, &err) ||
         start(request, &parsed, (int64_t)parsed.detokenize.count, run_detokenize, &err)))
        http_reply_error(request, &err);
    else
        answer(request);
}
