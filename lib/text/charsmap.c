/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/charsmap.h"

#include "lib/text/unicode.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct charsmap {
    unsigned char *bytes; /* decoded: the size of the trie, the trie, the texts; owned */
    const unsigned char *units;
    size_t num_units;
    const char *texts; /* [num_texts] bytes, each text with a NUL behind it */
    size_t num_texts;
};

static int digit_of(char c)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(DIGITS, c) : NULL;
    return at ? (int)(at - DIGITS) : -1;
}

/* Decodes base64 [length] into bytes; -1: it is none. */
static int decode(const char *base64, size_t length, unsigned char *bytes, size_t *size)
{
    const size_t padding =
        length < 4 ? 0 : (base64[length - 1] == '=') + (base64[length - 2] == '=');
    *size = 0;
    if (length % 4 != 0)
        return -1;
    for (size_t at = 0; at < length; at += 4) {
        const int count = at + 4 == length ? 4 - (int)padding : 4;
        uint32_t bits = 0;
        for (int i = 0; i < 4; i++) {
            const int digit = i < count ? digit_of(base64[at + (size_t)i]) : 0;
            if (digit < 0)
                return -1;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (int i = 0; i + 1 < count; i++)
            bytes[(*size)++] = bits >> (16 - 8 * i) & 0xFF;
    }
    return 0;
}

static uint32_t unit_at(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static int read_parts(struct charsmap *map, size_t size, struct error *err)
{
    const size_t trie = size < 4 ? 0 : unit_at(map->bytes);
    if (size < 4 || trie > size - 4 || trie < 4)
        return error_set(err, ERROR_INVALID,
                         "expected the size of a trie in 4 bytes and the trie, got %zu bytes and "
                         "size %zu",
                         size, trie);
    map->num_units = trie / 4; /* the library takes what is left of it as text, too */
    map->units = map->bytes + 4;
    map->texts = (const char *)map->units + 4 * map->num_units;
    map->num_texts = size - 4 - 4 * map->num_units;
    const size_t valid = utf8_valid_length(map->texts, map->num_texts);
    return valid == map->num_texts
               ? 0
               : error_set(err, ERROR_INVALID, "expected UTF-8 behind the trie, got byte 0x%02X",
                           (unsigned char)map->texts[valid]);
}

int charsmap_create(struct charsmap **out, const char *base64, size_t length, struct error *err)
{
    struct charsmap *map = calloc(1, sizeof *map);
    size_t size;
    if (map)
        map->bytes = malloc(length + 4);
    int failed = !map || !map->bytes
                     ? error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", length)
                     : 0;
    if (!failed && decode(base64, length, map->bytes, &size))
        failed = error_set(err, ERROR_INVALID, "expected Base64");
    if (!failed)
        failed = read_parts(map, size, err);
    if (failed)
        charsmap_free(map);
    else
        *out = map;
    return failed;
}

void charsmap_free(struct charsmap *map)
{
    if (!map)
        return;
    free(map->bytes);
    free(map);
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* Where the text begins that takes the place of the shortest beginning that the map has; SIZE_MAX:
 * none. */
static size_t find_place(const struct charsmap *map, const char *text, size_t length)
{
    size_t node = offset_of(unit_at(map->units));
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)text[i];
        node ^= byte;
        if (byte == 0 || node >= map->num_units)
            break;
        const uint32_t unit = unit_at(map->units + 4 * node);
        if ((unit & (1u << 31 | 0xFF)) != byte)
            break;
        node ^= offset_of(unit);
        if (!(unit & 1u << 8))
            continue;
        return node < map->num_units ? unit_at(map->units + 4 * node) & 0x7FFFFFFF : SIZE_MAX;
    }
    return SIZE_MAX;
}

const char *charsmap_find(const struct charsmap *map, const char *text, size_t length,
                          size_t *replaced)
{
    const size_t place = find_place(map, text, length);
    if (place >= map->num_texts || ((unsigned char)map->texts[place] & 0xC0) == 0x80)
        return NULL; /* a hostile one: in the middle of a character */
    *replaced = strnlen(map->texts + place, map->num_texts - place);
    return map->texts + place;
}

size_t charsmap_cluster_end(const char *text, size_t length, size_t start)
{
    size_t used, end = start;
    utf8proc_int32_t state = 0, before = (utf8proc_int32_t)utf8_decode(text + start, &used);
    for (end += used; end < length; end += used) {
        const utf8proc_int32_t c = (utf8proc_int32_t)utf8_decode(text + end, &used);
        if (utf8proc_grapheme_break_stateful(before, c, &state))
            break;
        before = c;
    }
    return end;
}
