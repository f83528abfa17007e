/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_tools.h"

#include "api/function_list.h"
#include "api/lark.h"
#include "api/request.h"
#include "api/strbuf.h"
#include "lib/base/fields.h"
#include "lib/grammar/regex.h"

#include <string.h>

static const char TOOLS[] = "tools", CHOICE[] = "tool_choice";

struct reader {
    struct function_list list;
    struct responses_tools *out;
    json_t *space; /* the namespace whose tools are read; NULL: none */
    json_t *about; /* what it says of itself, until its first tool has it */
    size_t index, inner;
    json_t *called;           /* by the name of a tool that the chat calls otherwise: how */
    struct work work;         /* for the grammars of custom tools */
    size_t free_form;         /* those whose grammar is not one of ours */
    struct error free_reason; /* why the first is none */
    struct api_error *err;
};

static void write_place(const struct reader *reader, char place[64])
{
    if (reader->space)
        snprintf(place, 64, "%zu: tools: %zu", reader->index, reader->inner);
    else
        snprintf(place, 64, "%zu", reader->index);
}

static int wrong(const struct reader *reader, const char *what, const char *expected,
                 const json_t *got)
{
    char place[64];
    write_place(reader, place);
    return api_error_set(reader->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, TOOLS,
                         "tools: %s: %s: expected %s, got %s", place, what, expected,
                         got ? fields_kind(got) : "none");
}

/* A member that may be absent. */
static int check_string(const struct reader *reader, const json_t *tool, const char *name)
{
    const json_t *value = request_field(tool, name);
    return value && !json_is_string(value) ? wrong(reader, name, "a string", value) : 0;
}

/* Names */

json_t *responses_tools_called(const json_t *space, json_t *name)
{
    struct strbuf both = {0};
    if (!space)
        return json_incref(name);
    strbuf_append(&both, json_string_value(space), json_string_length(space));
    strbuf_puts(&both, "__");
    strbuf_append(&both, json_string_value(name), json_string_length(name));
    json_t *called = both.failed ? NULL : json_stringn(both.data, both.length);
    strbuf_clear(&both);
    return called;
}

/* Two tools of one name must be called alike. */
static int note_name(const struct reader *reader, json_t *called, json_t *name, bool custom)
{
    char place[64];
    const char *key = json_string_value(called);
    json_t *row = json_pack("[O,O?,b]", name, reader->space, custom);
    const json_t *before = json_object_get(reader->out->renamed, key);
    bool known = json_object_get(reader->list.names, key) != NULL;
    bool renames = reader->space || custom;
    if (!row)
        return request_no_memory(reader->err);
    write_place(reader, place);
    if (strlen(key) != json_string_length(called))
        api_error_set(reader->err, API_INVALID_VALUE, TOOLS, "tools: %s: name: expected no U+0000",
                      place);
    else if (known && (before ? !json_equal(before, row) : renames))
        api_error_set(reader->err, API_INVALID_VALUE, TOOLS,
                      "tools: %s: name: \"%.60s\" is that of another tool", place, key);
    else if (renames && (json_object_set(reader->out->renamed, key, row) ||
                         json_object_set(reader->called, json_string_value(name), called)))
        request_no_memory(reader->err);
    json_decref(row);
    return reader->err->code == API_OK ? 0 : -1;
}

/* Tools */

/* The description of a namespace stands before that of its first tool. */
static json_t *describe(struct reader *reader, json_t *description)
{
    struct strbuf both = {0};
    json_t *about = reader->about;
    reader->about = NULL;
    if (!about || json_string_length(about) == 0)
        return json_incref(description);
    strbuf_append(&both, json_string_value(about), json_string_length(about));
    strbuf_puts(&both, description ? "\n\n" : "");
    strbuf_append(&both, json_string_value(description), json_string_length(description));
    json_t *described = both.failed ? NULL : json_stringn(both.data, both.length);
    if (!described)
        request_no_memory(reader->err);
    strbuf_clear(&both);
    return described;
}

/* Adds a function to the chat. */
static int add(struct reader *reader, json_t *tool, json_t *parameters, bool custom)
{
    json_t *name = request_field(tool, "name"), *description = request_field(tool, "description");
    if (!json_is_string(name))
        return wrong(reader, "name", "a string", name);
    if (check_string(reader, tool, "description"))
        return -1;
    json_t *called = responses_tools_called(reader->space, name);
    if (!called)
        return request_no_memory(reader->err);
    int result = note_name(reader, called, name, custom);
    json_t *described = result == 0 ? describe(reader, description) : NULL;
    if (result == 0 && reader->err->code == API_OK)
        result = function_list_add(&reader->list, called, described, parameters);
    json_decref(described);
    json_decref(called);
    return reader->err->code == API_OK ? result : -1;
}

