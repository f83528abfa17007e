/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_demand.h"

#include "api/chat_channels.h"
#include "api/chat_types.h"
#include "api/request.h"
#include "lib/base/fields.h"
#include "lib/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

static const char CHOICE[] = "tool_choice", TOOLS[] = "tools", ALLOWED[] = "allowed_tools";
static const char FORMAT[] = "response_format";

/* --- tool_choice --- */

static const char *tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static int wrong(const char *name, const char *expected, const json_t *got, struct api_error *err)
{
    if (!got)
        return api_error_set(err, API_MISSING_PARAMETER, CHOICE, "%s is required", name);
    return api_error_set(err, API_INVALID_TYPE, CHOICE, "%s: expected %s, got %s", name, expected,
                         fields_kind(got));
}

/* {"type": "function", "function": {"name"}}. */
static int read_function(const json_t *choice, const char **name, struct api_error *err)
{
    const json_t *type = json_object_get(choice, "type");
    const json_t *function = json_object_get(choice, "function");
    const json_t *named = json_object_get(function, "name");
    if (!json_is_string(type))
        return wrong("tool_choice.type", "\"function\"", type, err);
    if (strcmp(json_string_value(type), "function") != 0)
        return api_error_set(err, API_UNSUPPORTED, CHOICE,
                             "tool_choice.type: expected \"function\", got \"%.40s\"",
                             json_string_value(type));
    if (!json_is_object(function))
        return wrong("tool_choice.function", "an object", function, err);
    if (!json_is_string(named))
        return wrong("tool_choice.function.name", "a string", named, err);
    *name = json_string_value(named);
    return 0;
}

/* What tool_choice asks. */
struct choice {
    bool demanded;  /* calls are */
    json_t *wanted; /* names of the only functions that may be called; NULL: any */
    bool one;       /* there is one of them, called once */
};

static int add_wanted(struct choice *out, const char *name, struct api_error *err)
{
    out->wanted = out->wanted ? out->wanted : json_object();
    return json_object_set_new(out->wanted, name, json_true()) ? request_no_memory(err) : 0;
}

/* Each name that is wanted is one of `known`. */
static int check_wanted(json_t *wanted, const json_t *known, struct api_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(wanted, name, value)
    {
        if (!json_object_get(known, name))
            return api_error_set(err, API_INVALID_VALUE, CHOICE,
                                 "tool_choice.function.name: expected that of one of tools, got "
                                 "\"%.60s\"",
                                 name);
    }
    return 0;
}

/* The same where the tools are not read, since calls are not demanded. */
static int check_allowed(json_t *wanted, const json_t *tools, struct api_error *err)
{
    json_t *known = json_object();
    int failed = !known;
    for (size_t i = 0; i < json_array_size(tools) && !failed; i++) {
        const char *name = tool_name(json_array_get(tools, i));
        failed = name && json_object_set_new(known, name, json_true());
    }
    int result = failed ? request_no_memory(err) : check_wanted(wanted, known, err);
    json_decref(known);
    return result;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools": [functions]}}. */
static int read_allowed(struct choice *out, const json_t *choice, struct api_error *err)
{
    const json_t *allowed = json_object_get(choice, ALLOWED);
    const json_t *tools = json_object_get(allowed, TOOLS);
    const char *mode = json_string_value(json_object_get(allowed, "mode")), *name;
    int result = 0;
    if (!json_is_object(allowed))
        return wrong("tool_choice.allowed_tools", "an object", allowed, err);
    if (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0))
        return api_error_set(err, API_INVALID_VALUE, CHOICE,
                             "tool_choice.allowed_tools.mode: expected auto or required, got "
                             "\"%.40s\"",
                             mode ? mode : "");
    if (json_array_size(tools) == 0)
        return wrong("tool_choice.allowed_tools.tools", "a list of functions", tools, err);
    out->demanded = strcmp(mode, "required") == 0;
    for (size_t i = 0; i < json_array_size(tools) && result == 0; i++) {
        result = read_function(json_array_get(tools, i), &name, err);
        if (result == 0)
            result = add_wanted(out, name, err);
    }
    return result;
}

