/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_calls.h"

#include "api/chat_calls_formats.h"
#include "api/request.h"

#include <stdlib.h>
#include <string.h>

void chat_calls_cut(struct chat_calls *calls, size_t first)
{
    for (size_t i = first; i < calls->count; i++) {
        free(calls->items[i].name);
        free(calls->items[i].arguments);
    }
    if (first < calls->count)
        calls->count = first;
}

void chat_calls_clear(struct chat_calls *calls)
{
    chat_calls_cut(calls, 0);
    free(calls->items);
    *calls = (struct chat_calls){0};
}

void chat_scan_clear(struct chat_scan *scan)
{
    free(scan->parts);
    *scan = (struct chat_scan){0};
}

enum chat_match chat_calls_match(const char *body, size_t length, size_t at, const char *word)
{
    size_t wanted = strlen(word), there = length - at < wanted ? length - at : wanted;
    if (there > 0 && memcmp(body + at, word, there) != 0)
        return CHAT_MATCH_NO;
    return there == wanted ? CHAT_MATCH_WHOLE : CHAT_MATCH_BEGINS;
}

static char *copy(const char *text, size_t length)
{
    char *own = malloc(length + 1);
    if (!own)
        return NULL;
    if (length > 0)
        memcpy(own, text, length);
    own[length] = 0;
    return own;
}

static int append(struct chat_calls *calls, const char *name, size_t name_length,
                  const char *arguments, size_t arguments_length)
{
    if (calls->count == calls->capacity) {
        size_t capacity = calls->capacity ? 2 * calls->capacity : 4;
        struct chat_call *items = realloc(calls->items, capacity * sizeof *items);
        if (!items)
            return -1;
        calls->items = items;
        calls->capacity = capacity;
    }
    struct chat_call call = {copy(name, name_length), name_length,
                             copy(arguments, arguments_length), arguments_length};
    calls->items[calls->count++] = call;
    return call.name && call.arguments ? 1 : -1;
}

int chat_calls_add(struct chat_calls *calls, const char *name, size_t name_length,
                   const char *arguments, size_t arguments_length)
{
    struct api_error err = {0};
    if (name_length == 0 || memchr(name, 0, name_length))
        return 0;
    json_t *object = request_load(arguments, arguments_length, &err);
    if (!object)
        return err.code == API_OUT_OF_MEMORY ? -1 : 0;
    json_decref(object);
    return append(calls, name, name_length, arguments, arguments_length);
}

/* Python: the body ends where the marker begins. */
static enum chat_scan_result python_scan(struct chat_scan *scan, const char *close,
                                         const char *body, size_t length, bool last)
{
    size_t marker = strlen(close);
    size_t first = chat_calls_skip(body, length, 0);
    if (first < length && body[first] != '[' && body[first] != '_' &&
        !((body[first] | 0x20) >= 'a' && (body[first] | 0x20) <= 'z')) {
        scan->at = first;
        return CHAT_SCAN_TEXT;
    }
    const char *found =
        length > scan->at ? memmem(body + scan->at, length - scan->at, close, marker) : NULL;
    if (found || last) {
        scan->end = found ? (size_t)(found - body) : length;
        scan->at = scan->end;
        return CHAT_SCAN_CALL;
    }
    scan->at = length > marker ? length - marker : 0;
    return CHAT_SCAN_OPEN;
}

/* The body is complete: its marker follows, perhaps after white space. A text may also end there,
 * or within the marker. */
static enum chat_scan_result expect_close(struct chat_scan *scan, const char *close,
                                          const char *body, size_t length, bool last, size_t *used)
{
    *used = scan->end;
    if (!*close)
        return CHAT_SCAN_CALL;
    scan->at = chat_calls_skip(body, length, scan->at);
    *used = scan->at;
    switch (chat_calls_match(body, length, scan->at, close)) {
    case CHAT_MATCH_WHOLE:
        *used += strlen(close);
        return CHAT_SCAN_CALL;
    case CHAT_MATCH_BEGINS:
        *used = length;
        return last ? CHAT_SCAN_CALL : CHAT_SCAN_OPEN;
    default:
        return CHAT_SCAN_TEXT;
    }
}

enum chat_scan_result chat_scan_push(struct chat_scan *scan, enum chat_calls_format format,
                                     const char *close, const char *body, size_t length, bool last,
                                     size_t *used)
{
    enum chat_scan_result result = CHAT_SCAN_CALL;
    if (scan->end == 0) {
        if (format == CHAT_CALLS_JSON)
            result = chat_calls_json_scan(scan, body, length);
        else if (format == CHAT_CALLS_XML)
            result = chat_calls_xml_scan(scan, body, length);
        else
            result = python_scan(scan, close, body, length, last);
    }
    if (result == CHAT_SCAN_CALL)
        return expect_close(scan, close, body, length, last, used);
    *used = result == CHAT_SCAN_TEXT ? scan->at : length;
    return result == CHAT_SCAN_OPEN && last ? CHAT_SCAN_TEXT : result;
}

int chat_calls_read(struct chat_calls *calls, enum chat_calls_format format,
                    const struct chat_scan *scan, const char *body, const struct chat_types *types)
{
    size_t before = calls->count;
    int result = format == CHAT_CALLS_JSON  ? chat_calls_json_read(calls, body, scan->end)
                 : format == CHAT_CALLS_XML ? chat_calls_xml_read(calls, scan, body, types)
                                            : chat_calls_python_read(calls, body, scan->end);
    if (result <= 0)
        chat_calls_cut(calls, before);
    return result;
}
