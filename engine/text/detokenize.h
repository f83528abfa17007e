/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming decode: ids in, whole characters out.
 *
 * The concatenation of everything that detokenizer_push and detokenizer_finish return equals
 * tokenizer_decode of the same ids. A character whose bytes are not all there yet is held back. */
#ifndef ENGINE_TEXT_DETOKENIZE_H
#define ENGINE_TEXT_DETOKENIZE_H

#include "engine/text/tokenizer.h"

struct detokenizer;

/* Borrows the tokenizer until detokenizer_free. */
int detokenizer_create(struct detokenizer **out, const struct tokenizer *tokenizer,
                       bool skip_special_tokens, struct error *err);
void detokenizer_free(struct detokenizer *detokenizer);

/* Before anything else: goes on behind ids [count], whose text has been told. What a token's text
 * is depends on what came before it (a leading space, a character begun). */
int detokenizer_prime(struct detokenizer *detokenizer, const int32_t *ids, size_t count,
                      struct error *err);

/* Takes one id; *text ([*length] bytes, borrowed until the next call) is what became final with
 * it, possibly nothing. Allocates nothing in the steady state. */
int detokenizer_push(struct detokenizer *detokenizer, int32_t id, const char **text, size_t *length,
                     struct error *err);

/* Characters between all that was final before the last push and where the text of the token that
 * it took begins: those that were held back. */
size_t detokenizer_lead(const struct detokenizer *detokenizer);

/* What is still held back (an unfinished character becomes U+FFFD, as tokenizer_decode does). */
int detokenizer_finish(struct detokenizer *detokenizer, const char **text, size_t *length,
                       struct error *err);

/* Bytes held back now: 0 means that the text so far ends on a character. */
size_t detokenizer_pending(const struct detokenizer *detokenizer);

#endif
