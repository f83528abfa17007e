/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls in Qwen3-Coder's XML. Values are bare text: the request's tools say of what type. */
#include "api/chat_formats.h"
#include "api/chat_values.h"
#include "api/request.h"
#include "api/strbuf.h"
#include "engine/text/buffer.h"

#include <stdlib.h>
#include <string.h>

static const char FUNCTION[] = "<function=", FUNCTION_END[] = "</function>";
static const char PARAMETER[] = "<parameter=", PARAMETER_END[] = "</parameter>";

enum phase { OPENING, NAME, BETWEEN, KEY, CONTENT };
/* Bytes of a name or key; of the white space between the end of a value and what follows. */
enum { MOST_NAME = 256, MOST_SPACE = 64 };

static int add_part(struct chat_scan *scan, size_t begin, size_t end)
{
    struct error err = ERROR_INIT;
    if (array_grow((void **)&scan->parts, &scan->capacity, scan->num_parts + 1, sizeof *scan->parts,
                   &err))
        return -1;
    scan->parts[scan->num_parts++] = (struct chat_part){begin, end};
    return 0;
}

/* Skips white space, and takes the word behind it. */
static enum chat_match take_word(struct chat_scan *scan, const char *body, size_t length,
                                 const char *word)
{
    scan->at = chat_calls_skip(body, length, scan->at);
    enum chat_match match = chat_calls_match(body, length, scan->at, word);
    if (match == CHAT_MATCH_WHOLE)
        scan->at += strlen(word);
    return match;
}

static enum chat_scan_result go_on(enum chat_match match, struct chat_scan *scan, int phase)
{
    if (match == CHAT_MATCH_WHOLE)
        scan->phase = phase;
    return match == CHAT_MATCH_WHOLE    ? CHAT_SCAN_CALL
           : match == CHAT_MATCH_BEGINS ? CHAT_SCAN_OPEN
                                        : CHAT_SCAN_TEXT;
}

/* Where the > of the name at body[at] is, or `length`. SIZE_MAX: it is no name. */
static size_t name_end(const char *body, size_t length, size_t at)
{
    size_t end = at;
    while (end < length && end - at <= MOST_NAME && body[end] != '>')
        if (body[end] == '<' || body[end] == '\n' || !body[end++])
            return SIZE_MAX;
    return end - at > MOST_NAME || (end < length && end == at) ? SIZE_MAX : end;
}

/* A name up to its >. */
static enum chat_scan_result take_name(struct chat_scan *scan, const char *body, size_t length,
                                       int phase)
{
    size_t end = name_end(body, length, scan->at);
    if (end == SIZE_MAX)
        return CHAT_SCAN_TEXT;
    if (end == length)
        return CHAT_SCAN_OPEN;
    if (add_part(scan, scan->at, end))
        return CHAT_SCAN_NO_MEMORY;
    scan->at = end + 1;
    scan->phase = phase;
    return CHAT_SCAN_CALL;
}

/* Between the parameters: the next one, or the end. */
static enum chat_scan_result between(struct chat_scan *scan, const char *body, size_t length)
{
    enum chat_match match = take_word(scan, body, length, PARAMETER);
    if (match != CHAT_MATCH_NO)
        return go_on(match, scan, KEY);
    match = take_word(scan, body, length, FUNCTION_END);
    if (match == CHAT_MATCH_WHOLE)
        scan->end = scan->at;
    return go_on(match, scan, BETWEEN);
}

/* What follows an end of a parameter at body[at]: a value that holds one itself goes on. */
static enum chat_match follows(const char *body, size_t length, size_t at)
{
    size_t limit = length - at < MOST_SPACE ? length : at + MOST_SPACE;
    at = chat_calls_skip(body, limit, at);
    enum chat_match parameter = chat_calls_match(body, length, at, PARAMETER);
    enum chat_match end = chat_calls_match(body, length, at, FUNCTION_END);
    return parameter > end ? parameter : end;
}

/* A value begins where the last key's > was. */
static enum chat_scan_result content(struct chat_scan *scan, const char *body, size_t length)
{
    size_t begin = scan->parts[scan->num_parts - 1].end + 1, marker = strlen(PARAMETER_END);
    for (;;) {
        const char *found = memmem(body + scan->at, length - scan->at, PARAMETER_END, marker);
        if (!found) {
            size_t kept = length - begin < marker ? length - begin : marker;
            scan->at = scan->at > length - kept ? scan->at : length - kept;
            return CHAT_SCAN_OPEN;
        }
        scan->at = (size_t)(found - body);
        switch (follows(body, length, scan->at + marker)) {
        case CHAT_MATCH_NO:
            scan->at++;
            continue;
        case CHAT_MATCH_BEGINS:
            return CHAT_SCAN_OPEN;
        default:
            if (add_part(scan, begin, scan->at))
                return CHAT_SCAN_NO_MEMORY;
            scan->at += marker;
            scan->phase = BETWEEN;
            return CHAT_SCAN_CALL;
        }
    }
}

