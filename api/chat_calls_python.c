/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls as Python writes them: [name(key=value, ...), ...], or one after the other without the
 * brackets; and one call in the same order with other words. Values are literals of Python's or
 * words of JSON's. */
#include "api/chat_formats.h"
#include "api/chat_literals.h"
#include "api/chat_values.h"

#include <stdlib.h>
#include <string.h>

/* Reading. */

static struct chat_literals literals_of(const struct chat_words *words, const char *text,
                                        size_t length, enum chat_literals_end end)
{
    return (struct chat_literals){.text = text,
                                  .length = length,
                                  .end = end,
                                  .quote = *words->value ? words->value : NULL,
                                  .assign = words->key_end[0]};
}

static bool argument(struct chat_literals *r)
{
    struct chat_part key = chat_literals_key(r);
    if (key.end == key.begin || !chat_literals_take(r, r->assign))
        return false;
    strbuf_json_string(&r->out, r->text + key.begin, key.end - key.begin);
    strbuf_puts(&r->out, ": ");
    return chat_literals_value(r);
}

/* What stands before a name, if the format has such a word. */
static bool take_before(struct chat_literals *r, const struct chat_words *words)
{
    chat_literals_skip(r);
    if (chat_calls_match(r->text, r->length, r->at, words->before) != CHAT_MATCH_WHOLE)
        return false;
    r->at += strlen(words->before);
    return true;
}

static int call(struct chat_literals *r, struct chat_calls *calls, const struct chat_words *words)
{
    if (!take_before(r, words))
        return 0;
    struct chat_part function = chat_literals_name(r);
    const char *name = r->text + function.begin;
    size_t length = function.end - function.begin;
    bool closed;
    strbuf_reset(&r->out);
    strbuf_puts(&r->out, "{");
    if (length == 0 || !chat_literals_take(r, words->behind[0]))
        return 0;
    bool well = chat_literals_items(r, words->end[0], argument, &closed);
    if (well && closed)
        strbuf_puts(&r->out, "}");
    if (chat_literals_failed(r))
        return -1;
    if (!well)
        return 0;
    return closed ? chat_calls_add(calls, name, length, r->out.data, r->out.length)
                  : chat_calls_add_cut(calls, name, length, r->out.data, r->out.length);
}

static int read_calls(struct chat_literals *r, struct chat_calls *calls,
                      const struct chat_words *words)
{
    bool list = chat_literals_take(r, '[');
    int result = 0; /* an empty list is no call */
    for (;;) {
        if (list && chat_literals_take(r, ']')) {
            chat_literals_skip(r);
            return r->at == r->length ? result : 0;
        }
        chat_literals_skip(r);
        if ((!list || r->end) && r->at == r->length)
            return result;
        if (result > 0 && !chat_literals_take(r, ',') && list)
            return 0;
        chat_literals_skip(r);
        if (list && r->at < r->length && r->text[r->at] == ']')
            continue;
        result = call(r, calls, words);
        if (result <= 0)
            return result;
    }
}

static int read_all(struct chat_calls *calls, const struct chat_words *words, const char *body,
                    size_t length, enum chat_literals_end end)
{
    struct chat_literals reader = literals_of(words, body, length, end);
    int result = read_calls(&reader, calls, words);
    chat_literals_clear(&reader);
    return result;
}

int chat_calls_python_read(struct chat_calls *calls, const struct chat_words *words,
                           const char *body, size_t length)
{
    return read_all(calls, words, body, length, CHAT_LITERALS_NONE);
}

int chat_calls_python_read_cut(struct chat_calls *calls, const struct chat_words *words,
                               const char *body, size_t length)
{
    return read_all(calls, words, body, length, CHAT_LITERALS_OPEN);
}

/* Telling: an argument is told when it is whole, a call's last brace with its last parenthesis. */

enum phase { BEFORE, LIST, CALL, AFTER_CALL, ARGUMENT, AFTER };

/* Whether a body's end is that of its list or call, and not where its marker begins. */
static bool ends_itself(const struct chat_reading *reading)
{
    return !*reading->close || *reading->words->value;
}

