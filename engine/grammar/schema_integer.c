/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema_compiler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t LARGEST = INT64_C(999999999999999999); /* of JSON_MOST_DIGITS digits */

/* Digits between those of two numbers of equal length. States by how many digits are read, and
 * whether they are still those of `low` and of `high`. */
struct digits {
    struct builder *builder;
    char low[24], high[24];
    int length;
    uint32_t to;
};

static void add_digits(const struct digits *digits, uint32_t from, int at, bool is_low,
                       bool is_high)
{
    struct builder *builder = digits->builder;
    while (at < digits->length) { /* one pass a digit; it branches where the two numbers part */
        char low = is_low ? digits->low[at] : '0', high = is_high ? digits->high[at] : '9';
        bool last = at + 1 == digits->length;
        if (is_low && is_high && low != high) {
            uint32_t next = last ? digits->to : builder_state(builder);
            builder_byte(builder, from, next, (unsigned char)low);
            if (!last)
                add_digits(digits, next, at + 1, true, false);
            next = last ? digits->to : builder_state(builder);
            builder_byte(builder, from, next, (unsigned char)high);
            if (!last)
                add_digits(digits, next, at + 1, false, true);
            is_low = is_high = false;
            low++;
            high--;
        } else if (is_low != is_high) {
            uint32_t next = last ? digits->to : builder_state(builder);
            builder_byte(builder, from, next, (unsigned char)(is_low ? low : high));
            if (!last)
                add_digits(digits, next, at + 1, is_low, is_high);
            low = (char)(low + is_low);
            high = (char)(high - is_high);
            is_low = is_high = false;
        }
        if (low > high)
            return;
        uint32_t next = last ? digits->to : builder_state(builder);
        builder_range(builder, from, next, (unsigned char)low, (unsigned char)high, 0);
        from = next;
        at++;
    }
}

/* Numbers of low to high, written without leading zeros. */
static void add_magnitudes(struct builder *builder, uint32_t from, uint32_t to, uint64_t low,
                           uint64_t high)
{
    for (uint64_t first = 0, last = 9;; first = last + 1, last = last * 10 + 9) {
        struct digits digits = {.builder = builder, .to = to};
        uint64_t a = low > first ? low : first, b = high < last ? high : last;
        if (a <= b) {
            digits.length = snprintf(digits.low, sizeof digits.low, "%llu", (unsigned long long)a);
            snprintf(digits.high, sizeof digits.high, "%llu", (unsigned long long)b);
            add_digits(&digits, from, 0, true, true);
        }
        if (high <= last || last > UINT64_MAX / 10)
            return;
    }
}

/* The integers that a limit leaves: from its ceiling on, or up to its floor. False: none of 64
 * bits. */
static bool read_limit(const json_t *value, bool is_least, bool exclusive, int64_t *limit)
{
    if (json_is_integer(value)) {
        *limit = json_integer_value(value);
    } else {
        double number = json_real_value(value);
        double whole = is_least ? ceil(number) : floor(number);
        if (whole < -0x1p63 || whole >= 0x1p63) {
            *limit = number < 0 ? INT64_MIN : INT64_MAX;
            return (number < 0) == is_least;
        }
        *limit = (int64_t)whole;
        exclusive = exclusive && whole == number;
    }
    /* 1 more as an integer: as a double it would be rounded away beyond 2^53. */
    return !exclusive || !__builtin_add_overflow(*limit, is_least ? 1 : -1, limit);
}

void schema_integer(struct schema_compiler *compiler, const struct schema_parts *parts,
                    uint32_t from, uint32_t to)
{
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                       "exclusiveMaximum"};
    struct builder *builder = compiler->builder;
    int64_t low = INT64_MIN, high = INT64_MAX;
    bool any = true;
    for (size_t i = 0; i < parts->count; i++)
        for (int k = 0; k < 4; k++) {
            const json_t *value;
            int64_t limit;
            if (!schema_has(&parts->items[i], keys[k], &value))
                continue;
            any = read_limit(value, k < 2, k % 2 == 1, &limit) && any;
            if (k < 2)
                low = limit > low ? limit : low;
            else
                high = limit < high ? limit : high;
        }
    if (low == INT64_MIN && high == INT64_MAX) {
        json_rules_call(builder, from, to, RULE_INTEGER);
        return;
    }
    /* Where there is no limit, integers have as many digits as others; more if a limit has. */
    if (high == INT64_MAX && low <= LARGEST)
        high = LARGEST;
    if (low == INT64_MIN && high >= -LARGEST)
        low = -LARGEST;
    if (!any || low > high)
        return;
    if (high >= 0)
        add_magnitudes(builder, from, to, low > 0 ? (uint64_t)low : 0, (uint64_t)high);
    if (low < 0) {
        uint32_t minus = builder_state(builder);
        builder_byte(builder, from, minus, '-');
        add_magnitudes(builder, minus, to, high < 0 ? 0 - (uint64_t)high : 1, 0 - (uint64_t)low);
    }
}