static int add_function(struct reader *reader, json_t *tool)
{
    static const char *const KNOWN[] = {"type",   "name",          "description",     "parameters",
                                        "strict", "defer_loading", "allowed_callers", NULL};
    json_t *parameters = request_field(tool, "parameters");
    if (parameters && !json_is_object(parameters))
        return wrong(reader, "parameters", "an object", parameters);
    function_list_note(&reader->list, tool, KNOWN);
    return add(reader, tool, parameters, false);
}

/* An expression of the same texts, if there is one that grammars have. False: there is none. */
static bool find_pattern(struct reader *reader, const json_t *definition, bool regex,
                         struct strbuf *pattern)
{
    struct error err = ERROR_INIT;
    struct nfa nfa;
    const char *text = json_string_value(definition);
    size_t length = json_string_length(definition);
    int failed = work_add(&reader->work, 1, &err);
    strbuf_puts(pattern, "^(?:");
    if (!failed && regex)
        strbuf_append(pattern, text, length);
    else if (!failed)
        failed = lark_to_regex(pattern, text, length, &reader->work, &err);
    strbuf_puts(pattern, ")$");
    if (!failed)
        failed = pattern->failed ||
                 regex_read(&nfa, pattern->data, pattern->length, false, &reader->work, &err);
    if (!failed)
        nfa_clear(&nfa);
    if (failed && reader->free_form++ == 0)
        reader->free_reason = err;
    return !failed;
}

/* The schema of a text in that grammar. The model sees it as it was written. */
static json_t *grammar_schema(struct reader *reader, const json_t *definition, bool regex)
{
    struct strbuf text = {0}, pattern = {0};
    bool found = find_pattern(reader, definition, regex, &pattern);
    strbuf_puts(&text,
                regex ? "Text of this regular expression:\n" : "Text of this Lark grammar:\n");
    strbuf_append(&text, json_string_value(definition), json_string_length(definition));
    json_t *schema = text.failed ? NULL : json_pack("{s:s}", "type", "string");
    if ((!regex || !found) &&
        json_object_set_new(schema, "description", json_stringn(text.data, text.length))) {
        json_decref(schema);
        schema = NULL;
    }
    if (found &&
        json_object_set_new(schema, "pattern", json_stringn(pattern.data, pattern.length))) {
        json_decref(schema);
        schema = NULL;
    }
    strbuf_clear(&text);
    strbuf_clear(&pattern);
    return schema;
}

/* *schema: of the text of a custom tool. */
static int read_format(struct reader *reader, const json_t *tool, json_t **schema)
{
    const json_t *format = request_field(tool, "format");
    const json_t *definition = request_field(format, "definition");
    const char *type = json_string_value(request_field(format, "type"));
    const char *syntax = json_string_value(request_field(format, "syntax"));
    if (format && !json_is_object(format))
        return wrong(reader, "format", "an object", format);
    if (format && (!type || (strcmp(type, "text") != 0 && strcmp(type, "grammar") != 0)))
        return wrong(reader, "format.type", "text or grammar", request_field(format, "type"));
    if (!format || strcmp(type, "text") == 0) {
        *schema = json_pack("{s:s}", "type", "string");
    } else {
        if (!syntax || (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0))
            return wrong(reader, "format.syntax", "lark or regex", request_field(format, "syntax"));
        if (!json_is_string(definition))
            return wrong(reader, "format.definition", "a string", definition);
        *schema = grammar_schema(reader, definition, strcmp(syntax, "regex") == 0);
    }
    return *schema ? 0 : request_no_memory(reader->err);
}

static int add_custom(struct reader *reader, json_t *tool)
{
    static const char *const KNOWN[] = {
        "type", "name", "description", "format", "defer_loading", "allowed_callers", NULL};
    json_t *schema;
    if (read_format(reader, tool, &schema))
        return -1;
    function_list_note(&reader->list, tool, KNOWN);
    json_t *parameters = json_pack("{s:s,s:{s:o},s:[s],s:b}", "type", "object", "properties",
                                   RESPONSES_CUSTOM_ARGUMENT, schema, "required",
                                   RESPONSES_CUSTOM_ARGUMENT, "additionalProperties", 0);
    int result = parameters ? add(reader, tool, parameters, true) : request_no_memory(reader->err);
    json_decref(parameters);
    return result;
}

static int add_tool(struct reader *reader, json_t *tool);

