/* SPDX-License-Identifier: Apache-2.0 */
/* The turns of a chat, as a session keeps them: a line for each, of
 *
 *   POSITION BYTES HASH MESSAGES
 *
 * POSITION is the number of tokens that the session held after the turn. BYTES and HASH (XXH3-64)
 * are of the text of all messages until then, as the template rendered it and the model continued
 * it. MESSAGES is a JSON object {messages, special}: those of the request, and the reply; in
 * special are the beginnings and ends of special tokens in the reply, in turn. */
#ifndef API_CHAT_TURNS_H
#define API_CHAT_TURNS_H

#include "api/errors.h"
#include "lib/text/buffer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a turn says but for its messages. */
struct chat_turn {
    int64_t position;
    size_t text_length;
    uint64_t text_hash;
};

/* Reads the last turn. All 0: there is none. -1: what is there are no turns. */
int chat_turns_last(const char *turns, size_t length, struct chat_turn *last);
/* Whether the text [length] still begins as that of these turns does, whose last is read then. */
bool chat_turns_begin(const char *turns, size_t turns_length, const char *text, size_t length,
                      struct chat_turn *last);
/* Bytes of the first turns that end at `position` or before. */
size_t chat_turns_until(const char *turns, size_t length, int64_t position);

/* What a line has behind its numbers: a JSON object. */
struct chat_turns_text {
    const char *bytes; /* [length] */
    size_t length;
};
/* Reads the line at *at, and moves *at behind it. -1: it is none. */
int chat_turns_next(const char *turns, size_t length, size_t *at, struct chat_turn *turn,
                    struct chat_turns_text *text);
/* Appends the numbers of a line. */
void chat_turns_head(struct strbuf *out, const struct chat_turn *turn);

/* Appends those turns from byte `from` on, which now end at another position, to `out`. */
void chat_turns_move(struct strbuf *out, const char *turns, size_t length, size_t from,
                     int64_t position);

/* A special token that a reply of the turns spells. */
struct chat_special {
    size_t message;         /* of which the content */
    struct text_span bytes; /* there */
};
/* Zero-initialise; chat_specials_clear frees. */
struct chat_specials {
    struct chat_special *items; /* [count], in order, none over another */
    size_t count, capacity;
};
void chat_specials_clear(struct chat_specials *specials);

/* The messages of all turns, in a new list. NULL with the error set. *specials, unless it is NULL:
 * what their replies have of special tokens. */
json_t *chat_turns_messages(const char *turns, size_t length, struct chat_specials *specials,
                            struct api_error *err);

/* The hash of a text in two parts. */
uint64_t chat_turns_hash(const char *text, size_t length, const char *more, size_t more_length);

/* What the assistant said. */
struct chat_turn_reply {
    const char *text;         /* [length]; NULL: there is none */
    size_t length;            /* bytes */
    struct span_list special; /* where special tokens are in it; borrowed */
};

/* Appends a turn of these messages to `out`, and after them the reply. */
int chat_turns_write(struct strbuf *out, const struct chat_turn *turn, const json_t *messages,
                     const struct chat_turn_reply *reply, struct api_error *err);

#endif
