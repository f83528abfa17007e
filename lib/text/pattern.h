/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for the patterns of tokenizer.json: a plain string, or a regular expression of
 * Oniguruma.
 *
 * Regular expressions run on PCRE2, translated (pattern_translate.h). What has no equivalent there
 * (\X, backreferences, ...) is refused at load. Oniguruma itself needs no translation, but has no
 * compiler to machine code: a quarter of the speed (loadtest/FIGURES.md). */
#ifndef LIB_TEXT_PATTERN_H
#define LIB_TEXT_PATTERN_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern;

/* text: [length] bytes of valid UTF-8, copied. The caller frees *out with pattern_free. */
int pattern_create(struct pattern **out, const char *text, size_t length, bool is_regex,
                   struct error *err);
void pattern_free(struct pattern *pattern);

/* Whether it may match no text at all, as "a*" and "^" do. */
bool pattern_may_be_empty(const struct pattern *pattern);

/* Appends all matches in text ([length] bytes of valid UTF-8) to *matches, in order, empty ones
 * too. Many threads may call it at once. ERROR_INVALID when matching takes unreasonably long. */
int pattern_find_all(const struct pattern *pattern, const char *text, size_t length,
                     struct span_list *matches, struct error *err);

#endif
