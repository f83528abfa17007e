/* SPDX-License-Identifier: Apache-2.0 */
/* The growable buffer and the JSON that is written into it. */
#include "api/strbuf.h"
#include "lib/text/unicode.h"

#include <criterion/criterion.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_buffer(struct strbuf *buf, const char *expected)
{
    cr_assert_not(buf->failed);
    strbuf_append(buf, "", 1);
    cr_expect_str_eq(buf->data, expected);
    strbuf_clear(buf);
}

static void expect_string(const char *text, size_t length, const char *expected)
{
    struct strbuf buf = {0};
    strbuf_json_string(&buf, text, length);
    expect_buffer(&buf, expected);
}

static void expect_f32(float value, const char *expected)
{
    struct strbuf buf = {0};
    strbuf_json_f32(&buf, value);
    expect_buffer(&buf, expected);
}

Test(strbuf, grows_and_keeps_what_it_has)
{
    struct strbuf buf = {0};
    for (int i = 0; i < 1000; i++)
        strbuf_printf(&buf, "%04d,", i);
    cr_assert_eq(buf.length, 5000);
    cr_expect_eq(memcmp(buf.data, "0000,0001,", 10), 0);
    cr_expect_eq(memcmp(buf.data + 4990, "0998,0999,", 10), 0);
    char *memory = buf.data;
    strbuf_reset(&buf);
    strbuf_puts(&buf, "x");
    cr_expect_eq(buf.data, memory);
    cr_expect_eq(buf.length, 1);
    strbuf_clear(&buf);
}

Test(strbuf, a_size_that_cannot_be_is_a_failure_that_sticks)
{
    struct strbuf buf = {0};
    strbuf_puts(&buf, "ab");
    strbuf_append(&buf, "c", SIZE_MAX - 1);
    cr_expect(buf.failed);
    strbuf_puts(&buf, "d");
    cr_expect_eq(buf.length, 2);
    strbuf_clear(&buf);
}

Test(strbuf, strings_are_escaped)
{
    expect_string("plain", 5, "\"plain\"");
    expect_string("", 0, "\"\"");
    expect_string("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"");
    expect_string("\n\r\t\b\f", 5, "\"\\n\\r\\t\\u0008\\u000c\"");
    expect_string("\0\x1f\x7f", 3, "\"\\u0000\\u001f\\u007f\"");
    expect_string("h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 12,
                  "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"");
}

Test(strbuf, bytes_that_are_not_utf8_are_replaced)
{
#define REPLACED "\xef\xbf\xbd"
    expect_string("a\xff z", 4, "\"a" REPLACED " z\"");
    expect_string("\xe2\x82", 2, "\"" REPLACED REPLACED "\"");              /* cut */
    expect_string("\xc0\x80", 2, "\"" REPLACED REPLACED "\"");              /* overlong */
    expect_string("\xed\xa0\x80", 3, "\"" REPLACED REPLACED REPLACED "\""); /* surrogate */
    expect_string("\xf4\x90\x80\x80", 4, "\"" REPLACED REPLACED REPLACED REPLACED "\"");
}

Test(strbuf, any_bytes_become_valid_json)
{
    unsigned random = 12345;
    for (int round = 0; round < 2000; round++) {
        char bytes[40];
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = random * 1664525u + 1013904223u;
            bytes[i] = (char)(random >> 24);
        }
        struct strbuf buf = {0};
        strbuf_json_string(&buf, bytes, sizeof bytes);
        cr_expect_eq(utf8_valid_length(buf.data, buf.length), buf.length);
        json_t *value = json_loadb(buf.data, buf.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        cr_assert(json_is_string(value));
        json_decref(value);
        strbuf_clear(&buf);
    }
}

Test(strbuf, floats_have_the_shortest_digits_that_read_back)
{
    expect_f32(0.0f, "0.0");
    expect_f32(-0.0f, "-0.0");
    expect_f32(-1.0f, "-1.0");
    expect_f32(0.1f, "0.1");
    expect_f32(-2.5f, "-2.5");
    expect_f32(-0.69314718f, "-0.6931472");
    expect_f32(16777216.0f, "16777216.0");
    expect_f32(1e-10f, "1e-10");
    expect_f32(FLT_MAX, "3.4028235e+38");
    expect_f32(-INFINITY, "-9999.0");
    expect_f32(INFINITY, "null");
    expect_f32(NAN, "null");
}

Test(strbuf, floats_read_back_and_one_digit_less_does_not)
{
    unsigned random = 99;
    for (int round = 0; round < 20000; round++) {
        random = random * 1664525u + 1013904223u;
        float value;
        memcpy(&value, &random, sizeof value);
        if (!isfinite(value))
            continue;
        struct strbuf buf = {0};
        strbuf_json_f32(&buf, value);
        strbuf_append(&buf, "", 1);
        cr_expect_eq(strtof(buf.data, NULL), value, "%s", buf.data);
        int digits = 0;
        const char *mantissa_end = strchr(buf.data, 'e');
        for (const char *c = buf.data; *c && c != mantissa_end; c++)
            digits += *c >= '0' && *c <= '9';
        char shorter[400]; /* %g may write 310 digits, says the compiler */
        snprintf(shorter, sizeof shorter, "%.*g", digits - 1, (double)value);
        /* Below 7 digits a ".0" or a leading "0." is among those counted. */
        cr_expect(digits < 8 || strtof(shorter, NULL) != value || strchr(buf.data, '.')[1] == '0' ||
                      strstr(buf.data, "0.") == buf.data || strstr(buf.data, "-0.") == buf.data,
                  "%s", buf.data);
        strbuf_clear(&buf);
    }
}

Test(strbuf, integers_and_lists)
{
    struct strbuf buf = {0};
    const int32_t ids[] = {0, -1, 2147483647};
    strbuf_json_int(&buf, INT64_MIN);
    strbuf_puts(&buf, " ");
    strbuf_json_int(&buf, INT64_MAX);
    strbuf_puts(&buf, " ");
    strbuf_json_ints(&buf, ids, 3);
    strbuf_json_ints(&buf, NULL, 0);
    expect_buffer(&buf, "-9223372036854775808 9223372036854775807 [0,-1,2147483647][]");
}

Test(strbuf, decimals_have_at_most_three_digits)
{
    struct strbuf buf = {0};
    const double values[] = {0, 12.5, 0.0004, 1234.5678, NAN, INFINITY, 100};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        strbuf_json_decimal(&buf, values[i]);
        strbuf_puts(&buf, " ");
    }
    expect_buffer(&buf, "0.0 12.5 0.0 1234.568 null null 100.0 ");
}

Test(strbuf, characters_are_code_points)
{
    cr_expect_eq(utf8_characters("", 0), 0);
    cr_expect_eq(utf8_characters("abc", 3), 3);
    cr_expect_eq(utf8_characters("h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10), 4);
}
