/* SPDX-License-Identifier: Apache-2.0 */
/* A budget for the thoughts of a chat's text: after so many tokens between the template's markers
 * the tokens of the closing one are all that may come. Which tokens are forced depends on those
 * before them only, so a text has the same bits whatever its batch. For the engine thread. */
#ifndef SERVER_SCHEDULE_THINKING_H
#define SERVER_SCHEDULE_THINKING_H

#include "api/chat_parser.h"
#include "lib/base/error.h"

/* Zero-initialise; thinking_close frees. */
struct thinking {
    bool on;                 /* there is a budget, and thoughts may come or go on */
    bool inside;             /* the text is in its thoughts */
    int64_t left;            /* tokens of them that may come */
    size_t forced;           /* tokens of the marker that have come */
    bool waits;              /* the marker may not begin yet */
    struct chat_rules rules; /* borrows of the chat's; of channels, it also looks for calls */
    struct chat_parser parser;
    struct chat_output output;
    const struct chat_syntax *syntax;
    uint32_t *mask; /* [mask_words]: scratch */
    size_t mask_words;
};

/* What thinking_open allocates. */
size_t thinking_bytes(int32_t vocab_size);
/* budget: < 0: none. rules: of the chat; NULL: it is none. */
int thinking_open(struct thinking *thinking, const struct chat_rules *rules, int64_t budget,
                  int32_t vocab_size, struct error *err);
void thinking_close(struct thinking *thinking);

/* What the next token must be, as a mask (sampler.h). NULL: any. may: what the text's form allows,
 * which lets no marker into a character (NULL: there is none); the marker waits for its end. */
const uint32_t *thinking_mask(struct thinking *thinking, const uint32_t *may);
/* A token has come, and so much text is certain by it. -1: no memory. */
int thinking_take(struct thinking *thinking, const char *text, size_t length, struct error *err);

#endif
