/* SPDX-License-Identifier: Apache-2.0 */
/* Translates regular expressions of Oniguruma (Ruby's syntax, as Hugging Face's library compiles
 * them) into ones of PCRE2 with the same matches.
 *
 * Where the two differ (\s, \h, \w, \b, \p{..} of newly assigned characters, classes within classes
 * and their intersections, how far (?i) reaches), the expression is written out. What has no exact
 * equivalent (\X, backreferences, absent groups, ...) is refused by name. */
#ifndef LIB_TEXT_PATTERN_TRANSLATE_H
#define LIB_TEXT_PATTERN_TRANSLATE_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"

/* Appends the translation of text ([length] bytes of valid UTF-8, NUL-terminated, without other
 * NULs) to *out. It is for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE and newlines that are LF. */
int pattern_translate(const char *text, size_t length, struct text_buffer *out, struct error *err);

#endif
