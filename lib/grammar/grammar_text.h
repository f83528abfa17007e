/* SPDX-License-Identifier: Apache-2.0 */
/* A text that a grammar constrains: the mask of its next draw, with the tokens that end it. */
#ifndef LIB_GRAMMAR_GRAMMAR_TEXT_H
#define LIB_GRAMMAR_GRAMMAR_TEXT_H

#include "lib/grammar/grammar.h"

struct grammar_text;

/* What a text takes at first: its mask, and those of its matcher. */
size_t grammar_text_bytes(int32_t vocab_size);
/* What it takes now; never less than before. */
size_t grammar_text_held(const struct grammar_text *text);

/* What ends a text may come where it is whole. An EOS comes nowhere else. A stop token may be part
 * of what the grammar asks for; it then cuts the text, as a stop string does. */
struct grammar_ends {
    const int32_t *ids; /* [count], in [0, vocab_size); borrowed until the text is closed */
    size_t count;
    size_t num_eos; /* the first of them */
};

int grammar_text_open(struct grammar_text **out, struct grammar *grammar, int32_t vocab_size,
                      const struct grammar_ends *ends, struct error *err);
void grammar_text_close(struct grammar_text *text); /* NULL is allowed */

/* What may come next, as struct draw has it; valid until the next call. NULL as from
 * grammar_matcher_mask. */
const uint32_t *grammar_text_mask(struct grammar_text *text, struct error *err);
/* As grammar_matcher_work. */
size_t grammar_text_work(const struct grammar_text *text);
/* The text goes on with a token that its mask lets through and that ends nothing. */
int grammar_text_take(struct grammar_text *text, int32_t id, struct error *err);
/* Whether nothing but an end may come. */
bool grammar_text_over(const struct grammar_text *text);

#endif
