/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages_tools.h"

#include "api/chat_rules.h"
#include "api/function_list.h"
#include "api/request.h"
#include "lib/base/fields.h"

#include <stdbool.h>
#include <string.h>

static const char TOOLS[] = "tools", CHOICE[] = "tool_choice";

static int wrong(const struct function_list *list, size_t index, const char *what,
                 const char *expected, const json_t *got)
{
    return api_error_set(list->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, TOOLS,
                         "tools: %zu: %s: expected %s, got %s", index, what, expected,
                         got ? fields_kind(got) : "none");
}

/* Whether it is the client's own. */
static bool is_custom(const json_t *tool)
{
    const char *type = json_string_value(request_field(tool, "type"));
    return !type || strcmp(type, "custom") == 0;
}

static int add_tool(struct function_list *list, const json_t *tool, size_t index)
{
    static const char *const KNOWN[] = {
        "type",          "name",   "description",           "input_schema",    "cache_control",
        "defer_loading", "strict", "eager_input_streaming", "allowed_callers", NULL};
    const json_t *type = request_field(tool, "type");
    json_t *name = request_field(tool, "name"), *description = request_field(tool, "description");
    json_t *schema = request_field(tool, "input_schema");
    if (!json_is_object(tool))
        return wrong(list, index, "a tool", "an object", tool);
    if (type && !json_is_string(type))
        return wrong(list, index, "type", "a string", type);
    bool custom = is_custom(tool);
    if (!json_is_string(name) && (name || custom))
        return wrong(list, index, "name", "a string", name);
    if (!custom)
        return function_list_leave(list, name, type);
    if (description && !json_is_string(description))
        return wrong(list, index, "description", "a string", description);
    if (!json_is_object(schema))
        return wrong(list, index, "input_schema", "an object", schema);
    function_list_note(list, tool, KNOWN);
    return function_list_add(list, name, description, schema);
}

static int read_tools(struct function_list *list, const json_t *fields)
{
    const json_t *tools = request_field(fields, TOOLS);
    if (tools && !json_is_array(tools))
        return request_wrong_type(list->err, TOOLS, "a list", tools);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (add_tool(list, json_array_get(tools, i), i))
            return -1;
    return 0;
}

/* tool_choice */

/* A call of the tool of that name is demanded. */
static int choose_tool(json_t *chat, const struct function_list *list, const json_t *choice)
{
    const json_t *name = request_field(choice, "name");
    if (!json_is_string(name))
        return api_error_set(list->err, name ? API_INVALID_TYPE : API_MISSING_PARAMETER, CHOICE,
                             "tool_choice.name: expected a string, got %s",
                             name ? fields_kind(name) : "none");
    return function_list_choose(list, chat, name);
}

static int choose(json_t *chat, const struct function_list *list, const json_t *choice)
{
    static const char *const TYPES[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *given = request_field(choice, "type");
    const char *type = json_string_value(given);
    if (!type)
        return api_error_set(list->err, given ? API_INVALID_TYPE : API_MISSING_PARAMETER, CHOICE,
                             "tool_choice.type: expected a string, got %s",
                             given ? fields_kind(given) : "none");
    if (strcmp(type, "tool") == 0)
        return choose_tool(chat, list, choice);
    if (strcmp(type, "any") == 0 && function_list_demand(list, "tool_choice.type: any"))
        return -1;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(type, TYPES[i][0]) == 0)
            return json_object_set_new(chat, CHOICE, json_string(TYPES[i][1]))
                       ? request_no_memory(list->err)
                       : 0;
    return api_error_set(list->err, API_INVALID_VALUE, CHOICE,
                         "tool_choice.type: expected auto, any, tool or none, got \"%.40s\"", type);
}

