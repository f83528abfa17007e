/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages.h"

#include "api/chat.h"
#include "api/messages_blocks.h"
#include "api/messages_tools.h"
#include "api/parameters.h"
#include "api/request.h"
#include "engine/base/fields.h"
#include "engine/jinja/chat_template.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS (INT64_C(1) << 53)

/* A body on its way to a chat's. */
struct translation {
    const json_t *fields;
    json_t *chat;
    const struct completion_limits *limits;
    const struct jinja *template; /* that the chat will have; NULL: none */
    enum chat_systems systems;
    int64_t max_tokens; /* -1: not given */
    struct api_error *err;
};

static int set_new(const struct translation *to, const char *name, json_t *value)
{
    return json_object_set_new(to->chat, name, value) ? request_no_memory(to->err) : 0;
}

static bool one_of(const char *word, const char *const *words)
{
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words != NULL;
}

/* A member of a field that is a word; *word NULL: absent. */
static int read_word(const struct translation *to, const char *field, const char *name,
                     const char *const *words, const char *expected, const char **word)
{
    const json_t *given = request_field(request_field(to->fields, field), name);
    char place[96];
    snprintf(place, sizeof place, "%s.%s", field, name);
    *word = json_string_value(given);
    if (given && !*word)
        return api_error_set(to->err, API_INVALID_TYPE, field, "%s: expected %s, got %s", place,
                             expected, json_is_object(given) ? "an object" : "no string");
    if (*word && !one_of(*word, words))
        return api_error_set(to->err, API_INVALID_VALUE, field, "%s: expected %s, got \"%.40s\"",
                             place, expected, *word);
    return 0;
}

static int check_object(const struct translation *to, const char *name, const json_t **object)
{
    *object = request_field(to->fields, name);
    return *object && !json_is_object(*object)
               ? request_wrong_type(to->err, name, "an object", *object)
               : 0;
}

/* Lengths and ends. */

static int take_length(struct translation *to, bool counts)
{
    static const char name[] = "max_tokens";
    to->max_tokens = -1;
    if (request_int(to->fields, name, 1, MOST_TOKENS, &to->max_tokens, to->err))
        return -1;
    if (to->max_tokens < 0)
        return counts
                   ? 0
                   : api_error_set(to->err, API_MISSING_PARAMETER, name, "max_tokens is required");
    return set_new(to, name, json_integer(to->max_tokens));
}

static int take_stops(const struct translation *to)
{
    static const char name[] = "stop_sequences";
    json_t *stops = request_field(to->fields, name);
    if (!stops)
        return 0;
    if (!json_is_array(stops))
        return request_wrong_type(to->err, name, "a list of strings", stops);
    for (size_t i = 0; i < json_array_size(stops); i++) {
        const json_t *stop = json_array_get(stops, i);
        if (!json_is_string(stop))
            return api_error_set(to->err, API_INVALID_TYPE, name,
                                 "stop_sequences: item %zu: expected a string", i);
        if (json_string_length(stop) == 0)
            return api_error_set(to->err, API_INVALID_VALUE, name,
                                 "stop_sequences: item %zu: expected a text, got an empty string",
                                 i);
    }
    return json_object_set(to->chat, "stop", stops) ? request_no_memory(to->err) : 0;
}

/* Thinking. */

static bool template_takes(const struct translation *to, const char *name)
{
    return to->template && jinja_mentions(to->template, name);
}

static int take_budget(const struct translation *to, const json_t *thinking)
{
    int64_t budget = -1;
    if (request_int(thinking, "budget_tokens", 1, MOST_TOKENS, &budget, to->err)) {
        memcpy(to->err->param, "thinking", sizeof "thinking");
        return -1;
    }
    if (budget < 0)
        return api_error_set(to->err, API_MISSING_PARAMETER, "thinking",
                             "thinking.budget_tokens is required where thinking is enabled");
    if (to->max_tokens >= 0 && budget >= to->max_tokens)
        return api_error_set(to->err, API_INVALID_VALUE, "thinking",
                             "thinking.budget_tokens: expected less than max_tokens, %lld, got "
                             "%lld",
                             (long long)to->max_tokens, (long long)budget);
    reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                       "thinking.budget_tokens: it is not enforced: thoughts end by themselves, or "
                       "at max_tokens");
    return 0;
}

