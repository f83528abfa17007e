/* SPDX-License-Identifier: Apache-2.0 */
#include "api/strbuf.h"

#include "lib/text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_clear(struct strbuf *buf)
{
    free(buf->data);
    *buf = (struct strbuf){0};
}

void strbuf_reset(struct strbuf *buf)
{
    buf->length = 0;
    buf->failed = false;
}

/* Makes room for `more` bytes behind the content. */
static bool reserve(struct strbuf *buf, size_t more)
{
    if (buf->failed)
        return false;
    if (more <= buf->capacity - buf->length)
        return true;
    if (more > SIZE_MAX / 2 - buf->length) {
        buf->failed = true;
        return false;
    }
    size_t needed = buf->length + more;
    size_t capacity = buf->capacity < 256 ? 256 : buf->capacity;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void strbuf_append(struct strbuf *buf, const char *bytes, size_t length)
{
    if (length == 0 || !reserve(buf, length))
        return;
    memcpy(buf->data + buf->length, bytes, length);
    buf->length += length;
}

void strbuf_puts(struct strbuf *buf, const char *text)
{
    strbuf_append(buf, text, strlen(text));
}

void strbuf_printf(struct strbuf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        buf->failed = true;
    } else if (reserve(buf, (size_t)length + 1)) {
        vsnprintf(buf->data + buf->length, (size_t)length + 1, format, again);
        buf->length += (size_t)length;
    }
    va_end(again);
}

static void escape(struct strbuf *buf, unsigned char byte)
{
    switch (byte) {
    case '"':
        strbuf_puts(buf, "\\\"");
        break;
    case '\\':
        strbuf_puts(buf, "\\\\");
        break;
    case '\n':
        strbuf_puts(buf, "\\n");
        break;
    case '\r':
        strbuf_puts(buf, "\\r");
        break;
    case '\t':
        strbuf_puts(buf, "\\t");
        break;
    default:
        strbuf_printf(buf, "\\u%04x", byte);
    }
}

void strbuf_json_string(struct strbuf *buf, const char *text, size_t length)
{
    strbuf_append(buf, "\"", 1);
    size_t plain = 0; /* start of the run that can be copied as it is */
    size_t i = 0;
    while (i < length) {
        unsigned char byte = (unsigned char)text[i];
        size_t used;
        bool valid = utf8_next(text + i, length - i, &used) == UTF8_VALID;
        /* U+0080 to U+009F: terminals take them for commands, as they do escapes */
        bool c1 = valid && byte == 0xC2 && (unsigned char)text[i + 1] < 0xA0;
        if (valid && byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F && !c1) {
            i += used;
            continue;
        }
        strbuf_append(buf, text + plain, i - plain);
        if (!valid)
            strbuf_puts(buf, "\xEF\xBF\xBD"); /* U+FFFD */
        else
            escape(buf, c1 ? (unsigned char)text[++i] : byte);
        plain = ++i;
    }
    strbuf_append(buf, text + plain, length - plain);
    strbuf_append(buf, "\"", 1);
}

void strbuf_json_cstring(struct strbuf *buf, const char *text)
{
    if (text)
        strbuf_json_string(buf, text, strlen(text));
    else
        strbuf_puts(buf, "null");
}

void strbuf_json_int(struct strbuf *buf, int64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[--at] = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0)
        digits[--at] = '-';
    strbuf_append(buf, digits + at, sizeof digits - at);
}

void strbuf_json_ints(struct strbuf *buf, const int32_t *values, size_t count)
{
    strbuf_append(buf, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            strbuf_append(buf, ",", 1);
        strbuf_json_int(buf, values[i]);
    }
    strbuf_append(buf, "]", 1);
}

void strbuf_json_bool(struct strbuf *buf, bool value)
{
    strbuf_puts(buf, value ? "true" : "false");
}

void strbuf_json_f32(struct strbuf *buf, float value)
{
    if (isnan(value) || value == INFINITY) {
        strbuf_puts(buf, "null");
        return;
    }
    if (value == -INFINITY) {
        strbuf_puts(buf, "-9999.0");
        return;
    }
    /* %g drops trailing zeros, so that 6 digits already give every shorter form; 9 always read
     * back. */
    char digits[32];
    int precision = 6;
    do
        snprintf(digits, sizeof digits, "%.*g", precision, (double)value);
    while (precision++ < 9 && strtof(digits, NULL) != value);
    strbuf_puts(buf, digits);
    if (!strpbrk(digits, ".e"))
        strbuf_puts(buf, ".0");
}

void strbuf_json_decimal(struct strbuf *buf, double value)
{
    if (!isfinite(value) || fabs(value) > 1e15) {
        strbuf_puts(buf, "null");
        return;
    }
    char digits[32];
    snprintf(digits, sizeof digits, "%.3f", value);
    char *end = digits + strlen(digits);
    while (end[-1] == '0' && end[-2] != '.')
        end--;
    strbuf_append(buf, digits, (size_t)(end - digits));
}
