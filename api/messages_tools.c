/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages_tools.h"

#include "api/function_list.h"
#include "api/request.h"
#include "engine/base/fields.h"

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
    bool custom = !type || strcmp(json_string_value(type), "custom") == 0;
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
        function_list_warn(&list, "tools with an input_schema of their own", warnings);
    function_list_clear(&list);
    return result;
}
