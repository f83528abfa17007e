/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_call.h"

#include "api/request.h"
#include "api/strbuf.h"
#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

void chat_calls_cut(struct chat_calls *calls, size_t first)
{
    for (size_t i = first; i < calls->count; i++) {
        free(calls->items[i].name);
        free(calls->items[i].id);
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
    free(scan->name);
    *scan = (struct chat_scan){0};
}

int chat_scan_name(struct chat_scan *scan, const char *name, size_t length)
{
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, name, length);
        copy[length] = '\0';
    }
    free(scan->name);
    scan->name = copy;
    return copy ? 0 : -1;
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
    struct error err = ERROR_INIT;
    if (array_grow((void **)&calls->items, &calls->capacity, calls->count + 1, sizeof *calls->items,
                   &err))
        return -1;
    struct chat_call call = {.name = name ? copy(name, name_length) : NULL,
                             .name_length = name_length,
                             .arguments = copy(arguments, arguments_length),
                             .arguments_length = arguments_length,
                             .capacity = arguments_length + 1};
    calls->items[calls->count++] = call;
    return (call.name || !name) && call.arguments ? 1 : -1;
}

int chat_call_set_arguments(struct chat_call *call, const char *arguments, size_t length)
{
    char *own = copy(arguments, length);
    if (!own)
        return -1;
    free(call->arguments);
    call->arguments = own;
    call->arguments_length = length;
    call->capacity = length + 1;
    return 0;
}

json_t *chat_calls_load(const struct chat_calls *calls, const char *text, size_t length,
                        struct api_error *err)
{
    return calls->repeats ? request_load_repeats(text, length, err)
                          : request_load(text, length, err);
}

json_t *chat_calls_value(const char *text, size_t length, bool *failed)
{
    struct strbuf object = {0};
    struct api_error err = {0};
    strbuf_puts(&object, "{\"v\":");
    strbuf_append(&object, text, length);
    strbuf_puts(&object, "}");
    json_t *loaded = object.failed ? NULL : request_load(object.data, object.length, &err);
    json_t *value = json_object_size(loaded) == 1 ? json_object_get(loaded, "v") : NULL;
    *failed |= object.failed || err.code == API_OUT_OF_MEMORY;
    json_incref(value);
    json_decref(loaded);
    strbuf_clear(&object);
    return value;
}

/* Arguments that repeat a key, each of which counts once. */
static int add_once(struct chat_calls *calls, const char *name, size_t name_length,
                    const char *arguments, size_t arguments_length)
{
    struct api_error err = {0};
    json_t *object = request_load_repeats(arguments, arguments_length, &err);
    if (!object)
        return err.code == API_OUT_OF_MEMORY ? -1 : 0;
    char *text;
    size_t length;
    int result = request_dump(object, &text, &length, &err);
    json_decref(object);
    if (result == 0)
        result = append(calls, name, name_length, text, length);
    free(text);
    return result;
}

int chat_calls_add(struct chat_calls *calls, const char *name, size_t name_length,
                   const char *arguments, size_t arguments_length)
{
    struct api_error err = {0};
    if (name_length == 0 || memchr(name, 0, name_length))
        return 0;
    json_t *object = request_load(arguments, arguments_length, &err);
    if (!object && err.code != API_OUT_OF_MEMORY && calls->repeats)
        return add_once(calls, name, name_length, arguments, arguments_length);
    if (!object)
        return err.code == API_OUT_OF_MEMORY ? -1 : 0;
    json_decref(object);
    return append(calls, name, name_length, arguments, arguments_length);
}

int chat_calls_add_cut(struct chat_calls *calls, const char *name, size_t name_length,
                       const char *arguments, size_t arguments_length)
{
    return name_length == 0 || memchr(name, 0, name_length)
               ? 0
               : append(calls, name, name_length, arguments, arguments_length);
}

int chat_calls_begin(struct chat_calls *calls, const char *name, size_t name_length)
{
    if (append(calls, name, name_length, "", 0) < 0)
        return -1;
    calls->items[calls->count - 1].open = true;
    return 0;
}

int chat_calls_identify(struct chat_calls *calls, const char *id, size_t length)
{
    struct chat_call *last = &calls->items[calls->count - 1];
    free(last->id);
    last->id = copy(id, length);
    return last->id ? 0 : -1;
}

/* The call that is open: of this list, or of one before it. */
static struct chat_call *open_call(struct chat_calls *calls)
{
    struct chat_call *last = calls->count > 0 ? &calls->items[calls->count - 1] : NULL;
    if (last && last->open)
        return last;
    if (append(calls, NULL, 0, "", 0) < 0)
        return NULL;
    last = &calls->items[calls->count - 1];
    last->open = true;
    return last;
}

int chat_calls_more(struct chat_calls *calls, const char *arguments, size_t length)
{
    struct error err = ERROR_INIT;
    struct chat_call *call = length > 0 ? open_call(calls) : NULL;
    if (length == 0)
        return 0;
    if (!call || array_grow((void **)&call->arguments, &call->capacity,
                            call->arguments_length + length + 1, 1, &err))
        return -1;
    memcpy(call->arguments + call->arguments_length, arguments, length);
    call->arguments_length += length;
    call->arguments[call->arguments_length] = 0;
    return 0;
}

int chat_calls_end(struct chat_calls *calls, bool cut)
{
    struct chat_call *call = open_call(calls);
    if (!call || (!cut && chat_calls_more(calls, "}", 1)))
        return -1;
    call->cut = cut;
    call->open = false;
    return 0;
}