/* Arguments of the open call. */
static bool put_argument(struct chat_scan *scan, const struct chat_reading *reading,
                         const char *body, size_t end, bool *failed)
{
    struct chat_literals r =
        literals_of(reading->words, body + scan->value, end - scan->value, CHAT_LITERALS_NONE);
    struct strbuf out = {0};
    struct chat_part key = chat_literals_key(&r);
    size_t length = key.end - key.begin;
    json_t *read = NULL;
    if (length > 0 && chat_literals_take(&r, r.assign) && chat_literals_value(&r)) {
        chat_literals_skip(&r);
        if (r.at == r.length)
            read = chat_calls_value(r.out.data, r.out.length, failed);
    }
    if (read) {
        strbuf_puts(&out, scan->num_told > 0 ? ", " : "");
        strbuf_json_string(&out, r.text + key.begin, length);
        strbuf_puts(&out, ": ");
        chat_values_put(&out, r.out.data, r.out.length,
                        chat_types_asked(reading->types, scan->name, strlen(scan->name),
                                         r.text + key.begin, length));
        *failed |= out.failed || chat_calls_more(reading->calls, out.data, out.length);
        scan->num_told++;
    }
    *failed |= chat_literals_failed(&r);
    chat_literals_clear(&r);
    strbuf_clear(&out);
    json_decref(read);
    return read;
}

/* The end of a call. */
static enum chat_scan_result end_call(struct chat_scan *scan, const struct chat_reading *reading)
{
    scan->open = false;
    scan->told = scan->word + 1;
    scan->phase = AFTER_CALL;
    return scan->telling == CHAT_TELLING_PARTS && chat_calls_end(reading->calls, false)
               ? CHAT_SCAN_NO_MEMORY
               : CHAT_SCAN_CALL;
}

/* An argument is there, or perhaps nothing at the end of the call. */
static enum chat_scan_result end_argument(struct chat_scan *scan,
                                          const struct chat_reading *reading, const char *body)
{
    bool failed = false, ends = body[scan->word] != ',';
    bool blank = chat_calls_skip(body, scan->word, scan->value) == scan->word;
    bool well = blank ? ends
                      : scan->telling == CHAT_TELLING_WHOLE ||
                            put_argument(scan, reading, body, scan->word, &failed);
    if (failed || !well)
        return failed ? CHAT_SCAN_NO_MEMORY : CHAT_SCAN_TEXT;
    scan->told = scan->value = scan->word + 1;
    return ends ? end_call(scan, reading) : CHAT_SCAN_OPEN;
}

/* Goes over quotes at scan->word, and into or out of a string. */
static enum chat_match take_quote(struct chat_scan *scan, const char *body, size_t length)
{
    const char *quote = scan->words->value;
    bool plain = scan->quote == '"' || scan->quote == '\'';
    enum chat_match match = CHAT_MATCH_NO;
    char byte = body[scan->word];
    if (*quote && !plain)
        match = chat_calls_match(body, length, scan->word, quote);
    if (match == CHAT_MATCH_WHOLE) {
        scan->word += strlen(quote) - 1;
        scan->quote = scan->quote ? 0 : *quote;
    } else if (match == CHAT_MATCH_NO && (plain || !scan->quote) && (byte == '"' || byte == '\'')) {
        match = CHAT_MATCH_WHOLE;
        scan->quote = !scan->quote ? byte : scan->quote == byte ? 0 : scan->quote;
    }
    return match;
}

/* Arguments of which nothing but the last is not told; scan->word is the next byte to look at. */
static enum chat_scan_result take_argument(struct chat_scan *scan,
                                           const struct chat_reading *reading, const char *body,
                                           size_t length)
{
    enum chat_scan_result result = CHAT_SCAN_OPEN;
    for (; scan->word < length && result == CHAT_SCAN_OPEN; scan->word++) {
        char byte = body[scan->word];
        bool plain = scan->quote == '"' || scan->quote == '\'';
        if (byte == '\\' && plain) {
            if (scan->word + 1 == length)
                return CHAT_SCAN_OPEN;
            scan->word++;
            continue;
        }
        enum chat_match match = take_quote(scan, body, length);
        if (match == CHAT_MATCH_BEGINS)
            return CHAT_SCAN_OPEN;
        if (match == CHAT_MATCH_WHOLE || scan->quote)
            continue;
        if (scan->depth <= 0 && (byte == ',' || byte == scan->words->end[0]))
            result = end_argument(scan, reading, body);
        else if (byte == '[' || byte == '{')
            scan->depth++;
        else if (byte == ']' || byte == '}')
            scan->depth--;
    }
    return result;
}

