/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages_tools.h"

#include "api/chat_rules.h"
#include "api/request.h"
#include "engine/base/fields.h"

#include <stdbool.h>
#include <string.h>

static const char TOOLS[] = "tools", CHOICE[] = "tool_choice";

/* The tools of a request. */
struct tools {
    json_t *functions; /* those that can be called, as a chat has them */
    json_t *names;     /* of all: an object; the value of one that was left out is its type */
    size_t left;
    const char *left_type; /* of the first that was left out */
    const char *unseen;    /* a member of a tool that the model does not see; NULL: none */
    struct api_error *err;
};

static int wrong(const struct tools *tools, size_t index, const char *what, const char *expected,
                 const json_t *got)
{
    return api_error_set(tools->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, TOOLS,
                         "tools: %zu: %s: expected %s, got %s", index, what, expected,
                         got ? fields_kind(got) : "none");
}

/* Whether it is the client's own. */
static bool is_custom(const json_t *tool)
{
    const char *type = json_string_value(request_field(tool, "type"));
    return !type || strcmp(type, "custom") == 0;
}

/* Notes the first member that says something to the model or of its calls, and reaches neither. */
static void note_unseen(struct tools *tools, const json_t *tool)
{
    static const char *const KNOWN[] = {
        "type",          "name",   "description",           "input_schema",   "cache_control",
        "defer_loading", "strict", "eager_input_streaming", "allowed_callers"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)tool, key, value)
    {
        size_t i = 0;
        while (i < sizeof KNOWN / sizeof *KNOWN && strcmp(KNOWN[i], key) != 0)
            i++;
        bool strict = strcmp(key, "strict") == 0 && json_is_true(value);
        if (!tools->unseen && (strict || i == sizeof KNOWN / sizeof *KNOWN) && !json_is_null(value))
            tools->unseen = key;
    }
}

static int leave_out(struct tools *tools, const json_t *name, const json_t *type)
{
    if (tools->left++ == 0)
        tools->left_type = json_string_value(type);
    return name && json_object_set(tools->names, json_string_value(name), (json_t *)type)
               ? request_no_memory(tools->err)
               : 0;
}

static int add_tool(struct tools *tools, const json_t *tool, size_t index)
{
    const json_t *type = request_field(tool, "type"), *name = request_field(tool, "name");
    const json_t *description = request_field(tool, "description");
    const json_t *schema = request_field(tool, "input_schema");
    if (!json_is_object(tool))
        return wrong(tools, index, "a tool", "an object", tool);
    if (type && !json_is_string(type))
        return wrong(tools, index, "type", "a string", type);
    bool custom = is_custom(tool);
    if (!json_is_string(name) && (name || custom))
        return wrong(tools, index, "name", "a string", name);
    if (!custom)
        return leave_out(tools, name, type);
    if (description && !json_is_string(description))
        return wrong(tools, index, "description", "a string", description);
    if (!json_is_object(schema))
        return wrong(tools, index, "input_schema", "an object", schema);
    note_unseen(tools, tool);
    json_t *function = json_pack("{s:O}", "name", name);
    bool failed =
        !function ||
        (description && json_object_set(function, "description", (json_t *)description)) ||
        json_object_set(function, "parameters", (json_t *)schema) ||
        json_object_set(tools->names, json_string_value(name), json_null());
    json_t *added =
        failed ? NULL : json_pack("{s:s,s:O}", "type", "function", "function", function);
    json_decref(function);
    return json_array_append_new(tools->functions, added) ? request_no_memory(tools->err) : 0;
}

static int read_tools(struct tools *tools, const json_t *fields)
{
    const json_t *list = request_field(fields, TOOLS);
    if (list && !json_is_array(list))
        return request_wrong_type(tools->err, TOOLS, "a list", list);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (add_tool(tools, json_array_get(list, i), i))
            return -1;
    return 0;
}

