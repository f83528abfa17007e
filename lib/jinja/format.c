/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/format.h"

#include "lib/jinja/characters.h"
#include "lib/jinja/print.h"
#include "lib/text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WIDTH = 10000, MOST_PRECISION = 100 };

/* How one value is to be written. */
struct spec {
    char align;                   /* < > ^ =; 0: by the kind of value */
    char sign;                    /* + - or space; 0: - */
    char type;                    /* 0: none is said */
    char fill[5];                 /* one character; "": a space */
    const struct string *fill_of; /* the string that has it at byte fill_at; NULL: it is ours */
    size_t fill_at;
    bool alternate; /* # */
    bool commas;    /* of thousands */
    int width;      /* 0: none */
    int precision;  /* -1: none */
};

static _Noreturn void refuse(struct run *run, const struct string *format)
{
    heap_fail(&run->heap, ERROR_INVALID, "the format \"%.60s\" is not supported", format->bytes);
}

static void write_fill(struct run *run, const struct spec *spec, size_t times)
{
    const char *fill = spec->fill[0] ? spec->fill : " ";
    for (size_t i = 0; i < times; i++)
        if (spec->fill_of)
            output_for(run, spec->fill_of, spec->fill_at, fill, strlen(fill));
        else
            print_text(run, fill);
}

/* Writes sign, prefix and body with what pads them. string: what begins with the body; NULL: it is
 * a number. */
static void write_padded(struct run *run, const struct spec *spec, const char *sign,
                         const char *body, size_t length, const struct string *string)
{
    heap_work(&run->heap, length);
    size_t used = strlen(sign) + utf8_characters(body, length);
    size_t pad = (size_t)spec->width > used ? (size_t)spec->width - used : 0;
    char align = spec->align ? spec->align : string ? '<' : '>';
    size_t before = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align == '=')
        print_text(run, sign);
    write_fill(run, spec, before);
    if (align != '=')
        print_text(run, sign);
    if (string)
        output_part(run, string, 0, length);
    else
        output_own(run, body, length);
    write_fill(run, spec, pad - before);
}

/* The sign of a number; "0x" and its kin behind it. */
static void make_sign(char text[4], const struct spec *spec, bool negative, const char *prefix)
{
    char sign = negative ? '-' : spec->sign == '-' ? 0 : spec->sign;
    snprintf(text, 4, "%.1s%s", (char[]){sign, 0}, spec->alternate ? prefix : "");
}

/* Puts a comma between thousands of the integer part. */
static void add_commas(char *text, size_t size)
{
    size_t whole = strspn(text, "0123456789"), length = strlen(text);
    for (size_t at = whole; at > 3;) {
        at -= 3;
        if (length + 2 > size)
            return;
        memmove(text + at + 1, text + at, length - at + 1);
        text[at] = ',';
        length++;
    }
}

static void write_int(struct run *run, const struct spec *spec, int64_t number)
{
    char text[96], sign[4];
    uint64_t size = number < 0 ? -(uint64_t)number : (uint64_t)number;
    switch (spec->type) {
    case 'x':
        snprintf(text, sizeof text, "%" PRIx64, size);
        break;
    case 'X':
        snprintf(text, sizeof text, "%" PRIX64, size);
        break;
    case 'o':
        snprintf(text, sizeof text, "%" PRIo64, size);
        break;
    default:
        snprintf(text, sizeof text, "%" PRIu64, size);
    }
    bool decimal = spec->type != 'x' && spec->type != 'X' && spec->type != 'o';
    make_sign(sign, spec, number < 0,
              decimal             ? ""
              : spec->type == 'o' ? "0o"
                                  : (char[]){'0', spec->type, 0});
    if (spec->commas && decimal)
        add_commas(text, sizeof text);
    write_padded(run, spec, sign, text, strlen(text), NULL);
}

