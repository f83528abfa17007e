/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int schema_decimal_text(const json_t *number, char text[SCHEMA_DECIMAL_TEXT])
{
    if (json_is_integer(number))
        return snprintf(text, SCHEMA_DECIMAL_TEXT, "%" JSON_INTEGER_FORMAT,
                        json_integer_value(number));
    int length = 0;
    for (int digits = 1; digits <= 17; digits++) {
        length = snprintf(text, SCHEMA_DECIMAL_TEXT, "%.*g", digits, json_real_value(number));
        if (strtod(text, NULL) == json_real_value(number))
            break;
    }
    return length;
}

struct schema_decimal schema_decimal_read(const json_t *number)
{
    struct schema_decimal decimal = {0};
    char text[SCHEMA_DECIMAL_TEXT];
    schema_decimal_text(number, text);
    bool behind = false;
    decimal.negative = text[0] == '-';
    for (const char *at = text + decimal.negative; *at; at++) {
        if (*at == 'e') {
            decimal.exponent += (int)strtol(at + 1, NULL, 10);
            break;
        }
        behind |= *at == '.';
        if (*at == '.')
            continue;
        decimal.digits = decimal.digits * 10 + (uint64_t)(*at - '0');
        decimal.exponent -= behind;
    }
    while (decimal.digits > 0 && decimal.digits % 10 == 0) {
        decimal.digits /= 10;
        decimal.exponent++;
    }
    return decimal;
}

uint64_t schema_decimal_scale(struct schema_decimal decimal, int places, bool *whole)
{
    uint64_t scaled = decimal.digits;
    int power = decimal.exponent + places;
    *whole = power >= 0 || scaled == 0;
    for (; power > 0 && scaled > 0; power--)
        if (__builtin_mul_overflow(scaled, UINT64_C(10), &scaled))
            return UINT64_MAX;
    for (; power < 0 && scaled > 0; power++)
        scaled /= 10;
    return scaled;
}

bool schema_decimal_is_multiple(struct schema_decimal decimal, struct schema_decimal of)
{
    int power = decimal.exponent - of.exponent;
    unsigned __int128 left = decimal.digits % of.digits;
    if (decimal.digits == 0)
        return true;
    if (power < 0) /* `of` has no place for the last digit, which is not 0 */
        return false;
    for (; power > 0 && left > 0; power--)
        left = left * 10 % of.digits;
    return left == 0;
}
