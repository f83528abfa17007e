/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of Python's str. */
#include "lib/jinja/access.h"
#include "lib/jinja/builtins.h"
#include "lib/jinja/characters.h"
#include "lib/jinja/format.h"
#include "lib/jinja/search.h"
#include "lib/jinja/strings.h"
#include "lib/text/unicode.h"

#include <string.h>

static struct value text_of(struct run *run, const struct string *string, size_t begin, size_t end)
{
    return value_part(&run->heap, string, begin, end);
}

static BUILTIN(upper)
{
    BUILTIN_UNUSED;
    return strings_cased(run, self.string, STRINGS_UPPER);
}

static BUILTIN(lower)
{
    BUILTIN_UNUSED;
    return strings_cased(run, self.string, STRINGS_LOWER);
}

static BUILTIN(capitalize)
{
    BUILTIN_UNUSED;
    return strings_cased(run, self.string, STRINGS_CAPITALIZE);
}

static BUILTIN(swapcase)
{
    BUILTIN_UNUSED;
    return strings_cased(run, self.string, STRINGS_SWAP);
}

static BUILTIN(title)
{
    BUILTIN_UNUSED;
    struct output own, *before = output_begin(run, &own);
    bool inside = false;
    for (size_t at = 0, length; at < self.string->length; at += length) {
        uint32_t out[3], c = utf8_decode(self.string->bytes + at, &length);
        bool cased = characters_is_upper(c) || characters_is_lower(c) || characters_is_alpha(c);
        int count = inside ? strings_case_at(self.string, at, STRINGS_LOWER, out)
                           : characters_title(c, out);
        strings_write_for(run, self.string, at, out, count);
        inside = cased;
    }
    return output_take(run, before);
}

static struct value strip_with(struct run *run, struct value self, struct value chars, bool left,
                               bool right)
{
    bool none = chars.kind == VALUE_MISSING || chars.kind == VALUE_NONE;
    return strings_stripped(run, self.string, none ? NULL : strings_given(run, chars, "strip"),
                            left, right);
}

static BUILTIN(strip)
{
    BUILTIN_UNUSED;
    return strip_with(run, self, given[0], true, true);
}

static BUILTIN(lstrip)
{
    BUILTIN_UNUSED;
    return strip_with(run, self, given[0], true, false);
}

static BUILTIN(rstrip)
{
    BUILTIN_UNUSED;
    return strip_with(run, self, given[0], false, true);
}

/* The part [*begin, *end) of the string, in bytes, that slice bounds name. False: there is none. */
static bool window(struct run *run, const struct string *string, const struct value *bounds,
                   size_t *begin, size_t *end)
{
    int64_t count = (int64_t)string->characters, limits[2] = {0, count};
    for (int i = 0; i < 2; i++) {
        if (bounds[i].kind == VALUE_NONE)
            continue;
        int64_t bound = strings_given_int(run, bounds[i], limits[i], "a bound");
        bound = bound < 0 ? bound + count : bound;
        limits[i] = bound < 0 ? 0 : bound;
    }
    if (limits[1] > count)
        limits[1] = count;
    if (limits[0] > limits[1])
        return false;
    *begin = access_offset(run, string, (size_t)limits[0]);
    *end = access_offset(run, string, (size_t)limits[1]);
    return true;
}

static bool matches(struct run *run, const struct string *string, struct value part, size_t begin,
                    size_t end, bool at_end)
{
    const struct string *wanted = strings_given(run, part, at_end ? "endswith" : "startswith");
    bool fits = wanted->length <= end - begin;
    heap_work(&run->heap, fits ? wanted->length : 0);
    if (!fits)
        return false;
    size_t at = at_end ? end - wanted->length : begin;
    return memcmp(string->bytes + at, wanted->bytes, wanted->length) == 0;
}

static struct value begins_or_ends(struct run *run, struct value self, const struct value *given,
                                   bool at_end)
{
    size_t begin, end;
    if (!window(run, self.string, given + 1, &begin, &end))
        return value_bool(false);
    if (given[0].kind != VALUE_TUPLE)
        return value_bool(matches(run, self.string, given[0], begin, end, at_end));
    for (size_t i = 0; i < given[0].list->count; i++)
        if (matches(run, self.string, given[0].list->items[i], begin, end, at_end))
            return value_bool(true);
    return value_bool(false);
}

