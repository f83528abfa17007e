/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of characters in patterns: classes in brackets, \s and the like, \p{...}. For
 * pattern_translate.c. */
#ifndef LIB_TEXT_PATTERN_CLASS_H
#define LIB_TEXT_PATTERN_CLASS_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

/* A pattern that is being read. */
struct pattern_source {
    const char *text; /* [length], valid UTF-8; a NUL follows */
    size_t length;
    size_t at;
};

bool pattern_follows(const struct pattern_source *source, const char *what);

/* Sets the error "pattern ...: offset ...: `what` is not supported". Returns -1. */
int pattern_refuse(const struct pattern_source *source, const char *what, struct error *err);

/* Reads an escape that stands for one character, such as \n, \x{41} or \-. */
int pattern_read_escape(struct pattern_source *source, uint32_t *c, struct error *err);

/* Appends an expression of PCRE2 that matches one character of \s, \h, \d or \w. */
int pattern_put_shorthand(char letter, struct text_buffer *out, struct error *err);

/* Reads \s \S \h \H \d \D \w \W \p{...} or \P{...} and appends such an expression. */
int pattern_put_set(struct pattern_source *source, struct text_buffer *out, struct error *err);

/* The same for a class in brackets. */
int pattern_put_class(struct pattern_source *source, bool ignore_case, struct text_buffer *out,
                      struct error *err);

#endif
