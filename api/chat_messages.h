/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a chat, as templates expect them. */
#ifndef API_CHAT_MESSAGES_H
#define API_CHAT_MESSAGES_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What a template takes. */
struct chat_forms {
    bool parts;     /* contents that are lists of parts; else their texts are joined */
    bool developer; /* that role; else it is system, as clients of older models call it */
    bool texts;     /* arguments of calls as JSON in a text; else objects */
    bool broken;    /* arguments of calls that are no object; else one is made around them */
    bool either;    /* beside calls a text is part of the reasoning, if there is one */
};

/* A copy of the request's messages: without members that are null, parts of the type text,
 * arguments of tool calls as objects and beside a content, reasoning under all its names. *broken:
 * calls whose arguments were none, of which what can be read is read, and else all passed on. NULL
 * with the error set; the caller frees the list. */
json_t *chat_messages(const json_t *messages, const struct chat_forms *forms, size_t *broken,
                      struct api_error *err);

/* The text of a part of a content: of an object, whatever API's name it has, or a string. NULL: it
 * is none. */
const json_t *chat_messages_part_text(const json_t *part);

/* Marks the end of the last message for chat_messages_cut. */
int chat_messages_mark_last(json_t *messages, struct api_error *err);

/* Cuts the rendered text ([*length] bytes) where the last message ended. */
int chat_messages_cut(char *text, size_t *length, struct api_error *err);

/* Marks the ends of all messages that have a text, for chat_messages_find. number: of the mark; no
 * message has it. */
int chat_messages_mark_all(json_t *messages, uint64_t number, struct api_error *err);
/* The index of the message that has byte `offset` of the rendered text, as it is without marks, or
 * that begins behind it; -1: that is behind the last. */
int64_t chat_messages_find(const char *text, size_t length, uint64_t number, size_t offset);

#endif