static int read_choice(json_t *chat, const struct function_list *list, const json_t *fields)
{
    const json_t *choice = request_field(fields, CHOICE);
    bool one = false;
    if (!choice)
        return 0;
    if (!json_is_object(choice))
        return request_wrong_type(list->err, CHOICE, "an object", choice);
    if (request_bool(choice, "disable_parallel_tool_use", &one, list->err)) {
        memcpy(list->err->param, CHOICE, sizeof CHOICE);
        return -1;
    }
    if (one && json_object_set_new(chat, "parallel_tool_calls", json_false()))
        return request_no_memory(list->err);
    return choose(chat, list, choice);
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool is_apart(const json_t *tool)
{
    return json_is_true(request_field(tool, "defer_loading"));
}

/* Whether the model could never see those with defer_loading: all are, or a server would search. */
static bool never_seen(const json_t *given, size_t all)
{
    size_t apart = 0;
    static const char SEARCH[] = "tool_search_tool";
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *tool = json_array_get(given, i);
        const char *type = json_string_value(request_field(tool, "type"));
        if (type && strncmp(type, SEARCH, sizeof SEARCH - 1) == 0)
            return true;
        apart += is_custom(tool) && is_apart(tool);
    }
    return apart == all;
}

/* Marks tools with defer_loading, and lists them in the chat by name. */
static int set_apart(json_t *chat, const json_t *fields, struct api_error *err)
{
    const json_t *given = request_field(fields, TOOLS);
    const json_t *functions = json_object_get(chat, TOOLS);
    json_t *apart = json_object();
    int failed = !apart || json_object_set_new(chat, MESSAGES_TOOLS_APART, apart);
    size_t at = 0;
    if (never_seen(given, json_array_size(functions)))
        given = NULL;
    for (size_t i = 0; i < json_array_size(given) && !failed; i++) {
        const json_t *tool = json_array_get(given, i);
        if (!is_custom(tool))
            continue;
        json_t *function = json_array_get(functions, at++);
        const char *name = name_of(function);
        if (is_apart(tool))
            failed = json_object_set_new(function, CHAT_TOOL_APART, json_false()) ||
                     (!json_object_get(apart, name) && json_object_set(apart, name, function));
    }
    return failed ? request_no_memory(err) : 0;
}

int messages_tools(json_t *chat, const json_t *fields, struct reply_warnings *warnings,
                   struct api_error *err)
{
    struct function_list list;
    int result = function_list_begin(&list, err);
    if (result == 0)
        result = read_tools(&list, fields);
    if (result == 0)
        result = function_list_set(&list, chat);
    if (result == 0)
        result = read_choice(chat, &list, fields);
    if (result == 0)
        result = set_apart(chat, fields, err);
    if (result == 0)
        function_list_warn(&list, "tools with an input_schema of their own", warnings);
    function_list_clear(&list);
    return result;
}

/* Tools apart. */

int messages_tools_load(json_t *apart, const char *name, char **definition, struct api_error *err)
{
    size_t length;
    json_t *tool = json_object_get(apart, name);
    *definition = NULL;
    if (!json_is_false(json_object_get(tool, CHAT_TOOL_APART)))
        return 0;
    json_object_del(tool, CHAT_TOOL_APART); /* as templates have it */
    int result = request_dump(tool, definition, &length, err);
    if (result == 0 && json_object_set_new(tool, CHAT_TOOL_APART, json_true()))
        result = request_no_memory(err);
    return result;
}

int messages_tools_settle(json_t *chat, struct api_error *err)
{
    const json_t *tools = json_object_get(chat, TOOLS);
    const char *demanded = name_of(json_object_get(chat, CHOICE));
    json_t *kept = json_array();
    int failed = !kept;
    json_object_del(chat, MESSAGES_TOOLS_APART);
    for (size_t i = 0; i < json_array_size(tools) && !failed; i++) {
        json_t *tool = json_array_get(tools, i);
        bool unseen = json_is_false(json_object_get(tool, CHAT_TOOL_APART));
        bool wanted = demanded && strcmp(demanded, name_of(tool)) == 0;
        if (unseen && wanted)
            json_object_del(tool, CHAT_TOOL_APART);
        if (!unseen || wanted)
            failed = json_array_append(kept, tool);
    }
    if (!failed && tools)
        failed = json_object_set(chat, TOOLS, kept);
    json_decref(kept);
    return failed ? request_no_memory(err) : 0;
}