static void write_float(struct run *run, const struct spec *spec, double number)
{
    char text[640] = "", sign[4], pattern[] = "%.*f";
    int precision = spec->precision < 0 ? 6 : spec->precision;
    double size = fabs(number);
    bool percent = spec->type == '%';
    if (!isfinite(number)) {
        bool capitals = spec->type == 'F' || spec->type == 'E' || spec->type == 'G';
        snprintf(text, sizeof text, "%s",
                 isnan(number) ? (capitals ? "NAN" : "nan") : (capitals ? "INF" : "inf"));
    } else if (spec->type) {
        pattern[3] = percent ? 'f' : spec->type;
        snprintf(text, sizeof text, pattern, precision, percent ? size * 100 : size);
    } else if (spec->precision >= 0) {
        heap_fail(&run->heap, ERROR_INVALID, "a precision without a type is not supported");
    } else {
        print_float(text, size);
    }
    if (spec->commas)
        add_commas(text, sizeof text);
    const size_t length = strlen(text);
    if (percent)
        snprintf(text + length, sizeof text - length, "%%");
    make_sign(sign, spec, signbit(number) && !isnan(number), "");
    write_padded(run, spec, sign, text, strlen(text), NULL);
}

static void write_string(struct run *run, const struct spec *spec, const struct string *string)
{
    size_t length = string->length;
    if (spec->precision >= 0 && (size_t)spec->precision < string->characters) {
        length = 0;
        for (int i = 0; i < spec->precision; i++) {
            size_t bytes;
            utf8_decode(string->bytes + length, &bytes);
            length += bytes;
        }
    }
    write_padded(run, spec, "", string->bytes, length, string);
}

/* A number of the format, at *at; -1: there is none. */
static int take_int(struct run *run, const struct string *format, size_t *at, int most)
{
    int number = -1;
    for (; characters_is_digit(format->bytes[*at]); (*at)++) {
        number = (number < 0 ? 0 : number) * 10 + (format->bytes[*at] - '0');
        if (number > most)
            refuse(run, format);
    }
    return number;
}

/* Percent. */

struct percent {
    const struct string *format;
    size_t at;
    struct value values;
    size_t taken;
};

static struct value next_value(struct run *run, struct percent *p)
{
    if (p->format->bytes[p->at] == '(') {
        const char *begin = p->format->bytes + p->at + 1, *end = strchr(begin, ')');
        if (!end || p->values.kind != VALUE_DICT)
            heap_fail(&run->heap, ERROR_INVALID, "format requires a mapping");
        struct value key = value_of(value_own(&run->heap, begin, (size_t)(end - begin)));
        const struct value *found = value_find(&run->heap, p->values.dict, key);
        if (!found)
            heap_fail(&run->heap, ERROR_INVALID, "format: there is no key '%.60s'",
                      key.string->bytes);
        p->at += (size_t)(end - begin) + 2;
        p->taken = SIZE_MAX;
        return *found;
    }
    return (struct value){.kind = VALUE_MISSING};
}

static struct value positional(struct run *run, struct percent *p)
{
    bool tuple = p->values.kind == VALUE_TUPLE;
    size_t count = tuple ? p->values.list->count : 1;
    if (p->taken >= count)
        heap_fail(&run->heap, ERROR_INVALID, "not enough arguments for format string");
    return tuple ? p->values.list->items[p->taken++] : (p->taken++, p->values);
}

static void take_flags(struct percent *p, struct spec *spec)
{
    for (;; p->at++) {
        switch (p->format->bytes[p->at]) {
        case '-':
            spec->align = '<';
            break;
        case '+':
            spec->sign = '+';
            break;
        case ' ':
            spec->sign = spec->sign ? spec->sign : ' ';
            break;
        case '0':
            spec->fill[0] = '0';
            break;
        case '#':
            spec->alternate = true;
            break;
        default:
            return;
        }
    }
}

