/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_messages.h"

#include "api/chat_arguments.h"
#include "api/request.h"
#include "api/strbuf.h"
#include "lib/base/fields.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PARAM[] = "messages";
/* As transformers marks it; the space shows whether the template trims. */
static const char MARK[] = "CONTINUE_FINAL_MESSAGE_TAG ";
/* Of all messages: each with the mark's number, its index, and an underline. */
#define EACH "MESSAGE_%016" PRIx64 "_WITH_THE_INDEX_"
/* More than a request can have: what a text says instead is no index. */
enum { MOST_MESSAGES = 1 << 24 };
enum { EACH_SIZE = sizeof "MESSAGE_0123456789abcdef_WITH_THE_INDEX_" };

static int wrong(struct api_error *err, size_t index, const char *what, const char *expected,
                 const json_t *got)
{
    return api_error_set(err, API_INVALID_TYPE, PARAM, "messages: %zu: %s: expected %s, got %s",
                         index, what, expected, fields_kind(got));
}

/* Content. */

/* Parts that are text, by their types in OpenAI's chat and responses APIs, and where the text is.
 */
static const struct {
    const char *type, *member;
} TEXTS[] = {
    {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};

const json_t *chat_messages_part_text(const json_t *part)
{
    const json_t *type = json_object_get(part, "type");
    if (json_is_string(part))
        return part;
    if (!type || json_is_null(type))
        return json_object_get(part, "text");
    for (size_t i = 0; json_is_string(type) && i < sizeof TEXTS / sizeof *TEXTS; i++)
        if (strcmp(json_string_value(type), TEXTS[i].type) == 0)
            return json_object_get(part, TEXTS[i].member);
    return NULL;
}

static int wrong_part(const json_t *part, size_t index, struct api_error *err)
{
    const json_t *type = json_object_get(part, "type");
    if (!json_is_object(part))
        return wrong(err, index, "content", "parts that are objects", part);
    for (size_t i = 0; json_is_string(type) && i < sizeof TEXTS / sizeof *TEXTS; i++)
        if (strcmp(json_string_value(type), TEXTS[i].type) == 0)
            return wrong(err, index, "content: text", "a string", chat_messages_part_text(part));
    if (!json_is_string(type))
        return wrong(err, index, "content: type", "a string", type);
    return api_error_set(err, API_UNSUPPORTED, PARAM,
                         "messages: %zu: content: the type \"%.40s\" is not supported: this model "
                         "takes text",
                         index, json_string_value(type));
}

/* Makes every part one of the type text. */
static int take_part(json_t *parts, size_t at, size_t index, struct api_error *err)
{
    const json_t *part = json_array_get(parts, at), *text = chat_messages_part_text(part);
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!json_is_string(text))
        return wrong_part(part, index, err);
    if (type && strcmp(type, "text") == 0)
        return 0;
    json_t *taken = json_pack("{s:s,s:O}", "type", "text", "text", text);
    return json_array_set_new(parts, at, taken) ? request_no_memory(err) : 0;
}

static json_t *joined_parts(const json_t *parts)
{
    struct strbuf text = {0};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_object_get(json_array_get(parts, i), "text");
        if (i > 0)
            strbuf_puts(&text, "\n");
        strbuf_append(&text, json_string_value(part), json_string_length(part));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.length);
    strbuf_clear(&text);
    return joined;
}

static int take_content(json_t *message, size_t index, bool parts, struct api_error *err)
{
    json_t *content = json_object_get(message, "content");
    if (!content || json_is_string(content))
        return 0;
    if (!json_is_array(content))
        return wrong(err, index, "content", "a string or a list of parts", content);
    for (size_t i = 0; i < json_array_size(content); i++)
        if (take_part(content, i, index, err))
            return -1;
    if (parts)
        return 0;
    return json_object_set_new(message, "content", joined_parts(content)) ? request_no_memory(err)
                                                                          : 0;
}

/* Tool calls. */

/* The arguments as the template takes them. *whole: they are an object, or absent. */
static json_t *load_arguments(const json_t *arguments, bool *whole, struct api_error *err)
{
    *whole = !arguments || json_is_null(arguments) || json_is_object(arguments);
    if (json_is_string(arguments))
        return chat_arguments_load(json_string_value(arguments), json_string_length(arguments),
                                   whole, err);
    json_t *object = *whole ? json_object() : NULL;
    if (*whole && !object)
        request_no_memory(err);
    return object;
}

/* An object as the text that a model would have written. Takes it over. */
static json_t *text_of(json_t *object, struct api_error *err)
{
    char *text = object ? json_dumps(object, 0) : NULL;
    json_t *value = text ? json_string(text) : NULL;
    free(text);
    json_decref(object);
    if (!value)
        request_no_memory(err);
    return value;
}