/* The template's variable, unless the client has set it itself. */
static int set_thinking(const struct translation *to, bool enabled)
{
    static const char kwargs_name[] = "chat_template_kwargs", name[] = "enable_thinking";
    json_t *given = request_field(to->fields, kwargs_name);
    if (given && (!json_is_object(given) || json_object_get(given, name)))
        return 0; /* if it is none, a chat refuses it */
    json_t *kwargs = given ? json_copy(given) : json_object();
    if (json_object_set_new(kwargs, name, json_boolean(enabled))) {
        json_decref(kwargs);
        return request_no_memory(to->err);
    }
    return set_new(to, kwargs_name, kwargs);
}

/* Whether thoughts are shown. New words come with new clients, and the model's text is the same
 * with each of them. */
static int take_display(const struct translation *to, const json_t *thinking)
{
    const json_t *given = request_field(thinking, "display");
    const char *display = json_string_value(given);
    if (given && !display)
        return api_error_set(to->err, API_INVALID_TYPE, "thinking",
                             "thinking.display: expected a string, got %s", fields_kind(given));
    bool omits = display && (strcmp(display, "omitted") == 0 || strcmp(display, "updates") == 0);
    if (display && !omits && strcmp(display, "summarized") != 0)
        reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                           "thinking.display: \"%.40s\" is not known here: thoughts are shown",
                           display);
    return omits && !request_field(to->fields, "include_reasoning")
               ? set_new(to, "include_reasoning", json_false())
               : 0;
}

static int take_thinking(const struct translation *to)
{
    static const char *const TYPES[] = {"enabled", "adaptive", "disabled", NULL};
    static const char field[] = "thinking";
    const json_t *thinking;
    const char *type;
    if (check_object(to, field, &thinking))
        return -1;
    if (!thinking)
        return 0;
    if (read_word(to, field, "type", TYPES, "enabled, adaptive or disabled", &type))
        return -1;
    if (!type)
        return api_error_set(to->err, API_MISSING_PARAMETER, field, "thinking.type is required");
    if (strcmp(type, "enabled") == 0 && take_budget(to, thinking))
        return -1;
    if (take_display(to, thinking))
        return -1;
    if (template_takes(to, "enable_thinking"))
        return set_thinking(to, strcmp(type, "disabled") != 0);
    if (strcmp(type, "adaptive") != 0)
        reply_warnings_add(to->limits->warnings, WARNING_TEMPLATE,
                           "thinking.type: the model's chat template has no place for it: the "
                           "model does not see it");
    return 0;
}

/* Output. */

static int take_effort(const struct translation *to)
{
    static const char *const EFFORTS[] = {"low", "medium", "high", "xhigh", "max", NULL};
    const char *effort;
    if (read_word(to, "output_config", "effort", EFFORTS, "low, medium, high, xhigh or max",
                  &effort))
        return -1;
    if (!effort || request_field(to->fields, "reasoning_effort"))
        return 0;
    if (template_takes(to, "reasoning_effort"))
        return set_new(to, "reasoning_effort", json_string(effort));
    reply_warnings_add(to->limits->warnings, WARNING_TEMPLATE,
                       "output_config.effort: the model's chat template has no place for it: the "
                       "model does not see it");
    return 0;
}

/* field: where the format stands. */
static int take_format(const struct translation *to, const char *field, const char *place,
                       const json_t *format)
{
    json_t *schema = request_field(format, "schema");
    const char *type = json_string_value(request_field(format, "type"));
    if (!format)
        return 0;
    if (!json_is_object(format))
        return api_error_set(to->err, API_INVALID_TYPE, field, "%s: expected an object", place);
    if (!type || strcmp(type, "json_schema") != 0)
        return api_error_set(to->err, API_INVALID_VALUE, field,
                             "%s.type: expected json_schema, got \"%.40s\"", place,
                             type ? type : "");
    if (!json_is_object(schema))
        return api_error_set(to->err, API_INVALID_TYPE, field, "%s.schema: expected an object",
                             place);
    if (json_object_get(to->chat, "response_format"))
        return api_error_set(to->err, API_INVALID_VALUE, field,
                             "%s: it is not allowed with another format: a text has one constraint",
                             place);
    return set_new(to, "response_format",
                   json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name",
                             "output", "schema", schema));
}

static int take_output(const struct translation *to)
{
    static const char *const KNOWN[] = {"effort", "format", NULL};
    const json_t *output;
    const char *key;
    json_t *value;
    if (check_object(to, "output_config", &output) || take_effort(to) ||
        take_format(to, "output_config", "output_config.format", request_field(output, "format")) ||
        take_format(to, "output_format", "output_format",
                    request_field(to->fields, "output_format")))
        return -1;
    json_object_foreach((json_t *)output, key, value)
    {
        if (!one_of(key, KNOWN) && !json_is_null(value))
            reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                               "output_config.%.60s: no field that is known here; it is ignored",
                               key);
    }
    return 0;
}