static void write_percent(struct run *run, struct percent *p, struct spec *spec, struct value value)
{
    struct value text;
    bool number = strchr("diuxXofFeEgG", spec->type) != NULL;
    if (number && !value_is_number(value))
        heap_fail(&run->heap, ERROR_INVALID, "%%%c format: a real number is required, not %s",
                  spec->type, value_type(value));
    if (spec->fill[0] && (!number || spec->align))
        spec->fill[0] = 0;
    else if (spec->fill[0])
        spec->align = '=';
    if (strchr("diu", spec->type) && value.kind == VALUE_FLOAT) {
        if (!(fabs(value.real) < 9e18))
            refuse(run, p->format);
        value = value_int((int64_t)value.real);
    }
    if (strchr("xXo", spec->type) && value.kind == VALUE_FLOAT)
        heap_fail(&run->heap, ERROR_INVALID, "%%%c format: an integer is required, not float",
                  spec->type);
    if (number && strchr("diuxXo", spec->type)) {
        if (spec->precision >= 0)
            refuse(run, p->format);
        write_int(run, spec, value_as_int(value));
        return;
    }
    if (number && spec->alternate)
        refuse(run, p->format);
    if (number) {
        write_float(run, spec, value_as_float(value));
        return;
    }
    struct output own, *before = output_begin(run, &own);
    if (spec->type == 'r')
        print_repr(run, value);
    else
        print_value(run, value);
    text = output_take(run, before);
    if (!spec->align)
        spec->align = '>';
    write_string(run, spec, text.string);
}

static void take_percent(struct run *run, struct percent *p)
{
    struct spec spec = {.precision = -1};
    const char *bytes = p->format->bytes;
    struct value value = next_value(run, p);
    take_flags(p, &spec);
    spec.width = take_int(run, p->format, &p->at, MOST_WIDTH);
    spec.width = spec.width < 0 ? 0 : spec.width;
    if (bytes[p->at] == '.') {
        p->at++;
        spec.precision = take_int(run, p->format, &p->at, MOST_PRECISION);
        spec.precision = spec.precision < 0 ? 0 : spec.precision;
    }
    spec.type = bytes[p->at];
    if (!spec.type || !strchr("diuxXofFeEgGsr%", spec.type))
        refuse(run, p->format);
    p->at++;
    if (spec.type == '%') {
        print_text(run, "%");
        return;
    }
    if (value.kind == VALUE_MISSING)
        value = positional(run, p);
    write_percent(run, p, &spec, value);
}

struct value format_percent(struct run *run, const struct string *format, struct value values)
{
    struct percent p = {.format = format, .values = values};
    struct output own, *before = output_begin(run, &own);
    if (format->markup)
        refuse(run, format);
    while (p.at < format->length) {
        heap_work(&run->heap, 0);
        const char *sign = memchr(format->bytes + p.at, '%', format->length - p.at);
        size_t end = sign ? (size_t)(sign - format->bytes) : format->length;
        output_part(run, format, p.at, end);
        p.at = end;
        if (sign) {
            p.at++;
            take_percent(run, &p);
        }
    }
    bool tuple = values.kind == VALUE_TUPLE;
    bool all = tuple ? p.taken >= values.list->count
                     : p.taken > 0 || values.kind == VALUE_DICT || values.kind == VALUE_LIST ||
                           values.kind == VALUE_RANGE || values.kind == VALUE_UNDEFINED;
    if (!all)
        heap_fail(&run->heap, ERROR_INVALID,
                  "not all arguments converted during string formatting");
    return output_take(run, before);
}

/* Braces. */

/* A format_spec, from *at to its closing brace. */
static struct spec take_spec(struct run *run, const struct string *format, size_t *at)
{
    static const char ALIGNS[] = "<>^=";
    struct spec spec = {.precision = -1};
    const char *bytes = format->bytes;
    size_t first = 0;
    if (bytes[*at] && bytes[*at] != '}')
        utf8_decode(bytes + *at, &first);
    if (first && bytes[*at + first] && strchr(ALIGNS, bytes[*at + first])) {
        memcpy(spec.fill, bytes + *at, first);
        spec.fill_of = format;
        spec.fill_at = *at;
        spec.align = bytes[*at + first];
        *at += first + 1;
    } else if (bytes[*at] && strchr(ALIGNS, bytes[*at])) {
        spec.align = bytes[(*at)++];
    }
    if (bytes[*at] == '+' || bytes[*at] == '-' || bytes[*at] == ' ')
        spec.sign = bytes[(*at)++];
    if (bytes[*at] == '#') {
        spec.alternate = true;
        (*at)++;
    }
    if (bytes[*at] == '0' && !spec.align) {
        spec.fill[0] = '0';
        spec.align = '=';
        (*at)++;
    }
    spec.width = take_int(run, format, at, MOST_WIDTH);
    spec.width = spec.width < 0 ? 0 : spec.width;
    if (bytes[*at] == ',') {
        spec.commas = true;
        (*at)++;
    }
    if (bytes[*at] == '.') {
        (*at)++;
        if ((spec.precision = take_int(run, format, at, MOST_PRECISION)) < 0)
            refuse(run, format);
    }
    if (bytes[*at] && bytes[*at] != '}')
        spec.type = bytes[(*at)++];
    return spec;
}