static int take_arguments(json_t *function, const struct chat_forms *forms, bool *whole,
                          struct api_error *err)
{
    json_t *arguments = json_object_get(function, "arguments");
    *whole = true;
    if (json_is_object(arguments) && !forms->texts)
        return 0;
    json_t *object =
        json_is_object(arguments) ? json_incref(arguments) : load_arguments(arguments, whole, err);
    if (!object && err->code != API_OK)
        return -1;
    if (object && forms->texts && *whole && json_is_string(arguments)) {
        json_decref(object); /* as it was written */
        return 0;
    }
    if (!object && (forms->broken || forms->texts))
        return 0;
    if (!object)
        object = json_pack("{s:O}", "arguments", arguments);
    if (forms->texts)
        object = text_of(object, err);
    return json_object_set_new(function, "arguments", object) ? request_no_memory(err) : 0;
}

/* A model may leave the name out, too. */
static int take_name(json_t *function, bool *whole, struct api_error *err)
{
    const json_t *name = json_object_get(function, "name");
    if (name && !json_is_null(name))
        return 0;
    *whole = false;
    return json_object_set_new(function, "name", json_string("")) ? request_no_memory(err) : 0;
}

static int take_tool_calls(json_t *message, size_t index, const struct chat_forms *forms,
                           size_t *num_broken, struct api_error *err)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls)
        return 0;
    if (!json_is_array(calls))
        return wrong(err, index, "tool_calls", "a list", calls);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        bool whole;
        if (!json_is_object(call) || !json_is_object(function))
            return wrong(err, index, "tool_calls: function", "an object", function);
        if (take_arguments(function, forms, &whole, err) || take_name(function, &whole, err))
            return -1;
        *num_broken += !whole;
    }
    return 0;
}

/* Messages. */

static void drop_nulls(json_t *message)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value)
    {
        if (json_is_null(value))
            json_object_del(message, key);
    }
}

/* Templates read the same text under several names. */
static int take_reasoning(json_t *message, struct api_error *err)
{
    static const char *const NAMES[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !reasoning; i++)
        reasoning = json_object_get(message, NAMES[i]);
    if (!reasoning)
        return 0;
    bool failed = json_object_set(message, "reasoning_content", reasoning) != 0 ||
                  (!json_object_get(message, "thinking") &&
                   json_object_set(message, "thinking", reasoning) != 0);
    return failed ? request_no_memory(err) : 0;
}

/* Clients send calls or reasoning without a text as null, or leave it out: templates join to it. */
static int fill_content(json_t *message, struct api_error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (json_object_get(message, "content") || strcmp(role, "assistant") != 0 ||
        (json_array_size(json_object_get(message, "tool_calls")) == 0 &&
         !json_object_get(message, "reasoning_content")))
        return 0;
    return json_object_set_new(message, "content", json_string("")) ? request_no_memory(err) : 0;
}

/* A template that shows one of both shows the text as a thought, too. */
static int join_thought(json_t *message, struct api_error *err)
{
    static const char *const NAMES[] = {"thinking", "reasoning_content"};
    const json_t *content = json_object_get(message, "content");
    const json_t *thought = json_object_get(message, NAMES[0]);
    if (json_array_size(json_object_get(message, "tool_calls")) == 0 ||
        json_string_length(content) == 0 || json_string_length(thought) == 0)
        return 0;
    struct strbuf text = {0};
    strbuf_append(&text, json_string_value(thought), json_string_length(thought));
    strbuf_puts(&text, "\n\n");
    strbuf_append(&text, json_string_value(content), json_string_length(content));
    json_t *joined = text.failed ? NULL : json_stringn(text.data, text.length);
    strbuf_clear(&text);
    bool failed = !joined || json_object_set(message, NAMES[0], joined) ||
                  json_object_set(message, NAMES[1], joined) ||
                  json_object_set_new(message, "content", json_string(""));
    json_decref(joined);
    return failed ? request_no_memory(err) : 0;
}

static int take_role(json_t *message, size_t index, bool developer, struct api_error *err)
{
    const json_t *role = json_object_get(message, "role");
    if (!json_is_string(role))
        return wrong(err, index, "role", "a string", role);
    if (developer || strcmp(json_string_value(role), "developer") != 0)
        return 0;
    return json_object_set_new(message, "role", json_string("system")) ? request_no_memory(err) : 0;
}

static int take_message(json_t *message, size_t index, const struct chat_forms *forms,
                        size_t *broken, struct api_error *err)
{
    if (!json_is_object(message))
        return wrong(err, index, "a message", "an object", message);
    drop_nulls(message);
    return take_role(message, index, forms->developer, err) ||
                   take_content(message, index, forms->parts, err) ||
                   take_tool_calls(message, index, forms, broken, err) ||
                   take_reasoning(message, err) || fill_content(message, err) ||
                   (forms->either && join_thought(message, err))
               ? -1
               : 0;
}

