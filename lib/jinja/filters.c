/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/filters.h"

#include "lib/jinja/access.h"
#include "lib/jinja/builtins.h"
#include "lib/jinja/characters.h"
#include "lib/jinja/format.h"
#include "lib/jinja/operators.h"
#include "lib/jinja/print.h"
#include "lib/jinja/strings.h"
#include "lib/text/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct string *text(struct run *run, struct value self)
{
    return print_to_string(run, self).string;
}

static BUILTIN(default_to)
{
    BUILTIN_UNUSED;
    bool replace = self.kind == VALUE_UNDEFINED || (value_true(given[1]) && !value_true(self));
    if (!replace)
        return self;
    return given[0].kind == VALUE_MISSING ? value_text(&run->heap, "") : given[0];
}

static BUILTIN(attr)
{
    BUILTIN_UNUSED;
    return access_attribute(run, self, strings_given(run, given[0], "attr"), true);
}

static BUILTIN(string)
{
    BUILTIN_UNUSED;
    return print_to_string(run, self);
}

static BUILTIN(upper)
{
    BUILTIN_UNUSED;
    return strings_cased(run, text(run, self), STRINGS_UPPER);
}

static BUILTIN(lower)
{
    BUILTIN_UNUSED;
    return strings_cased(run, text(run, self), STRINGS_LOWER);
}

static BUILTIN(capitalize)
{
    BUILTIN_UNUSED;
    return strings_cased(run, text(run, self), STRINGS_CAPITALIZE);
}

static BUILTIN(title)
{
    BUILTIN_UNUSED;
    const struct string *words = text(run, self);
    struct output own, *before = output_begin(run, &own);
    bool begins = true;
    for (size_t at = 0, length; at < words->length; at += length) {
        uint32_t out[3], c = utf8_decode(words->bytes + at, &length);
        bool between = characters_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
        int count = begins && !between ? characters_upper(c, out)
                                       : strings_case_at(words, at, STRINGS_LOWER, out);
        strings_write_for(run, words, at, out, count);
        begins = between;
    }
    return output_take(run, before);
}

static BUILTIN(trim)
{
    BUILTIN_UNUSED;
    bool none = given[0].kind == VALUE_MISSING || given[0].kind == VALUE_NONE;
    return strings_stripped(run, text(run, self),
                            none ? NULL : strings_given(run, given[0], "trim"), true, true);
}

static BUILTIN(replace)
{
    BUILTIN_UNUSED;
    bool all = given[2].kind == VALUE_MISSING || given[2].kind == VALUE_NONE;
    return strings_replaced(run, text(run, self), text(run, given[0]), text(run, given[1]),
                            all ? -1 : strings_given_int(run, given[2], -1, "replace"));
}

static BUILTIN(escape)
{
    BUILTIN_UNUSED;
    return operators_escaped(run, text(run, self));
}

static BUILTIN(forceescape)
{
    BUILTIN_UNUSED;
    const struct string *string = text(run, self);
    struct string *plain = value_part(&run->heap, string, 0, string->length).string;
    return operators_escaped(run, plain);
}

/* As re.findall(r"\w+") counts. */
static BUILTIN(wordcount)
{
    BUILTIN_UNUSED;
    const struct string *string = text(run, self);
    int64_t count = 0;
    bool inside = false;
    heap_work(&run->heap, string->length);
    for (size_t at = 0, length; at < string->length; at += length) {
        uint32_t c = utf8_decode(string->bytes + at, &length);
        bool is_word = c == '_' || characters_is_alpha(c) || characters_is_numeric(c);
        count += is_word && !inside;
        inside = is_word;
    }
    return value_int(count);
}

