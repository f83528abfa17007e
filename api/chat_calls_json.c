/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls in JSON: one object with name and arguments, or a list of such objects. */
#include "api/chat_formats.h"
#include "api/request.h"
#include "api/strbuf.h"

#include <string.h>

/* What may come next. Of numbers and words only the letters are looked at here: whoever reads the
 * call refuses the others. */
enum phase {
    BEFORE, /* zero: an object or a list */
    VALUE,
    FIRST_ITEM, /* a value or ] */
    FIRST_KEY,  /* a key or } */
    KEY,
    COLON,
    NEXT, /* a comma or the end of what is open */
    WORD,
    STRING,
    ESCAPE,
    KEY_STRING,
    KEY_ESCAPE,
};

static bool open_container(struct chat_scan *scan, bool list)
{
    if (scan->depth == CHAT_CALLS_DEPTH)
        return false;
    uint64_t bit = (uint64_t)1 << scan->depth;
    scan->lists = list ? scan->lists | bit : scan->lists & ~bit;
    scan->depth++;
    scan->phase = list ? FIRST_ITEM : FIRST_KEY;
    return true;
}

static bool in_list(const struct chat_scan *scan)
{
    return scan->depth > 0 && (scan->lists >> (scan->depth - 1) & 1);
}

static bool close_container(struct chat_scan *scan, char byte)
{
    if (byte != (in_list(scan) ? ']' : '}'))
        return false;
    scan->depth--;
    scan->phase = NEXT;
    return true;
}

static bool is_word(char byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || byte == 'E' ||
           byte == '+' || byte == '-' || byte == '.';
}

static bool begin_value(struct chat_scan *scan, char byte)
{
    if (byte == '{' || byte == '[')
        return open_container(scan, byte == '[');
    scan->phase = byte == '"' ? STRING : WORD;
    return byte && strchr("\"-0123456789tfn", byte);
}

static bool in_string(struct chat_scan *scan, char byte)
{
    bool key = scan->phase == KEY_STRING;
    if ((unsigned char)byte < 0x20)
        return false;
    if (byte == '\\')
        scan->phase = key ? KEY_ESCAPE : ESCAPE;
    else if (byte == '"')
        scan->phase = key ? COLON : NEXT;
    return true;
}

static bool next(struct chat_scan *scan, char byte)
{
    if (byte != ',')
        return close_container(scan, byte);
    scan->phase = in_list(scan) ? VALUE : KEY;
    return true;
}

/* Takes a byte. False: no JSON has it here. */
static bool take(struct chat_scan *scan, char byte)
{
    if (scan->phase == STRING || scan->phase == KEY_STRING)
        return in_string(scan, byte);
    if (scan->phase == ESCAPE || scan->phase == KEY_ESCAPE) {
        scan->phase = scan->phase == ESCAPE ? STRING : KEY_STRING;
        return (unsigned char)byte >= 0x20;
    }
    if (scan->phase == WORD && is_word(byte))
        return true;
    if (scan->phase == WORD)
        scan->phase = NEXT;
    if (chat_calls_space(byte))
        return true;
    switch (scan->phase) {
    case BEFORE:
        return (byte == '{' || byte == '[') && begin_value(scan, byte);
    case FIRST_ITEM:
        return byte == ']' ? close_container(scan, byte) : begin_value(scan, byte);
    case VALUE:
        return begin_value(scan, byte);
    case FIRST_KEY:
        if (byte == '}')
            return close_container(scan, byte);
        /* fall through */
    case KEY:
        scan->phase = KEY_STRING;
        return byte == '"';
    case COLON:
        scan->phase = VALUE;
        return byte == ':';
    default:
        return next(scan, byte);
    }
}

enum chat_scan_result chat_calls_json_scan(struct chat_scan *scan, const char *body, size_t length)
{
    while (scan->at < length) {
        if (!take(scan, body[scan->at]))
            return CHAT_SCAN_TEXT;
        scan->at++;
        if (scan->depth == 0 && scan->phase == NEXT) {
            scan->end = scan->at;
            return CHAT_SCAN_CALL;
        }
    }
    return CHAT_SCAN_OPEN;
}

/* Reading. The body is JSON, but for what numbers and words say. */

/* Where the value at body[at] ends. *whole: it does so. */
static size_t take_value(const char *body, size_t length, size_t at, bool *whole)
{
    struct chat_scan scan = {.phase = VALUE, .at = at};
    while (scan.at < length) {
        char byte = body[scan.at];
        bool word = scan.phase == WORD;
        if (word && scan.depth == 0 && !is_word(byte))
            break;
        if (!take(&scan, byte))
            break;
        scan.at++;
        if (scan.depth == 0 && scan.phase == NEXT)
            break;
    }
    *whole = scan.depth == 0 && scan.phase == NEXT;
    return scan.at;
}

static size_t value_end(const char *body, size_t length, size_t at)
{
    bool whole;
    return take_value(body, length, at, &whole);
}

