/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled grammars of constrained requests. Requests with equal constraints share one. Those
 * that no request uses stay for later ones, the last used the longest, while all of them together
 * take no more than half of --max-body-memory, out of which they have their memory. */
#ifndef SERVER_GRAMMARS_H
#define SERVER_GRAMMARS_H

#include "api/constraint.h"
#include "lib/text/tokenizer.h"
#include "server/admission.h"
#include "server/metrics.h"

struct grammars;
struct grammars_entry; /* a grammar in use */

/* Makes the trie of the vocabulary. The others are borrowed. */
int grammars_create(struct grammars **out, const struct tokenizer *tokenizer, int32_t vocab_size,
                    struct admission *admission, struct metrics *metrics, struct error *err);
void grammars_free(struct grammars *grammars); /* NULL is allowed; none is in use any more */

/* Any thread; takes as long as to compile the constraint, unless it is there: one thread compiles
 * it, and others wait. *out is given back
 * with grammars_release. */
int grammars_get(struct grammars *grammars, const struct constraint *constraint,
                 struct grammars_entry **out, struct api_error *err);
void grammars_release(struct grammars *grammars, struct grammars_entry *entry); /* NULL too */
struct grammar *grammars_entry_grammar(const struct grammars_entry *entry);

#endif
