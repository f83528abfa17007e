/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/parsing.h"

#include <stddef.h>
#include <stdlib.h>

struct parsing {
    struct ticket ticket; /* its lock guards the result until done */
    struct work work;
    struct service *service;
    struct strbuf body;
    int64_t body_reserved;
    struct completion_request result; /* if parsed */
    bool parsed;
    struct api_error error;
};

static void release_body(struct parsing *parsing)
{
    strbuf_clear(&parsing->body);
    admission_body(&parsing->service->admission, -parsing->body_reserved);
    parsing->body_reserved = 0;
}

static void parsing_destroy(struct ticket *ticket)
{
    struct parsing *parsing = (struct parsing *)ticket;
    release_body(parsing);
    if (parsing->parsed)
        completion_request_clear(&parsing->result);
    ticket_clear(&parsing->ticket);
    free(parsing);
}

static void run(struct work *work)
{
    struct parsing *parsing = (struct parsing *)((char *)work - offsetof(struct parsing, work));
    if (ticket_cancelled(&parsing->ticket))
        api_error_set(&parsing->error, API_CANCELLED, NULL, "the request was cancelled");
    else
        parsing->parsed =
            completion_parse(&parsing->result, parsing->body.data, parsing->body.length,
                             &parsing->service->limits, &parsing->error) == 0;
    release_body(parsing);
    ticket_lock(&parsing->ticket);
    parsing->ticket.done = true;
    ticket_wake(&parsing->ticket);
    ticket_unlock(&parsing->ticket);
    ticket_release(&parsing->ticket);
}

int parsing_start(struct http_request *request, struct api_error *err)
{
    struct parsing *parsing = calloc(1, sizeof *parsing);
    if (!parsing)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    ticket_init(&parsing->ticket, parsing_destroy);
    parsing->work.run = run;
    parsing->service = request->service;
    http_take_body(request, &parsing->body, &parsing->body_reserved);
    request->parsing = true;
    http_attach(request, &parsing->ticket);
    ticket_hold(&parsing->ticket);
    worker_submit(parsing->service->workers, &parsing->work);
    return 0;
}

int parsing_take(struct http_request *request, struct completion_request *parsed,
                 struct api_error *err)
{
    struct parsing *parsing = (struct parsing *)request->ticket;
    int result = parsing->parsed ? 0 : -1;
    if (parsing->parsed)
        *parsed = parsing->result;
    else
        *err = parsing->error;
    parsing->parsed = false;
    request->parsing = false;
    http_detach(request);
    return result;
}
