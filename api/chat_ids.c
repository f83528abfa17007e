/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_ids.h"

#include "api/request.h"
#include "api/strbuf.h"

#include <ctype.h>
#include <string.h>
#include <xxhash.h>

enum { SHORT = 9 };

struct ids {
    json_t *others; /* by a call's id: what stands in its place */
    const struct chat_words *words;
    enum chat_ids kind;
    size_t calls; /* so far */
};

static bool is_short(const char *id)
{
    size_t length = strlen(id), good = 0;
    while (isalnum((unsigned char)id[good]))
        good++;
    return length == SHORT && good == SHORT;
}

static json_t *make_short(const char *id)
{
    static const char SIGNS[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char text[SHORT + 1] = {0};
    uint64_t hash = XXH3_64bits(id, strlen(id));
    for (int i = 0; i < SHORT; i++, hash /= sizeof SIGNS - 1)
        text[i] = SIGNS[hash % (sizeof SIGNS - 1)];
    return json_string(text);
}

/* The word before names, a name, the word before ids, and digits. */
static bool is_counted(const struct ids *ids, const char *id)
{
    size_t before = strlen(ids->words->before), end = strlen(id), at = end;
    const char *word = ids->words->id;
    while (at > 0 && isdigit((unsigned char)id[at - 1]))
        at--;
    return at < end && strncmp(id, ids->words->before, before) == 0 && at > before + strlen(word) &&
           memcmp(id + at - strlen(word), word, strlen(word)) == 0;
}

static json_t *make_counted(const struct ids *ids, const json_t *call, size_t number)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(call, "function"), "name"));
    struct strbuf text = {0};
    strbuf_printf(&text, "%s%s%s%zu", ids->words->before, name ? name : "", ids->words->id, number);
    json_t *id = text.failed ? NULL : json_stringn(text.data, text.length);
    strbuf_clear(&text);
    return id;
}

static int take_call(struct ids *ids, json_t *call)
{
    const char *id = json_string_value(json_object_get(call, "id"));
    size_t number = ids->calls++;
    bool counted = ids->kind == CHAT_IDS_COUNTED;
    if (id && (counted ? is_counted(ids, id) : is_short(id)))
        return 0;
    json_t *other = counted ? make_counted(ids, call, number) : make_short(id ? id : "");
    int failed = !other || (id && json_object_set(ids->others, id, other)) ||
                 json_object_set(call, "id", other);
    json_decref(other);
    return failed ? -1 : 0;
}

static int take_message(struct ids *ids, json_t *message)
{
    static const char RESULT[] = "tool_call_id";
    json_t *calls = json_object_get(message, "tool_calls");
    const char *id = json_string_value(json_object_get(message, RESULT));
    json_t *other = id ? json_object_get(ids->others, id) : NULL;
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (take_call(ids, json_array_get(calls, i)))
            return -1;
    if (other)
        return json_object_set(message, RESULT, other);
    if (!id || ids->kind == CHAT_IDS_COUNTED || is_short(id))
        return 0;
    return json_object_set_new(message, RESULT, make_short(id));
}

int chat_ids_take(json_t *messages, enum chat_ids kind, const struct chat_words *words,
                  struct api_error *err)
{
    struct ids ids = {.others = json_object(), .words = words, .kind = kind};
    int failed = !ids.others;
    for (size_t i = 0; i < json_array_size(messages) && kind != CHAT_IDS_ANY && !failed; i++)
        failed = take_message(&ids, json_array_get(messages, i));
    json_decref(ids.others);
    return failed ? request_no_memory(err) : 0;
}
