/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a constraint: the first says of which kind. One that compiles takes a few tokens,
 * each the first of its mask from somewhere on. */
#include "lib/grammar/grammar.h"

#include <stdint.h>
#include <stdlib.h>

enum { TOKENS = 24 };

static struct grammar_vocabulary *vocabulary;
static int32_t vocab_size;

static void open_vocabulary(void)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    if (tokenizer_open(&tokenizer, REGLA_SOURCE_DIR "/tests/data/tokenizer/llama.json", &err))
        abort();
    vocab_size = tokenizer_size(tokenizer);
    if (grammar_vocabulary_create(&vocabulary, tokenizer, vocab_size, &err))
        abort();
    tokenizer_free(tokenizer);
}

static json_t *read_spec(enum grammar_kind kind, const char *text, size_t length)
{
    if (kind == GRAMMAR_REGEX || kind == GRAMMAR_GBNF)
        return json_stringn(text, length);
    return json_loadb(text, length, JSON_DECODE_ANY, NULL);
}

static void walk(struct grammar *grammar, uint8_t from)
{
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    if (grammar_matcher_create(&matcher, grammar, &err)) {
        if (err.code != ERROR_UNSUPPORTED)
            abort();
        return;
    }
    for (int i = 0; i < TOKENS; i++) {
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        int32_t id = -1;
        if (!mask)
            break; /* too many readings */
        for (int32_t k = 0; k < vocab_size && id < 0; k++) {
            int32_t at = (k + from * (i + 1)) % vocab_size;
            id = mask[at / 32] >> at % 32 & 1 ? at : -1;
        }
        if (id < 0 && !grammar_matcher_may_end(matcher))
            abort(); /* a text that can neither go on nor end */
        if (id < 0 || grammar_matcher_accept(matcher, id, &err))
            break;
    }
    if (err.code != ERROR_NONE && err.code != ERROR_UNSUPPORTED)
        abort();
    grammar_matcher_free(matcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    struct grammar *grammar;
    if (!vocabulary)
        open_vocabulary();
    if (size < 2)
        return 0;
    enum grammar_kind kind = (enum grammar_kind)(1 + (data[0] - '1') % 4u);
    json_t *spec = read_spec(kind, (const char *)data + 1, size - 1);
    if (!spec)
        return 0;
    if (grammar_compile(&grammar, kind, spec, vocabulary, &err) == 0) {
        walk(grammar, data[size - 1]);
        grammar_release(grammar);
    } else if (err.code == ERROR_NONE || err.code == ERROR_INTERNAL || !err.message[0]) {
        abort();
    }
    json_decref(spec);
    return 0;
}