static BUILTIN(startswith)
{
    BUILTIN_UNUSED;
    return begins_or_ends(run, self, given, false);
}

static BUILTIN(endswith)
{
    BUILTIN_UNUSED;
    return begins_or_ends(run, self, given, true);
}

/* The index of the part, or -1. */
static int64_t position(struct run *run, struct value self, const struct value *given, bool last)
{
    const struct string *part = strings_given(run, given[0], "find");
    size_t begin, end;
    if (!window(run, self.string, given + 1, &begin, &end))
        return -1;
    search_charge(run, part, begin, end);
    size_t at = last ? search_last(run, self.string, part, begin, end)
                     : search_first(run, self.string, part, begin, end);
    if (at == SIZE_MAX)
        return -1;
    heap_work(&run->heap, at);
    return (int64_t)utf8_characters(self.string->bytes, at);
}

static BUILTIN(find)
{
    BUILTIN_UNUSED;
    return value_int(position(run, self, given, false));
}

static BUILTIN(rfind)
{
    BUILTIN_UNUSED;
    return value_int(position(run, self, given, true));
}

static struct value index_or_fail(struct run *run, int64_t at)
{
    if (at < 0)
        heap_fail(&run->heap, ERROR_INVALID, "substring not found");
    return value_int(at);
}

static BUILTIN(first_index_of)
{
    BUILTIN_UNUSED;
    return index_or_fail(run, position(run, self, given, false));
}

static BUILTIN(last_index_of)
{
    BUILTIN_UNUSED;
    return index_or_fail(run, position(run, self, given, true));
}

static BUILTIN(count)
{
    BUILTIN_UNUSED;
    const struct string *part = strings_given(run, given[0], "count");
    size_t begin, end;
    int64_t found = 0;
    if (!window(run, self.string, given + 1, &begin, &end))
        return value_int(0);
    search_charge(run, part, begin, end);
    if (part->length == 0)
        return value_int((int64_t)utf8_characters(self.string->bytes + begin, end - begin) + 1);
    while ((begin = search_first(run, self.string, part, begin, end)) != SIZE_MAX) {
        found++;
        begin += part->length;
    }
    return value_int(found);
}

static BUILTIN(replace)
{
    BUILTIN_UNUSED;
    return strings_replaced(run, self.string, strings_given(run, given[0], "replace"),
                            strings_given(run, given[1], "replace"),
                            strings_given_int(run, given[2], -1, "replace"));
}

/* Splitting. */

/* The end of the piece of white space, or of other text, that begins at `at`. */
static size_t run_end(const struct string *string, size_t at, bool space)
{
    size_t length;
    while (at < string->length &&
           characters_is_space(utf8_decode(string->bytes + at, &length)) == space)
        at += length;
    return at;
}

static struct list *split_at_space(struct run *run, const struct string *string, int64_t most)
{
    heap_work(&run->heap, string->length);
    struct list *parts = value_new_list(&run->heap, 0);
    size_t at = run_end(string, 0, true);
    while (at < string->length) {
        size_t end = most == 0 ? string->length : run_end(string, at, false);
        value_push(&run->heap, parts, text_of(run, string, at, end));
        at = most == 0 ? string->length : run_end(string, end, true);
        most -= most > 0;
    }
    return parts;
}

static size_t run_begin(const struct string *string, size_t end, bool space)
{
    size_t length;
    while (end > 0) {
        size_t start = utf8_previous(string->bytes, end);
        if (characters_is_space(utf8_decode(string->bytes + start, &length)) != space)
            break;
        end = start;
    }
    return end;
}

static struct list *reversed(struct run *run, const struct list *list)
{
    struct list *other = value_new_list(&run->heap, list->count);
    for (size_t i = list->count; i-- > 0;)
        value_push(&run->heap, other, list->items[i]);
    return other;
}