/* The value that a replacement field names. */
static struct value field_value(struct run *run, const struct string *format, size_t *at,
                                const struct args *args, int *automatic)
{
    const char *bytes = format->bytes;
    size_t begin = *at;
    if (characters_is_digit(bytes[begin])) {
        int index = take_int(run, format, at, MOST_WIDTH);
        if (*automatic > 0 || (size_t)index >= args->count)
            refuse(run, format);
        *automatic = -1;
        return args->items[index];
    }
    while (characters_in_name(bytes[*at]))
        (*at)++;
    if (*at == begin) {
        if (*automatic < 0 || (size_t)*automatic >= args->count)
            refuse(run, format);
        return args->items[(*automatic)++];
    }
    for (size_t i = 0; i < args->num_named; i++)
        if (args->named[i].name->length == *at - begin &&
            memcmp(args->named[i].name->bytes, bytes + begin, *at - begin) == 0)
            return args->named[i].value;
    refuse(run, format);
}

static void write_braces(struct run *run, const struct string *format, struct spec *spec,
                         struct value value)
{
    bool plain = !spec->align && !spec->sign && !spec->type && !spec->alternate && !spec->commas &&
                 !spec->width && spec->precision < 0;
    if (plain) {
        print_value(run, value);
        return;
    }
    bool ints = spec->type && strchr("dxXo", spec->type);
    bool floats = spec->type && strchr("fFeEgG%", spec->type);
    if (spec->type && !ints && !floats && spec->type != 's')
        refuse(run, format);
    if (value.kind == VALUE_STRING && !ints && !floats && !spec->sign && !spec->alternate &&
        !spec->commas && spec->align != '=') {
        write_string(run, spec, value.string);
        return;
    }
    bool is_int = value.kind == VALUE_INT || (value.kind == VALUE_BOOL && spec->type);
    if (is_int && !floats && spec->type != 's' && spec->precision < 0)
        write_int(run, spec, value_as_int(value));
    else if ((value.kind == VALUE_FLOAT || is_int) && !ints && spec->type != 's' &&
             !spec->alternate)
        write_float(run, spec, value_as_float(value));
    else
        refuse(run, format);
}

static void take_field(struct run *run, const struct string *format, size_t *at,
                       const struct args *args, int *automatic)
{
    struct spec spec = {.precision = -1};
    struct value value = field_value(run, format, at, args, automatic);
    const char *bytes = format->bytes;
    if (bytes[*at] == '!' && (bytes[*at + 1] == 's' || bytes[*at + 1] == 'r')) {
        struct output own, *before = output_begin(run, &own);
        if (bytes[*at + 1] == 'r')
            print_repr(run, value);
        else
            print_value(run, value);
        value = output_take(run, before);
        *at += 2;
    }
    if (bytes[*at] == ':') {
        (*at)++;
        spec = take_spec(run, format, at);
    }
    if (bytes[*at] != '}')
        refuse(run, format);
    (*at)++;
    write_braces(run, format, &spec, value);
}

struct value format_braces(struct run *run, const struct string *format, const struct args *args)
{
    int automatic = 0; /* the next field without a number; -1: they have numbers */
    struct output own, *before = output_begin(run, &own);
    for (size_t at = 0; at < format->length;) {
        char c = format->bytes[at++];
        if ((c == '{' || c == '}') && format->bytes[at] == c)
            at++;
        else if (c == '{') {
            take_field(run, format, &at, args, &automatic);
            continue;
        } else if (c == '}') {
            refuse(run, format);
        }
        output_part(run, format, at - 1, at);
    }
    return output_take(run, before);
}
