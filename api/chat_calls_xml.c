/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls in XML, of any words. Values are bare text: the request's tools say of what type. */
#include "api/chat_formats.h"
#include "api/chat_values.h"
#include "api/request.h"
#include "api/strbuf.h"
#include "lib/text/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum phase { OPENING, NAME, BETWEEN, KEY, VALUE, CONTENT };
/* Bytes of a name or key; of the white space between the end of a value and what follows. */
enum { MOST_NAME = 256, MOST_SPACE = 64, MOST_END = 64 };

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

/* Whether what ends a name comes at body[at]: the word, or for a word of white space any, or a tag.
 */
static enum chat_match ends_name(const char *body, size_t length, size_t at, const char *word)
{
    bool blank = !*chat_calls_bare_word(word);
    if (blank)
        return chat_calls_space(body[at]) || body[at] == '<' ? CHAT_MATCH_WHOLE : CHAT_MATCH_NO;
    return chat_calls_match(body, length, at, word);
}

/* Where the word behind the name at body[at] begins; *match: what is there. SIZE_MAX: it is no
 * name.
 */
static size_t name_end(const char *body, size_t length, size_t at, const char *word,
                       enum chat_match *match)
{
    size_t end = at;
    const char *barred = *chat_calls_bare_word(word) ? "<\n" : "<{\n";
    *match = CHAT_MATCH_BEGINS;
    for (; end < length && end - at <= MOST_NAME; end++) {
        *match = ends_name(body, length, end, word);
        if (*match != CHAT_MATCH_NO)
            return end > at || *match == CHAT_MATCH_BEGINS ? end : SIZE_MAX;
        if (strchr(barred, body[end])) /* or a NUL */
            return SIZE_MAX;
        *match = CHAT_MATCH_BEGINS;
    }
    return end - at > MOST_NAME ? SIZE_MAX : end;
}

/* A name up to the word behind it. */
static enum chat_scan_result take_name(struct chat_scan *scan, const char *body, size_t length,
                                       const char *word, int phase)
{
    enum chat_match match;
    size_t end = name_end(body, length, scan->at, word, &match);
    if (end == SIZE_MAX)
        return CHAT_SCAN_TEXT;
    if (match == CHAT_MATCH_BEGINS)
        return CHAT_SCAN_OPEN;
    if (add_part(scan, scan->at, end))
        return CHAT_SCAN_NO_MEMORY;
    scan->at = end + strlen(chat_calls_bare_word(word));
    scan->phase = phase;
    return CHAT_SCAN_CALL;
}

/* What stands before a value, if the format has such a word. */
static enum chat_scan_result take_value(struct chat_scan *scan, const char *body, size_t length)
{
    enum chat_match match = CHAT_MATCH_WHOLE;
    if (*scan->words->value)
        match = take_word(scan, body, length, scan->words->value);
    if (match == CHAT_MATCH_NO && scan->words->other)
        match = take_word(scan, body, length, scan->words->other);
    scan->value = scan->at;
    return go_on(match, scan, CONTENT);
}

/* Between the parameters: the next one, or the end. */
static enum chat_scan_result between(struct chat_scan *scan, const char *body, size_t length)
{
    enum chat_match match = take_word(scan, body, length, scan->words->key);
    if (match != CHAT_MATCH_NO)
        return go_on(match, scan, KEY);
    match = take_word(scan, body, length, scan->words->end);
    if (match == CHAT_MATCH_WHOLE)
        scan->end = scan->at;
    return go_on(match, scan, BETWEEN);
}

/* What follows an end of a parameter at body[at]: a value that holds one itself goes on. */
static enum chat_match follows(const struct chat_words *words, const char *body, size_t length,
                               size_t at)
{
    size_t limit = length - at < MOST_SPACE ? length : at + MOST_SPACE;
    at = chat_calls_skip(body, limit, at);
    enum chat_match parameter = chat_calls_match(body, length, at, words->key);
    enum chat_match end = chat_calls_match(body, length, at, words->end);
    return parameter > end ? parameter : end;
}