static int read_object(struct choice *out, const json_t *fields, const json_t *choice,
                       struct api_error *err)
{
    const char *type = json_string_value(json_object_get(choice, "type")), *name;
    if (type && strcmp(type, ALLOWED) == 0) {
        if (read_allowed(out, choice, err))
            return -1;
        return out->demanded ? 0 : check_allowed(out->wanted, request_field(fields, TOOLS), err);
    }
    if (read_function(choice, &name, err))
        return -1;
    out->demanded = out->one = true;
    return add_wanted(out, name, err);
}

/* The caller decrefs out->wanted, also on an error. */
static int read_choice(const json_t *fields, struct choice *out, struct api_error *err)
{
    const json_t *choice = request_field(fields, CHOICE);
    const char *word = json_string_value(choice);
    *out = (struct choice){.demanded = word && strcmp(word, "required") == 0};
    if (json_is_object(choice))
        return read_object(out, fields, choice, err);
    if (!choice || out->demanded || (word && strcmp(word, "auto") == 0) ||
        (word && strcmp(word, "none") == 0))
        return 0;
    if (!word)
        return request_wrong_type(err, CHOICE, "a string or an object", choice);
    return api_error_set(err, API_INVALID_VALUE, CHOICE,
                         "tool_choice: expected auto, none, required, a function or allowed_tools, "
                         "got \"%.40s\"",
                         word);
}

/* --- The tools --- */

/* A function without parameters takes none. types: whether values are read by them. */
static json_t *describe(const json_t *function, const char *name, size_t index, bool types,
                        struct api_error *err)
{
    json_t *parameters = request_field(function, "parameters");
    json_t *described, *names = types ? chat_types_names(parameters, index, err) : json_object();
    parameters = parameters ? json_incref(parameters)
                            : json_pack("{s:s,s:{},s:b}", "type", "object", "properties",
                                        "additionalProperties", 0);
    char place[64];
    snprintf(place, sizeof place, "tools[%zu].function", index);
    described = json_pack("{s:s,s:s,s:o,s:o}", "place", place, "name", name, "types", names,
                          "parameters", parameters);
    if (!described && err->code == API_OK)
        request_no_memory(err);
    return described;
}

/* Adds a tool that may be called, unless one before it has its name. */
static int add_tool(json_t *list, json_t *known, const json_t *tool, size_t index,
                    const json_t *wanted, bool types, struct api_error *err)
{
    const json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (type && strcmp(type, "function") != 0)
        return api_error_set(err, API_UNSUPPORTED, TOOLS,
                             "tools[%zu].type: expected \"function\", got \"%.40s\"", index, type);
    if (!json_is_object(function) || !json_is_string(name))
        return api_error_set(err, API_INVALID_TYPE, TOOLS,
                             "tools[%zu].function.name: expected a string, got %s", index,
                             name ? fields_kind(name) : "none");
    const char *text = json_string_value(name);
    if (strlen(text) != json_string_length(name))
        return api_error_set(err, API_INVALID_VALUE, TOOLS,
                             "tools[%zu].function.name: expected no U+0000", index);
    if ((wanted && !json_object_get(wanted, text)) || json_object_get(known, text))
        return 0;
    json_t *described = describe(function, text, index, types, err);
    if (!described)
        return -1;
    if (json_object_set_new(known, text, json_true()) || json_array_append_new(list, described))
        return request_no_memory(err);
    return 0;
}

static int add_tools(json_t *list, const json_t *tools, json_t *wanted, bool types,
                     struct api_error *err)
{
    json_t *known = json_object();
    int result = known ? 0 : request_no_memory(err);
    for (size_t i = 0; i < json_array_size(tools) && result == 0; i++)
        result = add_tool(list, known, json_array_get(tools, i), i, wanted, types, err);
    if (result == 0)
        result = check_wanted(wanted, known, err);
    json_decref(known);
    return result;
}