static bool is_space(char byte)
{
    return memchr(" \t\r\n\v\f", byte, 6) != NULL;
}

/* Puts the mark behind a text that is a member of `of`; `before` the white space at its end, since
 * templates trim. */
static int mark_text(json_t *of, const char *name, const char *mark, bool before,
                     struct api_error *err)
{
    const json_t *text = json_object_get(of, name);
    const char *bytes = json_string_value(text);
    size_t length = json_string_length(text), at = length;
    struct strbuf marked = {0};
    while (before && at > 0 && is_space(bytes[at - 1]))
        at--;
    strbuf_append(&marked, bytes, at);
    strbuf_puts(&marked, mark);
    strbuf_append(&marked, bytes + at, length - at);
    json_t *value = marked.failed ? NULL : json_stringn(marked.data, marked.length);
    strbuf_clear(&marked);
    return json_object_set_new(of, name, value) ? request_no_memory(err) : 0;
}

int chat_messages_mark_last(json_t *messages, struct api_error *err)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    json_t *content = json_object_get(last, "content");
    if (json_is_string(content))
        return mark_text(last, "content", MARK, false, err);
    if (json_array_size(content) > 0)
        return mark_text(json_array_get(content, json_array_size(content) - 1), "text", MARK, false,
                         err);
    return api_error_set(err, API_INVALID_VALUE, "continue_final_message",
                         "continue_final_message: the last message has no content");
}

json_t *chat_messages(const json_t *messages, const struct chat_forms *forms, size_t *broken,
                      struct api_error *err)
{
    *broken = 0;
    if (!messages) {
        api_error_set(err, API_MISSING_PARAMETER, PARAM, "messages is required");
        return NULL;
    }
    if (!json_is_array(messages)) {
        request_wrong_type(err, PARAM, "a list", messages);
        return NULL;
    }
    if (json_array_size(messages) == 0) {
        api_error_set(err, API_INVALID_VALUE, PARAM, "messages: an empty list");
        return NULL;
    }
    json_t *copy = json_deep_copy(messages);
    int result = copy ? 0 : request_no_memory(err);
    for (size_t i = 0; i < json_array_size(copy) && result == 0; i++)
        result = take_message(json_array_get(copy, i), i, forms, broken, err);
    if (result == 0)
        return copy;
    json_decref(copy);
    return NULL;
}

int chat_messages_cut(char *text, size_t *length, struct api_error *err)
{
    size_t bare = sizeof MARK - 2, at = *length; /* without the space */
    while (at > 0 && (at + bare > *length || memcmp(text + at, MARK, bare) != 0))
        at--;
    if (at + bare > *length || memcmp(text + at, MARK, bare) != 0)
        return api_error_set(err, API_INVALID_VALUE, "continue_final_message",
                             "continue_final_message: the template leaves the last message out");
    bool trimmed = at + bare >= *length || text[at + bare] != ' ';
    while (trimmed && at > 0 && is_space(text[at - 1]))
        at--;
    *length = at;
    text[at] = 0;
    return 0;
}

/* Its text, the last of its texts, or the name of the last function that it calls. */
static int mark_message(json_t *message, const char *mark, struct api_error *err)
{
    json_t *content = json_object_get(message, "content");
    json_t *calls = json_object_get(message, "tool_calls");
    json_t *part = json_array_get(content, json_array_size(content) - 1);
    json_t *function =
        json_object_get(json_array_get(calls, json_array_size(calls) - 1), "function");
    if (json_string_length(content) > 0)
        return mark_text(message, "content", mark, true, err);
    if (part)
        return mark_text(part, "text", mark, true, err);
    if (json_is_string(json_object_get(function, "name")))
        return mark_text(function, "name", mark, true, err);
    return 0;
}

int chat_messages_mark_all(json_t *messages, uint64_t number, struct api_error *err)
{
    char mark[EACH_SIZE + 24];
    int result = 0;
    for (size_t i = 0; i < json_array_size(messages) && result == 0; i++) {
        snprintf(mark, sizeof mark, EACH "%zu_", number, i);
        result = mark_message(json_array_get(messages, i), mark, err);
    }
    return result;
}

int64_t chat_messages_find(const char *text, size_t length, uint64_t number, size_t offset)
{
    char each[EACH_SIZE];
    const char *at = text, *mark;
    size_t without = 0;
    snprintf(each, sizeof each, EACH, number);
    while ((mark = memmem(at, length - (size_t)(at - text), each, sizeof each - 1))) {
        int64_t index = 0;
        without += (size_t)(mark - at);
        for (at = mark + sizeof each - 1; at < text + length && *at >= '0' && *at <= '9'; at++)
            index = index < MOST_MESSAGES ? index * 10 + (*at - '0') : index;
        if (without >= offset)
            return index;
        at += at < text + length && *at == '_';
    }
    return -1;
}
