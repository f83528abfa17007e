/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_items.h"

#include "api/chat_builder.h"
#include "api/chat_messages.h"
#include "api/request.h"
#include "api/responses_tools.h"
#include "api/sealed_thought.h"
#include "lib/base/fields.h"

#include <stdio.h>
#include <string.h>

static const char INPUT[] = "input";

/* Parts that are no text: a line tells the model of each. */
static const char *const LEFT[] = {"input_image", "input_file", "input_audio", "image_url", NULL};

struct reader {
    struct chat_builder builder;
    bool developer, behind;
    size_t index;  /* of the item */
    bool open;     /* the last item is a call */
    size_t sealed; /* thoughts that another server has sealed */
    struct api_error *err;
};

/* Errors. */

static int wrong(const struct reader *reader, const char *what, const char *expected,
                 const json_t *got)
{
    return api_error_set(reader->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, INPUT,
                         "input: %zu: %s: expected %s, got %s", reader->index, what, expected,
                         got ? fields_kind(got) : "none");
}

static int wrong_part(const struct reader *reader, const char *list, size_t part, const char *what,
                      const char *expected, const json_t *got)
{
    char place[80];
    snprintf(place, sizeof place, "%s: %zu%s%s", list, part, *what ? ": " : "", what);
    return wrong(reader, place, expected, got);
}

/* Contents. */

/* A part of a list that is a text, or a line in the place of what is none. */
static int take_part(struct reader *reader, const char *list, const json_t *part, size_t index,
                     struct strbuf *to, size_t *texts)
{
    const json_t *given = json_object_get(part, "type"), *text = chat_messages_part_text(part);
    const char *type = json_string_value(given);
    if (!json_is_object(part))
        return wrong_part(reader, list, index, "", "an object", part);
    if (!type)
        return wrong_part(reader, list, index, "type", "a string", given);
    if (json_is_string(text)) {
        chat_builder_text(&reader->builder, to, texts, json_string_value(text),
                          json_string_length(text));
        return 0;
    }
    if (chat_builder_leave(&reader->builder, to, texts, type, NULL))
        return 0;
    static const char *const TEXTS[] = {"input_text", "output_text", "text", "refusal", NULL};
    for (size_t i = 0; TEXTS[i]; i++)
        if (strcmp(type, TEXTS[i]) == 0)
            return wrong_part(reader, list, index, "text", "a string", text);
    return api_error_set(reader->err, API_UNSUPPORTED, INPUT,
                         "input: %zu: %s: %zu: the type \"%.60s\" is not supported", reader->index,
                         list, index, type);
}

/* A text, or a list of parts. */
static int take_content(struct reader *reader, const json_t *item, const char *name,
                        struct strbuf *to, size_t *texts)
{
    const json_t *content = json_object_get(item, name);
    if (json_is_string(content)) {
        chat_builder_text(&reader->builder, to, texts, json_string_value(content),
                          json_string_length(content));
        return 0;
    }
    if (!json_is_array(content))
        return wrong(reader, name, "a string or a list of parts", content);
    for (size_t i = 0; i < json_array_size(content); i++)
        if (take_part(reader, name, json_array_get(content, i), i, to, texts))
            return -1;
    return 0;
}

/* Items. */

static int take_message(struct reader *reader, json_t *item)
{
    const json_t *given = json_object_get(item, "role");
    const char *name = json_string_value(given);
    struct chat_builder *builder = &reader->builder;
    if (!name)
        return wrong(reader, "role", "a string", given);
    enum chat_role role = strcmp(name, "user") == 0        ? CHAT_USER
                          : strcmp(name, "assistant") == 0 ? CHAT_ASSISTANT
                          : strcmp(name, "system") == 0    ? CHAT_SYSTEM
                          : strcmp(name, "developer") == 0
                              ? reader->developer ? CHAT_DEVELOPER : CHAT_SYSTEM
                              : CHAT_NOBODY;
    if (role == CHAT_NOBODY)
        return api_error_set(reader->err, API_INVALID_VALUE, INPUT,
                             "input: %zu: role: expected user, assistant, system or developer, got "
                             "\"%.40s\"",
                             reader->index, name);
    if (chat_builder_turn(builder, chat_builder_role(builder, role)))
        return -1;
    builder->begun = true;
    return take_content(reader, item, "content", &builder->text, &builder->texts);
}

