/* SPDX-License-Identifier: Apache-2.0 */
/* Literals as models write them, of Python's or of JSON's. They become JSON. */
#ifndef API_CHAT_LITERALS_H
#define API_CHAT_LITERALS_H

#include "api/chat_call.h"
#include "api/strbuf.h"

/* Zero-initialise, set `text`, `length` and `may_end`; chat_literals_clear frees. */
struct chat_literals {
    const char *text; /* [length], UTF-8 */
    size_t length, at;
    bool may_end; /* a text that ends too early ends all that is open; what has no value is left out
                   */
    int depth;
    struct strbuf out;    /* JSON, but for what numbers say: whoever reads it looks at these */
    struct strbuf string; /* of the string that is being read */
};

void chat_literals_clear(struct chat_literals *reader);
bool chat_literals_failed(const struct chat_literals *reader); /* no memory */

/* Skips white space. */
void chat_literals_skip(struct chat_literals *reader);
/* Skips white space, and the byte if it comes next. */
bool chat_literals_take(struct chat_literals *reader, char byte);
/* A name behind white space: perhaps an empty one. */
struct chat_part chat_literals_name(struct chat_literals *reader);
/* Appends the value that comes next to `out`. False: there is none. */
bool chat_literals_value(struct chat_literals *reader);

#endif
