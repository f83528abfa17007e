/* SPDX-License-Identifier: Apache-2.0 */
/* Writes replies of POST /v1/responses: as completion_reply.h, in the shape of OpenAI's Responses
 * API; and the parts that its stream shares (responses_stream.h). */
#ifndef API_RESPONSES_REPLY_H
#define API_RESPONSES_REPLY_H

#include "api/errors.h"
#include "api/reply_parts.h"

/* There is one choice. */
void responses_reply_encode(struct strbuf *buf, const struct reply_head *head,
                            const struct reply_choice *choices, size_t num_choices,
                            const struct reply_usage *usage, const struct reply_timings *timings,
                            const struct session_card *session);

/* {"object", "input_tokens"}, and warnings. */
void responses_count_encode(struct strbuf *buf, size_t count,
                            const struct reply_warnings *warnings);

enum responses_status {
    RESPONSES_IN_PROGRESS,
    RESPONSES_COMPLETED,
    RESPONSES_INCOMPLETE,
    RESPONSES_FAILED,
    RESPONSES_CANCELLED
};
/* "in_progress", ... */
const char *responses_status_name(enum responses_status status);
/* Of a choice whose text has ended; FINISH_NONE: it was cancelled. */
enum responses_status responses_status_of(enum finish_reason finish);

/* The object, up to the items of its output and from there on. err: of one that failed; usage NULL:
 * null. */
void responses_object_begin(struct strbuf *buf, const struct reply_head *head,
                            enum responses_status status, const struct api_error *err);
void responses_object_end(struct strbuf *buf, const struct reply_head *head,
                          const struct reply_usage *usage);

/* An item with a thought or a text. */
struct responses_item {
    enum reply_part part;
    size_t index; /* in the output */
    enum responses_status status;
    const struct strbuf *text;     /* NULL: its content is still to come */
    const struct strbuf *logprobs; /* of its tokens, with commas between; NULL: none */
};
void responses_item_encode(struct strbuf *buf, const struct reply_head *head,
                           const struct responses_item *item);
/* The only part of its content. */
void responses_part_encode(struct strbuf *buf, const struct responses_item *item);
/* Its id, with quotes. */
void responses_item_id(struct strbuf *buf, const struct reply_head *head,
                       const struct responses_item *item);

/* A call. */
struct responses_call {
    const char *name; /* [name_length], as the chat has it */
    size_t name_length;
    const struct responses_tool *tool; /* NULL: a function by its own name */
    size_t index;                      /* in the output */
    size_t number;                     /* of the reply's calls */
    struct strbuf
        input; /* its arguments, or the text of a custom tool; "" while they are to come */
    bool told; /* it is whole */
};
/* Finds its tool, by its name. */
void responses_call_begin(struct responses_call *call, const struct reply_head *head);
/* Takes all of its arguments; strbuf_clear of its input frees. */
void responses_call_take(struct responses_call *call, const char *arguments, size_t length);
void responses_call_encode(struct strbuf *buf, const struct reply_head *head,
                           const struct responses_call *call);
/* As a string: what it calls, without the namespace. */
void responses_call_name(struct strbuf *buf, const struct responses_call *call);
void responses_call_id(struct strbuf *buf, const struct reply_head *head,
                       const struct responses_call *call);

/* Appends the entries of tokens that are no thoughts. */
void responses_logprobs_encode(struct strbuf *buf, const struct reply_choice *choice);

#endif