/* {"text"} of that type, in a list that may be absent. */
static int take_thoughts(struct reader *reader, const json_t *item, const char *name,
                         const char *type)
{
    const json_t *parts = request_field(item, name);
    if (parts && !json_is_array(parts))
        return wrong(reader, name, "a list of parts", parts);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *given = json_string_value(json_object_get(part, "type"));
        if (!json_is_object(part))
            return wrong_part(reader, name, i, "", "an object", part);
        if (!given || strcmp(given, type) != 0)
            return wrong_part(reader, name, i, "type", type, json_object_get(part, "type"));
        if (!json_is_string(text))
            return wrong_part(reader, name, i, "text", "a string", text);
        strbuf_append(&reader->builder.reasoning, json_string_value(text),
                      json_string_length(text));
    }
    return 0;
}

/* The text itself counts more than what was sealed, and that more than a summary. */
static int take_reasoning(struct reader *reader, json_t *item)
{
    const json_t *sealed = request_field(item, "encrypted_content");
    struct strbuf *reasoning = &reader->builder.reasoning;
    if (sealed && !json_is_string(sealed))
        return wrong(reader, "encrypted_content", "a string", sealed);
    if (chat_builder_turn(&reader->builder, CHAT_ASSISTANT))
        return -1;
    size_t before = reasoning->length;
    if (take_thoughts(reader, item, "content", "reasoning_text"))
        return -1;
    if (reasoning->length > before || (sealed && sealed_thought_open(sealed, reasoning)))
        return 0;
    if (take_thoughts(reader, item, "summary", "summary_text"))
        return -1;
    reader->sealed += sealed && reasoning->length == before;
    return 0;
}

/* Its call_id; NULL with the error set. */
static json_t *read_id(const struct reader *reader, const json_t *item)
{
    json_t *id = json_object_get(item, "call_id");
    if (json_is_string(id))
        return id;
    wrong(reader, "call_id", "a string", id);
    return NULL;
}

/* arguments: as the chat has them. */
static int add_call(struct reader *reader, const json_t *item, json_t *arguments)
{
    const json_t *space = request_field(item, "namespace"), *id = read_id(reader, item);
    json_t *name = json_object_get(item, "name");
    if (!id)
        return -1;
    if (!json_is_string(name))
        return wrong(reader, "name", "a string", name);
    if (space && !json_is_string(space))
        return wrong(reader, "namespace", "a string", space);
    if (chat_builder_turn(&reader->builder, CHAT_ASSISTANT))
        return -1;
    json_t *called = responses_tools_called(space, name);
    int result = called ? chat_builder_call(&reader->builder, id, called, arguments)
                        : request_no_memory(reader->err);
    json_decref(called);
    reader->open = true;
    return result;
}

static int take_call(struct reader *reader, json_t *item)
{
    json_t *arguments = json_object_get(item, "arguments");
    return json_is_string(arguments) ? add_call(reader, item, arguments)
                                     : wrong(reader, "arguments", "a string", arguments);
}

static int take_custom_call(struct reader *reader, json_t *item)
{
    json_t *input = json_object_get(item, "input");
    if (!json_is_string(input))
        return wrong(reader, "input", "a string", input);
    json_t *arguments = json_pack("{s:O}", RESPONSES_CUSTOM_ARGUMENT, input);
    int result = arguments ? add_call(reader, item, arguments) : request_no_memory(reader->err);
    json_decref(arguments);
    return result;
}

static int take_output(struct reader *reader, json_t *item)
{
    const json_t *id = read_id(reader, item);
    struct strbuf text = {0};
    size_t texts = 0;
    if (!id)
        return -1;
    if (!reader->behind && !chat_builder_called(&reader->builder, json_string_value(id)))
        return api_error_set(reader->err, API_INVALID_VALUE, INPUT,
                             "input: %zu: call_id: expected that of a call before it, got "
                             "\"%.60s\"",
                             reader->index, json_string_value(id));
    int result = chat_builder_flush(&reader->builder);
    if (result == 0)
        result = take_content(reader, item, "output", &text, &texts);
    if (result == 0)
        result = chat_builder_result(&reader->builder, id, &text);
    strbuf_clear(&text);
    return result;
}