static int add_namespace(struct reader *reader, json_t *tool)
{
    json_t *name = request_field(tool, "name"), *tools = request_field(tool, TOOLS);
    if (!json_is_string(name))
        return wrong(reader, "name", "a string", name);
    if (check_string(reader, tool, "description"))
        return -1;
    if (!json_is_array(tools))
        return wrong(reader, "tools", "a list", tools);
    reader->space = name;
    reader->about = request_field(tool, "description");
    int result = 0;
    for (size_t i = 0; i < json_array_size(tools) && result == 0; i++) {
        reader->inner = i;
        result = add_tool(reader, json_array_get(tools, i));
    }
    reader->space = reader->about = NULL;
    return result;
}

/* Of the request, or of a namespace. */
static int add_tool(struct reader *reader, json_t *tool)
{
    const json_t *type = request_field(tool, "type");
    const char *word = json_string_value(type);
    if (!json_is_object(tool))
        return wrong(reader, "a tool", "an object", tool);
    if (!word)
        return wrong(reader, "type", "a string", type);
    if (strcmp(word, "function") == 0)
        return add_function(reader, tool);
    if (strcmp(word, "custom") == 0)
        return add_custom(reader, tool);
    if (strcmp(word, "namespace") == 0 && !reader->space)
        return add_namespace(reader, tool);
    return function_list_leave(&reader->list, NULL, type);
}

static int read_tools(struct reader *reader, const json_t *fields)
{
    json_t *tools = request_field(fields, TOOLS);
    if (tools && !json_is_array(tools))
        return request_wrong_type(reader->err, TOOLS, "a list", tools);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        size_t left = reader->list.left;
        reader->index = i;
        if (add_tool(reader, tool))
            return -1;
        bool kept = left == reader->list.left || json_object_get(tool, TOOLS);
        if (kept && json_array_append(reader->out->kept, tool))
            return request_no_memory(reader->err);
    }
    return 0;
}

/* tool_choice */

static int wrong_choice(const struct reader *reader, const char *member, const json_t *got)
{
    return api_error_set(reader->err, got ? API_INVALID_TYPE : API_MISSING_PARAMETER, CHOICE,
                         "tool_choice.%s: expected a string, got %s", member,
                         got ? fields_kind(got) : "none");
}

/* Whether the chat has such a tool by that name. */
static bool is_called(const struct reader *reader, const json_t *called, bool custom)
{
    const char *name = json_string_value(called);
    const json_t *renamed = json_object_get(reader->out->renamed, name);
    return called && (renamed ? json_is_true(json_array_get(renamed, 2)) == custom
                              : !custom && json_object_get(reader->list.names, name));
}

/* The chat's name of the tool that is meant; NULL with the error set. A function of a namespace may
 * be named without it. */
static json_t *find_chosen(const struct reader *reader, const json_t *chosen, bool custom)
{
    json_t *name = request_field(chosen, "name"), *space = request_field(chosen, "namespace");
    if (!json_is_string(name) || (space && !json_is_string(space))) {
        if (json_is_string(name))
            wrong_choice(reader, "namespace", space);
        else
            wrong_choice(reader, "name", name);
        return NULL;
    }
    json_t *called = responses_tools_called(space, name);
    if (called && !space && !is_called(reader, called, custom)) {
        json_decref(called);
        called = json_incref(json_object_get(reader->called, json_string_value(name)));
    }
    if (is_called(reader, called, custom))
        return called;
    json_decref(called);
    api_error_set(reader->err, API_INVALID_VALUE, CHOICE,
                  "tool_choice.name: expected that of one of tools, got \"%.60s\"",
                  json_string_value(name));
    return NULL;
}

/* The chat has only functions of these names. */
static int keep_only(struct reader *reader, const json_t *names)
{
    json_t *kept = json_array(), *wrapped;
    size_t i;
    int failed = !kept;
    json_array_foreach(reader->list.functions, i, wrapped)
    {
        const json_t *function = json_object_get(wrapped, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!failed && json_object_get(names, name))
            failed = json_array_append(kept, wrapped);
    }
    json_decref(reader->list.functions);
    reader->list.functions = kept;
    return failed ? request_no_memory(reader->err) : 0;
}

static int read_allowed(struct reader *reader, const json_t *tools, json_t *names)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(request_field(tool, "type"));
        bool custom = type && strcmp(type, "custom") == 0;
        if (!type || (!custom && strcmp(type, "function") != 0))
            continue; /* one that is left out */
        json_t *called = find_chosen(reader, tool, custom);
        if (!called)
            return -1;
        int failed = json_object_set_new(names, json_string_value(called), json_true());
        json_decref(called);
        if (failed)
            return request_no_memory(reader->err);
    }
    return 0;
}

