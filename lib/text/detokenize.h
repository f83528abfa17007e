/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes a stream of ids into whole characters.
 *
 * All texts from detokenizer_push and detokenizer_finish together equal tokenizer_decode of the
 * same ids. A character is held back until all its bytes are known. */
#ifndef LIB_TEXT_DETOKENIZE_H
#define LIB_TEXT_DETOKENIZE_H

#include "lib/text/buffer.h"
#include "lib/text/tokenizer.h"

struct detokenizer;

/* Borrows the tokenizer until detokenizer_free. */
int detokenizer_create(struct detokenizer **out, const struct tokenizer *tokenizer,
                       bool skip_special_tokens, struct error *err);
void detokenizer_free(struct detokenizer *detokenizer);

/* Special tokens that have a text although skip_special_tokens is set: ids [count], borrowed. */
void detokenizer_keep(struct detokenizer *detokenizer, const int32_t *ids, size_t count);

/* Begins after ids [count], whose text has been given out already. Call it before any push: a
 * token's text depends on what came before it (a leading space, an unfinished character). */
int detokenizer_prime(struct detokenizer *detokenizer, const int32_t *ids, size_t count,
                      struct error *err);

/* Decodes one id. *text ([*length] bytes, borrowed until the next call) is the text that became
 * final with it, possibly none. Allocates nothing in the steady state. */
int detokenizer_push(struct detokenizer *detokenizer, int32_t id, const char **text, size_t *length,
                     struct error *err);

/* The number of characters that were held back before the last push: those between the text that
 * was final then and the beginning of the last token's text. */
size_t detokenizer_lead(const struct detokenizer *detokenizer);

/* Gives what is still held back. An unfinished character becomes U+FFFD, as in tokenizer_decode. */
int detokenizer_finish(struct detokenizer *detokenizer, const char **text, size_t *length,
                       struct error *err);

/* Decodes ids [count] behind others ([num_before]) into *text (malloc'd, NUL-terminated, *length
 * bytes; the caller frees it). Special tokens are in the text; *special says where, also after a
 * failure. */
int detokenizer_behind(const struct tokenizer *tokenizer, const int32_t *before, size_t num_before,
                       const int32_t *ids, size_t count, char **text, size_t *length,
                       struct span_list *special, struct error *err);

/* The number of bytes held back now. 0: the text so far ends with a whole character. */
size_t detokenizer_pending(const struct detokenizer *detokenizer);

#endif
