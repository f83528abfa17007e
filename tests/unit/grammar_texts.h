/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars in tests: a vocabulary, and whether a text is one of a grammar's. */
#ifndef TESTS_UNIT_GRAMMAR_TEXTS_H
#define TESTS_UNIT_GRAMMAR_TEXTS_H

#include "lib/grammar/grammar.h"

#include <criterion/criterion.h>
#include <string.h>

#define GRAMMAR_MODEL REGLA_SOURCE_DIR "/models/regla-books-7.7m"
#define GRAMMAR_LLAMA REGLA_SOURCE_DIR "/tests/data/tokenizer/llama.json"

struct grammar_texts {
    struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    int32_t vocab_size;
    int32_t bytes[256]; /* the token of one byte, or -1 */
};

static inline void grammar_texts_open(struct grammar_texts *texts, const char *path)
{
    struct error err = ERROR_INIT;
    cr_assert_eq(tokenizer_open(&texts->tokenizer, path, &err), 0, "%s", err.message);
    texts->vocab_size = tokenizer_size(texts->tokenizer);
    cr_assert_eq(
        grammar_vocabulary_create(&texts->vocabulary, texts->tokenizer, texts->vocab_size, &err), 0,
        "%s", err.message);
    memset(texts->bytes, 0xff, sizeof texts->bytes);
    for (int32_t id = 0; id < texts->vocab_size; id++) {
        size_t length;
        const char *bytes = tokenizer_token_bytes(texts->tokenizer, id, &length);
        if (length == 1 && !tokenizer_is_special(texts->tokenizer, id))
            texts->bytes[(unsigned char)*bytes] = id;
    }
}

static inline void grammar_texts_close(struct grammar_texts *texts)
{
    grammar_vocabulary_free(texts->vocabulary);
    tokenizer_free(texts->tokenizer);
}

/* spec: JSON, or for kinds of a string the string itself. NULL: *err says why. */
static inline struct grammar *grammar_texts_compile(const struct grammar_texts *texts,
                                                    enum grammar_kind kind, const char *spec,
                                                    struct error *err)
{
    struct grammar *grammar = NULL;
    bool plain = kind == GRAMMAR_REGEX || kind == GRAMMAR_GBNF;
    json_t *json = plain ? json_string(spec) : json_loads(spec, JSON_DECODE_ANY, NULL);
    cr_assert(json || kind == GRAMMAR_JSON, "%s", spec);
    int failed = grammar_compile(&grammar, kind, json, texts->vocabulary, err);
    json_decref(json);
    return failed ? NULL : grammar;
}

/* Whether the grammar allows the text, byte by byte, to its end. */
static inline bool grammar_texts_allow(const struct grammar_texts *texts, struct grammar *grammar,
                                       const char *text)
{
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0, "%s", err.message);
    bool allowed = true;
    for (const char *c = text; *c && allowed; c++) {
        int32_t id = texts->bytes[(unsigned char)*c];
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        cr_assert_not_null(mask, "%s", err.message);
        cr_assert_geq(id, 0);
        allowed = mask[id / 32] >> id % 32 & 1;
        cr_assert_eq(grammar_matcher_accept(matcher, id, &err) == 0, allowed);
    }
    allowed = allowed && grammar_matcher_may_end(matcher);
    grammar_matcher_free(matcher);
    return allowed;
}

/* A case: `kind` allows `yes` and does not allow `no`; each is texts parted by '\x1f', or NULL. */
struct grammar_case {
    const char *spec, *yes, *no;
};

static inline void grammar_texts_expect(const struct grammar_texts *texts, enum grammar_kind kind,
                                        const struct grammar_case *given)
{
    struct error err = ERROR_INIT;
    struct grammar *grammar = grammar_texts_compile(texts, kind, given->spec, &err);
    cr_assert_not_null(grammar, "%s: %s", given->spec, err.message);
    for (int i = 0; i < 2; i++) {
        const char *at = i == 0 ? given->yes : given->no;
        while (at) {
            const char *end = strchr(at, '\x1f');
            char text[256] = "";
            strncat(text, at, end ? (size_t)(end - at) : sizeof text - 1);
            cr_assert_eq(grammar_texts_allow(texts, grammar, text), i == 0, "%s: %s", given->spec,
                         text);
            at = end ? end + 1 : NULL;
        }
    }
    grammar_release(grammar);
}

/* All cases, with the small model's tokens. */
static inline void grammar_texts_expect_all(enum grammar_kind kind,
                                            const struct grammar_case *cases, size_t count)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < count; i++)
        grammar_texts_expect(&texts, kind, &cases[i]);
    grammar_texts_close(&texts);
}

struct grammar_refusal {
    const char *spec, *message; /* the message begins so */
};

/* Schemas that are refused, and why. */
static inline void grammar_texts_expect_refused(const struct grammar_refusal *cases, size_t count)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < count; i++) {
        struct error err = ERROR_INIT;
        cr_assert_null(grammar_texts_compile(&texts, GRAMMAR_JSON_SCHEMA, cases[i].spec, &err),
                       "%s", cases[i].spec);
        cr_assert(strncmp(err.message, cases[i].message, strlen(cases[i].message)) == 0,
                  "%s: expected \"%s\", got \"%s\"", cases[i].spec, cases[i].message, err.message);
    }
    grammar_texts_close(&texts);
}

#endif