static struct list *rsplit_at_space(struct run *run, const struct string *string, int64_t most)
{
    heap_work(&run->heap, string->length);
    struct list *parts = value_new_list(&run->heap, 0);
    size_t end = run_begin(string, string->length, true);
    while (end > 0) {
        size_t start = most == 0 ? 0 : run_begin(string, end, false);
        value_push(&run->heap, parts, text_of(run, string, start, end));
        end = most == 0 ? 0 : run_begin(string, start, true);
        most -= most > 0;
    }
    return reversed(run, parts);
}

static const struct string *separator(struct run *run, struct value given)
{
    const struct string *between = strings_given(run, given, "split");
    if (between->length == 0)
        heap_fail(&run->heap, ERROR_INVALID, "empty separator");
    return between;
}

/* Negative: any number. */
static int64_t most_splits(struct run *run, struct value given)
{
    int64_t most = strings_given_int(run, given, -1, "maxsplit");
    return most < 0 ? -1 : most;
}

static BUILTIN(split)
{
    BUILTIN_UNUSED;
    int64_t most = most_splits(run, given[1]);
    if (given[0].kind == VALUE_MISSING || given[0].kind == VALUE_NONE)
        return value_list(VALUE_LIST, split_at_space(run, self.string, most));
    const struct string *between = separator(run, given[0]);
    struct list *parts = value_new_list(&run->heap, 0);
    size_t at = 0, found, length = self.string->length;
    search_charge(run, between, 0, length);
    while (most-- != 0 &&
           (found = search_first(run, self.string, between, at, length)) != SIZE_MAX) {
        value_push(&run->heap, parts, text_of(run, self.string, at, found));
        at = found + between->length;
    }
    value_push(&run->heap, parts, text_of(run, self.string, at, self.string->length));
    return value_list(VALUE_LIST, parts);
}

static BUILTIN(rsplit)
{
    BUILTIN_UNUSED;
    int64_t most = most_splits(run, given[1]);
    if (given[0].kind == VALUE_MISSING || given[0].kind == VALUE_NONE)
        return value_list(VALUE_LIST, rsplit_at_space(run, self.string, most));
    const struct string *between = separator(run, given[0]);
    struct list *parts = value_new_list(&run->heap, 0);
    size_t end = self.string->length, found;
    search_charge(run, between, 0, end);
    while (most-- != 0 && (found = search_last(run, self.string, between, 0, end)) != SIZE_MAX) {
        value_push(&run->heap, parts, text_of(run, self.string, found + between->length, end));
        end = found;
    }
    value_push(&run->heap, parts, text_of(run, self.string, 0, end));
    return value_list(VALUE_LIST, reversed(run, parts));
}

static struct value partition_at(struct run *run, struct value self, struct value given, bool last)
{
    const struct string *between = separator(run, given), *string = self.string;
    struct list *parts = value_new_list(&run->heap, 3);
    search_charge(run, between, 0, string->length);
    size_t at = last ? search_last(run, string, between, 0, string->length)
                     : search_first(run, string, between, 0, string->length);
    struct value nothing = value_text(&run->heap, "");
    if (at == SIZE_MAX) {
        for (int i = 0; i < 3; i++)
            value_push(&run->heap, parts, i == (last ? 2 : 0) ? self : nothing);
    } else {
        value_push(&run->heap, parts, text_of(run, string, 0, at));
        /* What the string has there, not the argument: it came from elsewhere. */
        struct value found = value_part(&run->heap, string, at, at + between->length);
        found.string->markup = value_is_markup(given);
        value_push(&run->heap, parts, found);
        value_push(&run->heap, parts, text_of(run, string, at + between->length, string->length));
    }
    return value_list(VALUE_TUPLE, parts);
}

static BUILTIN(partition)
{
    BUILTIN_UNUSED;
    return partition_at(run, self, given[0], false);
}

static BUILTIN(rpartition)
{
    BUILTIN_UNUSED;
    return partition_at(run, self, given[0], true);
}

static BUILTIN(splitlines)
{
    BUILTIN_UNUSED;
    return value_list(VALUE_LIST, strings_lines(run, self.string, value_true(given[0])));
}

