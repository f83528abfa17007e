/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/lexer.h"

#include "lib/jinja/characters.h"
#include "lib/text/unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct heap *heap;
    const char *source;
    size_t length, at;
    bool line_starts; /* the last token ended with a newline, or there was none */
    struct token_array tokens;
};

static void push(struct lexer *x, enum token_type type, int op, size_t offset, struct value value)
{
    struct token_array *tokens = &x->tokens;
    if (tokens->count == tokens->capacity) {
        size_t capacity = 2 * tokens->capacity + 64;
        struct token *items = heap_alloc(x->heap, capacity, sizeof *items);
        if (tokens->count > 0)
            memcpy(items, tokens->items, tokens->count * sizeof *items);
        tokens->items = items;
        tokens->capacity = capacity;
    }
    tokens->items[tokens->count++] = (struct token){type, op, offset, value};
}

static _Noreturn void fail(struct lexer *x, size_t offset, const char *message)
{
    x->heap->offset = offset;
    heap_fail(x->heap, ERROR_INVALID, "%s", message);
}

static char peek(const struct lexer *x, size_t offset)
{
    return offset < x->length ? x->source[offset] : 0;
}

static bool starts(const struct lexer *x, size_t offset, const char *text)
{
    size_t length = strlen(text);
    return length <= x->length - offset && memcmp(x->source + offset, text, length) == 0;
}

static void skip_space(struct lexer *x)
{
    x->at += characters_leading_space(x->source + x->at, x->length - x->at);
}

/* Text before a tag that begins at `end`; sign is the one after {%, {{ or {#. */
static void push_data(struct lexer *x, size_t end, char sign, bool variable)
{
    const char *text = x->source + x->at;
    size_t length = end - x->at, line = length;
    if (sign == '-') {
        length -= characters_trailing_space(text, length);
    } else if (sign != '+' && !variable) {
        while (line > 0 && text[line - 1] != '\n')
            line--;
        if ((line > 0 || x->line_starts) &&
            characters_leading_space(text + line, length - line) == length - line)
            length = line;
    }
    if (length > 0)
        push(x, TOKEN_DATA, 0, x->at, value_of(value_own(x->heap, text, length)));
    x->line_starts = false;
}

/* After the end of a block or a comment that is `sign` and so many bytes more. */
static void end_block(struct lexer *x, char sign, size_t bytes)
{
    x->at += bytes;
    size_t end = x->at;
    if (sign == '-')
        skip_space(x);
    else if (sign != '+' && peek(x, x->at) == '\n')
        x->at++;
    x->line_starts = x->at > end && x->source[x->at - 1] == '\n';
}

static void skip_comment(struct lexer *x)
{
    size_t begin = x->at;
    x->at += 2;
    if (peek(x, x->at) == '-' || peek(x, x->at) == '+')
        x->at++;
    size_t end = x->at;
    while (end < x->length && !starts(x, end, "#}"))
        end++;
    if (end >= x->length)
        fail(x, begin, "this comment has no end");
    char sign = end > x->at ? x->source[end - 1] : 0;
    x->at = end;
    end_block(x, sign, 2);
}

/* The word that the tag at `offset` has alone, as raw or endraw; 0: it is another, else the offset
 * behind it. *sign: before the word. */
static size_t lone_word(struct lexer *x, size_t offset, const char *word, char *sign)
{
    size_t at = offset + 2;
    *sign = peek(x, at);
    if (*sign == '-' || *sign == '+')
        at++;
    at += characters_leading_space(x->source + at, x->length - at);
    if (!starts(x, at, word))
        return 0;
    at += strlen(word);
    at += characters_leading_space(x->source + at, x->length - at);
    char end = peek(x, at);
    return starts(x, at, "%}") || ((end == '-' || end == '+') && starts(x, at + 1, "%}")) ? at : 0;
}

/* At a tag: if it is {% raw %}, takes all to its {% endraw %}. */
static bool take_raw(struct lexer *x)
{
    char sign;
    size_t begin = x->at, end = lone_word(x, x->at, "raw", &sign);
    if (end == 0 || peek(x, end) == '+')
        return false;
    x->at = end;
    if (peek(x, x->at) == '-') {
        x->at += 3;
        skip_space(x);
        x->line_starts = x->source[x->at - 1] == '\n';
    } else {
        x->at += 2;
        x->line_starts = false;
    }
    for (size_t at = x->at; at < x->length; at++) {
        if (!starts(x, at, "{%") || (end = lone_word(x, at, "endraw", &sign)) == 0)
            continue;
        push_data(x, at, sign, false);
        x->at = end;
        char last = peek(x, end);
        end_block(x, last, last == '%' ? 2 : 3);
        return true;
    }
    fail(x, begin, "this raw block has no end");
}

