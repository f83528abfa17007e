/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages.h"

#include "api/messages_blocks.h"
#include "api/messages_tools.h"
#include "api/parameters.h"
#include "api/request.h"
#include "api/translation.h"
#include "lib/base/fields.h"

#include <string.h>

/* Lengths and ends. */

static int take_length(struct translation *to, bool counts)
{
    static const char name[] = "max_tokens";
    to->max_tokens = -1;
    if (request_int(to->fields, name, 1, TRANSLATION_MOST_TOKENS, &to->max_tokens, to->err))
        return -1;
    if (to->max_tokens < 0)
        return counts
                   ? 0
                   : api_error_set(to->err, API_MISSING_PARAMETER, name, "max_tokens is required");
    return translation_set(to, name, json_integer(to->max_tokens));
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

static int take_budget(const struct translation *to, const json_t *thinking)
{
    int64_t budget = -1;
    if (request_int(thinking, "budget_tokens", 0, TRANSLATION_MOST_TOKENS, &budget, to->err)) {
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
    return translation_set(to, "thinking_token_budget", json_integer(budget));
}

/* Whether thoughts are told without their text. What else a client says of that itself goes first.
 */
static bool omits(const struct translation *to)
{
    const json_t *thinking = request_field(to->fields, "thinking");
    const char *display = json_string_value(request_field(thinking, "display"));
    return display && (strcmp(display, "omitted") == 0 || strcmp(display, "updates") == 0) &&
           !request_field(to->fields, "include_reasoning");
}

/* New words come with new clients, and the model's text is the same with each of them. */
static int take_display(const struct translation *to, const json_t *thinking)
{
    static const char *const KNOWN[] = {"omitted", "updates", "summarized", NULL};
    const json_t *given = request_field(thinking, "display");
    const char *display = json_string_value(given);
    if (given && !display)
        return api_error_set(to->err, API_INVALID_TYPE, "thinking",
                             "thinking.display: expected a string, got %s", fields_kind(given));
    if (display && !translation_one_of(display, KNOWN))
        reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                           "thinking.display: \"%.40s\" is not known here: thoughts are shown",
                           display);
    return 0;
}

static int take_thinking(const struct translation *to)
{
    static const char *const TYPES[] = {"enabled", "adaptive", "disabled", NULL};
    static const char field[] = "thinking";
    const json_t *thinking;
    const char *type;
    if (translation_object(to, field, &thinking))
        return -1;
    if (!thinking)
        return 0;
    if (translation_word(to, field, "type", TYPES, "enabled, adaptive or disabled", &type))
        return -1;
    if (!type)
        return api_error_set(to->err, API_MISSING_PARAMETER, field, "thinking.type is required");
    if (strcmp(type, "enabled") == 0 && take_budget(to, thinking))
        return -1;
    if (take_display(to, thinking))
        return -1;
    if (translation_takes(to, "enable_thinking"))
        return translation_think(to, strcmp(type, "disabled") != 0);
    if (strcmp(type, "adaptive") != 0)
        reply_warnings_note(to->limits->warnings, WARNING_TEMPLATE,
                            "thinking.type: the model's chat template has no place for it: the "
                            "model does not see it");
    return 0;
}

/* Output. */

static int take_effort(const struct translation *to)
{
    static const char *const EFFORTS[] = {"low", "medium", "high", "xhigh", "max", NULL};
    const char *effort;
    if (translation_word(to, "output_config", "effort", EFFORTS, "low, medium, high, xhigh or max",
                         &effort))
        return -1;
    return effort ? translation_effort(to, effort, "output_config.effort") : 0;
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
    return translation_set(to, "response_format",
                           json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema",
                                     "name", "output", "schema", schema));
}

static int take_output(const struct translation *to)
{
    static const char *const KNOWN[] = {"effort", "format", NULL};
    const json_t *output;
    const char *key;
    json_t *value;
    if (translation_object(to, "output_config", &output) || take_effort(to) ||
        take_format(to, "output_config", "output_config.format", request_field(output, "format")) ||
        take_format(to, "output_format", "output_format",
                    request_field(to->fields, "output_format")))
        return -1;
    json_object_foreach((json_t *)output, key, value)
    {
        if (!translation_one_of(key, KNOWN) && !json_is_null(value))
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
    if (translation_object(to, name, &management))
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

static int take_messages(const struct translation *to)
{
    bool continues = false;
    json_t *messages =
        messages_blocks(request_field(to->fields, "system"), request_field(to->fields, "messages"),
                        json_object_get(to->chat, MESSAGES_TOOLS_APART), to->systems,
                        to->limits->warnings, &continues, to->err);
    if (!messages || translation_set(to, "messages", messages) ||
        messages_tools_settle(to->chat, to->err))
        return -1;
    return continues ? translation_set(to, "continue_final_message", json_true()) : 0;
}

static int translate(struct translation *to, bool counts)
{
    if (request_model(to->fields, to->limits->models, to->limits->num_models, to->err) ||
        parameters_check_all(PARAMETERS_MESSAGES, to->fields, to->limits->warnings, to->err) ||
        parameters_pass(PARAMETERS_MESSAGES, to->chat, to->fields, to->err) ||
        take_length(to, counts) || take_stops(to) ||
        messages_tools(to->chat, to->fields, to->limits->warnings, to->err))
        return -1;
    translation_find_template(to);
    return take_thinking(to) || take_output(to) || check_management(to) || take_messages(to) ? -1
                                                                                             : 0;
}

int messages_parse(struct completion_request *request, const char *body, size_t length,
                   const struct completion_limits *limits, struct api_error *err)
{
    struct translation to;
    *request = (struct completion_request){0};
    int result = translation_begin(&to, body, length, limits, err);
    if (result == 0)
        result = translate(&to, false);
    if (result == 0)
        result = translation_parse(&to, request);
    if (result == 0)
        request->seals_thoughts = omits(&to);
    translation_end(&to);
    return result;
}

int messages_count_parse(struct tokenize_request *request, const char *body, size_t length,
                         const struct completion_limits *limits, struct api_error *err)
{
    struct translation to;
    *request = (struct tokenize_request){0};
    int result = translation_begin(&to, body, length, limits, err);
    if (result == 0)
        result = translate(&to, true);
    if (result == 0)
        result = translation_count(&to, request);
    translation_end(&to);
    return result;
}