static BUILTIN(truncate)
{
    BUILTIN_UNUSED;
    const struct string *string;
    int64_t characters = value_length(self);
    int64_t most = strings_given_int(run, given[0], 255, "truncate");
    const struct string *end = given[2].kind == VALUE_MISSING
                                   ? value_text(&run->heap, "...").string
                                   : strings_given(run, given[2], "truncate");
    bool five = given[3].kind == VALUE_MISSING || given[3].kind == VALUE_NONE;
    int64_t leeway = five ? 5 : strings_given_int(run, given[3], 5, "truncate");
    int64_t kept = most - (int64_t)end->characters;
    if (kept < 0 || leeway < 0)
        heap_fail(&run->heap, ERROR_INVALID, "truncate: expected a length of at least %zu",
                  end->characters);
    if (characters >= 0 && (characters <= most || characters - most <= leeway))
        return self;
    string = strings_given(run, self, "truncate");
    size_t stop = access_offset(run, string, (size_t)kept);
    for (size_t at = stop; at > 0 && !value_true(given[1]); at--) {
        heap_work(&run->heap, 0);
        if (string->bytes[at - 1] != ' ')
            continue;
        stop = at - 1;
        break;
    }
    struct output own, *before = output_begin(run, &own);
    output_part(run, string, 0, stop);
    output_string(run, end);
    return output_take(run, before);
}

static BUILTIN(center)
{
    BUILTIN_UNUSED;
    return strings_padded(run, text(run, self), strings_given_int(run, given[0], 80, "center"),
                          NULL, '^');
}

static BUILTIN(format)
{
    BUILTIN_UNUSED;
    struct value values;
    if (args->num_named > 0 && args->count > 0)
        heap_fail(&run->heap, ERROR_INVALID, "format: values with and without names");
    if (args->num_named > 0) {
        values = (struct value){.kind = VALUE_DICT, .dict = value_new_dict(&run->heap)};
        for (size_t i = 0; i < args->num_named; i++)
            value_set(&run->heap, values.dict, value_of((struct string *)args->named[i].name),
                      args->named[i].value);
    } else {
        struct list *list = value_new_list(&run->heap, args->count);
        for (size_t i = 0; i < args->count; i++)
            value_push(&run->heap, list, args->items[i]);
        values = value_list(VALUE_TUPLE, list);
    }
    return format_percent(run, text(run, self), values);
}

static BUILTIN(indent)
{
    BUILTIN_UNUSED;
    struct value four = value_int(4), by = given[0].kind == VALUE_MISSING ? four : given[0];
    bool first = value_true(given[1]), blank = value_true(given[2]);
    strings_given(run, self, "indent");
    if (by.kind != VALUE_STRING)
        by = operators_binary(run, '*', value_text(&run->heap, " "), by);
    struct value ended = operators_binary(run, '+', self, value_text(&run->heap, "\n"));
    const struct list *lines = strings_lines(run, ended.string, false);
    struct output own, *before = output_begin(run, &own);
    for (size_t i = 0; i < lines->count; i++) {
        const struct string *line = lines->items[i].string;
        if (i > 0)
            print_text(run, "\n");
        if (i == 0 ? first : blank || line->length > 0)
            output_string(run, by.string);
        output_string(run, line);
    }
    return output_take(run, before);
}

/* Numbers. */

static BUILTIN(absolute)
{
    BUILTIN_UNUSED;
    if (!value_is_number(self))
        heap_fail(&run->heap, ERROR_INVALID, "abs: expected a number, got a %s", value_type(self));
    return value_as_float(self) < 0 ? operators_negate(run, self) : operators_plus(run, self);
}

/* The letter behind a 0 that names the base of an integer; 0: none does. */
static char letter_of(int base)
{
    return base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : 0;
}

/* Whether Python's int() or float() passes over an underscore there. */
static bool is_between(const struct string *bare, size_t at, int base, bool real)
{
    if (at == 0)
        return false;
    char before = bare->bytes[at - 1], behind = bare->bytes[at + 1];
    if (real)
        return characters_is_digit(before) && characters_is_digit(behind);
    return isalnum((unsigned char)before) && isalnum((unsigned char)behind) &&
           (behind | 0x20) != letter_of(base);
}

/* A number without underscores between its digits, and without 0b or 0o before them, which strtoll
 * does not know. NULL: it is none. */
static const char *plain_number(struct run *run, const struct string *bare, int base, bool real)
{
    bool prefix = !real && (base == 2 || base == 8);
    if (!prefix && !memchr(bare->bytes, '_', bare->length))
        return bare->bytes;
    char *plain = heap_alloc(&run->heap, bare->length + 1, 1);
    size_t used = 0;
    for (size_t i = 0; i < bare->length; i++) {
        bool underscore = bare->bytes[i] == '_';
        if (underscore && !is_between(bare, i, base, real))
            return NULL;
        if (!underscore)
            plain[used++] = bare->bytes[i];
    }
    plain[used] = 0;
    char *digits = plain + (*plain == '+' || *plain == '-');
    if (prefix && digits[0] == '0' && (digits[1] | 0x20) == letter_of(base) &&
        isalnum((unsigned char)digits[2]))
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    return plain;
}

