/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/strings.h"

#include "lib/jinja/characters.h"
#include "lib/jinja/print.h"
#include "lib/jinja/search.h"
#include "lib/text/unicode.h"

#include <string.h>

void strings_write_for(struct run *run, const struct string *string, size_t at,
                       const uint32_t *characters, int count)
{
    for (int i = 0; i < count; i++) {
        char bytes[4];
        output_for(run, string, at, bytes, utf8_encode(characters[i], bytes));
    }
}

/* Whether a letter stands there: what decides about the form of a small sigma. */
static bool letter_before(const struct string *string, size_t at)
{
    size_t length;
    return at > 0 && characters_is_alpha(
                         utf8_decode(string->bytes + utf8_previous(string->bytes, at), &length));
}

static bool letter_after(const struct string *string, size_t at)
{
    size_t length;
    return at < string->length && characters_is_alpha(utf8_decode(string->bytes + at, &length));
}

int strings_case_at(const struct string *string, size_t at, enum strings_case to, uint32_t out[3])
{
    enum { SIGMA = 0x3A3, FINAL_SIGMA = 0x3C2 };
    size_t length;
    uint32_t c = utf8_decode(string->bytes + at, &length);
    if (to == STRINGS_SWAP && !characters_is_upper(c) && !characters_is_lower(c)) {
        out[0] = c;
        return 1;
    }
    if (to == STRINGS_SWAP)
        to = characters_is_upper(c) ? STRINGS_LOWER : STRINGS_UPPER;
    if (to == STRINGS_CAPITALIZE && at == 0)
        return characters_title(c, out);
    if (to == STRINGS_UPPER)
        return characters_upper(c, out);
    if (c != SIGMA || !letter_before(string, at) || letter_after(string, at + length))
        return characters_lower(c, out);
    out[0] = FINAL_SIGMA;
    return 1;
}

struct value strings_cased(struct run *run, const struct string *string, enum strings_case to)
{
    struct output own, *before = output_begin(run, &own);
    for (size_t at = 0, length; at < string->length; at += length) {
        uint32_t out[3];
        utf8_decode(string->bytes + at, &length);
        int count = strings_case_at(string, at, to, out);
        strings_write_for(run, string, at, out, count);
    }
    return output_take(run, before);
}

static bool is_one_of(struct run *run, const struct string *chars, uint32_t c)
{
    heap_work(&run->heap, chars ? chars->length : 0);
    if (!chars)
        return characters_is_space(c);
    for (size_t at = 0, length; at < chars->length; at += length)
        if (utf8_decode(chars->bytes + at, &length) == c)
            return true;
    return false;
}

struct value strings_stripped(struct run *run, const struct string *string,
                              const struct string *chars, bool left, bool right)
{
    size_t begin = 0, end = string->length, length;
    while (left && begin < end &&
           is_one_of(run, chars, utf8_decode(string->bytes + begin, &length)))
        begin += length;
    while (right && end > begin) {
        size_t start = utf8_previous(string->bytes, end);
        if (!is_one_of(run, chars, utf8_decode(string->bytes + start, &length)))
            break;
        end = start;
    }
    return value_part(&run->heap, string, begin, end);
}

struct value strings_replaced(struct run *run, const struct string *string,
                              const struct string *from, const struct string *to, int64_t most)
{
    struct output own, *before = output_begin(run, &own);
    size_t at = 0;
    search_charge(run, from, 0, string->length);
    while (most != 0) {
        size_t found = search_first(run, string, from, at, string->length);
        if (found == SIZE_MAX)
            break;
        output_part(run, string, at, found);
        output_string(run, to);
        at = found + from->length;
        most -= most > 0;
        if (from->length > 0)
            continue;
        if (at == string->length)
            break;
        size_t length;
        utf8_decode(string->bytes + at, &length);
        output_part(run, string, at, at + length);
        at += length;
        if (at == string->length && most != 0) {
            output_string(run, to);
            break;
        }
    }
    output_part(run, string, at, string->length);
    return output_take(run, before);
}

/* Bytes of the line's end at `at`; 0: there is none. */
static size_t line_end(const struct string *string, size_t at)
{
    size_t length;
    uint32_t c = utf8_decode(string->bytes + at, &length);
    if (c == '\r' && string->bytes[at + 1] == '\n')
        return 2;
    bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
                c == 0x2029;
    return ends ? length : 0;
}

struct list *strings_lines(struct run *run, const struct string *string, bool keep)
{
    struct list *lines = value_new_list(&run->heap, 0);
    size_t begin = 0, length;
    heap_work(&run->heap, string->length);
    for (size_t at = 0; at < string->length; at += length) {
        size_t end = line_end(string, at);
        utf8_decode(string->bytes + at, &length);
        if (end == 0)
            continue;
        length = end;
        size_t stop = at + (keep ? end : 0);
        value_push(&run->heap, lines, value_part(&run->heap, string, begin, stop));
        begin = at + end;
    }
    if (begin < string->length)
        value_push(&run->heap, lines, value_part(&run->heap, string, begin, string->length));
    return lines;
}

struct value strings_padded(struct run *run, const struct string *string, int64_t width,
                            const struct string *fill, char align)
{
    if (fill && fill->characters != 1)
        heap_fail(&run->heap, ERROR_INVALID,
                  "the fill character must be exactly one character long");
    if (width <= (int64_t)string->characters)
        return value_of((struct string *)string);
    int64_t pad = width - (int64_t)string->characters;
    int64_t before = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & width & 1);
    struct output own, *outer = output_begin(run, &own);
    for (int64_t i = 0; i < pad; i++) {
        if (i == before)
            output_string(run, string);
        fill ? output_string(run, fill) : output_own(run, " ", 1);
    }
    if (before >= pad)
        output_string(run, string);
    return output_take(run, outer);
}

struct value strings_joined(struct run *run, const struct list *items, const struct string *between,
                            bool any)
{
    struct output own, *before = output_begin(run, &own);
    for (size_t i = 0; i < items->count; i++) {
        if (i > 0)
            output_string(run, between);
        if (!any && items->items[i].kind != VALUE_STRING)
            heap_fail(&run->heap, ERROR_INVALID, "join: expected strings, item %zu is a %s", i,
                      value_type(items->items[i]));
        print_value(run, items->items[i]);
    }
    return output_take(run, before);
}

const struct string *strings_given(struct run *run, struct value value, const char *what)
{
    if (value.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", value.string->bytes);
    if (value.kind != VALUE_STRING)
        heap_fail(&run->heap, ERROR_INVALID, "%s: expected a string, got a %s", what,
                  value_type(value));
    return value.string;
}

int64_t strings_given_int(struct run *run, struct value value, int64_t absent, const char *what)
{
    if (value.kind == VALUE_MISSING)
        return absent;
    if (!value_is_int(value))
        heap_fail(&run->heap, ERROR_INVALID, "%s: expected an integer, got a %s", what,
                  value_type(value));
    return value_as_int(value);
}
