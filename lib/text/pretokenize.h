/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-tokenizers of tokenizer.json: cut a normalized text into pieces for BPE. */
#ifndef LIB_TEXT_PRETOKENIZE_H
#define LIB_TEXT_PRETOKENIZE_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"
#include "lib/text/pattern.h"

#include <stdbool.h>

enum pretokenizer_kind {
    PRETOKENIZER_GPT2,         /* ByteLevel's own pattern */
    PRETOKENIZER_PREFIX_SPACE, /* ByteLevel's add_prefix_space */
    PRETOKENIZER_METASPACE,
    PRETOKENIZER_SPLIT,
    PRETOKENIZER_DIGITS,
    PRETOKENIZER_PUNCTUATION,
    PRETOKENIZER_WHITESPACE,       /* words and runs of other characters; spaces are removed */
    PRETOKENIZER_WHITESPACE_SPLIT, /* the text between spaces */
    PRETOKENIZER_BYTE_LEVEL,       /* spells the text in GPT-2's alphabet */
};

/* What happens to the matches of a splitting pattern. */
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pretokenizer_step {
    enum pretokenizer_kind kind;
    enum split_behavior behavior; /* SPLIT, DIGITS, PUNCTUATION */
    bool invert;                  /* SPLIT: the text between matches counts as the matches */
    struct pattern *pattern;      /* SPLIT: owned */
    enum prepend_scheme prepend;  /* METASPACE */
    bool split;                   /* METASPACE: cut at the replacement too */
    char replacement[5];          /* METASPACE: one character */
};

/* Steps in order; zero-initialise. */
struct pretokenizer {
    struct pretokenizer_step *steps; /* [count] */
    size_t count;
    size_t capacity;
};

/* Adds a step and takes ownership of its pattern, also on failure. */
int pretokenizer_push(struct pretokenizer *pretokenizer, struct pretokenizer_step step,
                      struct error *err);

/* Whether such a step makes a new text of its pieces. */
bool pretokenizer_rewrites(enum pretokenizer_kind kind);
void pretokenizer_clear(struct pretokenizer *pretokenizer);

/* The scratch memory of one call, and its result. Zero-initialise; pieces_clear frees it. */
struct pieces {
    const char *text;       /* the text of the spans: the caller's, or in `rewritten` */
    struct span_list spans; /* the pieces, in order */
    struct span_list next;
    struct span_list matches;
    struct text_buffer rewritten[2];
};
void pieces_clear(struct pieces *pieces);

/* Cuts text ([length] bytes of valid UTF-8) into pieces. at_start: the text begins the whole text,
 * which Metaspace's prepend_scheme "first" needs to know. */
int pretokenize(const struct pretokenizer *pretokenizer, const char *text, size_t length,
                bool at_start, struct pieces *pieces, struct error *err);

#endif
