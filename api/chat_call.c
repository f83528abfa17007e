/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_call.h"

#include "api/request.h"
#include "engine/text/buffer.h"

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
    struct error err = ERROR_INIT;
    if (array_grow((void **)&calls->items, &calls->capacity, calls->count + 1, sizeof *calls->items,
                   &err))
        return -1;
    struct chat_call call = {.name = copy(name, name_length),
                             .name_length = name_length,
                             .arguments = copy(arguments, arguments_length),
                             .arguments_length = arguments_length};
    calls->items[calls->count++] = call;
    return call.name && call.arguments ? 1 : -1;
}

int chat_call_set_arguments(struct chat_call *call, const char *arguments, size_t length)
{
    char *own = copy(arguments, length);
    if (!own)
        return -1;
    free(call->arguments);
    call->arguments = own;
    call->arguments_length = length;
    return 0;
}

json_t *chat_calls_load(const struct chat_calls *calls, const char *text, size_t length,
                        struct api_error *err)
{
    return calls->repeats ? request_load_repeats(text, length, err)
                          : request_load(text, length, err);
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
