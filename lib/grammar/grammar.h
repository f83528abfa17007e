/* SPDX-License-Identifier: Apache-2.0 */
/* Constrained output: says which tokens may come next so that a text is what a JSON Schema, a
 * regular expression, a list of choices or a grammar asks for. grammar.md says what is supported.
 *
 * A constraint becomes an automaton with a stack that reads bytes (automaton.h). A matcher is where
 * one text is in it, and a mask is what the automaton says of each token of the vocabulary. */
#ifndef LIB_GRAMMAR_GRAMMAR_H
#define LIB_GRAMMAR_GRAMMAR_H

#include "lib/base/error.h"
#include "lib/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes that each token stands for in the middle of a text, as a trie. It is made once when a
 * model is loaded, and never changes: many threads may use it. Special tokens come only where
 * GRAMMAR_REPLY names them. */
struct grammar_vocabulary;

/* Tokens are ids below vocab_size. The tokenizer is borrowed for the call. */
int grammar_vocabulary_create(struct grammar_vocabulary **out, const struct tokenizer *tokenizer,
                              int32_t vocab_size, struct error *err);
void grammar_vocabulary_free(struct grammar_vocabulary *vocabulary); /* NULL is allowed */
size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary);

enum grammar_kind {
    GRAMMAR_JSON,        /* any JSON object; spec: NULL */
    GRAMMAR_JSON_SCHEMA, /* spec: an object or a boolean */
    GRAMMAR_REGEX,       /* the whole text matches; spec: a string */
    GRAMMAR_CHOICE,      /* the text is one of them; spec: a list of strings */
    GRAMMAR_GBNF,        /* spec: a string */
    GRAMMAR_REPLY,       /* of a chat; spec: reply.h */
};

/* A compiled constraint. It never changes but for its cache of masks, which is bounded and behind a
 * lock: many threads may use it. */
struct grammar;

/* Keywords of schemas that ask for nothing here, though whoever wrote them may mean something:
 * formats that are not enforced, and annotations of other tools. */
enum grammar_annotation {
    ANNOTATION_FORMAT,
    ANNOTATION_NULLABLE, /* "nullable": true */
    ANNOTATION_CONTENT,  /* contentEncoding, contentMediaType, contentSchema */
    ANNOTATION_DISCRIMINATOR,
    ANNOTATION_EXAMPLE,
    ANNOTATION_EXTENSION, /* x-... */
    ANNOTATION_OTHER,
    NUM_ANNOTATIONS,
};
const char *grammar_annotation_name(enum grammar_annotation annotation);

/* Steps and memory are bounded. spec is borrowed for the call, the vocabulary for the grammar's
 * life. ERROR_INVALID: the spec is wrong; ERROR_UNSUPPORTED: it asks for what we lack, or what no
 * text can match, or too much; both name the place ("$.properties.x.pattern", "line 2, column 5"),
 * what was expected and what was there. The caller ends its share with grammar_release. */
int grammar_compile(struct grammar **out, enum grammar_kind kind, const json_t *spec,
                    const struct grammar_vocabulary *vocabulary, struct error *err);
struct grammar *grammar_share(struct grammar *grammar);      /* one share more, of the same */
void grammar_release(struct grammar *grammar);               /* NULL is allowed */
size_t grammar_bytes(const struct grammar *grammar);         /* with what its cache may grow to */
unsigned grammar_annotations(const struct grammar *grammar); /* a set, 1 << enum each */

/* Where one text is in a grammar. One thread at a time may use it. It has a share of the grammar.
 */
struct grammar_matcher;
int grammar_matcher_create(struct grammar_matcher **out, struct grammar *grammar,
                           struct error *err);
void grammar_matcher_free(struct grammar_matcher *matcher); /* NULL is allowed */
/* What it takes now. It grows with the readings of the text. */
size_t grammar_matcher_bytes(const struct grammar_matcher *matcher);

/* [(vocab_size + 31) / 32] words: the tokens that may come next; bit i % 32 of word i / 32. It is
 * valid until the next accept. Each such token can still lead to an end. It has no bit when nothing
 * but an end may come. NULL: memory ran out, or the grammar allows too many readings of the text at
 * once. */
const uint32_t *grammar_matcher_mask(struct grammar_matcher *matcher, struct error *err);
/* The steps that it took to make the last mask, or to fail; none for one that was kept. */
size_t grammar_matcher_work(const struct grammar_matcher *matcher);
bool grammar_matcher_may_end(const struct grammar_matcher *matcher); /* the text so far is whole */
/* Nothing but an end may come. */
bool grammar_matcher_must_end(const struct grammar_matcher *matcher);
/* The text goes on with this token. -1: it may not come here (ERROR_INVALID), or as for the mask;
 * the matcher is then where it was. Ends (EOS) are never accepted: the caller stops instead. */
int grammar_matcher_accept(struct grammar_matcher *matcher, int32_t id, struct error *err);

#endif
