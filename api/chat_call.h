/* SPDX-License-Identifier: Apache-2.0 */
/* A tool call, a list of them, and the place in the text of one that is being looked for: what the
 * formats share (chat_formats.h). */
#ifndef API_CHAT_CALL_H
#define API_CHAT_CALL_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum chat_calls_format { CHAT_CALLS_NONE, CHAT_CALLS_JSON, CHAT_CALLS_XML, CHAT_CALLS_PYTHON };

struct chat_call {
    char *name; /* [name_length], UTF-8, and a NUL */
    size_t name_length;
    char *arguments; /* [arguments_length]: a JSON object, and a NUL */
    size_t arguments_length;
    size_t at; /* bytes of the content before it, of what came with it (chat_parser.h) */
    bool cut;  /* it was cut off: the arguments may be no JSON */
};

/* Zero-initialise; chat_calls_clear frees. */
struct chat_calls {
    struct chat_call *items; /* [count] */
    size_t count, capacity;
    bool repeats; /* a key may come again in an object; its last value counts */
};

void chat_calls_clear(struct chat_calls *calls);
/* Drops the calls from `first` on. */
void chat_calls_cut(struct chat_calls *calls, size_t first);

/* Takes others. -1: no memory. */
int chat_call_set_arguments(struct chat_call *call, const char *arguments, size_t length);

/* The bytes from begin to end of a body. */
struct chat_part {
    size_t begin, end;
};

/* How far a body has been looked at. Zero-initialise; chat_scan_clear frees. */
struct chat_scan {
    size_t at;      /* bytes that need no second look */
    int phase;      /* the format's own */
    int depth;      /* JSON */
    uint64_t lists; /* JSON: bit d: what is open at depth d is a list */
    size_t end;     /* the body's end: where the closing marker begins, or white space before it */
    struct chat_part *parts; /* [num_parts]: XML: the name, then keys and values in turn */
    size_t num_parts, capacity;
};
void chat_scan_clear(struct chat_scan *scan);

enum chat_scan_result {
    CHAT_SCAN_OPEN, /* more must come */
    CHAT_SCAN_CALL, /* *used bytes: the body and its closing marker */
    CHAT_SCAN_TEXT, /* this becomes no call: its first *used bytes are text */
    CHAT_SCAN_NO_MEMORY
};

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

/* The end of text[begin..end] without white space. */
static inline size_t chat_calls_trim(const char *text, size_t begin, size_t end)
{
    while (end > begin && chat_calls_space(text[end - 1]))
        end--;
    return end;
}

/* What the text at body[at] is to `word`. */
enum chat_match { CHAT_MATCH_NO, CHAT_MATCH_BEGINS, CHAT_MATCH_WHOLE };
enum chat_match chat_calls_match(const char *body, size_t length, size_t at, const char *word);

/* JSON of an object in a call. NULL: it is none, or *err says that no memory is left. */
json_t *chat_calls_load(const struct chat_calls *calls, const char *text, size_t length,
                        struct api_error *err);

/* Adds a call whose arguments are a JSON object, unless they are none, repeat a key or nest too
 * deep. Where keys may come again they are written anew. 0: it is none, 1: added, -1: no memory. */
int chat_calls_add(struct chat_calls *calls, const char *name, size_t name_length,
                   const char *arguments, size_t arguments_length);
/* Adds one that was cut off, with what there is of its arguments. */
int chat_calls_add_cut(struct chat_calls *calls, const char *name, size_t name_length,
                       const char *arguments, size_t arguments_length);

#endif