/* The name of a call, up to its parenthesis. */
static enum chat_scan_result begin_call(struct chat_scan *scan, const struct chat_reading *reading,
                                        const char *body, size_t length)
{
    struct chat_literals r = literals_of(reading->words, body, length, CHAT_LITERALS_NONE);
    const char *before = reading->words->before;
    r.at = scan->told;
    if (chat_calls_match(body, length, r.at, before) == CHAT_MATCH_BEGINS)
        return CHAT_SCAN_OPEN;
    if (!take_before(&r, reading->words))
        return CHAT_SCAN_TEXT;
    struct chat_part name = chat_literals_name(&r);
    const char *text = body + name.begin;
    size_t size = name.end - name.begin;
    chat_literals_skip(&r);
    if (r.at == length)
        return CHAT_SCAN_OPEN;
    if (size == 0 || !chat_literals_take(&r, reading->words->behind[0]))
        return CHAT_SCAN_TEXT;
    bool known = chat_types_knows(reading->types, text, size);
    if (!known && reading->bare && scan->telling == CHAT_TELLING_OPEN)
        return CHAT_SCAN_TEXT;
    if (scan->telling == CHAT_TELLING_OPEN)
        scan->telling = known ? CHAT_TELLING_PARTS : CHAT_TELLING_WHOLE;
    bool whole = scan->telling == CHAT_TELLING_WHOLE;
    if (whole && !ends_itself(reading))
        return CHAT_SCAN_OPEN;
    if (chat_scan_name(scan, text, size))
        return CHAT_SCAN_NO_MEMORY;
    scan->told = scan->value = scan->word = r.at;
    scan->num_told = 0;
    scan->depth = 0;
    scan->open = !whole;
    scan->phase = ARGUMENT;
    if (whole)
        return CHAT_SCAN_CALL;
    return chat_calls_begin(reading->calls, text, size) == 0 &&
                   chat_calls_more(reading->calls, "{", 1) == 0
               ? CHAT_SCAN_CALL
               : CHAT_SCAN_NO_MEMORY;
}

static enum chat_scan_result step(struct chat_scan *scan, const struct chat_reading *reading,
                                  const char *body, size_t length)
{
    if (scan->phase == ARGUMENT)
        return take_argument(scan, reading, body, length);
    size_t at = chat_calls_skip(body, length, scan->told);
    char byte = at < length ? body[at] : 0;
    if (at == length)
        return CHAT_SCAN_OPEN;
    scan->told = at;
    switch (scan->phase) {
    case LIST:
        scan->lists = byte == '[';
        scan->told += byte == '[';
        scan->phase = CALL;
        return CHAT_SCAN_CALL;
    case AFTER_CALL:
        if (byte == ',' || (byte == ']' && scan->lists))
            scan->told++;
        else if (scan->lists)
            return CHAT_SCAN_TEXT;
        scan->phase = byte == ']' ? AFTER : CALL;
        return CHAT_SCAN_CALL;
    case CALL:
        if (byte != ']' || !scan->lists || scan->telling == CHAT_TELLING_OPEN)
            return begin_call(scan, reading, body, length);
        scan->told++;
        scan->phase = AFTER;
        return CHAT_SCAN_CALL;
    default:
        return CHAT_SCAN_TEXT;
    }
}

/* Whether all of a list has come, or the call where there is none. */
static bool is_over(const struct chat_scan *scan)
{
    return scan->phase == AFTER || (scan->phase == AFTER_CALL && !scan->lists);
}