/* *word: what is left of the choice. */
static int allow(struct reader *reader, const json_t *choice, const char **word)
{
    const json_t *mode = request_field(choice, "mode"), *tools = request_field(choice, TOOLS);
    *word = json_string_value(mode);
    if (!*word || (strcmp(*word, "auto") != 0 && strcmp(*word, "required") != 0))
        return api_error_set(reader->err, mode ? API_INVALID_VALUE : API_MISSING_PARAMETER, CHOICE,
                             "tool_choice.mode: expected auto or required, got %s%.40s",
                             mode ? "" : "none", *word ? *word : "");
    if (!json_is_array(tools))
        return api_error_set(reader->err, tools ? API_INVALID_TYPE : API_MISSING_PARAMETER, CHOICE,
                             "tool_choice.tools: expected a list, got %s",
                             tools ? fields_kind(tools) : "none");
    json_t *names = json_object();
    int result = names ? read_allowed(reader, tools, names) : request_no_memory(reader->err);
    if (result == 0)
        result = keep_only(reader, names);
    json_decref(names);
    return result;
}

static int choose_word(struct reader *reader, json_t *chat, const char *word)
{
    static const char *const WORDS[] = {"auto", "none", "required", NULL};
    if (!translation_one_of(word, WORDS))
        return api_error_set(reader->err, API_INVALID_VALUE, CHOICE,
                             "tool_choice: expected auto, none, required, or an object, got "
                             "\"%.40s\"",
                             word);
    if (strcmp(word, "required") == 0 &&
        function_list_demand(&reader->list, "tool_choice: required"))
        return -1;
    return json_object_set_new(chat, CHOICE, json_string(word)) ? request_no_memory(reader->err)
                                                                : 0;
}

static int choose_object(struct reader *reader, json_t *chat, const json_t *choice)
{
    const json_t *given = request_field(choice, "type");
    const char *type = json_string_value(given), *word;
    if (!type)
        return wrong_choice(reader, "type", given);
    if (strcmp(type, "allowed_tools") == 0)
        return allow(reader, choice, &word) ? -1 : choose_word(reader, chat, word);
    bool custom = strcmp(type, "custom") == 0;
    if (!custom && strcmp(type, "function") != 0)
        return api_error_set(reader->err, API_UNSUPPORTED, CHOICE,
                             "tool_choice.type: tools of the type \"%.60s\" are not supported",
                             type);
    json_t *called = find_chosen(reader, choice, custom);
    int result = called ? function_list_choose(&reader->list, chat, called) : -1;
    json_decref(called);
    return result;
}

static int read_choice(struct reader *reader, json_t *chat, const json_t *fields)
{
    const json_t *choice = request_field(fields, CHOICE);
    if (!choice)
        return 0;
    if (json_is_string(choice))
        return choose_word(reader, chat, json_string_value(choice));
    return json_is_object(choice)
               ? choose_object(reader, chat, choice)
               : request_wrong_type(reader->err, CHOICE, "a string or an object", choice);
}

static void warn(const struct reader *reader, struct reply_warnings *warnings)
{
    function_list_warn(&reader->list, "functions, custom tools and namespaces of these", warnings);
    if (reader->free_form > 0)
        reply_warnings_add(warnings, WARNING_CONTENT,
                           "tools: %zu custom with a format that is not enforced here, though the "
                           "model sees it: %s",
                           reader->free_form, reader->free_reason.message);
}

int responses_tools_read(struct responses_tools *tools, const struct translation *to)
{
    struct reader reader = {
        .out = tools, .called = json_object(), .free_reason = ERROR_INIT, .err = to->err};
    *tools = (struct responses_tools){.kept = json_array(), .renamed = json_object()};
    int result = function_list_begin(&reader.list, to->err);
    if (result == 0 && (!tools->kept || !tools->renamed || !reader.called))
        result = request_no_memory(to->err);
    if (result == 0)
        result = read_tools(&reader, to->fields);
    if (result == 0)
        result = read_choice(&reader, to->chat, to->fields);
    if (result == 0)
        result = function_list_set(&reader.list, to->chat);
    if (result == 0)
        warn(&reader, to->limits->warnings);
    json_decref(reader.called);
    function_list_clear(&reader.list);
    return result;
}

void responses_tools_clear(struct responses_tools *tools)
{
    json_decref(tools->kept);
    json_decref(tools->renamed);
}