/* Whether the edit leaves all as it is. */
static bool keeps_all(const json_t *edit)
{
    const char *type = json_string_value(json_object_get(edit, "type"));
    const char *keep = json_string_value(json_object_get(edit, "keep"));
    return type && keep && strncmp(type, "clear_thinking", strlen("clear_thinking")) == 0 &&
           strcmp(keep, "all") == 0;
}

static int check_management(const struct translation *to)
{
    static const char name[] = "context_management";
    const json_t *management;
    if (check_object(to, name, &management))
        return -1;
    const json_t *edits = request_field(management, "edits");
    if (edits && !json_is_array(edits))
        return api_error_set(to->err, API_INVALID_TYPE, name,
                             "context_management.edits: expected a list");
    for (size_t i = 0; i < json_array_size(edits); i++)
        if (!keeps_all(json_array_get(edits, i))) {
            reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                               "context_management: nothing is cleared here: the model sees all "
                               "that was sent");
            break;
        }
    return 0;
}

/* The whole. */

/* The template that the chat will have, and which messages of the system it writes. */
static void find_template(struct translation *to)
{
    const struct chat_template *chat = to->limits->chat;
    const char *choice = json_string_value(json_object_get(to->chat, "tool_choice"));
    bool tools = json_object_get(to->chat, "tools") && !(choice && strcmp(choice, "none") == 0);
    to->systems = CHAT_SYSTEMS_ALL;
    if (!chat)
        return;
    to->template = tools && chat->with_tools ? chat->with_tools : chat->template;
    if (to->limits->syntax)
        to->systems = to->limits->syntax[to->template != chat->template].systems;
}

static int take_messages(const struct translation *to)
{
    bool continues = false;
    json_t *messages =
        messages_blocks(request_field(to->fields, "system"), request_field(to->fields, "messages"),
                        json_object_get(to->chat, MESSAGES_TOOLS_APART), to->systems,
                        to->limits->warnings, &continues, to->err);
    if (!messages || set_new(to, "messages", messages) || messages_tools_settle(to->chat, to->err))
        return -1;
    return continues ? set_new(to, "continue_final_message", json_true()) : 0;
}

static int translate(struct translation *to, bool counts)
{
    if (request_model(to->fields, to->limits->models, to->limits->num_models, to->err) ||
        parameters_check_messages(to->fields, to->limits->warnings, to->err) ||
        parameters_pass_messages(to->chat, to->fields, to->err) || take_length(to, counts) ||
        take_stops(to) || messages_tools(to->chat, to->fields, to->limits->warnings, to->err))
        return -1;
    find_template(to);
    return take_thinking(to) || take_output(to) || check_management(to) || take_messages(to) ? -1
                                                                                             : 0;
}

/* The chat's fields; NULL with the error set. */
static json_t *chat_of(const char *body, size_t length, bool counts,
                       const struct completion_limits *limits, struct api_error *err)
{
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return NULL;
    struct translation to = {.fields = fields, .chat = json_object(), .limits = limits, .err = err};
    int result = to.chat ? translate(&to, counts) : request_no_memory(err);
    json_decref(fields);
    if (result == 0)
        return to.chat;
    json_decref(to.chat);
    return NULL;
}

int messages_parse(struct completion_request *request, const char *body, size_t length,
                   const struct completion_limits *limits, struct api_error *err)
{
    char *text = NULL;
    size_t text_length;
    *request = (struct completion_request){0};
    json_t *chat = chat_of(body, length, false, limits, err);
    if (!chat)
        return -1;
    int result = request_dump(chat, &text, &text_length, err);
    if (result == 0)
        result = chat_parse_fields(request, chat, text, text_length, limits, err);
    free(text);
    json_decref(chat);
    request->max_tokens_fit = result == 0;
    return result;
}

int messages_count_parse(struct tokenize_request *request, const char *body, size_t length,
                         const struct completion_limits *limits, struct api_error *err)
{
    struct completion_prompt prompt = {0};
    *request = (struct tokenize_request){0};
    json_t *chat = chat_of(body, length, true, limits, err);
    if (!chat)
        return -1;
    int result = chat_render(&prompt, NULL, chat, length, NULL, limits, err);
    if (result == 0) {
        request->prompt = prompt.text;
        request->length = prompt.length;
        request->input = prompt.input;
        result = request_salt(chat, &request->cache_salt, &request->cache_salt_length, err);
    }
    json_decref(chat);
    if (result)
        tokenize_request_clear(request);
    return result;
}
