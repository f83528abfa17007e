/* SPDX-License-Identifier: Apache-2.0 */
/* Unigram, SentencePiece's other kind: of all ways to cut a piece of text into tokens, that with
 * the highest sum of scores.
 *
 * Sums and ties are Hugging Face's: scores are added from the left, in double, and of equal sums
 * the cut whose last token begins first wins. Time is linear in the piece: a token is at most
 * TOKEN_TRIE_MAX_LENGTH bytes long. */
#ifndef LIB_TEXT_UNIGRAM_H
#define LIB_TEXT_UNIGRAM_H

#include "lib/base/error.h"
#include "lib/text/token_list.h"
#include "lib/text/token_trie.h"
#include "lib/text/vocabulary.h"

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise; unigram_clear frees. */
struct unigram {
    const struct vocabulary *vocabulary; /* borrowed */
    double *scores;                      /* [of the model's vocabulary], by id; owned */
    struct token_trie trie;
    double unknown_score; /* of a character that no token is */
    bool byte_fallback;
    bool has_special;      /* a token of the model is special */
    int32_t unknown_id;    /* -1: such a character is an error */
    int32_t fallback[256]; /* the id of "<0xAB>"; -1: none */
};

/* Makes the tree. Call it when the vocabulary is complete; the rest must be set. */
int unigram_finish(struct unigram *unigram, struct error *err);
void unigram_clear(struct unigram *unigram);

/* Best sums are kept for so many places behind the one at hand. */
#define UNIGRAM_WINDOW (2 * TOKEN_TRIE_MAX_LENGTH)

/* Scratch memory of unigram_encode. Zero-initialise; unigram_scratch_clear frees it. */
struct unigram_scratch {
    uint16_t *lengths; /* of the token that ends, later: begins, at a byte; 0: none */
    size_t capacity;
    double best[UNIGRAM_WINDOW]; /* the best sum up to a byte, where lengths has it */
};
void unigram_scratch_clear(struct unigram_scratch *scratch);

/* Appends the ids of a piece ([length] bytes of valid UTF-8) to *ids. no_special: special tokens
 * are not made of characters. */
int unigram_encode(const struct unigram *unigram, const char *piece, size_t length, bool no_special,
                   struct unigram_scratch *scratch, struct token_list *ids, struct error *err);

#endif
