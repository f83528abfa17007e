/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of JSON as exact decimals, which bounds and multiples are counted in. */
#ifndef LIB_GRAMMAR_SCHEMA_DECIMAL_H
#define LIB_GRAMMAR_SCHEMA_DECIMAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* (negative ? -1 : 1) * digits * 10^exponent; digits is 0 or does not end with a 0. */
struct schema_decimal {
    bool negative;
    uint64_t digits;
    int exponent;
};

enum { SCHEMA_DECIMAL_TEXT = 40 };
/* The shortest text that reads back as the number; returns its length. */
int schema_decimal_text(const json_t *number, char text[SCHEMA_DECIMAL_TEXT]);
/* What that text says. */
struct schema_decimal schema_decimal_read(const json_t *number);
/* The magnitude times 10^places, without its fraction; *whole: it has none. UINT64_MAX: it is as
 * large, or larger. */
uint64_t schema_decimal_scale(struct schema_decimal decimal, int places, bool *whole);
/* Whether a number is a multiple of another above 0, exactly. */
bool schema_decimal_is_multiple(struct schema_decimal decimal, struct schema_decimal of);

#endif