/* Functions without a marker before them. */

size_t chat_calls_xml_find(const char *text, size_t length, struct chat_part within,
                           const struct chat_types *types, bool *whole)
{
    *whole = false;
    for (size_t at = within.begin; at < within.end; at++) {
        const char *tag = memchr(text + at, '<', within.end - at);
        if (!tag)
            return within.end;
        at = (size_t)(tag - text);
        enum chat_match match = chat_calls_match(text, length, at, FUNCTION);
        if (match == CHAT_MATCH_BEGINS)
            return at;
        size_t name = at + sizeof FUNCTION - 1;
        size_t end = match == CHAT_MATCH_WHOLE ? name_end(text, length, name) : SIZE_MAX;
        *whole = end < length && chat_types_knows(types, text + name, end - name);
        if (*whole || end == length)
            return at;
    }
    return within.end;
}

bool chat_calls_xml_alone(const struct chat_scan *scan, const char *body,
                          const struct chat_types *types)
{
    const struct chat_part *name = scan->parts;
    return scan->end > 0 && chat_types_knows(types, body + name->begin, name->end - name->begin);
}

/* Reading. */

/* The value without the newlines that the format puts around it. */
static struct chat_part trimmed(const char *body, struct chat_part part)
{
    if (part.begin < part.end && body[part.begin] == '\n')
        part.begin++;
    if (part.begin < part.end && body[part.end - 1] == '\n')
        part.end--;
    return part;
}

static bool is(const char *text, size_t length, const char *a, const char *b)
{
    return (length == strlen(a) && memcmp(text, a, length) == 0) ||
           (length == strlen(b) && memcmp(text, b, length) == 0);
}

/* Of those that JSON can say here: words are known by their spelling, and strings need no quotes.
 */
static unsigned kind_of(const json_t *value)
{
    unsigned kind = chat_types_kind(value);
    kind |= kind == CHAT_INTEGER ? CHAT_NUMBER : 0;
    return kind & (CHAT_OBJECT | CHAT_LIST | CHAT_INTEGER | CHAT_NUMBER);
}

/* Whether the text is JSON of one of the kinds. It is read as the member of an object, as all that
 * comes from outside; the call as a whole is read once more. */
static bool is_json(const struct chat_calls *calls, const char *text, size_t length, unsigned kinds,
                    struct strbuf *out)
{
    if (length == 0 || !(text[0] == '{'   ? kinds & CHAT_OBJECT
                         : text[0] == '[' ? kinds & CHAT_LIST
                                          : kinds & (CHAT_INTEGER | CHAT_NUMBER)))
        return false;
    struct strbuf wrapped = {0};
    struct api_error err = {0};
    strbuf_puts(&wrapped, "{\"v\":");
    strbuf_append(&wrapped, text, length);
    strbuf_puts(&wrapped, "}");
    json_t *object =
        wrapped.failed ? NULL : chat_calls_load(calls, wrapped.data, wrapped.length, &err);
    out->failed |= wrapped.failed || err.code == API_OUT_OF_MEMORY;
    bool fits = json_object_size(object) == 1 && (kind_of(json_object_get(object, "v")) & kinds);
    json_decref(object);
    strbuf_clear(&wrapped);
    return fits;
}

/* As templates write values: what is not a string is JSON, or a word of Python's. */
static void write_value(const struct chat_calls *calls, struct strbuf *out, const char *text,
                        size_t length, unsigned kinds)
{
    size_t begin = chat_calls_skip(text, length, 0), end = chat_calls_trim(text, begin, length);
    const char *bare = text + begin;
    size_t bare_length = end - begin;
    if ((kinds & CHAT_NULL) && is(bare, bare_length, "null", "None"))
        strbuf_puts(out, "null");
    else if ((kinds & CHAT_BOOLEAN) && is(bare, bare_length, "true", "True"))
        strbuf_puts(out, "true");
    else if ((kinds & CHAT_BOOLEAN) && is(bare, bare_length, "false", "False"))
        strbuf_puts(out, "false");
    else if (is_json(calls, bare, bare_length, kinds, out))
        strbuf_append(out, bare, bare_length);
    else
        strbuf_json_string(out, text, length);
}

/* What values the parameter of that part may have. */
static unsigned kinds_of_key(const struct chat_scan *scan, const char *body, size_t part,
                             const struct chat_types *types)
{
    const struct chat_part *name = &scan->parts[0], *key = &scan->parts[part];
    return chat_types_of(types, body + name->begin, name->end - name->begin, body + key->begin,
                         key->end - key->begin);
}