/* A number as Python's int() or float() reads it. False: it is none. */
static bool read_number(struct run *run, const struct string *string, int base, bool real,
                        struct value *number)
{
    enum { PASSES = 8 }; /* so often such a text is gone through */
    const struct string *bare = strings_stripped(run, string, NULL, true, true).string;
    char *end;
    heap_work(&run->heap, PASSES * bare->length);
    if (bare->length == 0 || strlen(bare->bytes) != bare->length)
        return false;
    const char *plain = plain_number(run, bare, base, real);
    if (!plain || (real && strpbrk(plain, "xXpP(")))
        return false;
    errno = 0;
    *number = real ? value_float(strtod(plain, &end)) : value_int(strtoll(plain, &end, base));
    if (!real && errno == ERANGE)
        heap_fail(&run->heap, ERROR_INVALID, "integers of more than 64 bits are not supported");
    return *end == 0 && end != plain;
}

static struct value to_int(struct run *run, double number, struct value otherwise)
{
    if (!isfinite(number))
        return otherwise;
    if (!(fabs(number) < 9.2e18))
        heap_fail(&run->heap, ERROR_INVALID, "integers of more than 64 bits are not supported");
    return value_int((int64_t)number);
}

static BUILTIN(integer)
{
    BUILTIN_UNUSED;
    if (self.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", self.string->bytes);
    struct value otherwise = given[0].kind == VALUE_MISSING ? value_int(0) : given[0], number;
    int64_t base = strings_given_int(run, given[1], 10, "int");
    if (base < 2 || base > 36)
        heap_fail(&run->heap, ERROR_INVALID, "int: this base is not supported");
    if (value_is_number(self))
        return self.kind == VALUE_FLOAT ? to_int(run, self.real, otherwise)
                                        : value_int(value_as_int(self));
    if (self.kind != VALUE_STRING)
        return otherwise;
    if (read_number(run, self.string, (int)base, false, &number))
        return number;
    return read_number(run, self.string, 10, true, &number) ? to_int(run, number.real, otherwise)
                                                            : otherwise;
}

static BUILTIN(floating)
{
    BUILTIN_UNUSED;
    if (self.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", self.string->bytes);
    struct value otherwise = given[0].kind == VALUE_MISSING ? value_float(0) : given[0], number;
    if (value_is_number(self))
        return value_float(value_as_float(self));
    bool read = self.kind == VALUE_STRING && read_number(run, self.string, 10, true, &number);
    return read ? number : otherwise;
}

static BUILTIN(round_off)
{
    BUILTIN_UNUSED;
    int64_t precision = strings_given_int(run, given[0], 0, "round");
    const char *how =
        given[1].kind == VALUE_MISSING ? "common" : strings_given(run, given[1], "round")->bytes;
    if (!value_is_number(self))
        heap_fail(&run->heap, ERROR_INVALID, "round: expected a number, got a %s",
                  value_type(self));
    if (precision < 0 || precision > 20)
        heap_fail(&run->heap, ERROR_INVALID,
                  "round: a precision under 0 or over 20 is not supported");
    bool up = strcmp(how, "ceil") == 0, down = strcmp(how, "floor") == 0;
    double number = value_as_float(self), scale = pow(10, (double)precision);
    if (up || down) {
        /* Python's ceil and floor give integers, whose quotient is a float. */
        double whole = up ? ceil(number * scale) : floor(number * scale);
        return value_float(whole / scale + 0.0);
    }
    if (strcmp(how, "common") != 0)
        heap_fail(&run->heap, ERROR_INVALID, "round: expected common, ceil or floor");
    if (value_is_int(self) || !isfinite(number))
        return value_is_int(self) ? value_int(value_as_int(self)) : self;
    char digits[400];
    snprintf(digits, sizeof digits, "%.*f", (int)precision, number);
    return value_float(strtod(digits, NULL));
}

/* JSON. */

static BUILTIN(tojson)
{
    BUILTIN_UNUSED;
    struct heap *heap = &run->heap;
    struct value indent = given[1], separators = given[2], spaces = VALUE_OF_NONE;
    bool lines = indent.kind != VALUE_MISSING && indent.kind != VALUE_NONE;
    if (lines)
        spaces = indent.kind == VALUE_STRING
                     ? indent
                     : operators_binary(run, '*', value_text(heap, " "), indent);
    struct print_json how = {.indent = lines ? spaces.string : NULL,
                             .item = value_text(heap, lines ? "," : ", ").string,
                             .key = value_text(heap, ": ").string,
                             .ensure_ascii = value_true(given[0]),
                             .sort_keys = value_true(given[3])};
    if (separators.kind != VALUE_MISSING && separators.kind != VALUE_NONE) {
        const struct list *pair = value_items(heap, separators);
        if (pair->count != 2)
            heap_fail(heap, ERROR_INVALID, "tojson: expected two separators");
        how.item = strings_given(run, pair->items[0], "separators");
        how.key = strings_given(run, pair->items[1], "separators");
    }
    struct output own, *before = output_begin(run, &own);
    print_json(run, self, &how);
    return output_take(run, before);
}

static BUILTIN(safe)
{
    BUILTIN_UNUSED;
    return value_markup(&run->heap, print_to_string(run, self));
}

/* Jinja writes these with methods of Python's Markup, and the others with those of str. */
struct value filters_call(struct run *run, const struct builtin *filter, struct value self,
                          const struct args *args)
{
    static const char *const KEEP[] = {"capitalize", "center", "indent", "lower",
                                       "reverse",    "trim",   "upper"};
    struct value result = builtin_call(run, filter, self, args);
    if (value_is_markup(self))
        for (size_t i = 0; i < sizeof KEEP / sizeof *KEEP; i++)
            if (strcmp(filter->name, KEEP[i]) == 0)
                return value_markup(&run->heap, result);
    return result;
}

const struct builtin builtins_filters[] = {
    {"abs", absolute, "", 0},
    {"attr", attr, "name", 1},
    {"batch", filters_batch, "linecount fill_with", 1},
    {"capitalize", capitalize, "", 0},
    {"center", center, "width", 0},
    {"count", filters_length, "", 0},
    {"d", default_to, "default_value boolean", 0},
    {"default", default_to, "default_value boolean", 0},
    {"dictsort", filters_dictsort, "case_sensitive by reverse", 0},
    {"e", escape, "", 0},
    {"escape", escape, "", 0},
    {"first", filters_first, "", 0},
    {"float", floating, "default", 0},
    {"forceescape", forceescape, "", 0},
    {"format", format, NULL, 0},
    {"groupby", filters_groupby, "attribute default case_sensitive", 1},
    {"indent", indent, "width first blank", 0},
    {"int", integer, "default base", 0},
    {"items", filters_items, "", 0},
    {"join", filters_join, "d attribute", 0},
    {"last", filters_last, "", 0},
    {"length", filters_length, "", 0},
    {"list", filters_list, "", 0},
    {"lower", lower, "", 0},
    {"map", filters_map, NULL, 0},
    {"max", filters_max, "case_sensitive attribute", 0},
    {"min", filters_min, "case_sensitive attribute", 0},
    {"reject", filters_reject, NULL, 0},
    {"rejectattr", filters_rejectattr, NULL, 0},
    {"replace", replace, "old new count", 2},
    {"reverse", filters_reverse, "", 0},
    {"round", round_off, "precision method", 0},
    {"safe", safe, "", 0},
    {"select", filters_select, NULL, 0},
    {"selectattr", filters_selectattr, NULL, 0},
    {"slice", filters_slice, "slices fill_with", 1},
    {"sort", filters_sort, "reverse case_sensitive attribute", 0},
    {"string", string, "", 0},
    {"sum", filters_sum, "attribute start", 0},
    {"title", title, "", 0},
    {"tojson", tojson, "ensure_ascii indent separators sort_keys", 0},
    {"trim", trim, "chars", 0},
    {"truncate", truncate, "length killwords end leeway", 0},
    {"unique", filters_unique, "case_sensitive attribute", 0},
    {"upper", upper, "", 0},
    {"wordcount", wordcount, "", 0},
    {NULL, NULL, NULL, 0},
};