static BUILTIN(join)
{
    BUILTIN_UNUSED;
    return strings_joined(run, value_items(&run->heap, given[0]), self.string, false);
}

static BUILTIN(removeprefix)
{
    BUILTIN_UNUSED;
    size_t length = self.string->length;
    bool has = matches(run, self.string, given[0], 0, length, false);
    return has ? text_of(run, self.string, given[0].string->length, length) : self;
}

static BUILTIN(removesuffix)
{
    BUILTIN_UNUSED;
    size_t length = self.string->length;
    bool has = matches(run, self.string, given[0], 0, length, true);
    return has ? text_of(run, self.string, 0, length - given[0].string->length) : self;
}

/* Padding. */

static struct value padded(struct run *run, struct value self, const struct value *given,
                           char align)
{
    const struct string *fill =
        given[1].kind == VALUE_MISSING ? NULL : strings_given(run, given[1], "fill");
    return strings_padded(run, self.string, strings_given_int(run, given[0], 0, "width"), fill,
                          align);
}

static BUILTIN(center)
{
    BUILTIN_UNUSED;
    return padded(run, self, given, '^');
}

static BUILTIN(ljust)
{
    BUILTIN_UNUSED;
    return padded(run, self, given, '<');
}

static BUILTIN(rjust)
{
    BUILTIN_UNUSED;
    return padded(run, self, given, '>');
}

static BUILTIN(zfill)
{
    BUILTIN_UNUSED;
    int64_t width = strings_given_int(run, given[0], 0, "zfill");
    int64_t characters = (int64_t)self.string->characters;
    bool sign = self.string->bytes[0] == '-' || self.string->bytes[0] == '+';
    struct output own, *before = output_begin(run, &own);
    output_part(run, self.string, 0, sign);
    for (; characters < width; characters++)
        output_own(run, "0", 1);
    output_part(run, self.string, sign, self.string->length);
    return output_take(run, before);
}

/* Questions. */

enum { TABLE_WORK = 2 }; /* to look a character up takes as long as so many bytes more */

static struct value all(struct run *run, struct value self, bool (*is)(uint32_t c))
{
    heap_work(&run->heap, TABLE_WORK * self.string->length);
    for (size_t at = 0, length; at < self.string->length; at += length)
        if (!is(utf8_decode(self.string->bytes + at, &length)))
            return value_bool(false);
    return value_bool(self.string->length > 0);
}

static bool is_alphanumeric(uint32_t c)
{
    return characters_is_alpha(c) || characters_is_numeric(c);
}

static bool is_ascii(uint32_t c)
{
    return c < 0x80;
}

static BUILTIN(all_alpha)
{
    BUILTIN_UNUSED;
    return all(run, self, characters_is_alpha);
}

static BUILTIN(all_alnum)
{
    BUILTIN_UNUSED;
    return all(run, self, is_alphanumeric);
}

static BUILTIN(all_decimal)
{
    BUILTIN_UNUSED;
    return all(run, self, characters_is_decimal);
}

static BUILTIN(all_digit)
{
    BUILTIN_UNUSED;
    return all(run, self, characters_is_digit_of);
}

static BUILTIN(all_numeric)
{
    BUILTIN_UNUSED;
    return all(run, self, characters_is_numeric);
}

static BUILTIN(all_space)
{
    BUILTIN_UNUSED;
    return all(run, self, characters_is_space);
}

static BUILTIN(all_ascii)
{
    BUILTIN_UNUSED;
    return self.string->length == 0 ? value_bool(true) : all(run, self, is_ascii);
}

/* Whether it has letters of that case, and none of the other. */
static struct value one_case(struct run *run, struct value self, bool (*is)(uint32_t),
                             bool (*other)(uint32_t))
{
    bool found = false;
    heap_work(&run->heap, 2 * TABLE_WORK * self.string->length);
    for (size_t at = 0, length; at < self.string->length; at += length) {
        uint32_t c = utf8_decode(self.string->bytes + at, &length);
        if (other(c))
            return value_bool(false);
        found |= is(c);
    }
    return value_bool(found);
}

