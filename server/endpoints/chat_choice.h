/* SPDX-License-Identifier: Apache-2.0 */
/* One choice of a chat while its text is taken apart (api/chat_parser.h): what replies say of it,
 * whole or in a stream, and how many of its tokens are reasoning. */
#ifndef SERVER_ENDPOINTS_CHAT_CHOICE_H
#define SERVER_ENDPOINTS_CHAT_CHOICE_H

#include "api/chat_parser.h"
#include "server/schedule/piece.h"

/* Zero-initialise; chat_choice_clear frees. */
struct chat_choice {
    struct chat_parser parser;
    struct chat_output output; /* what the last piece has brought */
    size_t calls_before;       /* of earlier pieces */
    int64_t tokens;            /* of earlier pieces */
    int64_t reasoning_tokens;  /* so far: those up to the end of the last reasoning */
    int64_t reasoning_ends;    /* struct chat_parser's, of what has ended */
};

void chat_choice_clear(struct chat_choice *choice);

/* Takes a piece; `last`: no more follow. -1: no memory. */
int chat_choice_take(struct chat_choice *choice, const struct chat_rules *rules,
                     const struct piece *piece, bool last);

/* Whether the last piece has brought anything to tell. */
bool chat_choice_new(const struct chat_choice *choice);

/* Writes what the last piece has brought into *reply, whose finish_reason is set. Borrows. */
void chat_choice_fill(const struct chat_choice *choice, struct reply_choice *reply);

#endif
