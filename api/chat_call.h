/* SPDX-License-Identifier: Apache-2.0 */
/* A tool call, a list of them, and the place in the text of one that is being looked for: what the
 * formats share (chat_formats.h). */
#ifndef API_CHAT_CALL_H
#define API_CHAT_CALL_H

#include "api/chat_words.h"
#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_types;

/* A call, or what is new of one. */
struct chat_call {
    char *name; /* [name_length], UTF-8, and a NUL; NULL: the call before goes on */
    size_t name_length;
    char *arguments; /* [arguments_length]: a JSON object, or a part of its text, and a NUL */
    size_t arguments_length, capacity;
    char *id;  /* that the model wrote, and a NUL; NULL: none */
    size_t at; /* bytes of the content before it, of what came with it (chat_parser.h) */
    bool open; /* more of its arguments comes */
    bool cut;  /* it was cut off: the arguments are no JSON */
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

/* How the calls of a body are told: in parts if a tool of the request has the name of the first.
 * What was told is not taken back: a call that goes wrong later is cut off there. Its arguments are
 * no JSON then: their last brace is told when the call is known to be whole. */
enum chat_telling { CHAT_TELLING_OPEN, CHAT_TELLING_WHOLE, CHAT_TELLING_PARTS };

/* How far a body has been looked at. Zero-initialise; chat_scan_clear frees. */
struct chat_scan {
    const struct chat_words *words;
    size_t at;      /* bytes that need no second look */
    int phase;      /* the format's own */
    int depth;      /* JSON; Python: of a value */
    uint64_t lists; /* JSON: bit d: what is open at depth d is a list; Python: 1: the calls are */
    size_t end;     /* the body's end: where the closing marker begins, or white space before it */
    struct chat_part *parts; /* [num_parts]: XML: the name, then keys and values in turn */
    size_t num_parts, capacity;

    enum chat_telling telling;
    bool open;            /* a call is: its name was told, and not its last brace */
    size_t told;          /* bytes of the body that nobody needs any more */
    size_t num_told;      /* XML: parts that were told; Python: calls, or arguments of one */
    char *name;           /* JSON, Python: of the call: a tool of the request has it; or NULL */
    struct chat_part key; /* JSON: the last one */
    size_t object, value; /* JSON: where the call and the last value begin */
    size_t word;          /* JSON: where the last number or word begins */
    bool inside, held;    /* JSON: in its arguments; and in a value that is told when it is whole */
    int digits;           /* JSON: of an escape, that are to come */
    unsigned unit;        /* JSON: the escape so far */
    bool named;           /* JSON: only the arguments are, behind the name */
    bool half;            /* JSON: the second half of a character must follow */
    char quote;           /* Python: of the string; 0: none */
};
void chat_scan_clear(struct chat_scan *scan);
/* Copies the name of the call, whose text ends nowhere. -1: no memory. */
int chat_scan_name(struct chat_scan *scan, const char *name, size_t length);

/* What a body is read as. */
struct chat_reading {
    const struct chat_words *words;
    const char *close; /* the closing marker; "": there is none */
    bool bare;         /* without its markers: a call of the request's tools, or none */
    const struct chat_types *types; /* of the request's tools */
    struct chat_calls *calls;       /* where those go that are told in parts */
};

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

/* The word without the white space that it begins with. */
static inline const char *chat_calls_bare_word(const char *word)
{
    while (chat_calls_space(*word))
        word++;
    return word;
}

/* What the text at body[at] is to `word`. */
enum chat_match { CHAT_MATCH_NO, CHAT_MATCH_BEGINS, CHAT_MATCH_WHOLE };
enum chat_match chat_calls_match(const char *body, size_t length, size_t at, const char *word);

/* JSON of an object in a call. NULL: it is none, or *err says that no memory is left. */
json_t *chat_calls_load(const struct chat_calls *calls, const char *text, size_t length,
                        struct api_error *err);

/* What the text is as a value. NULL: it is no JSON, or no memory is left: *failed. */
json_t *chat_calls_value(const char *text, size_t length, bool *failed);

/* Adds a call whose arguments are a JSON object, unless they are none, repeat a key or nest too
 * deep. Where keys may come again they are written anew. 0: it is none, 1: added, -1: no memory. */
int chat_calls_add(struct chat_calls *calls, const char *name, size_t name_length,
                   const char *arguments, size_t arguments_length);
/* Gives the last call an id. -1: no memory. */
int chat_calls_identify(struct chat_calls *calls, const char *id, size_t length);
/* Adds one that was cut off, with what there is of its arguments. */
int chat_calls_add_cut(struct chat_calls *calls, const char *name, size_t name_length,
                       const char *arguments, size_t arguments_length);

/* A call in parts: its name, the text of its arguments, its end; -1: no memory. `cut`: without the
 * last brace. */
int chat_calls_begin(struct chat_calls *calls, const char *name, size_t name_length);
int chat_calls_more(struct chat_calls *calls, const char *arguments, size_t length);
int chat_calls_end(struct chat_calls *calls, bool cut);

#endif