/* A value, which begins at scan->value. */
static enum chat_scan_result content(struct chat_scan *scan, const char *body, size_t length)
{
    const char *value_end = scan->words->value_end;
    size_t begin = scan->value, marker = strlen(value_end);
    for (;;) {
        const char *found = memmem(body + scan->at, length - scan->at, value_end, marker);
        if (!found) {
            size_t kept = length - begin < marker ? length - begin : marker;
            scan->at = scan->at > length - kept ? scan->at : length - kept;
            return CHAT_SCAN_OPEN;
        }
        scan->at = (size_t)(found - body);
        switch (follows(scan->words, body, length, scan->at + marker)) {
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

size_t chat_calls_xml_find(const struct chat_words *words, const char *text, size_t length,
                           struct chat_part within, const struct chat_types *types, bool *whole)
{
    *whole = false;
    if (!*words->before)
        return within.end;
    for (size_t at = within.begin; at < within.end; at++) {
        const char *tag = memchr(text + at, '<', within.end - at);
        if (!tag)
            return within.end;
        at = (size_t)(tag - text);
        enum chat_match match = chat_calls_match(text, length, at, words->before);
        if (match == CHAT_MATCH_BEGINS)
            return at;
        size_t name = at + strlen(words->before), end = SIZE_MAX;
        if (match == CHAT_MATCH_WHOLE)
            end = name_end(text, length, name, words->behind, &match);
        if (end == SIZE_MAX)
            continue;
        *whole = match == CHAT_MATCH_WHOLE && chat_types_knows(types, text + name, end - name);
        if (*whole || match == CHAT_MATCH_BEGINS)
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
static struct chat_part trimmed(const struct chat_words *words, const char *body,
                                struct chat_part part)
{
    if (!words->lines)
        return part;
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

/* What values the parameter of that part may have: by its tool, and by the word before the value.
 */
static unsigned kinds_of_key(const struct chat_scan *scan, const char *body, size_t part,
                             const struct chat_types *types)
{
    const struct chat_part *name = &scan->parts[0], *key = &scan->parts[part];
    size_t begin = part + 1 < scan->num_parts ? scan->parts[part + 1].begin : scan->value;
    const char *other = scan->words->other;
    size_t size = other ? strlen(other) : 0;
    unsigned kinds = chat_types_of(types, body + name->begin, name->end - name->begin,
                                   body + key->begin, key->end - key->begin);
    if (other && begin >= size && memcmp(body + begin - size, other, size) == 0)
        return CHAT_OBJECT | CHAT_LIST | CHAT_INTEGER | CHAT_NUMBER | CHAT_BOOLEAN | CHAT_NULL;
    return other && (kinds & CHAT_STRING) ? CHAT_STRING : kinds;
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
        struct chat_part value = trimmed(scan->words, body, scan->parts[i + 1]);
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
static size_t begun_end(const struct chat_words *words, const char *body, size_t begin,
                        size_t length)
{
    char end[MOST_END];
    size_t size =
        (size_t)snprintf(end, sizeof end, "%s%s", words->lines ? "\n" : "", words->value_end);
    size = size < length - begin ? size : length - begin;
    while (size > 0 && memcmp(body + length - size, end, size) != 0)
        size--;
    return length - size;
}

/* What there is of the last value, which is cut off at body[length]: a string without its end. It
 * is whole if only what follows its end is cut. */
static void write_begun(const struct chat_calls *calls, struct strbuf *out,
                        const struct chat_scan *scan, const char *body, size_t length,
                        const struct chat_types *types)
{
    const struct chat_words *words = scan->words;
    size_t begin = scan->value;
    unsigned kinds = kinds_of_key(scan, body, scan->num_parts - 1, types);
    if (chat_calls_match(body, length, scan->at, words->value_end) == CHAT_MATCH_WHOLE) {
        struct chat_part value = trimmed(words, body, (struct chat_part){begin, scan->at});
        write_value(calls, out, body + value.begin, value.end - value.begin, kinds);
        return;
    }
    begin += words->lines && begin < length && body[begin] == '\n';
    size_t end = begun_end(words, body, begin, length);
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
    if (scan->phase == CONTENT)
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

/* Where the value of a key begins, which is at body[begin], if its text is told as it comes; else
 * SIZE_MAX. Begins to tell it. */
static size_t begin_string(struct chat_scan *scan, const struct chat_reading *reading,
                           const char *body, struct chat_part value, size_t key, struct strbuf *out)
{
    size_t begin = value.begin;
    if (kinds_of_key(scan, body, key, reading->types) != CHAT_STRING)
        return SIZE_MAX;
    begin += scan->words->lines && begin < value.end && body[begin] == '\n';
    if (scan->told >= begin)
        return scan->told;
    strbuf_puts(out, "\"");
    scan->told = begin;
    return begin;
}

static void tell_value(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                       size_t key, struct strbuf *out)
{
    struct chat_part value = trimmed(scan->words, body, scan->parts[key + 1]);
    struct chat_part written_as = {scan->parts[key + 1].begin, value.end};
    size_t from = begin_string(scan, reading, body, written_as, key, out);
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
    struct chat_part value = {scan->value, length};
    if (scan->value == length)
        return;
    size_t from = begin_string(scan, reading, body, value, key, out);
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
    const struct chat_words *words = scan->words;
    const struct chat_part value = {scan->value, end};
    bool ended = chat_calls_match(body, length, scan->at, words->value_end) == CHAT_MATCH_WHOLE;
    from = begin_string(scan, reading, body, (struct chat_part){scan->value, length}, key, &out);
    if (from == SIZE_MAX) {
        write_begun(reading->calls, &out, scan, body, length, reading->types);
    } else {
        end = ended ? trimmed(words, body, value).end : begun_end(words, body, from, length);
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
        return go_on(take_word(scan, body, length, scan->words->before), scan, NAME);
    case NAME:
        return take_name(scan, body, length, scan->words->behind, BETWEEN);
    case BETWEEN:
        return between(scan, body, length);
    case KEY:
        return take_name(scan, body, length, scan->words->key_end, VALUE);
    case VALUE:
        return take_value(scan, body, length);
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
