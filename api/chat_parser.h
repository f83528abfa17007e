/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a chat's reply apart while it comes: reasoning, content, tool calls.
 *
 * What comes out does not depend on how the text was cut. Only what may still become a marker or
 * the name of a call is held back. A call that is none before its name is known is content, as it
 * was written; later it is a call that was cut off, and what follows is content. */
#ifndef API_CHAT_PARSER_H
#define API_CHAT_PARSER_H

#include "api/chat_rules.h"
#include "api/strbuf.h"

/* What is new. Zero-initialise; the owner clears it. */
struct chat_output {
    struct strbuf reasoning, content;
    struct chat_calls calls;
    bool failed; /* no memory */
};
void chat_output_clear(struct chat_output *output);
/* Empties it and keeps its memory. */
void chat_output_reset(struct chat_output *output);

/* A text that is being taken apart. Zero-initialise and set `rules`; chat_parser_clear frees. */
struct chat_parser {
    const struct chat_rules *rules; /* borrowed */
    int state;
    struct strbuf held;     /* from `front` on: what is not decided */
    size_t front;           /* the places below count from here */
    size_t looked;          /* where a marker may begin at the earliest */
    size_t spaces;          /* so many bytes at the front are known to be white space */
    struct chat_scan scan;  /* of a call */
    size_t body;            /* where it begins */
    const char *close;      /* the marker that ends it; "": none does */
    bool bare;              /* it is one only if a tool of the request has its name */
    bool refused;           /* what stood where a call without markers may was none */
    bool in_section;        /* the end of what is around all calls may come */
    bool answered;          /* content has come */
    bool after_call;        /* nothing but white space has come since the last call */
    bool after_reasoning;   /* nothing but newlines since the reasoning */
    size_t num_begun;       /* calls so far */
    size_t num_calls;       /* those of them that are told */
    bool cut;               /* one of them is not whole */
    struct strbuf ids;      /* of them, each between newlines */
    int64_t characters;     /* that have left `held` */
    int64_t reasoning_ends; /* characters of the text up to the end of its reasoning; 0: there is
                               none; INT64_MAX: it goes on */

    /* Of channels. */
    int64_t head_ends; /* characters up to the end of the last head */
    bool begins;       /* the body of a message does */
    bool thought;      /* reasoning has come */
    bool raw;          /* the message is content as it is written */
};

void chat_parser_clear(struct chat_parser *parser);

/* Takes text [length], whole characters, and adds to *output what is certain by now. */
void chat_parser_push(struct chat_parser *parser, const char *text, size_t length,
                      struct chat_output *output);
/* Whether it is still open if the text begins with reasoning. */
bool chat_parser_undecided(const struct chat_parser *parser);
/* Characters before the content, reasoning or the last head; -1: it is still open. */
int64_t chat_parser_text_from(const struct chat_parser *parser);
/* Whether the name of a channel comes next. */
bool chat_parser_channel(const struct chat_parser *parser);
/* No more text comes. */
void chat_parser_finish(struct chat_parser *parser, struct chat_output *output);

#endif