/* Inside of tags. */

static uint32_t hexadecimal(struct lexer *x, size_t offset, int digits)
{
    uint32_t c = 0;
    for (int i = 0; i < digits; i++) {
        const char *all = "0123456789abcdef";
        char digit = peek(x, offset + (size_t)i);
        const char *found = digit ? strchr(all, digit | (digit >= 'A' ? 0x20 : 0)) : NULL;
        if (!found)
            fail(x, offset, "expected hexadecimal digits");
        c = c << 4 | (uint32_t)(found - all);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        fail(x, offset, "this is not a character");
    return c;
}

/* Appends what the escape at x->at (behind the backslash) stands for, and goes behind it. */
static void take_escape(struct lexer *x, char *out, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = peek(x, x->at++);
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        out[(*used)++] = to[found - from];
    } else if (c >= '0' && c <= '7') {
        uint32_t value = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && peek(x, x->at) >= '0' && peek(x, x->at) <= '7'; i++)
            value = value * 8 + (uint32_t)(x->source[x->at++] - '0');
        *used += utf8_encode(value, out + *used);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        *used += utf8_encode(hexadecimal(x, x->at, digits), out + *used);
        x->at += (size_t)digits;
    } else if ((unsigned char)c >= 0x80) {
        /* jinja2 spells such a character first, so the backslash is before another one. */
        size_t length;
        uint32_t spelled = utf8_decode(x->source + x->at - 1, &length);
        x->at += length - 1;
        *used += (size_t)snprintf(out + *used, 11,
                                  spelled < 0x100     ? "\\x%02x"
                                  : spelled < 0x10000 ? "\\u%04x"
                                                      : "\\U%08x",
                                  (unsigned)spelled);
    } else if (c == 'N') {
        fail(x, x->at - 1, "this escape is not supported");
    } else if (c != '\n') {
        out[(*used)++] = '\\';
        out[(*used)++] = c;
    }
}

static void take_string(struct lexer *x)
{
    size_t begin = x->at, end = begin + 1, used = 0;
    char quote = x->source[begin];
    while (end < x->length && x->source[end] != quote)
        end += x->source[end] == '\\' ? 2 : 1;
    if (end >= x->length)
        fail(x, begin, "this string has no end");
    char *out = heap_alloc(x->heap, 2 * (end - begin) + 4, 1); /* a spelled character has most */
    for (x->at = begin + 1; x->at < end;) {
        if (x->source[x->at] == '\\') {
            x->at++;
            take_escape(x, out, &used);
        } else {
            out[used++] = x->source[x->at++];
        }
    }
    x->at = end + 1;
    push(x, TOKEN_STRING, 0, begin, value_of(value_own(x->heap, out, used)));
}

/* Digits of the base from `at` on, with single underscores between them; with `before`, one also
 * before the first. Returns how many bytes. */
static size_t digits(const struct lexer *x, size_t at, int base, bool before)
{
    static const char ALL[] = "0123456789abcdef";
    size_t end = at;
    for (;;) {
        size_t next = end + (peek(x, end) == '_' && (before || end > at));
        char c = peek(x, next);
        const char *found = c ? memchr(ALL, c | (c >= 'A' ? 0x20 : 0), (size_t)base) : NULL;
        if (!found)
            return end - at;
        end = next + 1;
    }
}

/* The bytes of a float at x->at; 0: it is none. Behind a dot there is no float: x.0.1 has items. */
static size_t float_bytes(const struct lexer *x)
{
    size_t begin = x->at, whole = digits(x, begin, 10, false), end = begin + whole;
    if (begin > 0 && x->source[begin - 1] == '.')
        return 0;
    size_t fraction = peek(x, end) == '.' ? digits(x, end + 1, 10, false) : 0;
    end += fraction > 0 ? fraction + 1 : 0;
    size_t sign = end + 1, exponent = 0;
    if ((peek(x, end) | 0x20) == 'e') {
        sign += peek(x, sign) == '+' || peek(x, sign) == '-';
        exponent = digits(x, sign, 10, false);
    }
    return exponent > 0 ? sign + exponent - begin : fraction > 0 ? end - begin : 0;
}

/* The bytes of an integer at x->at, its base, and how many bytes say that. */
static size_t integer_bytes(const struct lexer *x, int *base, size_t *prefix)
{
    char sign = (char)(peek(x, x->at + 1) | 0x20);
    *base = sign == 'x' ? 16 : sign == 'o' ? 8 : 2;
    *prefix = 2;
    bool zero = peek(x, x->at) == '0';
    size_t bytes = zero && memchr("xob", sign, 3) ? digits(x, x->at + *prefix, *base, true) : 0;
    if (bytes > 0)
        return *prefix + bytes;
    *base = 10;
    *prefix = 0;
    return zero ? digits(x, x->at, 1, false) : digits(x, x->at, 10, false);
}