static BUILTIN(only_upper)
{
    BUILTIN_UNUSED;
    return one_case(run, self, characters_is_upper, characters_is_lower);
}

static BUILTIN(only_lower)
{
    BUILTIN_UNUSED;
    return one_case(run, self, characters_is_lower, characters_is_upper);
}

static BUILTIN(all_printable)
{
    BUILTIN_UNUSED;
    return self.string->length == 0 ? value_bool(true) : all(run, self, characters_is_printable);
}

/* Whether capitals begin what other letters continue, and there are some. */
static BUILTIN(only_titles)
{
    BUILTIN_UNUSED;
    bool found = false, inside = false;
    heap_work(&run->heap, 2 * TABLE_WORK * self.string->length);
    for (size_t at = 0, length; at < self.string->length; at += length) {
        uint32_t c = utf8_decode(self.string->bytes + at, &length), title[3];
        bool is_title = characters_title(c, title) == 1 && title[0] == c && !characters_is_lower(c);
        bool capital = characters_is_upper(c) ||
                       (is_title && characters_lower(c, title) == 1 && title[0] != c);
        bool small = !capital && characters_is_lower(c);
        if ((capital && inside) || (small && !inside))
            return value_bool(false);
        found |= capital || small;
        inside = capital || small;
    }
    return value_bool(found);
}

static BUILTIN(format)
{
    BUILTIN_UNUSED;
    return format_braces(run, self.string, args);
}

static BUILTIN(unsupported)
{
    BUILTIN_UNUSED;
    heap_fail(&run->heap, ERROR_INVALID, "this method of str is not supported");
}

const struct builtin builtins_string_methods[] = {
    {"upper", upper, "", 0},
    {"lower", lower, "", 0},
    {"capitalize", capitalize, "", 0},
    {"swapcase", swapcase, "", 0},
    {"title", title, "", 0},
    {"strip", strip, "chars", 0},
    {"lstrip", lstrip, "chars", 0},
    {"rstrip", rstrip, "chars", 0},
    {"startswith", startswith, "prefix start end", 1},
    {"endswith", endswith, "suffix start end", 1},
    {"find", find, "sub start end", 1},
    {"rfind", rfind, "sub start end", 1},
    {"index", first_index_of, "sub start end", 1},
    {"rindex", last_index_of, "sub start end", 1},
    {"count", count, "sub start end", 1},
    {"replace", replace, "old new count", 2},
    {"split", split, "sep maxsplit", 0},
    {"rsplit", rsplit, "sep maxsplit", 0},
    {"partition", partition, "sep", 1},
    {"rpartition", rpartition, "sep", 1},
    {"splitlines", splitlines, "keepends", 0},
    {"join", join, "iterable", 1},
    {"removeprefix", removeprefix, "prefix", 1},
    {"removesuffix", removesuffix, "suffix", 1},
    {"center", center, "width fillchar", 1},
    {"ljust", ljust, "width fillchar", 1},
    {"rjust", rjust, "width fillchar", 1},
    {"zfill", zfill, "width", 1},
    {"isalpha", all_alpha, "", 0},
    {"isalnum", all_alnum, "", 0},
    {"isdecimal", all_decimal, "", 0},
    {"isdigit", all_digit, "", 0},
    {"isnumeric", all_numeric, "", 0},
    {"isspace", all_space, "", 0},
    {"isascii", all_ascii, "", 0},
    {"isupper", only_upper, "", 0},
    {"islower", only_lower, "", 0},
    {"format", format, NULL, 0},
    {"format_map", unsupported, NULL, 0},
    {"casefold", unsupported, NULL, 0},
    {"encode", unsupported, NULL, 0},
    {"expandtabs", unsupported, NULL, 0},
    {"isidentifier", unsupported, NULL, 0},
    {"isprintable", all_printable, "", 0},
    {"istitle", only_titles, "", 0},
    {"maketrans", unsupported, NULL, 0},
    {"translate", unsupported, NULL, 0},
    {NULL, NULL, NULL, 0},
};
