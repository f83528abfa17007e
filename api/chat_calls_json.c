/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls in JSON: one object with name and arguments, or a list of such objects; and the
 * arguments of a call whose name stands before them (chat_calls_named.c). */
#include "api/chat_formats.h"
#include "api/chat_values.h"
#include "api/strbuf.h"

#include <stdlib.h>
#include <string.h>

/* What may come next. */
enum phase {
    BEFORE, /* zero: an object or a list */
    VALUE,
    FIRST_ITEM, /* a value or ] */
    FIRST_KEY,  /* a key or } */
    KEY,
    COLON,
    NEXT, /* a comma or the end of what is open */
    WORD, /* a number, or true, false, null: of these only the letters are looked at */
    STRING,
    ESCAPE,
    DIGITS,
    KEY_STRING,
    KEY_ESCAPE,
    KEY_DIGITS,
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

/* The phase of the string, or of the key, that the byte is in. */
static int within(const struct chat_scan *scan, int string)
{
    return scan->phase >= KEY_STRING ? string + KEY_STRING - STRING : string;
}

static bool in_string(struct chat_scan *scan, char byte)
{
    if ((unsigned char)byte < 0x20 || (scan->half && byte != '\\'))
        return false;
    if (byte == '\\')
        scan->phase = within(scan, ESCAPE);
    else if (byte == '"')
        scan->phase = scan->phase == KEY_STRING ? COLON : NEXT;
    return true;
}

static bool in_escape(struct chat_scan *scan, char byte)
{
    scan->digits = 4;
    scan->unit = 0;
    bool unicode = byte == 'u';
    scan->phase = within(scan, unicode ? DIGITS : STRING);
    return unicode || (!scan->half && byte && strchr("\"\\/bfnrt", byte));
}

/* Of \uXXXX; characters beyond U+FFFF take two of these. No key has a NUL. */
static bool in_digits(struct chat_scan *scan, char byte)
{
    char lower = (char)(byte | 0x20);
    bool digit = byte >= '0' && byte <= '9', letter = lower >= 'a' && lower <= 'f';
    if (!digit && !letter)
        return false;
    scan->unit = scan->unit << 4 | (unsigned)(digit ? byte - '0' : lower - 'a' + 10);
    if (--scan->digits > 0)
        return true;
    bool first = scan->unit >= 0xD800 && scan->unit < 0xDC00;
    bool second = scan->unit >= 0xDC00 && scan->unit < 0xE000;
    if (second != scan->half || (scan->phase == KEY_DIGITS && scan->unit == 0))
        return false;
    scan->half = first;
    scan->phase = within(scan, STRING);
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
    switch (scan->phase) {
    case STRING:
    case KEY_STRING:
        return in_string(scan, byte);
    case ESCAPE:
    case KEY_ESCAPE:
        return in_escape(scan, byte);
    case DIGITS:
    case KEY_DIGITS:
        return in_digits(scan, byte);
    case WORD:
        if (is_word(byte))
            return true;
        scan->phase = NEXT;
    }
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
    name = name ? name : json_object_get(call, "tool_name");
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
    if ((!member(body, length, at, "name", &name) &&
         !member(body, length, at, "tool_name", &name)) ||
        body[name.begin] != '"' || take_value(body, length, name.begin, &whole) != name.end ||
        !whole)
        return 0;
    if (!member(body, length, at, "arguments", &arguments) &&
        !member(body, length, at, "parameters", &arguments))
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

/* Telling. Of a call in JSON the arguments are told as they are written, but for values that the
 * tool's schema wants otherwise: these, numbers and words are told when they are whole. */

/* The depth of a call's members; of arguments alone. */
static int level(const struct chat_scan *scan)
{
    return scan->named ? 0 : scan->lists & 1 ? 2 : 1;
}

static bool is_key(const struct chat_scan *scan, const char *body, const char *name)
{
    size_t length = strlen(name);
    return scan->key.end - scan->key.begin == length + 2 &&
           memcmp(body + scan->key.begin + 1, name, length) == 0;
}

/* The name of the call, if one of the tools has it. */
static bool take_name(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                      size_t end)
{
    bool failed = false;
    json_t *value = chat_calls_value(body + scan->value, end - scan->value, &failed);
    const char *name = json_string_value(value);
    size_t length = json_string_length(value);
    if (name && strlen(name) == length && chat_types_knows(reading->types, name, length))
        failed |= !(scan->name = strdup(name));
    json_decref(value);
    return !failed;
}

static bool tell(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                 size_t end)
{
    bool failed = chat_calls_more(reading->calls, body + scan->told, end - scan->told);
    scan->told = end;
    return !failed;
}

/* A value of the call: its arguments begin. */
static bool begin_arguments(struct chat_scan *scan, const struct chat_reading *reading,
                            const char *body)
{
    if (scan->open || !scan->name || body[scan->at] != '{' || scan->telling == CHAT_TELLING_WHOLE ||
        (!is_key(scan, body, "arguments") && !is_key(scan, body, "parameters")))
        return true;
    scan->telling = CHAT_TELLING_PARTS;
    scan->open = scan->inside = true;
    scan->told = scan->at;
    return chat_calls_begin(reading->calls, scan->name, strlen(scan->name)) == 0;
}

/* What the schema allows for the argument. Nobody escapes what may stand in a key. */
static unsigned kinds_of(const struct chat_scan *scan, const struct chat_reading *reading,
                         const char *body)
{
    const char *key = body + scan->key.begin + 1;
    size_t length = scan->key.end - scan->key.begin - 2;
    return memchr(key, '\\', length)
               ? 0
               : chat_types_asked(reading->types, scan->name, strlen(scan->name), key, length);
}

/* A value of an argument. */
static bool begin_argument(struct chat_scan *scan, const struct chat_reading *reading,
                           const char *body)
{
    scan->held = !chat_values_stays(body[scan->at], kinds_of(scan, reading, body));
    return !scan->held || tell(scan, reading, body, scan->at);
}

static bool end_argument(struct chat_scan *scan, const struct chat_reading *reading,
                         const char *body, size_t end)
{
    struct strbuf value = {0};
    if (!scan->held)
        return true;
    chat_values_put(&value, body + scan->told, end - scan->told, kinds_of(scan, reading, body));
    bool failed = value.failed || chat_calls_more(reading->calls, value.data, value.length);
    strbuf_clear(&value);
    scan->held = false;
    scan->told = end;
    return !failed;
}

/* An object of a list, some of which has been told. */
static int read_item(const struct chat_reading *reading, const char *body, size_t begin, size_t end)
{
    int read = read_object(reading->calls, body, begin, end);
    if (read <= 0)
        return read;
    return chat_calls_fit(&reading->calls->items[reading->calls->count - 1], reading->types) ? -1
                                                                                             : 1;
}

/* The object of a call has ended. */
static enum chat_scan_result end_object(struct chat_scan *scan, const struct chat_reading *reading,
                                        const char *body, size_t end)
{
    bool open = scan->open;
    free(scan->name);
    scan->name = NULL;
    if (scan->telling == CHAT_TELLING_OPEN)
        scan->telling = CHAT_TELLING_WHOLE;
    if (scan->telling == CHAT_TELLING_WHOLE || level(scan) == 1)
        return CHAT_SCAN_CALL; /* its marker follows */
    scan->open = false;
    int read = open ? chat_calls_end(reading->calls, false) ? -1 : 1
                    : read_item(reading, body, scan->object, end);
    scan->told = read > 0 ? end : scan->told;
    return read < 0 ? CHAT_SCAN_NO_MEMORY : read == 0 ? CHAT_SCAN_TEXT : CHAT_SCAN_CALL;
}

/* Whether a call may have the member where nothing else says that it is one. */
static bool is_member(const struct chat_scan *scan, const char *body)
{
    static const char *const NAMES[] = {"name",       "tool_name", "arguments",
                                        "parameters", "type",      "id"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (is_key(scan, body, NAMES[i]))
            return true;
    return false;
}

/* What ends before body[end]: a value at the depth that the scan has. */
static enum chat_scan_result end_value(struct chat_scan *scan, const struct chat_reading *reading,
                                       const char *body, size_t end)
{
    int depth = scan->depth, calls = level(scan);
    bool well = true;
    if (depth == calls - 1)
        return end_object(scan, reading, body, end);
    if (depth == calls && !in_list(scan)) {
        if (scan->inside) {
            well = tell(scan, reading, body, end - 1);
            scan->inside = false;
        } else if (!scan->open && !scan->name &&
                   (is_key(scan, body, "name") || is_key(scan, body, "tool_name"))) {
            well = take_name(scan, reading, body, end);
            if (well && reading->bare && !scan->name)
                return CHAT_SCAN_TEXT;
        }
    } else if (depth == calls + 1 && scan->inside) {
        well = end_argument(scan, reading, body, end);
    }
    return well ? CHAT_SCAN_CALL : CHAT_SCAN_NO_MEMORY;
}

/* A byte of a value has come that begins it. */
static enum chat_scan_result note_value(struct chat_scan *scan, const struct chat_reading *reading,
                                        const char *body, int depth)
{
    int calls = level(scan);
    bool well = true;
    if (scan->phase == WORD)
        scan->word = scan->at;
    if (depth == calls - 1)
        scan->object = scan->at;
    if (reading->bare && !scan->named &&
        (depth == 0 ? in_list(scan) : depth == 1 && !is_member(scan, body)))
        return CHAT_SCAN_TEXT;
    if (depth == calls || (depth == calls + 1 && scan->inside)) {
        scan->value = scan->at;
        well = depth == calls ? begin_arguments(scan, reading, body)
                              : begin_argument(scan, reading, body);
    }
    return well ? CHAT_SCAN_CALL : CHAT_SCAN_NO_MEMORY;
}

/* Whether what is_word takes is a number or a word of JSON's. */
static bool good_word(const char *text, size_t length, bool *failed)
{
    static const char *const WORDS[] = {"true", "false", "null", "0"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (length == strlen(WORDS[i]) && memcmp(text, WORDS[i], length) == 0)
            return true;
    size_t digits = 0;
    while (digits < length && text[digits] >= '0' && text[digits] <= '9')
        digits++;
    if (digits == length && length < 18 && text[0] != '0')
        return true;
    json_t *value = chat_calls_value(text, length, failed);
    json_decref(value);
    return value != NULL;
}

static enum chat_scan_result end_word(struct chat_scan *scan, const struct chat_reading *reading,
                                      const char *body)
{
    bool failed = false;
    if (!good_word(body + scan->word, scan->at - scan->word, &failed))
        return failed ? CHAT_SCAN_NO_MEMORY : CHAT_SCAN_TEXT;
    return end_value(scan, reading, body, scan->at);
}

/* Takes the byte at scan->at. CHAT_SCAN_CALL: it is well. */
static enum chat_scan_result take_byte(struct chat_scan *scan, const struct chat_reading *reading,
                                       const char *body)
{
    const int phase = scan->phase, depth = scan->depth;
    enum chat_scan_result result = CHAT_SCAN_CALL;
    if (phase == WORD && !is_word(body[scan->at]))
        result = end_word(scan, reading, body);
    if (result != CHAT_SCAN_CALL)
        return result;
    if (!take(scan, body[scan->at]))
        return CHAT_SCAN_TEXT;
    if (scan->phase == KEY_STRING && (phase == KEY || phase == FIRST_KEY)) {
        if (depth <= level(scan) + 1 && (depth <= level(scan) || scan->inside))
            scan->key = (struct chat_part){scan->at, scan->at};
    } else if (phase == KEY_STRING && scan->phase == COLON) {
        if (scan->key.end == scan->key.begin)
            scan->key.end = scan->at + 1;
    } else if ((phase == BEFORE || phase == VALUE || phase == FIRST_ITEM) &&
               (scan->depth > depth || scan->phase == STRING || scan->phase == WORD)) {
        return note_value(scan, reading, body, depth);
    }
    if (scan->depth < depth || (phase == STRING && scan->phase == NEXT))
        return end_value(scan, reading, body, scan->at + 1);
    return CHAT_SCAN_CALL;
}

enum chat_scan_result chat_calls_json_scan(struct chat_scan *scan,
                                           const struct chat_reading *reading, const char *body,
                                           size_t length)
{
    enum chat_scan_result result = CHAT_SCAN_OPEN;
    while (scan->at < length && result == CHAT_SCAN_OPEN) {
        result = take_byte(scan, reading, body);
        if (result != CHAT_SCAN_CALL)
            break;
        scan->at++;
        result = CHAT_SCAN_OPEN;
        if (scan->depth == 0 && scan->phase == NEXT) {
            scan->end = scan->at;
            return CHAT_SCAN_CALL;
        }
    }
    if (result != CHAT_SCAN_NO_MEMORY && scan->inside && !scan->held &&
        !tell(scan, reading, body, scan->at))
        return CHAT_SCAN_NO_MEMORY;
    return result;
}

int chat_calls_json_cut(struct chat_scan *scan, const struct chat_reading *reading,
                        const char *body, size_t length)
{
    return scan->inside && !tell(scan, reading, body, length) ? -1 : 0;
}
