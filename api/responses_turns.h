/* SPDX-License-Identifier: Apache-2.0 */
/* Kept responses: each is a session whose turns (chat_turns.h) have items instead of messages. The
 * last turn's line has {bytes, events, response, told, input}: the whole object, how many bytes it
 * has, how its stream told it (responses_replay.h), in how many events, and the items of its
 * request. Those before it, of the responses that it goes on from, have {input, output}. */
#ifndef API_RESPONSES_TURNS_H
#define API_RESPONSES_TURNS_H

#include "api/chat_turns.h"
#include "api/completion.h"
#include "api/responses_echo.h"

/* Appends the turns of the response that this one goes on from, which now end at `position`. */
int responses_turns_inherit(struct strbuf *out, const char *turns, size_t length, int64_t position,
                            struct api_error *err);
/* What a response was, and how it was told. */
struct responses_telling {
    const char *object; /* [length] */
    size_t length;
    int64_t events;            /* of its stream; 0: it had none */
    const struct strbuf *told; /* of the items of that, with commas between */
};
/* Appends the turn of a response, and what was asked for it. */
int responses_turns_write(struct strbuf *out, const struct chat_turn *turn,
                          const struct responses_echo *asked,
                          const struct responses_telling *telling, struct api_error *err);

/* Sets the messages of a chat's body to those of all turns and of what is asked now: it says what
 * the conversation sent whole would. */
int responses_turns_gather(struct completion_string *body, const char *turns, size_t length,
                           const struct responses_echo *asked,
                           const struct completion_limits *limits, struct api_error *err);

/* The last turn's object, as it was sent; it points into the turns. *events: of its stream. */
int responses_turns_object(const char *turns, size_t length, const char **object,
                           size_t *object_length, int64_t *events, struct api_error *err);
/* The last turn's line in JSON, to be freed. NULL with the error set. */
json_t *responses_turns_line(const char *turns, size_t length, struct api_error *err);
/* What was asked in the last turn: JSON of {input, ...}; it points into the turns. */
int responses_turns_asked(const char *turns, size_t length, const char **asked,
                          size_t *asked_length, struct api_error *err);
/* The items of what was asked, each with an id, in a new list. id: of the response. NULL with the
 * error set. */
json_t *responses_turns_input(const char *asked, size_t length, const char *id,
                              struct api_error *err);

#endif
