/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the body of POST /v1/chat/completions: messages become the text that the model's chat
 * template makes of them, and the rest is a completion request (completion.h). */
#ifndef API_CHAT_H
#define API_CHAT_H

#include "api/chat_turns.h"
#include "api/completion.h"

/* Like completion_parse, with one prompt, a text. With a session the text is "" until chat_continue
 * makes it. */
int chat_parse(struct completion_request *request, const char *body, size_t length,
               const struct completion_limits *limits, struct api_error *err);

/* The same of its fields, which another API may have made; body: they as JSON, which is kept. */
int chat_parse_fields(struct completion_request *request, json_t *fields, const char *body,
                      size_t length, const struct completion_limits *limits, struct api_error *err);

/* What is known of a chat beside its request: the turns (chat_turns.h) that a session holds. */
struct chat_history {
    const char *turns; /* [length] */
    size_t length;
    const struct chat_specials *said; /* where there are none: special tokens that replies among the
                                         request's own messages have; NULL: none */
};

/* Makes *out the text of `messages` and what belongs to them in a request of `length` bytes, behind
 * those of history (NULL: there is none). out->input is what was not written by the template,
 * unless limits->content_tokens: messages, tools, documents, names. The caller frees out->text and
 * clears out->input. rules: NULL, or where the rules of its replies go (chat_rules_free). */
int chat_render(struct completion_prompt *out, struct chat_rules **rules, const json_t *fields,
                size_t length, const struct chat_history *history,
                const struct completion_limits *limits, struct api_error *err);
/* The same of a body that chat_parse has read. */
int chat_render_body(struct completion_prompt *out, struct chat_rules **rules,
                     const struct completion_string *body, const struct chat_history *history,
                     const struct completion_limits *limits, struct api_error *err);

/* The index of the message, with those of history before it, that has byte `offset` of the text, or
 * begins behind it. It is the number of messages if that is behind the last. */
int chat_locate(int64_t *index, const struct completion_string *body,
                const struct chat_history *history, size_t offset,
                const struct completion_limits *limits, struct api_error *err);

/* Appends the turn of a body to `out`, as chat_turns_write. */
int chat_write_turn(struct strbuf *out, const struct chat_turn *turn,
                    const struct completion_string *body, const struct chat_turn_reply *reply,
                    struct api_error *err);

#endif
