/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in channels, as gpt-oss writes them (harmony; PyPI's openai-harmony 0.0.8): messages,
 * each a head and a body.
 *
 *   <|start|>assistant<|channel|>analysis<|message|>...<|end|>     a thought
 *   <|start|>assistant<|channel|>final<|message|>...<|return|>     content, as in "commentary"
 *   <|start|>assistant<|channel|>commentary to=functions.NAME
 * <|constrain|>json<|message|>{}<|call|>
 *
 * The prompt ends behind the first "<|start|>assistant". Whom a message is to may also stand there,
 * before its channel: templates write past calls so. */
#ifndef API_CHAT_CHANNELS_H
#define API_CHAT_CHANNELS_H

#include "api/chat_call.h"

#define CHAT_CHANNELS_THOUGHT "<|channel|>analysis<|message|>"
#define CHAT_CHANNELS_ANSWER "<|channel|>final<|message|>"
/* What ends a thought, so that another message follows. */
#define CHAT_CHANNELS_NEXT "<|end|><|start|>assistant"

enum { CHAT_CHANNELS_WORDS = 7 };
/* Its special tokens; the last two end a reply. */
extern const char *const chat_channels_words[CHAT_CHANNELS_WORDS];
enum { CHAT_CHANNELS_FIRST_END = CHAT_CHANNELS_WORDS - 2 };

/* Of a message. */
struct chat_channels_head {
    bool thought;          /* nobody but the model reads it */
    bool function;         /* it is to one of the request's functions */
    struct chat_part name; /* whom it is to, without "functions."; an empty one: the reader */
    size_t end;            /* where the body begins */
};

/* Bytes at the front of a text that are what ended the message before, and white space between.
 * *spaces: of white space at the front, so many are known to be it; then those behind. */
size_t chat_channels_ends(const char *text, size_t length, size_t *spaces);
/* The head at text[at], behind those; of CHAT_MATCH_NO nothing is set. */
enum chat_match chat_channels_head(struct chat_channels_head *head, const char *text, size_t length,
                                   size_t at);

/* Where from text[from] on a body ends, or may end if more comes. *size: bytes of what ends it,
 * which belong to nothing; *whole: it ends. */
size_t chat_channels_end(const char *text, size_t length, size_t from, size_t *size, bool *whole);

/* Behind the head that ends there at the latest: where a body begins. length: nowhere. */
size_t chat_channels_body(const char *text, size_t length);

#endif