/* Tells what of body [length] is certain. CHAT_SCAN_TEXT: no call goes on as this does. */
static enum chat_scan_result walk(struct chat_scan *scan, const struct chat_reading *reading,
                                  const char *body, size_t length)
{
    enum chat_scan_result result = length < scan->told ? CHAT_SCAN_OPEN : CHAT_SCAN_CALL;
    bool self = ends_itself(reading);
    while (result == CHAT_SCAN_CALL &&
           (self ? !is_over(scan) : scan->telling != CHAT_TELLING_WHOLE))
        result = step(scan, reading, body, length);
    if (result == CHAT_SCAN_TEXT && scan->telling == CHAT_TELLING_OPEN && !self) {
        scan->telling = CHAT_TELLING_WHOLE;
        result = CHAT_SCAN_OPEN;
    }
    if (result == CHAT_SCAN_TEXT)
        scan->at = scan->told;
    return result;
}

int chat_calls_python_cut(struct chat_scan *scan, const struct chat_reading *reading,
                          const char *body, size_t length)
{
    struct chat_literals r =
        literals_of(reading->words, body + scan->value, length - scan->value, CHAT_LITERALS_OPEN);
    bool closed, well = chat_literals_items(&r, reading->words->end[0], argument, &closed);
    bool failed = chat_literals_failed(&r);
    if (well && r.out.length > 0 && !failed)
        failed = (scan->num_told > 0 && chat_calls_more(reading->calls, ", ", 2)) ||
                 chat_calls_more(reading->calls, r.out.data, r.out.length);
    chat_literals_clear(&r);
    return failed ? -1 : 0;
}

/* The scan: a body ends where its marker begins. */

static bool begins(char byte)
{
    return byte == '[' || byte == '_' || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

/* The body is there, up to scan->end; `cut`: without its marker. */
static enum chat_scan_result ended(struct chat_scan *scan, const struct chat_reading *reading,
                                   const char *body, bool cut)
{
    enum chat_scan_result result = walk(scan, reading, body, scan->end);
    if (scan->telling != CHAT_TELLING_PARTS)
        return result == CHAT_SCAN_NO_MEMORY ? result : CHAT_SCAN_CALL;
    if (result == CHAT_SCAN_TEXT && cut && !scan->open &&
        chat_calls_match(body, scan->end, scan->told, reading->close) == CHAT_MATCH_BEGINS) {
        scan->end = scan->told;
        return CHAT_SCAN_CALL;
    }
    if (result != CHAT_SCAN_OPEN)
        return result;
    if (scan->phase == AFTER || scan->phase == AFTER_CALL ||
        (scan->phase == CALL && scan->told == scan->end))
        return CHAT_SCAN_CALL;
    scan->at = cut ? scan->end : scan->told;
    return CHAT_SCAN_TEXT;
}

/* A body that ends by itself. */
static enum chat_scan_result scan_list(struct chat_scan *scan, const struct chat_reading *reading,
                                       const char *body, size_t length)
{
    enum chat_scan_result result = walk(scan, reading, body, length);
    if (result == CHAT_SCAN_CALL)
        scan->end = scan->at = scan->told;
    return result;
}

enum chat_scan_result chat_calls_python_scan(struct chat_scan *scan,
                                             const struct chat_reading *reading, const char *body,
                                             size_t length, bool last)
{
    const char *close = reading->close;
    size_t marker = strlen(close);
    if (scan->phase == BEFORE) {
        scan->at = chat_calls_skip(body, length, scan->at);
        if (scan->at < length && !(reading->bare ? body[scan->at] == '[' : begins(body[scan->at])))
            return CHAT_SCAN_TEXT;
        if (scan->at == length && !last)
            return CHAT_SCAN_OPEN;
        scan->told = scan->at;
        scan->phase = LIST;
    }
    if (ends_itself(reading))
        return scan_list(scan, reading, body, length);
    const char *found =
        length > scan->at ? memmem(body + scan->at, length - scan->at, close, marker) : NULL;
    if (found || last) {
        scan->end = found ? (size_t)(found - body) : length;
        scan->at = scan->end;
        return ended(scan, reading, body, !found);
    }
    scan->at = length > marker ? length - marker : 0;
    enum chat_scan_result result = walk(scan, reading, body, scan->at);
    return result == CHAT_SCAN_CALL ? CHAT_SCAN_OPEN : result;
}