json_t *chat_demand_tools(const json_t *fields, struct api_error *err)
{
    json_t *tools = request_field(fields, TOOLS), *seen = NULL;
    struct choice choice;
    if (read_choice(fields, &choice, err) == 0 && (!choice.wanted || choice.demanded))
        seen = tools ? json_incref(tools) : json_null();
    else if (err->code == API_OK && !(seen = json_array()))
        request_no_memory(err);
    /* Nothing but the list keeps a model that may choose from the others. */
    for (size_t i = 0; i < json_array_size(tools) && seen && seen != tools; i++) {
        json_t *tool = json_array_get(tools, i);
        const char *name = tool_name(tool);
        if (name && json_object_get(choice.wanted, name) && json_array_append(seen, tool))
            request_no_memory(err);
    }
    json_decref(choice.wanted);
    if (err->code == API_OK)
        return seen;
    json_decref(seen);
    return NULL;
}

/* --- The demand --- */

static json_t *words_of(const struct chat_words *words)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:b,s:b}", "section",
                     words->section, "section_end", words->section_end, "before", words->before,
                     "behind", words->behind, "key", words->key, "key_end", words->key_end, "value",
                     words->value, "value_end", words->value_end, "end", words->end, "id",
                     words->id, "other", words->other ? words->other : "", "counts", words->counts,
                     "lines", words->lines);
}

static json_t *calls_of(const struct chat_syntax *syntax, bool one, json_t *list)
{
    static const enum schema_call_syntax SYNTAXES[] = {[CHAT_KIND_JSON] = SCHEMA_CALL_JSON,
                                                       [CHAT_KIND_PYTHON] = SCHEMA_CALL_PYTHON,
                                                       [CHAT_KIND_XML] = SCHEMA_CALL_XML,
                                                       [CHAT_KIND_NAMED] = SCHEMA_CALL_NAMED};
    const struct chat_words *words = chat_words(syntax->format);
    int most = one || syntax->single ? 1 : CHAT_DEMAND_MOST;
    return json_pack("{s:i,s:s,s:s,s:b,s:b,s:b,s:b,s:o,s:i,s:O}", "syntax",
                     (int)SYNTAXES[words->kind], "open", syntax->bare ? "" : syntax->calls.open,
                     "close", syntax->bare ? "" : syntax->calls.close, "list", syntax->list,
                     "tool_names", syntax->tool_names, "parameters", syntax->parameters, "exact",
                     words->open != NULL, "words", words_of(words), "most", most, "tools", list);
}

static int demand_calls(char **calls, size_t *length, const json_t *tools, json_t *wanted,
                        const struct chat_syntax *syntax, bool one, struct api_error *err)
{
    json_t *list = json_array(), *spec = NULL;
    const struct chat_words *words = chat_words(syntax->format);
    bool types = words->kind == CHAT_KIND_XML || *words->value_end; /* strings are text */
    int result = list ? add_tools(list, tools, wanted, types, err) : request_no_memory(err);
    if (result == 0 && !(spec = calls_of(syntax, one, list)))
        result = request_no_memory(err);
    if (result == 0)
        result = request_dump(spec, calls, length, err);
    json_decref(spec);
    json_decref(list);
    return result;
}

void chat_demand_clear(struct chat_demand *demand)
{
    free(demand->calls);
    free(demand->offered);
    *demand = (struct chat_demand){0};
}

/* Whether the text has a format, which calls are not bound to. */
static bool has_format(const json_t *fields)
{
    const char *type = json_string_value(json_object_get(request_field(fields, FORMAT), "type"));
    return type && strcmp(type, "text") != 0;
}