static void write_key(struct strbuf *out, const struct chat_scan *scan, const char *body,
                      size_t part)
{
    const struct chat_part *key = &scan->parts[part];
    strbuf_puts(out, part > 1 ? ", " : "");
    strbuf_json_string(out, body + key->begin, key->end - key->begin);
    strbuf_puts(out, ": ");
}

/* The members that are whole; the object goes on. */
static void write_members(const struct chat_calls *calls, struct strbuf *out,
                          const struct chat_scan *scan, const char *body,
                          const struct chat_types *types)
{
    strbuf_puts(out, "{");
    for (size_t i = 1; i < scan->num_parts; i += 2) {
        write_key(out, scan, body, i);
        if (i + 1 == scan->num_parts)
            return;
        struct chat_part value = trimmed(body, scan->parts[i + 1]);
        write_value(calls, out, body + value.begin, value.end - value.begin,
                    kinds_of_key(scan, body, i, types));
    }
}

/* A part of a string. */
static void write_inner(struct strbuf *out, const char *text, size_t length)
{
    struct strbuf quoted = {0};
    strbuf_json_string(&quoted, text, length);
    out->failed |= quoted.failed;
    if (!quoted.failed)
        strbuf_append(out, quoted.data + 1, quoted.length - 2);
    strbuf_clear(&quoted);
}

/* Where the value body[begin..length], which is cut off, ends: without a part of its end. */
static size_t begun_end(const char *body, size_t begin, size_t length)
{
    static const char END[] = "\n</parameter>";
    size_t size = sizeof END - 1;
    size = size < length - begin ? size : length - begin;
    while (size > 0 && memcmp(body + length - size, END, size) != 0)
        size--;
    return length - size;
}

/* What there is of the last value, which is cut off at body[length]: a string without its end. It
 * is whole if only what follows its end is cut. */
static void write_begun(const struct chat_calls *calls, struct strbuf *out,
                        const struct chat_scan *scan, const char *body, size_t length,
                        const struct chat_types *types)
{
    size_t begin = scan->parts[scan->num_parts - 1].end + 1;
    unsigned kinds = kinds_of_key(scan, body, scan->num_parts - 1, types);
    if (chat_calls_match(body, length, scan->at, PARAMETER_END) == CHAT_MATCH_WHOLE) {
        struct chat_part value = trimmed(body, (struct chat_part){begin, scan->at});
        write_value(calls, out, body + value.begin, value.end - value.begin, kinds);
        return;
    }
    begin += begin < length && body[begin] == '\n';
    size_t end = begun_end(body, begin, length);
    if (kinds & CHAT_STRING)
        strbuf_puts(out, "\"");
    if (kinds & CHAT_STRING)
        write_inner(out, body + begin, end - begin);
    else
        strbuf_append(out, body + begin, end - begin);
}

int chat_calls_xml_read_cut(struct chat_calls *calls, const struct chat_scan *scan,
                            const char *body, size_t length, const struct chat_types *types)
{
    const struct chat_part *name = scan->parts;
    struct strbuf out = {0};
    if (scan->num_parts == 0)
        return 0;
    write_members(calls, &out, scan, body, types);
    if (scan->num_parts % 2 == 0)
        write_begun(calls, &out, scan, body, length, types);
    int result = out.failed ? -1
                            : chat_calls_add_cut(calls, body + name->begin, name->end - name->begin,
                                                 out.data, out.length);
    strbuf_clear(&out);
    return result;
}

int chat_calls_xml_read(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                        const struct chat_types *types)
{
    struct strbuf out = {0};
    const struct chat_part *name = &scan->parts[0];
    write_members(calls, &out, scan, body, types);
    strbuf_puts(&out, "}");
    int result = out.failed ? -1
                            : chat_calls_add(calls, body + name->begin, name->end - name->begin,
                                             out.data, out.length);
    strbuf_clear(&out);
    return result;
}

/* Telling. A value that can only be a string is told as it comes, others when they are whole. */

/* Where the value of the last key begins, if its text is told as it comes; else SIZE_MAX. Begins to
 * tell it. */
static size_t begin_string(struct chat_scan *scan, const struct chat_reading *reading,
                           const char *body, size_t length, size_t key, struct strbuf *out)
{
    size_t begin = scan->parts[key].end + 1;
    if (kinds_of_key(scan, body, key, reading->types) != CHAT_STRING)
        return SIZE_MAX;
    begin += begin < length && body[begin] == '\n';
    if (scan->told >= begin)
        return scan->told;
    strbuf_puts(out, "\"");
    scan->told = begin;
    return begin;
}

