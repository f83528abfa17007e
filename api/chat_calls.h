/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls as models write them: where a call ends in a text that grows, and what it says.
 *
 * A call stands between two markers (chat_syntax.h). Its body is one of
 *   JSON    {"name": ..., "arguments": {...}}, or a list of these
 *   XML     <function=NAME> <parameter=KEY>value</parameter>... </function>
 *   Python  [name(key=value, ...), ...], the brackets are optional
 * All of it was written by a model: each byte is looked at once, nesting is bounded, and what is
 * not a call as a whole is none. */
#ifndef API_CHAT_CALLS_H
#define API_CHAT_CALLS_H

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
};

/* Zero-initialise; chat_calls_clear frees. */
struct chat_calls {
    struct chat_call *items; /* [count] */
    size_t count, capacity;
};

void chat_calls_clear(struct chat_calls *calls);
/* Drops the calls from `first` on. */
void chat_calls_cut(struct chat_calls *calls, size_t first);

/* What the request's tools say of the parameters, for XML, whose values have no types of their own.
 * Zero-initialise; chat_types_clear frees. */
struct chat_type {
    char *function, *key; /* one allocation, at `function` */
    unsigned kinds;       /* a set of enum chat_kind */
};
enum chat_kind {
    CHAT_STRING = 1,
    CHAT_INTEGER = 2,
    CHAT_NUMBER = 4,
    CHAT_BOOLEAN = 8,
    CHAT_NULL = 16,
    CHAT_LIST = 32,
    CHAT_OBJECT = 64,
};
struct chat_types {
    struct chat_type *items; /* [count] */
    size_t count;
};

/* tools: the list of the request; what is no schema there says nothing. -1: no memory. */
int chat_types_take(struct chat_types *types, const json_t *tools);
void chat_types_clear(struct chat_types *types);
/* A value of one of the kinds; of a parameter that no tool has: a string. */
unsigned chat_types_of(const struct chat_types *types, const char *function, size_t function_length,
                       const char *key, size_t key_length);

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
    CHAT_SCAN_OPEN,     /* more must come */
    CHAT_SCAN_CALL,     /* *used bytes: the body and its closing marker */
    CHAT_SCAN_TEXT,     /* this becomes no call: its first *used bytes are text */
    CHAT_SCAN_NO_MEMORY /* */
};

/* body [length]: what stands behind the opening marker so far, the same bytes as in the call before
 * and perhaps more; `last`: no more comes. close: the closing marker; "": there is none. */
enum chat_scan_result chat_scan_push(struct chat_scan *scan, enum chat_calls_format format,
                                     const char *close, const char *body, size_t length, bool last,
                                     size_t *used);

/* Adds the calls of a body whose end was found. 0: it is none, nothing is added; 1: it is;
 * -1: no memory. */
int chat_calls_read(struct chat_calls *calls, enum chat_calls_format format,
                    const struct chat_scan *scan, const char *body, const struct chat_types *types);

#endif