static int make_demand(struct chat_demand *demand, const json_t *fields,
                       const struct choice *choice, const struct chat_syntax *syntax, bool one,
                       struct api_error *err)
{
    const json_t *tools = request_field(fields, TOOLS);
    const char *word = json_string_value(request_field(fields, CHOICE));
    bool may_call = json_array_size(tools) > 0 && !(word && strcmp(word, "none") == 0);
    if (!choice->demanded &&
        (!may_call || syntax->format == CHAT_CALLS_NONE || !has_format(fields)))
        return 0;
    if (!choice->demanded)
        return demand_calls(&demand->offered, &demand->offered_length, tools, choice->wanted,
                            syntax, one, err);
    if (json_array_size(tools) == 0)
        return api_error_set(err, API_INVALID_VALUE, CHOICE,
                             "tool_choice: expected tools that can be called, got none");
    if (syntax->format == CHAT_CALLS_NONE)
        return api_error_set(err, API_UNSUPPORTED, CHOICE,
                             "tool_choice: calls cannot be demanded, since the model's chat "
                             "template does not show how they are written");
    return demand_calls(&demand->calls, &demand->length, tools, choice->wanted, syntax,
                        one || choice->one, err);
}

int chat_demand_read(struct chat_demand *demand, const json_t *fields,
                     const struct chat_syntax *syntax, bool one, struct api_error *err)
{
    struct choice choice;
    int result = read_choice(fields, &choice, err);
    if (result == 0)
        result = make_demand(demand, fields, &choice, syntax, one, err);
    json_decref(choice.wanted);
    return result;
}

/* --- The constraint --- */

/* The spec of GRAMMAR_REPLY. */
static json_t *spec_of(const struct chat_demand *demand, const struct chat_markers *markers,
                       const struct constraint *constraint, struct api_error *err)
{
    json_t *spec = json_object(), *inner = NULL;
    int failed = !spec;
    if (!failed && (demand->begun || demand->may_open))
        failed = json_object_set_new(spec, "reasoning",
                                     json_pack("{s:s,s:s,s:b}", "open", markers->open, "close",
                                               markers->close, "begun", demand->begun));
    if (!failed && demand->heads)
        failed = json_object_set_new(spec, "answer", json_string(CHAT_CHANNELS_ANSWER));
    const char *calls = demand->calls ? demand->calls : demand->offered;
    if (!failed && calls)
        failed = json_object_set_new(
            spec, "calls",
            request_load_dump(calls, demand->calls ? demand->length : demand->offered_length, err));
    if (!failed && !demand->calls) {
        failed = constraint_load(constraint, &inner, err) ||
                 json_object_set_new(spec, "kind", json_integer(constraint->kind)) ||
                 (inner && json_object_set(spec, "spec", inner));
    }
    json_decref(inner);
    if (!failed)
        return spec;
    json_decref(spec);
    request_no_memory(err);
    return NULL;
}

int chat_demand_constrain(const struct chat_demand *demand, const struct chat_syntax *syntax,
                          struct constraint *constraint, struct api_error *err)
{
    if (!demand->calls && (!constraint->param || (!demand->begun && !demand->may_open &&
                                                  !demand->offered && !demand->heads)))
        return 0;
    /* Calls win over the format of a text. */
    if (demand->calls && constraint->param && strcmp(constraint->param, FORMAT) != 0)
        return api_error_set(
            err, API_INVALID_VALUE, CHOICE,
            "tool_choice: calls are not allowed with %s: a text has one constraint",
            constraint->name);
    char *text = NULL;
    size_t length;
    json_t *spec = spec_of(demand, &syntax->reasoning, constraint, err);
    if (!spec)
        return -1;
    int result = request_dump(spec, &text, &length, err);
    json_decref(spec);
    if (result)
        return -1;
    free(constraint->spec);
    if (demand->calls) {
        constraint->param = TOOLS;
        constraint->name = CHOICE;
    }
    constraint->kind = GRAMMAR_REPLY;
    constraint->spec = text;
    constraint->length = length;
    return 0;
}
