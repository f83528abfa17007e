/* SPDX-License-Identifier: Apache-2.0 */
/* Where the model has written special tokens in replies that no session holds. Clients send these
 * replies back as text, in which special tokens are text (api.md); those that the model wrote at
 * this very place are then tokens again, so that the reply's state is reused.
 *
 * A place is all of a chat's text up to the end of the token, with what of it is special tokens,
 * and whose it is: API key and cache_salt. Kept is a hash of that, under a key that nobody else
 * knows, in a table of constant size: the most recently used ones, with an equal share for each
 * tenant where there is no room for all. Nothing of it outlives the server. Any thread. */
#ifndef SERVER_OWN_TOKENS_H
#define SERVER_OWN_TOKENS_H

#include "lib/text/tokenizer.h"

struct own_tokens;

int own_tokens_create(struct own_tokens **out, const struct tokenizer *tokenizer,
                      struct error *err);     /* borrows the tokenizer */
void own_tokens_free(struct own_tokens *own); /* NULL is allowed */

/* A chat's text as the template rendered it, and whose it is. All borrowed. */
struct own_text {
    const char *owner; /* of service_owner */
    const char *salt;  /* [salt_length]; NULL: none */
    size_t salt_length;
    const char *text; /* [length] */
    size_t length;
};

/* Takes the tokens that the model wrote out of *input: what of the text was not written by the
 * template (tokenizer_encode_input). */
int own_tokens_find(struct own_tokens *own, const struct own_text *text, struct span_list *input,
                    struct error *err);

/* What the model has written: text->text from byte `begin` on. Its special tokens are at `special`
 * [count], counted from there. `input` is that of the prompt before. tenant: as tenant.h has it. */
void own_tokens_add(struct own_tokens *own, const struct own_text *text, uint64_t tenant,
                    const struct span_list *input, size_t begin, const struct span_list *special);

#endif
