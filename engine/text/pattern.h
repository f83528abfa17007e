/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of tokenizer.json: a plain string, or a regular expression as Oniguruma reads it.
 *
 * Regular expressions run on PCRE2. Where the two read the same letters differently (\s, \h, \w,
 * \p{..} of newly assigned characters, ^ and $) the expression is rewritten to mean what Oniguruma
 * means; what has no equal (class intersections, nested classes, \X, ...) is refused at load. */
#ifndef ENGINE_TEXT_PATTERN_H
#define ENGINE_TEXT_PATTERN_H

#include "engine/base/error.h"
#include "engine/text/buffer.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern;

/* text: [length] bytes of valid UTF-8, copied. The caller frees with pattern_free. */
int pattern_create(struct pattern **out, const char *text, size_t length, bool is_regex,
                   struct error *err);
void pattern_free(struct pattern *pattern);

/* Appends the matches in text ([length] bytes of valid UTF-8), in order, to *matches, empty ones
 * included. Safe from many threads. ERROR_INVALID when matching takes unreasonably long. */
int pattern_find_all(const struct pattern *pattern, const char *text, size_t length,
                     struct span_list *matches, struct error *err);

#endif
