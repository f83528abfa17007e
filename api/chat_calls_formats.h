/* SPDX-License-Identifier: Apache-2.0 */
/* What chat_calls.c and the formats share (chat_calls_*.c). */
#ifndef API_CHAT_CALLS_FORMATS_H
#define API_CHAT_CALLS_FORMATS_H

#include "api/chat_calls.h"
#include "api/strbuf.h"

/* Most lists and objects in each other: fewer than a request may have (request.h), which the call
 * comes back in. */
enum { CHAT_CALLS_DEPTH = 60 };

static inline bool chat_calls_space(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

/* The first byte from `at` on that is no white space, or length. */
static inline size_t chat_calls_skip(const char *body, size_t length, size_t at)
{
    while (at < length && chat_calls_space(body[at]))
        at++;
    return at;
}

/* What the text at body[at] is to `word`. */
enum chat_match { CHAT_MATCH_NO, CHAT_MATCH_BEGINS, CHAT_MATCH_WHOLE };
enum chat_match chat_calls_match(const char *body, size_t length, size_t at, const char *word);

/* Adds a call whose arguments are a JSON object, unless they are none, repeat a key or nest too
 * deep. Results as chat_calls_read. */
int chat_calls_add(struct chat_calls *calls, const char *name, size_t name_length,
                   const char *arguments, size_t arguments_length);

/* The formats. A scan returns CHAT_SCAN_CALL as soon as the body is complete, with scan->end. */
enum chat_scan_result chat_calls_json_scan(struct chat_scan *scan, const char *body, size_t length);
int chat_calls_json_read(struct chat_calls *calls, const char *body, size_t length);
enum chat_scan_result chat_calls_xml_scan(struct chat_scan *scan, const char *body, size_t length);
int chat_calls_xml_read(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                        const struct chat_types *types);
int chat_calls_python_read(struct chat_calls *calls, const char *body, size_t length);

#endif
