/* SPDX-License-Identifier: Apache-2.0 */
/* What both filters and methods do with strings. */
#ifndef LIB_JINJA_STRINGS_H
#define LIB_JINJA_STRINGS_H

#include "lib/jinja/run.h"

/* Appends the characters [count] that stand for the one at that byte of a string to the output. */
void strings_write_for(struct run *run, const struct string *string, size_t at,
                       const uint32_t *characters, int count);

enum strings_case { STRINGS_UPPER, STRINGS_LOWER, STRINGS_CAPITALIZE, STRINGS_SWAP };
/* Of the character at that byte: at most 3 code points. Returns how many. */
int strings_case_at(const struct string *string, size_t at, enum strings_case to, uint32_t out[3]);
struct value strings_cased(struct run *run, const struct string *string, enum strings_case to);

/* Without the characters of `chars` at its ends; chars NULL: without white space. */
struct value strings_stripped(struct run *run, const struct string *string,
                              const struct string *chars, bool left, bool right);

/* At most `most` times; < 0: all. */
struct value strings_replaced(struct run *run, const struct string *string,
                              const struct string *from, const struct string *to, int64_t most);

/* The lines, with their ends if `keep`. */
struct list *strings_lines(struct run *run, const struct string *string, bool keep);

/* Centred in `width` characters, as str.center. */
struct value strings_padded(struct run *run, const struct string *string, int64_t width,
                            const struct string *fill, char align);

/* The items, which must be strings unless `any`, with `between` between. */
struct value strings_joined(struct run *run, const struct list *items, const struct string *between,
                            bool any);

/* The arguments of our functions. */
const struct string *strings_given(struct run *run, struct value value, const char *what);
int64_t strings_given_int(struct run *run, struct value value, int64_t absent, const char *what);

#endif
