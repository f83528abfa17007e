/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_calls.h"

#include "api/chat_formats.h"
#include "api/chat_values.h"
#include "api/request.h"

#include <string.h>

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
    close = chat_calls_bare_word(close);
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

static enum chat_scan_result scan_body(struct chat_scan *scan, const struct chat_reading *reading,
                                       const char *body, size_t length, bool last)
{
    switch (reading->words->kind) {
    case CHAT_KIND_JSON:
        return chat_calls_json_scan(scan, reading, body, length);
    case CHAT_KIND_NAMED:
        return chat_calls_named_scan(scan, reading, body, length);
    case CHAT_KIND_XML:
        return chat_calls_xml_scan(scan, reading, body, length);
    default:
        return chat_calls_python_scan(scan, reading, body, length, last);
    }
}

enum chat_scan_result chat_scan_push(struct chat_scan *scan, const struct chat_reading *reading,
                                     const char *body, size_t length, bool last, size_t *used)
{
    enum chat_scan_result result = CHAT_SCAN_CALL;
    scan->words = reading->words;
    if (scan->end == 0)
        result = scan_body(scan, reading, body, length, last);
    if (result == CHAT_SCAN_CALL)
        return expect_close(scan, reading->close, body, length, last, used);
    *used = result == CHAT_SCAN_TEXT ? scan->at : length;
    return result == CHAT_SCAN_OPEN && last ? CHAT_SCAN_TEXT : result;
}

static int cut_body(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                    size_t used)
{
    switch (reading->words->kind) {
    case CHAT_KIND_XML:
        return chat_calls_xml_cut(scan, reading, body, used);
    case CHAT_KIND_PYTHON:
        return chat_calls_python_cut(scan, reading, body, used);
    default:
        return chat_calls_json_cut(scan, reading, body, used);
    }
}

int chat_calls_told(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                    size_t used, bool whole)
{
    int result = 0;
    if (!scan->open)
        return 0;
    scan->open = false;
    if (!whole)
        result = cut_body(scan, reading, body, used);
    return result || chat_calls_end(reading->calls, !whole) ? -1 : 0;
}

int chat_calls_fit(struct chat_call *call, const struct chat_types *types)
{
    struct strbuf arguments = {0};
    struct api_error err = {0};
    json_t *object = NULL;
    if (chat_types_knows(types, call->name, call->name_length) &&
        chat_values_fit(&arguments, call, types) && !arguments.failed)
        object = request_load(arguments.data, arguments.length, &err);
    int result = arguments.failed || err.code == API_OUT_OF_MEMORY ? -1 : 0;
    if (object && result == 0)
        result = chat_call_set_arguments(call, arguments.data, arguments.length);
    json_decref(object);
    strbuf_clear(&arguments);
    return result;
}

static int read_body(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                     const struct chat_types *types)
{
    switch (scan->words->kind) {
    case CHAT_KIND_JSON:
        return chat_calls_json_read(calls, body, scan->end);
    case CHAT_KIND_NAMED:
        return chat_calls_named_read(calls, scan->words, body, scan->end);
    case CHAT_KIND_XML:
        return chat_calls_xml_read(calls, scan, body, types);
    default:
        return chat_calls_python_read(calls, scan->words, body, scan->end);
    }
}

int chat_calls_read(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                    const struct chat_types *types)
{
    size_t before = calls->count;
    int result = read_body(calls, scan, body, types);
    for (size_t i = before; i < calls->count && result > 0; i++)
        result = chat_calls_fit(&calls->items[i], types) ? -1 : result;
    if (result <= 0)
        chat_calls_cut(calls, before);
    return result;
}

static int read_cut_body(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                         size_t length, const struct chat_types *types)
{
    switch (scan->words->kind) {
    case CHAT_KIND_JSON:
        return chat_calls_json_read_cut(calls, body, length);
    case CHAT_KIND_NAMED:
        return chat_calls_named_read_cut(calls, scan->words, body, length);
    case CHAT_KIND_XML:
        return chat_calls_xml_read_cut(calls, scan, body, length, types);
    default:
        return chat_calls_python_read_cut(calls, scan->words, body, length);
    }
}

int chat_calls_read_cut(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                        size_t length, const struct chat_types *types)
{
    return read_cut_body(calls, scan, body, length, types) < 0 ? -1 : 0;
}

size_t chat_calls_find(enum chat_calls_format format, const char *text, size_t length,
                       struct chat_part within, const struct chat_types *types, bool *whole)
{
    const struct chat_words *words = chat_words(format);
    *whole = false;
    return words->kind == CHAT_KIND_XML
               ? chat_calls_xml_find(words, text, length, within, types, whole)
               : within.end;
}

bool chat_calls_alone(const struct chat_scan *scan, const char *body,
                      const struct chat_types *types)
{
    return scan->words->kind == CHAT_KIND_XML && chat_calls_xml_alone(scan, body, types);
}

size_t chat_calls_most(enum chat_calls_format format, const char *text, size_t length)
{
    /* Each call has one. */
    const struct chat_words *words = chat_words(format);
    const char byte = words->kind == CHAT_KIND_JSON     ? '{'
                      : words->kind == CHAT_KIND_PYTHON ? words->behind[0]
                      : words->open                     ? words->open[0]
                                                        : '=';
    size_t count = 0;
    for (size_t i = 0; i < length && format != CHAT_CALLS_NONE; i++)
        count += text[i] == byte;
    return count;
}
