/* SPDX-License-Identifier: Apache-2.0 */
/* Generated tables, sorted, for characters.c alone. */
#ifndef LIB_JINJA_CHARACTERS_DATA_H
#define LIB_JINJA_CHARACTERS_DATA_H

#include <stddef.h>
#include <stdint.h>

struct characters_run {
    uint32_t first, last;
};
struct characters_case {
    uint32_t c;
    uint32_t to[3]; /* zeros at the end */
};
extern const struct characters_case characters_to_upper[], characters_to_title[];
extern const size_t characters_to_upper_count, characters_to_title_count;
extern const struct characters_run characters_digits[];     /* isdigit(), and not of category Nd */
extern const struct characters_run characters_numerals[];   /* isnumeric(), and not of N */
extern const struct characters_run characters_more_upper[]; /* isupper(), and not of Lu */
extern const struct characters_run characters_more_lower[]; /* islower(), and not of Ll */
extern const size_t characters_digits_count, characters_numerals_count;
extern const size_t characters_more_upper_count, characters_more_lower_count;

#endif
