/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages_blocks.h"

#include "api/chat_builder.h"
#include "api/messages_tools.h"
#include "api/request.h"
#include "api/sealed_thought.h"
#include "lib/base/fields.h"

#include <stdlib.h>
#include <string.h>

/* Clients write into it what changes with each request. */
static const char BILLING[] = "x-anthropic-billing-header";

/* Blocks that are no text, and none of ours: a line tells the model of each. */
static const char *const LEFT[] = {"image",
                                   "document",
                                   "search_result",
                                   "container_upload",
                                   "server_tool_use",
                                   "web_search_tool_result",
                                   "web_fetch_tool_result",
                                   "code_execution_tool_result",
                                   "bash_code_execution_tool_result",
                                   "text_editor_code_execution_tool_result",
                                   "tool_search_tool_result",
                                   "mcp_tool_use",
                                   "mcp_tool_result",
                                   "tool_reference",
                                   NULL};
_Static_assert(sizeof LEFT / sizeof *LEFT <= CHAT_BUILDER_MOST_LEFT, "each is counted");

/* Where a value is, for messages: a block of a message, or of a result in one. */
struct place {
    const char *field; /* "messages", "system" */
    size_t message;
    size_t block;
    bool in_message;
};

struct history {
    json_t *apart; /* tools */
    struct chat_builder builder;
    size_t redacted; /* blocks that nobody sees */
    size_t sealed;   /* thoughts that others have sealed */
    struct place place;
    struct api_error *err;
};

/* Errors. */

static int wrong(const struct history *history, const char *what, const char *expected,
                 const json_t *got)
{
    const struct place *place = &history->place;
    char message[48] = "";
    if (place->in_message)
        snprintf(message, sizeof message, "%zu: content: ", place->message);
    return api_error_set(history->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, place->field,
                         "%s: %s%zu: %s: expected %s, got %s", place->field, message, place->block,
                         what, expected, got ? fields_kind(got) : "none");
}

static int wrong_message(const struct history *history, const char *what, const char *expected,
                         const json_t *got)
{
    return api_error_set(history->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, "messages",
                         "messages: %zu: %s: expected %s, got %s", history->place.message, what,
                         expected, got ? fields_kind(got) : "none");
}

static int wrong_type(const struct history *history, const char *expected, const char *got)
{
    const struct place *place = &history->place;
    char message[48] = "";
    if (place->in_message)
        snprintf(message, sizeof message, "%zu: content: ", place->message);
    return api_error_set(history->err, API_INVALID_VALUE, place->field,
                         "%s: %s%zu: type: expected %s, got \"%.60s\"", place->field, message,
                         place->block, expected, got);
}

/* Takes the definition of the tool to which a block refers. 1: the model sees it elsewhere. */
static int take_reference(struct history *history, const json_t *name, struct strbuf *to,
                          size_t *texts)
{
    char *definition = NULL;
    int result = 0;
    if (json_is_string(name))
        result =
            messages_tools_load(history->apart, json_string_value(name), &definition, history->err);
    bool some = definition;
    if (result == 0 && some)
        chat_builder_text(&history->builder, to, texts, definition, strlen(definition));
    free(definition);
    return result == 0 && !some ? 1 : result;
}

/* Takes a block that is a text, or a line in the place of what is none. 1: it is neither. */
static int take_text(struct history *history, const json_t *block, const char *type,
                     struct strbuf *to, size_t *texts)
{
    const json_t *text = json_object_get(block, "text");
    const json_t *tool = json_object_get(block, "tool_name");
    const char *name = json_string_value(tool);
    int taken = strcmp(type, "tool_reference") == 0 ? take_reference(history, tool, to, texts) : 1;
    if (taken <= 0)
        return taken;
    if (strcmp(type, "text") != 0)
        return chat_builder_leave(&history->builder, to, texts, type, name) ? 0 : 1;
    if (!json_is_string(text))
        return wrong(history, "text", "a string", text);
    chat_builder_text(&history->builder, to, texts, json_string_value(text),
                      json_string_length(text));
    return 0;
}

/* The type of a block; NULL with the error set. */
static const char *type_of(const struct history *history, const json_t *block)
{
    const json_t *type = json_object_get(block, "type");
    if (!json_is_object(block))
        wrong(history, "a block", "an object", block);
    else if (!json_is_string(type))
        wrong(history, "type", "a string", type);
    else
        return json_string_value(type);
    return NULL;
}

/* Results. */

