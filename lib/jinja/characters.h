/* SPDX-License-Identifier: Apache-2.0 */
/* Characters as Python's str sees them. */
#ifndef LIB_JINJA_CHARACTERS_H
#define LIB_JINJA_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* str.isspace() of one character. */
bool characters_is_space(uint32_t c);

/* Bytes of white space that valid UTF-8 ([length] bytes) begins or ends with. */
size_t characters_leading_space(const char *text, size_t length);
size_t characters_trailing_space(const char *text, size_t length);

static inline bool characters_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether a name may have it: names are ASCII here. */
static inline bool characters_in_name(char c)
{
    return characters_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The upper, lower or title case of c, in out (at most 3 code points). Returns how many. */
int characters_upper(uint32_t c, uint32_t out[3]);
int characters_lower(uint32_t c, uint32_t out[3]);
int characters_title(uint32_t c, uint32_t out[3]);

/* As the methods of str of one character. */
bool characters_is_alpha(uint32_t c);
bool characters_is_decimal(uint32_t c);
bool characters_is_digit_of(uint32_t c); /* isdigit(), of any script */
bool characters_is_numeric(uint32_t c);
bool characters_is_upper(uint32_t c);
bool characters_is_lower(uint32_t c);
bool characters_is_printable(uint32_t c);

#endif
