/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/unicode.h"

#include <utf8proc.h>

static const struct unicode_run *find_run(const struct unicode_run *runs, size_t count, uint32_t c)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (runs[middle].first <= c)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? &runs[low - 1] : NULL;
}

static unsigned search_class(uint32_t c)
{
    size_t low = 0, high = unicode_class_edge_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (unicode_class_edges[middle] >> 8 <= c)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? unicode_class_edges[low - 1] & 0xFF : 0;
}

unsigned unicode_class(uint32_t c)
{
    enum { WORDS = UNICODE_LETTER | UNICODE_WORD, DIGITS = UNICODE_NUMBER | UNICODE_NUMERIC };
    if (c >= 0x80)
        return search_class(c);
    if ((c | 0x20) - 'a' < 26)
        return WORDS;
    if (c - '0' < 10)
        return DIGITS | UNICODE_WORD;
    if (c == ' ' || (c >= '\t' && c <= '\r'))
        return UNICODE_SPACE;
    if (c < ' ' || c == 0x7F)
        return 0;
    return UNICODE_PUNCTUATION | (c == '_' ? UNICODE_WORD : 0);
}

int unicode_lowercase_of(uint32_t c, uint32_t out[2])
{
    if (c == 0x130) { /* the only one that becomes two */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    const struct unicode_run *pair = find_run(unicode_lowercase, unicode_lowercase_count, c);
    out[0] = pair && pair->first == c ? pair->last : (uint32_t)utf8proc_tolower((int32_t)c);
    return 1;
}

bool unicode_is_inert(uint32_t c)
{
    /* The code point before the trailing consonants: utf8proc 2.8 takes it for the first of them
     * and composes it away. */
    if (c == 0x11A7)
        return true;
    const struct unicode_run *run = find_run(unicode_inert, unicode_inert_count, c);
    return run && c <= run->last;
}

size_t utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> length & 0xF0) | c);
    return length;
}

enum utf8_state utf8_next(const char *s, size_t length, size_t *used)
{
    const unsigned char *u = (const unsigned char *)s;
    *used = 1;
    if (u[0] < 0x80)
        return UTF8_VALID;
    if (u[0] < 0xC2 || u[0] > 0xF4)
        return UTF8_BROKEN;
    size_t needed = u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    /* The second byte is where overlong forms, surrogates and too high code points show. */
    unsigned low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
    for (; *used < needed; (*used)++, low = 0x80, high = 0xBF) {
        if (*used == length)
            return UTF8_PARTIAL;
        if (u[*used] < low || u[*used] > high)
            return UTF8_BROKEN;
    }
    return UTF8_VALID;
}

size_t utf8_valid_length(const char *s, size_t length)
{
    size_t at = 0, used;
    while (at < length && utf8_next(s + at, length - at, &used) == UTF8_VALID)
        at += used;
    return at;
}

size_t utf8_characters(const char *s, size_t length)
{
    size_t characters = 0;
    for (size_t i = 0; i < length; i++)
        characters += ((unsigned char)s[i] & 0xC0) != 0x80;
    return characters;
}

/* The bytes that stand for themselves are '!'..'~', 0xA1..0xAC, 0xAE..0xFF; the other 68 are, in
 * order, U+0100.. */
uint32_t byte_level_character(unsigned char byte)
{
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte < 0x7F)
        return byte;
    if (byte <= 0xA0)
        return 0x100u + byte - 0x7F + 0x21;
    return byte == 0xAD ? 0x143 : byte;
}

int byte_level_byte(uint32_t c)
{
    if (c > 0x20 && c < 0x7F)
        return (int)c;
    if (c > 0xA0 && c <= 0xFF && c != 0xAD)
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}