bool chat_calls_json_next(const char *body, size_t length, size_t *at, struct chat_part *key,
                          struct chat_part *value)
{
    if (*at >= length || (body[*at] != '{' && body[*at] != ','))
        return false;
    key->begin = chat_calls_skip(body, length, *at + 1);
    if (key->begin == length || body[key->begin] != '"')
        return false;
    key->end = value_end(body, length, key->begin);
    size_t colon = chat_calls_skip(body, length, key->end);
    value->begin = colon < length ? chat_calls_skip(body, length, colon + 1) : length;
    value->end = value_end(body, length, value->begin);
    *at = chat_calls_skip(body, length, value->end);
    return true;
}

/* The value of the first member `name` of the object at body[at], as it is written. */
static bool member(const char *body, size_t length, size_t at, const char *name,
                   struct chat_part *part)
{
    struct chat_part key;
    while (chat_calls_json_next(body, length, &at, &key, part))
        if (key.end - key.begin == strlen(name) + 2 &&
            memcmp(body + key.begin + 1, name, strlen(name)) == 0)
            return true;
    return false;
}

/* Arguments: an object, JSON of one in a string, or nothing. */
static int add_call(struct chat_calls *calls, const json_t *call, const char *body, size_t length,
                    size_t at)
{
    const json_t *name = json_object_get(call, "name");
    const char *key = json_object_get(call, "arguments") ? "arguments" : "parameters";
    const json_t *arguments = json_object_get(call, key);
    struct chat_part part;
    if (!json_is_string(name))
        return 0;
    const char *text = json_string_value(name);
    size_t text_length = json_string_length(name);
    if (!arguments || json_is_null(arguments))
        return chat_calls_add(calls, text, text_length, "{}", 2);
    if (json_is_string(arguments))
        return chat_calls_add(calls, text, text_length, json_string_value(arguments),
                              json_string_length(arguments));
    if (!json_is_object(arguments) || !member(body, length, at, key, &part))
        return 0;
    return chat_calls_add(calls, text, text_length, body + part.begin, part.end - part.begin);
}

static int read_object(struct chat_calls *calls, const char *body, size_t begin, size_t end)
{
    struct api_error err = {0};
    json_t *call = chat_calls_load(calls, body + begin, end - begin, &err);
    if (!call)
        return err.code == API_OUT_OF_MEMORY ? -1 : 0;
    int result = add_call(calls, call, body, end, begin);
    json_decref(call);
    return result;
}

/* Of a call that is cut off at body[length]: its name, if that is whole, and what there is of its
 * arguments. */
static int read_cut(struct chat_calls *calls, const char *body, size_t length, size_t at)
{
    struct chat_part name, arguments;
    bool whole;
    if (!member(body, length, at, "name", &name) || body[name.begin] != '"' ||
        take_value(body, length, name.begin, &whole) != name.end || !whole)
        return 0;
    if (!member(body, length, at, "arguments", &arguments))
        arguments.begin = length;
    struct api_error err = {0};
    struct strbuf wrapped = {0};
    strbuf_puts(&wrapped, "{\"name\":");
    strbuf_append(&wrapped, body + name.begin, name.end - name.begin);
    strbuf_puts(&wrapped, "}");
    json_t *call =
        wrapped.failed ? NULL : chat_calls_load(calls, wrapped.data, wrapped.length, &err);
    const json_t *text = json_object_get(call, "name");
    int result = wrapped.failed || err.code == API_OUT_OF_MEMORY ? -1 : 0;
    if (text)
        result = chat_calls_add_cut(calls, json_string_value(text), json_string_length(text),
                                    body + arguments.begin, length - arguments.begin);
    json_decref(call);
    strbuf_clear(&wrapped);
    return result;
}

int chat_calls_json_read_cut(struct chat_calls *calls, const char *body, size_t length)
{
    int result = 1;
    size_t at = chat_calls_skip(body, length, 0);
    if (at < length && body[at] == '[')
        at = chat_calls_skip(body, length, at + 1);
    while (at < length && body[at] == '{' && result > 0) {
        bool whole;
        size_t end = take_value(body, length, at, &whole);
        if (!whole)
            return read_cut(calls, body, length, at);
        result = read_object(calls, body, at, end);
        at = chat_calls_skip(body, length, end);
        if (at < length && body[at] == ',')
            at = chat_calls_skip(body, length, at + 1);
    }
    return result;
}

int chat_calls_json_read(struct chat_calls *calls, const char *body, size_t length)
{
    size_t at = chat_calls_skip(body, length, 0);
    if (body[at] == '{')
        return read_object(calls, body, at, length);
    int result = 0; /* an empty list is no call */
    at = chat_calls_skip(body, length, at + 1);
    while (at < length && body[at] != ']') {
        size_t end = value_end(body, length, at);
        result = body[at] == '{' ? read_object(calls, body, at, end) : 0;
        if (result <= 0)
            return result;
        at = chat_calls_skip(body, length, end);
        if (at < length && body[at] == ',')
            at = chat_calls_skip(body, length, at + 1);
    }
    return result;
}
