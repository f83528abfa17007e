/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of repetitions in expressions and grammars. */
#ifndef LIB_GRAMMAR_REPEAT_H
#define LIB_GRAMMAR_REPEAT_H

#include <stddef.h>

/* The number that begins at text[*at], which goes behind it; -1: there is none; most + 1: more. */
static inline int repeat_number(const char *text, size_t length, size_t *at, int most)
{
    int value = -1;
    for (; *at < length && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
        value = (value < 0 ? 0 : value * 10) + (text[*at] - '0');
        if (value > most)
            value = most + 1;
    }
    return value;
}

#endif
