/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/print.h"

#include "lib/jinja/characters.h"
#include "lib/text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As much as so many bytes: its digits are tried one after the other. */
enum { PRINT_FLOAT_WORK = 4096 };

void print_text(struct run *run, const char *text)
{
    output_own(run, text, strlen(text));
}

int print_float(char text[PRINT_FLOAT_SIZE], double number)
{
    if (isnan(number) || isinf(number))
        return snprintf(text, PRINT_FLOAT_SIZE, "%s",
                        isnan(number) ? "nan"
                        : number < 0  ? "-inf"
                                      : "inf");
    char digits[PRINT_FLOAT_SIZE];
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, number);
    while (strtod(digits, NULL) != number && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        return snprintf(text, PRINT_FLOAT_SIZE, "%.*se%c%02d", (int)(e - digits), digits,
                        exponent < 0 ? '-' : '+', abs(exponent));
    }
    int decimals = precision - exponent;
    return snprintf(text, PRINT_FLOAT_SIZE, "%.*f", decimals > 1 ? decimals : 1, number);
}

static void print_number(struct run *run, struct value value)
{
    char text[PRINT_FLOAT_SIZE];
    heap_work(&run->heap, value.kind == VALUE_FLOAT ? PRINT_FLOAT_WORK : 0);
    if (value.kind == VALUE_FLOAT)
        print_float(text, value.real);
    else
        snprintf(text, sizeof text, "%" PRId64, value.integer);
    print_text(run, text);
}

/* As repr() of a character that is not printed as it is. */
static void print_escape(struct run *run, const struct string *string, size_t at, uint32_t c)
{
    char text[16];
    const char *known = strchr("\tt\nn\rr", (int)c);
    if (c < 0x80 && c && known)
        snprintf(text, sizeof text, "\\%c", known[1]);
    else
        snprintf(text, sizeof text,
                 c < 0x100     ? "\\x%02x"
                 : c < 0x10000 ? "\\u%04x"
                               : "\\U%08x",
                 (unsigned)c);
    output_for(run, string, at, text, strlen(text));
}

static void print_quoted(struct run *run, const struct string *string)
{
    heap_work(&run->heap, string->length);
    if (string->markup)
        print_text(run, "Markup(");
    bool apostrophe = memchr(string->bytes, '\'', string->length) != NULL;
    bool quote = memchr(string->bytes, '"', string->length) != NULL;
    char around = apostrophe && !quote ? '"' : '\'';
    output_own(run, &around, 1);
    for (size_t at = 0, length; at < string->length; at += length) {
        uint32_t c = utf8_decode(string->bytes + at, &length);
        if (c == (uint32_t)around || c == '\\') {
            output_for(run, string, at, "\\", 1);
            output_part(run, string, at, at + length);
        } else if (characters_is_printable(c)) {
            output_part(run, string, at, at + length);
        } else {
            print_escape(run, string, at, c);
        }
    }
    output_own(run, &around, 1);
    if (string->markup)
        print_text(run, ")");
}

static void print_items(struct run *run, const struct list *items)
{
    for (size_t i = 0; i < items->count; i++) {
        if (i > 0)
            print_text(run, ", ");
        print_repr(run, items->items[i]);
    }
}

static void print_dict(struct run *run, const struct dict *dict)
{
    print_text(run, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0)
            print_text(run, ", ");
        print_repr(run, dict->entries[i].key);
        print_text(run, ": ");
        print_repr(run, dict->entries[i].value);
    }
    print_text(run, "}");
}

static void print_inner(struct run *run, struct value value)
{
    switch (value.kind) {
    case VALUE_UNDEFINED:
        print_text(run, "Undefined");
        break;
    case VALUE_NONE:
        print_text(run, "None");
        break;
    case VALUE_BOOL:
        print_text(run, value.truth ? "True" : "False");
        break;
    case VALUE_INT:
    case VALUE_FLOAT:
        print_number(run, value);
        break;
    case VALUE_STRING:
        print_quoted(run, value.string);
        break;
    case VALUE_LIST:
        print_text(run, "[");
        print_items(run, value.list);
        print_text(run, "]");
        break;
    case VALUE_TUPLE:
        print_text(run, "(");
        print_items(run, value.list);
        print_text(run, value.list->count == 1 ? ",)" : ")");
        break;
    case VALUE_DICT:
        print_dict(run, value.dict);
        break;
    default:
        heap_fail(&run->heap, ERROR_INVALID, "a %s as text is not supported", value_type(value));
    }
}

void print_repr(struct run *run, struct value value)
{
    heap_enter(&run->heap);
    print_inner(run, value);
    heap_leave(&run->heap);
}

void print_value(struct run *run, struct value value)
{
    if (value.kind == VALUE_STRING)
        output_string(run, value.string);
    else if (value.kind != VALUE_UNDEFINED)
        print_repr(run, value);
}