static int refuse_reference(struct reader *reader, json_t *item)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    return api_error_set(reader->err, API_UNSUPPORTED, INPUT,
                         "input: %zu: item_reference is not supported: no items are stored, got "
                         "\"%.60s\"",
                         reader->index, id ? id : "");
}

static int take_item(struct reader *reader, json_t *item)
{
    static const struct {
        const char *type;
        int (*take)(struct reader *reader, json_t *item);
    } TYPES[] = {{"message", take_message},
                 {"reasoning", take_reasoning},
                 {"function_call", take_call},
                 {"custom_tool_call", take_custom_call},
                 {"function_call_output", take_output},
                 {"custom_tool_call_output", take_output},
                 {"item_reference", refuse_reference}};
    const json_t *type = request_field(item, "type");
    if (!json_is_object(item))
        return api_error_set(reader->err, API_INVALID_TYPE, INPUT,
                             "input: %zu: expected an object, got %s", reader->index,
                             fields_kind(item));
    if (!type && json_object_get(item, "role"))
        return take_message(reader, item);
    if (!type && json_object_get(item, "id"))
        return refuse_reference(reader, item);
    if (!json_is_string(type))
        return wrong(reader, "type", "a string", type);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(json_string_value(type), TYPES[i].type) == 0)
            return TYPES[i].take(reader, item);
    return api_error_set(reader->err, API_UNSUPPORTED, INPUT,
                         "input: %zu: items of the type \"%.60s\" are not supported", reader->index,
                         json_string_value(type));
}

/* The whole. */

static int take_text(struct reader *reader, enum chat_role role, const json_t *text)
{
    struct chat_builder *builder = &reader->builder;
    if (chat_builder_turn(builder, chat_builder_role(builder, role)))
        return -1;
    builder->begun = true;
    chat_builder_text(builder, &builder->text, &builder->texts, json_string_value(text),
                      json_string_length(text));
    return 0;
}

static int take_items(struct reader *reader, json_t *input)
{
    if (json_array_size(input) == 0)
        return api_error_set(reader->err, API_INVALID_VALUE, INPUT, "input: an empty list");
    for (size_t i = 0; i < json_array_size(input); i++) {
        reader->index = i;
        reader->open = false;
        if (take_item(reader, json_array_get(input, i)))
            return -1;
    }
    if (!reader->open)
        return chat_builder_flush(&reader->builder);
    return api_error_set(reader->err, API_INVALID_VALUE, INPUT,
                         "input: %zu: a call: expected its output behind it, got none",
                         reader->index);
}

static int take_all(struct reader *reader, const json_t *instructions, json_t *input)
{
    if (instructions && !json_is_string(instructions))
        return request_wrong_type(reader->err, "instructions", "a string", instructions);
    if (instructions && take_text(reader, CHAT_SYSTEM, instructions))
        return -1;
    if (!input)
        return api_error_set(reader->err, API_MISSING_PARAMETER, INPUT, "input is required");
    if (json_is_array(input))
        return take_items(reader, input);
    if (!json_is_string(input))
        return request_wrong_type(reader->err, INPUT, "a string or a list of items", input);
    return take_text(reader, CHAT_USER, input) ? -1 : chat_builder_flush(&reader->builder);
}

json_t *responses_items(const json_t *instructions, json_t *input,
                        const struct responses_template *template, struct reply_warnings *warnings,
                        struct api_error *err)
{
    struct reader reader = {
        .builder = {.field = INPUT, .left = LEFT, .systems = template->systems, .err = err},
        .developer = template->developer,
        .behind = template->behind,
        .err = err};
    int result = chat_builder_begin(&reader.builder);
    if (result == 0)
        result = take_all(&reader, instructions, input);
    if (result == 0)
        chat_builder_warn(&reader.builder, warnings);
    if (result == 0 && reader.sealed > 0)
        reply_warnings_add(warnings, WARNING_CONTENT,
                           "input: %zu of reasoning with nothing but an encrypted_content of "
                           "another server: the model does not see them",
                           reader.sealed);
    json_t *list = result == 0 ? json_incref(reader.builder.list) : NULL;
    chat_builder_clear(&reader.builder);
    return list;
}
