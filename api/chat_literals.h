/* SPDX-License-Identifier: Apache-2.0 */
/* Literals as models write them, of Python's or of JSON's. They become JSON. */
#ifndef API_CHAT_LITERALS_H
#define API_CHAT_LITERALS_H

#include "api/chat_call.h"
#include "api/strbuf.h"

/* What a text that ends too early is. A value that has not begun is left out with its key. */
enum chat_literals_end {
    CHAT_LITERALS_NONE,   /* no literal */
    CHAT_LITERALS_CLOSED, /* one that ends there, with all that is open */
    CHAT_LITERALS_OPEN,   /* one whose JSON ends there, too */
};

/* Zero-initialise, set `text`, `length` and `end`; chat_literals_clear frees. */
struct chat_literals {
    const char *text; /* [length], UTF-8 */
    size_t length, at;
    enum chat_literals_end end;
    const char *quote; /* of strings without escapes, where keys are without quotes; NULL: none */
    char assign;       /* between an argument's key and its value */
    int depth;
    struct strbuf out;    /* JSON, but for what numbers say: whoever reads it looks at these */
    struct strbuf string; /* of the string that is being read */
};

void chat_literals_clear(struct chat_literals *reader);
bool chat_literals_failed(const struct chat_literals *reader); /* no memory */
/* Skips white space. Whether the text ends there too early, and may. */
bool chat_literals_cut_off(struct chat_literals *reader);

/* Skips white space. */
void chat_literals_skip(struct chat_literals *reader);
/* Skips white space, and the byte if it comes next. */
bool chat_literals_take(struct chat_literals *reader, char byte);
/* A name behind white space: perhaps an empty one. */
struct chat_part chat_literals_name(struct chat_literals *reader);
/* The same of an argument's key: a name, or with `quote` all up to what follows it. */
struct chat_part chat_literals_key(struct chat_literals *reader);
/* Appends to `out` what `item` appends, up to `close`, with commas between and perhaps one at the
 * end. *closed: else the text has ended. False: `item` has failed, or there was no comma. */
bool chat_literals_items(struct chat_literals *reader, char close,
                         bool (*item)(struct chat_literals *reader), bool *closed);
/* Appends the value that comes next to `out`. False: there is none. */
bool chat_literals_value(struct chat_literals *reader);

#endif
