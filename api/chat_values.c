/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_values.h"

#include "api/chat_formats.h"
#include "api/chat_literals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A value as it is written, as JSON. */
struct written {
    const char *text; /* [length] */
    size_t length;
};

static unsigned kind_of(struct written value)
{
    switch (*value.text) {
    case '"':
        return CHAT_STRING;
    case '{':
        return CHAT_OBJECT;
    case '[':
        return CHAT_LIST;
    case 'n':
        return CHAT_NULL;
    case 't':
    case 'f':
        return CHAT_BOOLEAN;
    default:
        for (size_t i = 0; i < value.length; i++)
            if (value.text[i] == '.' || (value.text[i] | 0x20) == 'e')
                return CHAT_NUMBER;
        return CHAT_INTEGER;
    }
}

static bool allowed(unsigned kind, unsigned kinds)
{
    return (kind & kinds) || (kind == CHAT_INTEGER && (kinds & CHAT_NUMBER));
}

/* An integer that is written as 5.0. */
static bool put_integer(struct strbuf *out, struct written value)
{
    static const double MOST = 9007199254740992.0; /* all integers up to there are doubles */
    char text[64];
    if (kind_of(value) != CHAT_NUMBER || value.length >= sizeof text)
        return false;
    memcpy(text, value.text, value.length);
    text[value.length] = 0;
    double number = strtod(text, NULL);
    if (!(fabs(number) <= MOST) || number != floor(number))
        return false;
    strbuf_json_int(out, (int64_t)number);
    return true;
}

/* Whether the value is, or can be written as, one of the kinds; then it is appended. */
static bool put_allowed(struct strbuf *out, struct written value, unsigned kinds)
{
    if (!allowed(kind_of(value), kinds))
        return (kinds & CHAT_INTEGER) && put_integer(out, value);
    strbuf_append(out, value.text, value.length);
    return true;
}

/* A string that spells another value. */
static bool put_spelled(struct strbuf *out, struct written string, unsigned kinds)
{
    json_t *spelled = chat_calls_value(string.text, string.length, &out->failed);
    struct chat_literals reader = {.text = json_string_value(spelled),
                                   .length = json_string_length(spelled)};
    bool put = false;
    if (spelled && chat_literals_value(&reader)) {
        const struct written value = {reader.out.data, reader.out.length};
        chat_literals_skip(&reader);
        json_t *read = reader.at == reader.length
                           ? chat_calls_value(value.text, value.length, &out->failed)
                           : NULL;
        put = read && put_allowed(out, value, kinds);
        json_decref(read);
    }
    out->failed |= chat_literals_failed(&reader);
    chat_literals_clear(&reader);
    json_decref(spelled);
    return put;
}

bool chat_values_stays(char first, unsigned kinds)
{
    unsigned kind = kind_of((struct written){&first, 1});
    return (kind & (CHAT_STRING | CHAT_LIST | CHAT_OBJECT)) && (!kinds || allowed(kind, kinds));
}

bool chat_values_put(struct strbuf *out, const char *text, size_t length, unsigned kinds)
{
    const struct written value = {text, length};
    unsigned kind = kind_of(value);
    bool fits = !kinds || kind == CHAT_NULL || allowed(kind, kinds);
    if (!fits && (kind == CHAT_STRING ? put_spelled(out, value, kinds)
                                      : put_allowed(out, value, kinds & ~(unsigned)CHAT_STRING)))
        return true;
    if (!fits && kind != CHAT_STRING && (kinds & CHAT_STRING)) {
        strbuf_json_string(out, value.text, value.length);
        return true;
    }
    strbuf_append(out, value.text, value.length);
    return false;
}

bool chat_values_fit(struct strbuf *out, const struct chat_call *call,
                     const struct chat_types *types)
{
    const char *arguments = call->arguments;
    struct chat_part key, part;
    size_t length = call->arguments_length, at = chat_calls_skip(arguments, length, 0);
    bool changed = false;
    strbuf_puts(out, "{");
    while (chat_calls_json_next(arguments, length, &at, &key, &part)) {
        const char *name = arguments + key.begin + 1;
        size_t name_length = key.end - key.begin - 2;
        /* Nobody escapes what may stand in a key. */
        unsigned kinds =
            memchr(name, '\\', name_length)
                ? 0
                : chat_types_asked(types, call->name, call->name_length, name, name_length);
        strbuf_puts(out, out->length > 1 ? ", " : "");
        strbuf_append(out, arguments + key.begin, key.end - key.begin);
        strbuf_puts(out, ": ");
        changed |= chat_values_put(out, arguments + part.begin, part.end - part.begin, kinds);
    }
    strbuf_puts(out, "}");
    return changed;
}
