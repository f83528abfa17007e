/* SPDX-License-Identifier: Apache-2.0 */
#include "api/function_list.h"

#include "api/request.h"

#include <string.h>

static const char TOOLS[] = "tools", CHOICE[] = "tool_choice";

int function_list_begin(struct function_list *list, struct api_error *err)
{
    *list = (struct function_list){.functions = json_array(), .names = json_object(), .err = err};
    return list->functions && list->names ? 0 : request_no_memory(err);
}

void function_list_clear(struct function_list *list)
{
    json_decref(list->functions);
    json_decref(list->names);
}

void function_list_note(struct function_list *list, const json_t *tool, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)tool, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        bool strict = strcmp(key, "strict") == 0;
        bool says = strict ? json_is_true(value) : !known[i] && !json_is_null(value);
        if (!list->unseen && says)
            list->unseen = key;
    }
}

int function_list_leave(struct function_list *list, const json_t *name, const json_t *type)
{
    if (list->left++ == 0)
        list->left_type = json_string_value(type);
    return name && json_object_set(list->names, json_string_value(name), (json_t *)type)
               ? request_no_memory(list->err)
               : 0;
}

int function_list_add(struct function_list *list, json_t *name, json_t *description,
                      json_t *parameters)
{
    json_t *function = json_pack("{s:O}", "name", name);
    bool failed = !function ||
                  (description && json_object_set(function, "description", description)) ||
                  (parameters && json_object_set(function, "parameters", parameters)) ||
                  json_object_set(list->names, json_string_value(name), json_null());
    json_t *added =
        failed ? NULL : json_pack("{s:s,s:O}", "type", "function", "function", function);
    json_decref(function);
    return json_array_append_new(list->functions, added) ? request_no_memory(list->err) : 0;
}

int function_list_set(const struct function_list *list, json_t *chat)
{
    return json_array_size(list->functions) > 0 && json_object_set(chat, TOOLS, list->functions)
               ? request_no_memory(list->err)
               : 0;
}

void function_list_warn(const struct function_list *list, const char *needs,
                        struct reply_warnings *warnings)
{
    if (list->left > 0)
        reply_warnings_note(warnings, WARNING_CONTENT,
                            "tools: %zu are left out, the first of the type \"%.60s\": only %s can "
                            "be called here",
                            list->left, list->left_type, needs);
    if (list->unseen)
        reply_warnings_add(warnings, WARNING_FIELD, "tools: %.60s of a tool: it is ignored",
                           list->unseen);
}

int function_list_demand(const struct function_list *list, const char *place)
{
    if (json_array_size(list->functions) > 0)
        return 0;
    return api_error_set(list->err, list->left ? API_UNSUPPORTED : API_INVALID_VALUE, CHOICE,
                         "%s: expected tools that can be called, got %s%s", place,
                         list->left ? "those of the type " : "none",
                         list->left ? list->left_type : "");
}

int function_list_choose(const struct function_list *list, json_t *chat, const json_t *name)
{
    const json_t *known = json_object_get(list->names, json_string_value(name));
    if (json_is_string(known))
        return api_error_set(list->err, API_UNSUPPORTED, CHOICE,
                             "tool_choice.name: the tool \"%.60s\" is of the type \"%.60s\", which "
                             "is not supported",
                             json_string_value(name), json_string_value(known));
    if (!known)
        return api_error_set(list->err, API_INVALID_VALUE, CHOICE,
                             "tool_choice.name: expected that of one of tools, got \"%.60s\"",
                             json_string_value(name));
    json_t *choice = json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name);
    return json_object_set_new(chat, CHOICE, choice) ? request_no_memory(list->err) : 0;
}