/* As jinja2 reads numbers: 1_000, 0x1F, 1e5. What follows is another token, as in 1if x. */
static void take_number(struct lexer *x)
{
    int base = 10;
    size_t begin = x->at, prefix = 0, real = float_bytes(x), used = 0;
    size_t bytes = real ? real : integer_bytes(x, &base, &prefix);
    char *text = heap_alloc(x->heap, bytes + 1, 1);
    for (size_t i = prefix; i < bytes; i++)
        if (x->source[begin + i] != '_')
            text[used++] = x->source[begin + i];
    text[used] = 0;
    errno = 0;
    struct value value =
        real ? value_float(strtod(text, NULL)) : value_int(strtoll(text, NULL, base));
    if (!real && errno == ERANGE)
        fail(x, begin, "integers of more than 64 bits are not supported");
    x->at += bytes;
    push(x, TOKEN_NUMBER, 0, begin, value);
}

static void take_operator(struct lexer *x)
{
    static const int TWO[] = {OP_FLOOR_DIVIDE, OP_POWER,      OP_EQUAL,
                              OP_NOT_EQUAL,    OP_LESS_EQUAL, OP_GREATER_EQUAL};
    size_t begin = x->at;
    int first = (unsigned char)x->source[begin],
        both = first << 8 | (unsigned char)peek(x, begin + 1);
    for (size_t i = 0; i < sizeof TWO / sizeof *TWO; i++)
        if (TWO[i] == both) {
            x->at += 2;
            push(x, TOKEN_OPERATOR, both, begin, VALUE_OF_NONE);
            return;
        }
    if (!first || !strchr("+-*/%~()[]{}<>=.:|,", first))
        fail(x, begin, "unexpected character");
    x->at++;
    push(x, TOKEN_OPERATOR, first, begin, VALUE_OF_NONE);
}

static void take_name(struct lexer *x)
{
    size_t begin = x->at;
    while (characters_in_name(peek(x, x->at)))
        x->at++;
    push(x, TOKEN_NAME, 0, begin, value_of(value_own(x->heap, x->source + begin, x->at - begin)));
}

/* Whether the tag ends here; goes behind its end. */
static bool take_end(struct lexer *x, bool variable)
{
    char sign = peek(x, x->at);
    bool has_sign = sign == '-' || (sign == '+' && !variable);
    size_t offset = x->at + has_sign;
    if (!starts(x, offset, variable ? "}}" : "%}"))
        return false;
    size_t begin = x->at;
    if (variable) {
        x->at = offset + 2;
        x->line_starts = false;
        if (sign == '-')
            skip_space(x);
        if (sign == '-' && x->source[x->at - 1] == '\n')
            x->line_starts = true;
    } else {
        end_block(x, sign, has_sign + 2);
    }
    push(x, variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END, 0, begin, VALUE_OF_NONE);
    return true;
}

static void take_tag(struct lexer *x, bool variable)
{
    size_t begin = x->at, open = 0;
    push(x, variable ? TOKEN_VARIABLE : TOKEN_BLOCK, 0, begin, VALUE_OF_NONE);
    x->at += 2;
    if (peek(x, x->at) == '-' || peek(x, x->at) == '+')
        x->at++;
    for (;;) {
        skip_space(x);
        if (x->at >= x->length)
            fail(x, begin, "this tag has no end");
        if (open == 0 && take_end(x, variable))
            return;
        char c = x->source[x->at];
        if (c == '\'' || c == '"') {
            take_string(x);
        } else if (characters_is_digit(c)) {
            take_number(x);
        } else if (characters_in_name(c)) {
            take_name(x);
        } else {
            open += c == '(' || c == '[' || c == '{';
            if (c == ')' || c == ']' || c == '}') {
                if (open == 0)
                    fail(x, x->at, "a bracket that closes none");
                open--;
            }
            take_operator(x);
        }
    }
}

struct token_array lexer_run(struct heap *heap)
{
    struct lexer x = {
        .heap = heap, .source = heap->source, .length = heap->length, .line_starts = true};
    size_t at = 0;
    while (at < x.length) {
        char kind = peek(&x, at + 1);
        if (x.source[at] != '{' || (kind != '{' && kind != '%' && kind != '#')) {
            at++;
            continue;
        }
        push_data(&x, at, peek(&x, at + 2), kind == '{');
        x.at = at;
        if (kind == '#')
            skip_comment(&x);
        else if (kind == '{' || !take_raw(&x))
            take_tag(&x, kind == '{');
        at = x.at;
    }
    push_data(&x, x.length, '+', false);
    push(&x, TOKEN_END, 0, x.length, VALUE_OF_NONE);
    return x.tokens;
}
