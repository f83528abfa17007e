/* SPDX-License-Identifier: Apache-2.0 */
/* Added tokens: contents that are recognised in the text before anything else happens to it. */
#ifndef ENGINE_TEXT_ADDED_TOKENS_H
#define ENGINE_TEXT_ADDED_TOKENS_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes; longer ones would make searching slow. */
#define ADDED_TOKEN_MAX_LENGTH 512

struct added_token {
    char *content; /* owned: what the text must hold, [length] bytes */
    size_t length;
    int32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
};

/* A set that is searched together. Zero-initialise; push, then sort once. */
struct added_tokens {
    struct added_token *items; /* [count], by content once sorted */
    size_t count;
    size_t capacity;
    size_t first[257]; /* items that begin with byte b: [first[b], first[b + 1]) */
};

/* Takes token.content, even when it fails. */
int added_tokens_push(struct added_tokens *tokens, struct added_token token, struct error *err);

/* Makes the set ready to search; two tokens of one content are refused. */
int added_tokens_sort(struct added_tokens *tokens, struct error *err);
void added_tokens_clear(struct added_tokens *tokens);

/* A part of a text: an added token, or (id < 0) what stands between. */
struct section {
    size_t start;
    size_t end;
    int32_t id;
};

/* Walks through a text: set text and length (valid UTF-8), leave the rest zero. */
struct section_reader {
    const struct added_tokens *tokens;
    const char *text;
    size_t length;
    size_t searched;     /* matches are looked for from here */
    size_t done;         /* the sections so far end here */
    size_t spaces_start; /* the last run of spaces seen: it is not walked again */
    size_t spaces_end;
    struct section waiting; /* a token to hand out after the text before it */
    bool has_waiting;
};

/* The next section, in order; false at the end. As in the library, an rstrip token may reach into
 * the token after it, and then both are whole. */
bool section_next(struct section_reader *reader, struct section *section);

#endif