static int read_result(struct history *history, const json_t *content, struct strbuf *text)
{
    size_t texts = 0;
    if (!content || json_is_null(content))
        return 0;
    if (json_is_string(content)) {
        strbuf_append(text, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (!json_is_array(content))
        return wrong(history, "content", "a string or a list of blocks", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const char *type = type_of(history, block);
        if (!type)
            return -1;
        int taken = take_text(history, block, type, text, &texts);
        if (taken != 0)
            return taken < 0 ? -1 : wrong_type(history, "text, image or document", type);
    }
    return 0;
}

static int take_result(struct history *history, const json_t *block)
{
    const json_t *id = json_object_get(block, "tool_use_id");
    const json_t *fails = json_object_get(block, "is_error");
    struct strbuf text = {0};
    if (!json_is_string(id))
        return wrong(history, "tool_use_id", "a string", id);
    if (!chat_builder_called(&history->builder, json_string_value(id)))
        return api_error_set(history->err, API_INVALID_VALUE, "messages",
                             "messages: %zu: content: %zu: tool_use_id: expected the id of a "
                             "tool_use before it, got \"%.60s\"",
                             history->place.message, history->place.block, json_string_value(id));
    if (fails && !json_is_boolean(fails) && !json_is_null(fails))
        return wrong(history, "is_error", "true or false", fails);
    if (json_is_true(fails)) /* no template has a place for it */
        strbuf_puts(&text, "Error: ");
    int result = read_result(history, json_object_get(block, "content"), &text);
    if (result == 0)
        result = chat_builder_result(&history->builder, id, &text);
    strbuf_clear(&text);
    return result;
}

/* Calls and thoughts. */

static int take_call(struct history *history, const json_t *block)
{
    const json_t *id = json_object_get(block, "id");
    json_t *name = json_object_get(block, "name");
    json_t *input = json_object_get(block, "input");
    if (!json_is_string(id))
        return wrong(history, "id", "a string", id);
    if (!json_is_string(name))
        return wrong(history, "name", "a string", name);
    if (!json_is_object(input))
        return wrong(history, "input", "an object", input);
    return chat_builder_call(&history->builder, id, name, input);
}

static int take_thought(struct history *history, const json_t *block)
{
    const json_t *thought = json_object_get(block, "thinking");
    const json_t *sealed = json_object_get(block, "signature");
    struct strbuf *reasoning = &history->builder.reasoning;
    if (!json_is_string(thought))
        return wrong(history, "thinking", "a string", thought);
    strbuf_append(reasoning, json_string_value(thought), json_string_length(thought));
    if (json_string_length(thought) == 0 && json_string_length(sealed) > 0)
        history->sealed += !sealed_thought_open(sealed, reasoning);
    return 0;
}

static int take_of_assistant(struct history *history, const json_t *block, const char *type)
{
    history->builder.begun |= strcmp(type, "text") == 0;
    if (strcmp(type, "tool_use") == 0)
        return take_call(history, block);
    if (strcmp(type, "thinking") == 0)
        return take_thought(history, block);
    if (strcmp(type, "redacted_thinking") == 0) {
        history->redacted++;
        return 0;
    }
    int taken = take_text(history, block, type, &history->builder.text, &history->builder.texts);
    return taken > 0 ? wrong_type(history, "text, tool_use or thinking", type) : taken;
}

/* Messages. */

/* The type of block i, which is now the place of errors; NULL with the error set. */
static const char *look_at(struct history *history, const json_t *blocks, size_t i,
                           const json_t **block)
{
    *block = json_array_get(blocks, i);
    history->place.block = i;
    return type_of(history, *block);
}

static int take_results(struct history *history, const json_t *blocks)
{
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block;
        const char *type = look_at(history, blocks, i, &block);
        if (!type)
            return -1;
        if (strcmp(type, "tool_result") == 0 &&
            (chat_builder_flush(&history->builder) || take_result(history, block)))
            return -1;
    }
    return 0;
}

/* A list of blocks but for the results of a user's. */
static int take_blocks(struct history *history, enum chat_role role, const json_t *blocks,
                       bool may_result)
{
    bool results = false;
    if (chat_builder_turn(&history->builder, role))
        return -1;
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block;
        const char *type = look_at(history, blocks, i, &block);
        if (!type)
            return -1;
        bool result = may_result && strcmp(type, "tool_result") == 0;
        results |= result;
        if (result)
            continue;
        history->builder.begun |= role != CHAT_ASSISTANT;
        int taken = role == CHAT_ASSISTANT ? take_of_assistant(history, block, type)
                                           : take_text(history, block, type, &history->builder.text,
                                                       &history->builder.texts);
        if (taken != 0)
            return taken < 0
                       ? -1
                       : wrong_type(history, may_result ? "text or tool_result" : "text", type);
    }
    history->builder.begun |= json_array_size(blocks) == 0;
    return 0;
}

static int take_string(struct history *history, enum chat_role role, const json_t *text)
{
    if (chat_builder_turn(&history->builder, role))
        return -1;
    history->builder.begun = true;
    chat_builder_text(&history->builder, &history->builder.text, &history->builder.texts,
                      json_string_value(text), json_string_length(text));
    return 0;
}

