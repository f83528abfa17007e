/* SPDX-License-Identifier: Apache-2.0 */
/* Finds added tokens in a text, before anything else happens to the text. */
#ifndef LIB_TEXT_ADDED_TOKENS_H
#define LIB_TEXT_ADDED_TOKENS_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a content. Longer ones would make searching slow. */
#define ADDED_TOKEN_MAX_LENGTH 512

struct added_token {
    char *content; /* owned: what the text must contain, [length] bytes */
    size_t length;
    int32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
    bool special;
};

/* A set of tokens that are searched for together. Zero-initialise; push tokens, then sort once. */
struct added_tokens {
    struct added_token *items; /* [count], by content once sorted */
    size_t count;
    size_t capacity;
    size_t first[257]; /* items [first[b], first[b + 1]) begin with byte b */
};

/* Takes ownership of token.content, also on failure. */
int added_tokens_push(struct added_tokens *tokens, struct added_token token, struct error *err);

/* Makes the set ready for searching. Refuses two tokens with the same content. */
int added_tokens_sort(struct added_tokens *tokens, struct error *err);
void added_tokens_clear(struct added_tokens *tokens);

/* The longest special token that the text ([length] >= 1 bytes) begins with, or NULL. */
const struct added_token *added_tokens_special(const struct added_tokens *tokens, const char *text,
                                               size_t length);

/* A part of a text: an added token, or (id < 0) the text between two. */
struct section {
    size_t start;
    size_t end;
    int32_t id;
};

/* Walks through a text. Set tokens, text, length (valid UTF-8), leave_special and input; leave the
 * rest zero. */
struct section_reader {
    const struct added_tokens *tokens;
    const char *text;
    size_t length;
    bool leave_special;            /* special tokens in the text are text */
    const struct text_span *input; /* [num_input], in order: where special tokens are text, also
                                      those that only begin or end there */
    size_t num_input;
    size_t next_input;   /* the first of them that ends behind where the search is */
    size_t searched;     /* where to search for the next match */
    size_t done;         /* where the sections so far end */
    size_t spaces_start; /* the last run of spaces seen, to walk it only once */
    size_t spaces_end;
    struct section waiting; /* a token to return after the text before it */
    bool has_waiting;
};

/* Gives the next section, in order; false at the end. As in the library, an rstrip token may reach
 * into the token after it; then both sections are complete. */
bool section_next(struct section_reader *reader, struct section *section);

#endif