static void tell_value(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                       size_t key, struct strbuf *out)
{
    struct chat_part value = trimmed(body, scan->parts[key + 1]);
    size_t from = begin_string(scan, reading, body, value.end, key, out);
    if (from != SIZE_MAX) {
        write_inner(out, body + from, value.end > from ? value.end - from : 0);
        strbuf_puts(out, "\"");
        return;
    }
    const struct chat_part *name = scan->parts, *named = &scan->parts[key];
    struct strbuf written = {0};
    write_value(reading->calls, &written, body + value.begin, value.end - value.begin,
                kinds_of_key(scan, body, key, reading->types));
    out->failed |= written.failed;
    if (!written.failed)
        chat_values_put(out, written.data, written.length,
                        chat_types_asked(reading->types, body + name->begin,
                                         name->end - name->begin, body + named->begin,
                                         named->end - named->begin));
    strbuf_clear(&written);
}

/* What is certain of a value that has not ended: whole characters, and no newline that may be the
 * last. */
static void tell_begun(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                       size_t length, struct strbuf *out)
{
    size_t key = scan->num_parts - 1, end = scan->at;
    if (scan->parts[key].end + 1 == length)
        return;
    size_t from = begin_string(scan, reading, body, length, key, out);
    end -= end > 0 && body[end - 1] == '\n';
    while (end > 0 && end < length && (body[end] & 0xC0) == 0x80)
        end--;
    if (from == SIZE_MAX || end <= from)
        return;
    write_inner(out, body + from, end - from);
    scan->told = end;
}

static int tell(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                size_t length)
{
    const struct chat_part *name = scan->parts;
    struct strbuf out = {0};
    /* A name alone may stand in a text about calls. */
    if (scan->num_parts == 0 || scan->telling == CHAT_TELLING_WHOLE ||
        (scan->num_parts == 1 && scan->end == 0))
        return 0;
    if (scan->telling == CHAT_TELLING_OPEN) {
        bool known = chat_types_knows(reading->types, body + name->begin, name->end - name->begin);
        scan->telling = known ? CHAT_TELLING_PARTS : CHAT_TELLING_WHOLE;
        if (!known)
            return 0;
        if (chat_calls_begin(reading->calls, body + name->begin, name->end - name->begin))
            return -1;
        scan->open = true;
        scan->num_told = 1;
        strbuf_puts(&out, "{");
    }
    for (; scan->num_told < scan->num_parts; scan->num_told++)
        if (scan->num_told % 2 == 1)
            write_key(&out, scan, body, scan->num_told);
        else
            tell_value(scan, reading, body, scan->num_told - 1, &out);
    if (scan->phase == CONTENT)
        tell_begun(scan, reading, body, length, &out);
    int result = out.failed ? -1 : chat_calls_more(reading->calls, out.data, out.length);
    strbuf_clear(&out);
    return result;
}

int chat_calls_xml_cut(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                       size_t length)
{
    struct strbuf out = {0};
    if (scan->phase != CONTENT)
        return 0;
    size_t key = scan->num_parts - 1, from, end = scan->at;
    const struct chat_part value = {scan->parts[key].end + 1, end};
    bool ended = chat_calls_match(body, length, scan->at, PARAMETER_END) == CHAT_MATCH_WHOLE;
    from = begin_string(scan, reading, body, length, key, &out);
    if (from == SIZE_MAX) {
        write_begun(reading->calls, &out, scan, body, length, reading->types);
    } else {
        end = ended ? trimmed(body, value).end : begun_end(body, from, length);
        write_inner(&out, body + from, end > from ? end - from : 0);
        strbuf_puts(&out, ended ? "\"" : "");
    }
    int result = out.failed ? -1 : chat_calls_more(reading->calls, out.data, out.length);
    strbuf_clear(&out);
    return result;
}

/* The scan. */

static enum chat_scan_result step(struct chat_scan *scan, const char *body, size_t length)
{
    switch (scan->phase) {
    case OPENING:
        return go_on(take_word(scan, body, length, FUNCTION), scan, NAME);
    case NAME:
        return take_name(scan, body, length, BETWEEN);
    case BETWEEN:
        return between(scan, body, length);
    case KEY:
        return take_name(scan, body, length, CONTENT);
    default:
        return content(scan, body, length);
    }
}

enum chat_scan_result chat_calls_xml_scan(struct chat_scan *scan,
                                          const struct chat_reading *reading, const char *body,
                                          size_t length)
{
    enum chat_scan_result result = CHAT_SCAN_CALL;
    while (result == CHAT_SCAN_CALL && scan->end == 0)
        result = step(scan, body, length);
    return result != CHAT_SCAN_NO_MEMORY && tell(scan, reading, body, length) ? CHAT_SCAN_NO_MEMORY
                                                                              : result;
}