static int read_role(const struct history *history, const json_t *message, enum chat_role *role)
{
    const json_t *given = json_object_get(message, "role");
    const char *name = json_string_value(given);
    if (!name)
        return wrong_message(history, "role", "a string", given);
    *role = strcmp(name, "user") == 0        ? CHAT_USER
            : strcmp(name, "assistant") == 0 ? CHAT_ASSISTANT
            : strcmp(name, "system") == 0    ? CHAT_SYSTEM
                                             : CHAT_NOBODY;
    if (*role != CHAT_NOBODY)
        return 0;
    return api_error_set(history->err, API_INVALID_VALUE, "messages",
                         "messages: %zu: role: expected user, assistant or system, got \"%.40s\"",
                         history->place.message, name);
}

static int take_message(struct history *history, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    enum chat_role role = CHAT_NOBODY;
    if (!json_is_object(message))
        return api_error_set(history->err, API_INVALID_TYPE, "messages",
                             "messages: %zu: expected an object, got %s", history->place.message,
                             fields_kind(message));
    if (read_role(history, message, &role))
        return -1;
    if (json_is_string(content))
        return take_string(history, chat_builder_role(&history->builder, role), content);
    if (!json_is_array(content))
        return wrong_message(history, "content", "a string or a list of blocks", content);
    if (role == CHAT_USER && take_results(history, content))
        return -1;
    return take_blocks(history, chat_builder_role(&history->builder, role), content,
                       role == CHAT_USER);
}

static int take_system(struct history *history, const json_t *system)
{
    enum chat_role role = chat_builder_role(&history->builder, CHAT_SYSTEM);
    if (json_is_string(system))
        return take_string(history, role, system);
    if (!json_is_array(system))
        return request_wrong_type(history->err, "system", "a string or a list of blocks", system);
    for (size_t i = 0; i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i);
        const json_t *text = json_object_get(block, "text");
        history->place.block = i;
        const char *type = type_of(history, block);
        if (!type)
            return -1;
        if (strcmp(type, "text") != 0)
            return wrong_type(history, "text", type);
        if (!json_is_string(text))
            return wrong(history, "text", "a string", text);
        if (strncmp(json_string_value(text), BILLING, sizeof BILLING - 1) != 0 &&
            take_string(history, role, text))
            return -1;
    }
    return 0;
}

static int take_all(struct history *history, const json_t *system, const json_t *messages,
                    bool *continues)
{
    history->place = (struct place){.field = "system"};
    if (system && take_system(history, system))
        return -1;
    if (!messages)
        return api_error_set(history->err, API_MISSING_PARAMETER, "messages",
                             "messages is required");
    if (!json_is_array(messages))
        return request_wrong_type(history->err, "messages", "a list", messages);
    if (json_array_size(messages) == 0)
        return api_error_set(history->err, API_INVALID_VALUE, "messages",
                             "messages: an empty list");
    history->place = (struct place){.field = "messages", .in_message = true};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        history->place.message = i;
        if (take_message(history, json_array_get(messages, i)))
            return -1;
    }
    *continues = history->builder.role == CHAT_ASSISTANT;
    if (*continues && history->builder.calls)
        return api_error_set(history->err, API_INVALID_VALUE, "messages",
                             "messages: %zu: tool_use: expected a user's message with its "
                             "tool_result behind it, got none",
                             history->place.message);
    return chat_builder_flush(&history->builder);
}

static void warn(const struct history *history, struct reply_warnings *warnings)
{
    chat_builder_warn(&history->builder, warnings);
    if (history->redacted > 0)
        reply_warnings_add(warnings, WARNING_CONTENT,
                           "messages: %zu of redacted_thinking: the model does not see them",
                           history->redacted);
    if (history->sealed > 0)
        reply_warnings_add(warnings, WARNING_CONTENT,
                           "messages: %zu of thinking have no text, and a signature that was not "
                           "made here: the model does not see them",
                           history->sealed);
}

json_t *messages_blocks(const json_t *system, const json_t *messages, json_t *apart,
                        enum chat_systems systems, struct reply_warnings *warnings, bool *continues,
                        struct api_error *err)
{
    struct history history = {
        .builder = {.field = "messages", .left = LEFT, .systems = systems, .err = err},
        .apart = apart,
        .err = err};
    int result = chat_builder_begin(&history.builder);
    if (result == 0)
        result = take_all(&history, system, messages, continues);
    if (result == 0)
        warn(&history, warnings);
    json_t *list = result == 0 ? json_incref(history.builder.list) : NULL;
    chat_builder_clear(&history.builder);
    return list;
}