struct value print_to_string(struct run *run, struct value value)
{
    if (value.kind == VALUE_STRING)
        return value;
    struct output own, *before = output_begin(run, &own);
    print_value(run, value);
    return output_take(run, before);
}

/* JSON. */

static void json_value(struct run *run, struct value value, const struct print_json *how,
                       int level);

static void json_unicode(struct run *run, const struct string *string, size_t at, uint32_t c)
{
    char text[16];
    if (c < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    output_for(run, string, at, text, strlen(text));
}

static void json_text(struct run *run, const struct string *string, bool ensure_ascii)
{
    static const char FROM[] = "\"\\\n\r\t\f\b", TO[] = "\"\\nrtfb";
    print_text(run, "\"");
    for (size_t at = 0, length; at < string->length; at += length) {
        uint32_t c = utf8_decode(string->bytes + at, &length);
        const char *known = c && c < 0x80 ? strchr(FROM, (int)c) : NULL;
        if (known) {
            char escape[2] = {'\\', TO[known - FROM]};
            output_for(run, string, at, escape, 2);
        } else if (c < 0x20 || (ensure_ascii && c > 0x7E)) {
            json_unicode(run, string, at, c);
        } else {
            output_part(run, string, at, at + length);
        }
    }
    print_text(run, "\"");
}

static void json_newline(struct run *run, const struct print_json *how, int level)
{
    if (!how->indent)
        return;
    print_text(run, "\n");
    for (int i = 0; i < level; i++)
        output_string(run, how->indent);
}

static void json_float(struct run *run, double number)
{
    char text[PRINT_FLOAT_SIZE];
    heap_work(&run->heap, PRINT_FLOAT_WORK);
    print_float(text, number);
    print_text(run, isnan(number)   ? "NaN"
                    : isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                    : text);
}

static void json_key(struct run *run, struct value key, const struct print_json *how)
{
    if (key.kind == VALUE_STRING) {
        json_text(run, key.string, how->ensure_ascii);
        return;
    }
    if (key.kind != VALUE_NONE && !value_is_number(key))
        heap_fail(&run->heap, ERROR_INVALID, "keys must be str, int, float, bool or None, not %s",
                  value_type(key));
    print_text(run, "\"");
    json_value(run, key, how, 0);
    print_text(run, "\"");
}

/* The entries by their keys. */
static const struct dict_entry *sorted(struct run *run, const struct dict *dict)
{
    struct heap *heap = &run->heap;
    struct dict_entry *entries = heap_alloc(heap, dict->count, sizeof *entries);
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        heap_work(heap, sizeof *entries);
        for (; at > 0 && value_compare(heap, dict->entries[i].key, entries[at - 1].key, "<") < 0;
             at--) {
            heap_work(heap, 0);
            entries[at] = entries[at - 1];
        }
        entries[at] = dict->entries[i];
    }
    return entries;
}

static void json_dict(struct run *run, const struct dict *dict, const struct print_json *how,
                      int level)
{
    const struct dict_entry *entries = how->sort_keys ? sorted(run, dict) : dict->entries;
    print_text(run, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0)
            output_string(run, how->item);
        json_newline(run, how, level + 1);
        json_key(run, entries[i].key, how);
        output_string(run, how->key);
        json_value(run, entries[i].value, how, level + 1);
    }
    if (dict->count > 0)
        json_newline(run, how, level);
    print_text(run, "}");
}

static void json_list(struct run *run, const struct list *list, const struct print_json *how,
                      int level)
{
    print_text(run, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            output_string(run, how->item);
        json_newline(run, how, level + 1);
        json_value(run, list->items[i], how, level + 1);
    }
    if (list->count > 0)
        json_newline(run, how, level);
    print_text(run, "]");
}

static void json_value(struct run *run, struct value value, const struct print_json *how, int level)
{
    heap_enter(&run->heap);
    switch (value.kind) {
    case VALUE_NONE:
        print_text(run, "null");
        break;
    case VALUE_BOOL:
        print_text(run, value.truth ? "true" : "false");
        break;
    case VALUE_INT:
        print_number(run, value);
        break;
    case VALUE_FLOAT:
        json_float(run, value.real);
        break;
    case VALUE_STRING:
        json_text(run, value.string, how->ensure_ascii);
        break;
    case VALUE_LIST:
    case VALUE_TUPLE:
        json_list(run, value.list, how, level);
        break;
    case VALUE_DICT:
        json_dict(run, value.dict, how, level);
        break;
    case VALUE_UNDEFINED:
        heap_fail(&run->heap, ERROR_INVALID, "%s: it cannot be JSON", value.string->bytes);
    default:
        heap_fail(&run->heap, ERROR_INVALID, "Object of type %s is not JSON serializable",
                  value_type(value));
    }
    heap_leave(&run->heap);
}

void print_json(struct run *run, struct value value, const struct print_json *how)
{
    json_value(run, value, how, 0);
}
