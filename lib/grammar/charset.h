/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of characters (code points but for surrogates), as sorted ranges that neither overlap nor
 * touch. */
#ifndef LIB_GRAMMAR_CHARSET_H
#define LIB_GRAMMAR_CHARSET_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHARSET_LAST = 0x10FFFF };

struct charset_range {
    uint32_t first, last;
};

/* Zero-initialise; charset_clear frees it. */
struct charset {
    struct charset_range *ranges; /* [count] */
    size_t count, capacity;
};

int charset_add(struct charset *set, uint32_t first, uint32_t last, struct error *err);
int charset_add_all(struct charset *set, const struct charset *other, struct error *err);
/* Sorts and joins what was added. The functions below want that. */
void charset_normalize(struct charset *set);
int charset_negate(struct charset *set, struct error *err);
/* The value of a hex digit, or -1. */
int charset_hex_digit(char c);
bool charset_has(const struct charset *set, uint32_t c);
bool charset_equal(const struct charset *a, const struct charset *b);
void charset_clear(struct charset *set);

/* Adds \d, \w or \s, or with a capital letter what surely is none: where ASCII and Unicode differ,
 * the character is in neither (grammar.md). negated: the set will be, so that it takes both. */
int charset_add_shorthand(struct charset *set, char letter, bool negated, struct error *err);

#endif
