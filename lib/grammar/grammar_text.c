/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/grammar_text.h"

#include <stdlib.h>
#include <string.h>

enum { BITS = 32 };

struct grammar_text {
    struct grammar_matcher *matcher;
    struct grammar_ends ends;
    size_t words;
    uint32_t mask[]; /* [words] */
};

static size_t words_of(int32_t vocab_size)
{
    return ((size_t)vocab_size + BITS - 1) / BITS;
}

size_t grammar_text_bytes(int32_t vocab_size)
{
    enum { MASKS = 3 };
    return sizeof(struct grammar_text) + MASKS * words_of(vocab_size) * sizeof(uint32_t);
}

size_t grammar_text_held(const struct grammar_text *text)
{
    return sizeof *text + text->words * sizeof *text->mask + grammar_matcher_bytes(text->matcher);
}

int grammar_text_open(struct grammar_text **out, struct grammar *grammar, int32_t vocab_size,
                      const struct grammar_ends *ends, struct error *err)
{
    struct grammar_text *text = calloc(1, sizeof *text + words_of(vocab_size) * sizeof *text->mask);
    *out = NULL;
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    text->ends = *ends;
    text->words = words_of(vocab_size);
    if (grammar_matcher_create(&text->matcher, grammar, err) != 0) {
        free(text);
        return -1;
    }
    *out = text;
    return 0;
}

void grammar_text_close(struct grammar_text *text)
{
    if (!text)
        return;
    grammar_matcher_free(text->matcher);
    free(text);
}

const uint32_t *grammar_text_mask(struct grammar_text *text, struct error *err)
{
    const uint32_t *mask = grammar_matcher_mask(text->matcher, err);
    if (!mask)
        return NULL;
    bool whole = grammar_matcher_may_end(text->matcher);
    memcpy(text->mask, mask, text->words * sizeof *mask);
    for (size_t i = 0; i < text->ends.count; i++) {
        int32_t id = text->ends.ids[i];
        uint32_t *word = &text->mask[id / BITS], bit = UINT32_C(1) << id % BITS;
        if (whole)
            *word |= bit;
        else if (i < text->ends.num_eos)
            *word &= ~bit;
    }
    return text->mask;
}

size_t grammar_text_work(const struct grammar_text *text)
{
    return grammar_matcher_work(text->matcher);
}

int grammar_text_take(struct grammar_text *text, int32_t id, struct error *err)
{
    return grammar_matcher_accept(text->matcher, id, err);
}

bool grammar_text_over(const struct grammar_text *text)
{
    return grammar_matcher_must_end(text->matcher);
}
