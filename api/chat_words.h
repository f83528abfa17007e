/* SPDX-License-Identifier: Apache-2.0 */
/* How each format of tool calls is spelled: a table of words, which finding, reading and demanding
 * calls go by. */
#ifndef API_CHAT_WORDS_H
#define API_CHAT_WORDS_H

#include <stdbool.h>

/* A row of the table. The first three are found with any markers around them. */
enum chat_calls_format {
    CHAT_CALLS_NONE,
    CHAT_CALLS_JSON,
    CHAT_CALLS_XML,
    CHAT_CALLS_PYTHON,
    CHAT_CALLS_GLM,
    CHAT_CALLS_MINIMAX,
    CHAT_CALLS_GEMMA,
    CHAT_CALLS_DEEPSEEK,
    CHAT_CALLS_DEEPSEEK_FENCED,
    CHAT_CALLS_KIMI,
    CHAT_CALLS_MISTRAL,
    CHAT_CALLS_MISTRAL_IDS,
    CHAT_CALLS_DSML,
    CHAT_CALLS_CHANNELS,
    CHAT_CALLS_COUNT
};

/* What a call's body is, with SP for white space and the words of the row:
 *   JSON    {"name": ..., "arguments": {...}}, or a list of these
 *   XML     `before` NAME `behind` (SP `key` KEY `key_end` SP `value` VALUE `value_end`)... SP
 * `end` Python  `before` NAME `behind` KEY `key_end` VALUE, ... `end`, several in a list or on
 * lines named   `before` NAME `id` ID `behind` {...} */
enum chat_calls_kind {
    CHAT_KIND_NONE,
    CHAT_KIND_JSON,
    CHAT_KIND_XML,
    CHAT_KIND_PYTHON,
    CHAT_KIND_NAMED
};

/* Words that a kind does not have are "". White space at the end of a word that stands in `behind`
 * or `close` may be missing or be more. */
struct chat_words {
    const char *title;
    enum chat_calls_kind kind;
    const char *section, *section_end; /* around all calls of a reply */
    const char *open, *close;          /* around a call; NULL: the template says */
    const char *before, *behind;       /* around its name */
    const char *key, *key_end;
    const char *value, *value_end; /* Python: quotes of a string, which has no escapes */
    const char
        *other; /* XML: before a value that is JSON, where `value` says a string; NULL: none */
    const char *end;
    const char *id;            /* named: what an id stands behind */
    const char *tag, *tag_end; /* what may stand around calls that have no markers */
    bool counts;               /* the id is a number, and told with all that stands before it */
    bool lines;                /* XML: a value has lines of its own */
    bool channels;             /* named: the name stands in a head of chat_channels.h */
};

/* The row of a format; of CHAT_CALLS_NONE one without a kind. */
const struct chat_words *chat_words(enum chat_calls_format format);

#endif