static void warn(const struct tools *tools, struct reply_warnings *warnings)
{
    if (tools->left > 0)
        reply_warnings_add(warnings, WARNING_CONTENT,
                           "tools: %zu are left out, the first of the type \"%.60s\": only tools "
                           "with an input_schema of their own can be called here",
                           tools->left, tools->left_type);
    if (tools->unseen)
        reply_warnings_add(warnings, WARNING_FIELD, "tools: %.60s of a tool: it is ignored",
                           tools->unseen);
}

/* tool_choice */

/* A call of the tool of that name is demanded. */
static int choose_tool(json_t *chat, const struct tools *tools, const json_t *choice)
{
    const json_t *name = request_field(choice, "name");
    if (!json_is_string(name))
        return api_error_set(tools->err, name ? API_INVALID_TYPE : API_MISSING_PARAMETER, CHOICE,
                             "tool_choice.name: expected a string, got %s",
                             name ? fields_kind(name) : "none");
    const json_t *known = json_object_get(tools->names, json_string_value(name));
    if (json_is_string(known))
        return api_error_set(tools->err, API_UNSUPPORTED, CHOICE,
                             "tool_choice.name: the tool \"%.60s\" is of the type \"%.60s\", which "
                             "is not supported",
                             json_string_value(name), json_string_value(known));
    if (!known)
        return api_error_set(tools->err, API_INVALID_VALUE, CHOICE,
                             "tool_choice.name: expected that of one of tools, got \"%.60s\"",
                             json_string_value(name));
    return json_object_set_new(
               chat, CHOICE,
               json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name))
               ? request_no_memory(tools->err)
               : 0;
}

static int choose(json_t *chat, const struct tools *tools, const json_t *choice)
{
    static const char *const TYPES[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *given = request_field(choice, "type");
    const char *type = json_string_value(given);
    if (!type)
        return api_error_set(tools->err, given ? API_INVALID_TYPE : API_MISSING_PARAMETER, CHOICE,
                             "tool_choice.type: expected a string, got %s",
                             given ? fields_kind(given) : "none");
    if (strcmp(type, "tool") == 0)
        return choose_tool(chat, tools, choice);
    if (strcmp(type, "any") == 0 && json_array_size(tools->functions) == 0)
        return api_error_set(tools->err, tools->left ? API_UNSUPPORTED : API_INVALID_VALUE, CHOICE,
                             "tool_choice.type: any: expected tools that can be called, got %s%s",
                             tools->left ? "those of the type " : "none",
                             tools->left ? tools->left_type : "");
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(type, TYPES[i][0]) == 0)
            return json_object_set_new(chat, CHOICE, json_string(TYPES[i][1]))
                       ? request_no_memory(tools->err)
                       : 0;
    return api_error_set(tools->err, API_INVALID_VALUE, CHOICE,
                         "tool_choice.type: expected auto, any, tool or none, got \"%.40s\"", type);
}

static int read_choice(json_t *chat, const struct tools *tools, const json_t *fields)
{
    const json_t *choice = request_field(fields, CHOICE);
    bool one = false;
    if (!choice)
        return 0;
    if (!json_is_object(choice))
        return request_wrong_type(tools->err, CHOICE, "an object", choice);
    if (request_bool(choice, "disable_parallel_tool_use", &one, tools->err)) {
        memcpy(tools->err->param, CHOICE, sizeof CHOICE);
        return -1;
    }
    if (one && json_object_set_new(chat, "parallel_tool_calls", json_false()))
        return request_no_memory(tools->err);
    return choose(chat, tools, choice);
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
    struct tools tools = {.functions = json_array(), .names = json_object(), .err = err};
    int result = tools.functions && tools.names ? 0 : request_no_memory(err);
    if (result == 0)
        result = read_tools(&tools, fields);
    if (result == 0 && json_array_size(tools.functions) > 0 &&
        json_object_set(chat, TOOLS, tools.functions))
        result = request_no_memory(err);
    if (result == 0)
        result = read_choice(chat, &tools, fields);
    if (result == 0)
        result = set_apart(chat, fields, err);
    if (result == 0)
        warn(&tools, warnings);
    json_decref(tools.functions);
    json_decref(tools.names);
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
