/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses.h"

#include "api/chat.h"
#include "api/parameters.h"
#include "api/request.h"
#include "api/responses_echo.h"
#include "api/responses_items.h"
#include "api/responses_tools.h"
#include "api/responses_turns.h"
#include "api/sessions.h"
#include "lib/base/fields.h"

#include <stdlib.h>
#include <string.h>

/* A body on its way to a chat's, and what its replies say of it. */
struct reading {
    struct translation to;
    struct responses_tools tools;
    struct completion_limits limits; /* of the request, and what follows from it */
    bool logprobs, seals, shortens, keeps;
    json_t *previous; /* the response that it goes on from; NULL: none */
};

/* Lengths and logprobs. */

static int take_length(struct translation *to)
{
    static const char name[] = "max_output_tokens";
    if (request_int(to->fields, name, 1, TRANSLATION_MOST_TOKENS, &to->max_tokens, to->err))
        return -1;
    return to->max_tokens < 0 ? 0 : translation_set(to, "max_tokens", json_integer(to->max_tokens));
}

static int include(struct reading *reading, const json_t *wanted)
{
    struct translation *to = &reading->to;
    const char *name = json_string_value(wanted);
    if (!name)
        return api_error_set(to->err, API_INVALID_TYPE, "include",
                             "include: expected a list of strings, got %s in it",
                             fields_kind(wanted));
    if (strcmp(name, "reasoning.encrypted_content") == 0)
        reading->seals = true;
    else if (strcmp(name, "message.output_text.logprobs") == 0)
        reading->logprobs = true;
    else
        reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                           "include: \"%.60s\": there is no such thing here", name);
    return 0;
}

static int take_include(struct reading *reading)
{
    static const char name[] = "include";
    struct translation *to = &reading->to;
    const json_t *list = request_field(to->fields, name);
    if (list && !json_is_array(list))
        return request_wrong_type(to->err, name, "a list of strings", list);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (include(reading, json_array_get(list, i)))
            return -1;
    return 0;
}

/* Calls have no logprobs of their own, so they may not come among the texts that have. */
static int take_logprobs(struct reading *reading)
{
    static const char name[] = "top_logprobs";
    struct translation *to = &reading->to;
    const char *choice = json_string_value(json_object_get(to->chat, "tool_choice"));
    int64_t top = -1;
    if (request_int(to->fields, name, 0, SAMPLER_MOST_TOP, &top, to->err))
        return -1;
    if (top > 0 && !reading->logprobs)
        return api_error_set(to->err, API_INVALID_VALUE, name,
                             "top_logprobs is only allowed with message.output_text.logprobs in "
                             "include");
    if (!reading->logprobs)
        return 0;
    if (json_object_get(to->chat, "tools") && !(choice && strcmp(choice, "none") == 0))
        return api_error_set(to->err, API_UNSUPPORTED, "include",
                             "include: message.output_text.logprobs is not supported beside tools "
                             "that may be called");
    return translation_set(to, "logprobs", json_true()) ||
                   (top >= 0 && translation_set(to, name, json_integer(top)))
               ? -1
               : 0;
}

/* The text's form. */

static void warn_members(const struct translation *to, const char *field, const json_t *object,
                         const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (!translation_one_of(key, known) && !json_is_null(value))
            reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                               "%s.%.60s: no field that is known here; it is ignored", field, key);
    }
}

/* {type, name, schema, strict, description} of json_schema; or {type}. */
static int take_format(const struct translation *to, const json_t *format)
{
    static const char *const KNOWN[] = {"type", "name", "schema", "strict", "description", NULL};
    static const char *const MEMBERS[] = {"name", "schema", "strict", "description"};
    const json_t *type = request_field(format, "type");
    const char *word = json_string_value(type);
    if (!format)
        return 0;
    if (!json_is_object(format))
        return api_error_set(to->err, API_INVALID_TYPE, "text",
                             "text.format: expected an object, got %s", fields_kind(format));
    bool schema = word && strcmp(word, "json_schema") == 0;
    if (schema && !json_is_object(request_field(format, "schema")))
        return api_error_set(to->err, API_INVALID_TYPE, "text",
                             "text.format.schema: expected an object");
    if (!word || (!schema && strcmp(word, "text") != 0 && strcmp(word, "json_object") != 0))
        return api_error_set(to->err, API_INVALID_VALUE, "text",
                             "text.format.type: expected text, json_object or json_schema, got "
                             "\"%.40s\"",
                             word ? word : "");
    warn_members(to, "text.format", format, KNOWN);
    json_t *response = json_pack("{s:O}", "type", type);
    json_t *described = schema ? json_object() : NULL;
    bool failed = !response || (schema && !described);
    for (size_t i = 0; i < sizeof MEMBERS / sizeof *MEMBERS && schema && !failed; i++) {
        json_t *member = request_field(format, MEMBERS[i]);
        failed = member && json_object_set(described, MEMBERS[i], member);
    }
    if (schema && !failed)
        failed = json_object_set(response, "json_schema", described) != 0;
    json_decref(described);
    if (!failed)
        return translation_set(to, "response_format", response);
    json_decref(response);
    return request_no_memory(to->err);
}

static int take_text(const struct translation *to)
{
    static const char *const KNOWN[] = {"format", "verbosity", NULL};
    static const char *const VERBOSITIES[] = {"low", "medium", "high", NULL};
    const json_t *text;
    const char *verbosity;
    if (translation_object(to, "text", &text) ||
        translation_word(to, "text", "verbosity", VERBOSITIES, "low, medium or high", &verbosity))
        return -1;
    warn_members(to, "text", text, KNOWN);
    return take_format(to, request_field(text, "format"));
}

/* Thoughts. */

static int take_reasoning(const struct translation *to)
{
    static const char *const KNOWN[] = {"effort", "summary", "generate_summary", "context", NULL};
    static const char *const EFFORTS[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max", NULL};
    static const char *const SUMMARIES[] = {"auto", "concise", "detailed", "none", NULL};
    const json_t *reasoning;
    const char *effort, *summary;
    if (translation_object(to, "reasoning", &reasoning) ||
        translation_word(to, "reasoning", "effort", EFFORTS,
                         "none, minimal, low, medium, high, xhigh or max", &effort) ||
        translation_word(to, "reasoning", "summary", SUMMARIES, "auto, concise or detailed",
                         &summary))
        return -1;
    warn_members(to, "reasoning", reasoning, KNOWN);
    if (!effort)
        return 0;
    bool thinks = translation_takes(to, "enable_thinking");
    if (thinks && translation_think(to, strcmp(effort, "none") != 0))
        return -1;
    return thinks && !translation_takes(to, "reasoning_effort")
               ? 0
               : translation_effort(to, effort, "reasoning.effort");
}

/* What says nothing to the model. */

static int check_metadata(const struct translation *to)
{
    const json_t *metadata;
    const char *key;
    json_t *value;
    if (translation_object(to, "metadata", &metadata))
        return -1;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return api_error_set(to->err, API_INVALID_TYPE, "metadata",
                                 "metadata.%.60s: expected a string, got %s", key,
                                 fields_kind(value));
    }
    return 0;
}

static int take_truncation(struct reading *reading)
{
    static const char name[] = "truncation";
    const struct translation *to = &reading->to;
    const json_t *truncation = request_field(to->fields, name);
    const char *word = json_string_value(truncation);
    if (truncation && !word)
        return request_wrong_type(to->err, name, "a string", truncation);
    reading->shortens = word && strcmp(word, "auto") == 0;
    if (!word || reading->shortens || strcmp(word, "disabled") == 0)
        return 0;
    return api_error_set(to->err, API_INVALID_VALUE, name,
                         "truncation: expected auto or disabled, got \"%.40s\"", word);
}

static int check_others(const struct translation *to)
{
    static const char *const OF_STREAM[] = {"include_obfuscation", NULL};
    static const char management[] = "context_management";
    const json_t *options, *edits = request_field(to->fields, management);
    if (translation_object(to, "stream_options", &options) || check_metadata(to))
        return -1;
    warn_members(to, "stream_options", options, OF_STREAM);
    if (edits && !json_is_array(edits))
        return request_wrong_type(to->err, management, "a list", edits);
    if (json_array_size(edits) > 0)
        reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                           "context_management: nothing is compacted here: the model sees all "
                           "that was sent");
    if (!to->limits->session_id)
        return 0;
    return api_error_set(to->err, API_UNSUPPORTED, "X-Session-Id",
                         "X-Session-Id is not supported: this is the responses API");
}

/* What is kept. */

/* A session is in the space of its owner. */
static int take_salt(struct reading *reading)
{
    static const char name[] = "cache_salt";
    const struct translation *to = &reading->to;
    if (!request_field(to->fields, name))
        return 0;
    if (reading->previous || request_field(to->fields, "store"))
        return api_error_set(to->err, API_INVALID_VALUE, name,
                             "cache_salt: it is not allowed with %s: responses are kept without",
                             reading->previous ? "previous_response_id" : "store");
    reply_warnings_add(to->limits->warnings, WARNING_FIELD,
                       "cache_salt: the response is not kept: store is false with it");
    reading->keeps = false;
    return 0;
}

static int take_store(struct reading *reading)
{
    static const char name[] = "previous_response_id";
    const struct translation *to = &reading->to;
    json_t *previous = request_field(to->fields, name);
    const char *id = json_string_value(previous);
    reading->keeps = true;
    if (request_bool(to->fields, "store", &reading->keeps, to->err))
        return -1;
    if (previous && !id)
        return request_wrong_type(to->err, name, "a string", previous);
    if (previous && !response_id_valid(id, json_string_length(previous)))
        return api_error_set(to->err, API_PREVIOUS_NOT_FOUND, NULL,
                             "there is no response \"%.130s\"", id);
    reading->previous = previous;
    if (reading->keeps && take_salt(reading))
        return -1;
    reading->limits.response = reading->keeps || reading->previous;
    return 0;
}

/* The whole. */

static int take_input(const struct reading *reading)
{
    const struct translation *to = &reading->to;
    const struct responses_template template = {.systems = to->systems,
                                                .developer = translation_takes(to, "developer"),
                                                .behind = reading->previous != NULL};
    json_t *messages = responses_items(request_field(to->fields, "instructions"),
                                       request_field(to->fields, "input"), &template,
                                       to->limits->warnings, to->err);
    return messages ? translation_set(to, "messages", messages) : -1;
}

static int translate(struct reading *reading)
{
    struct translation *to = &reading->to;
    if (request_model(to->fields, to->limits->models, to->limits->num_models, to->err) ||
        parameters_check_all(PARAMETERS_RESPONSES, to->fields, to->limits->warnings, to->err) ||
        parameters_pass(PARAMETERS_RESPONSES, to->chat, to->fields, to->err) || take_length(to) ||
        responses_tools_read(&reading->tools, to))
        return -1;
    translation_find_template(to);
    return take_include(reading) || take_logprobs(reading) || take_text(to) || take_reasoning(to) ||
                   take_truncation(reading) || take_store(reading) || check_others(to) ||
                   take_input(reading)
               ? -1
               : 0;
}

static int begin(struct reading *reading, const char *body, size_t length,
                 const struct completion_limits *limits, struct api_error *err)
{
    *reading = (struct reading){.limits = *limits};
    return translation_begin(&reading->to, body, length, &reading->limits, err)
               ? -1
               : translate(reading);
}

static void end(struct reading *reading)
{
    translation_end(&reading->to);
    responses_tools_clear(&reading->tools);
}

/* What replies say again. */

/* A field as it was given, or what holds without it, which it takes. Not 0: no memory. */
static int echo(json_t *members, const struct translation *to, const char *name, json_t *otherwise)
{
    json_t *given = request_field(to->fields, name);
    int failed =
        given ? json_object_set(members, name, given) : json_object_set(members, name, otherwise);
    json_decref(otherwise);
    return failed;
}

static int echo_text(json_t *members, const struct translation *to)
{
    json_t *given = request_field(to->fields, "text"), *format = request_field(given, "format");
    json_t *verbosity = request_field(given, "verbosity");
    json_t *text = format ? json_pack("{s:O}", "format", format)
                          : json_pack("{s:{s:s}}", "format", "type", "text");
    if (verbosity && json_object_set(text, "verbosity", verbosity)) {
        json_decref(text);
        return -1;
    }
    return json_object_set_new(members, "text", text);
}

static int echo_reasoning(json_t *members, const struct translation *to)
{
    json_t *given = request_field(to->fields, "reasoning");
    return json_object_set_new(members, "reasoning",
                               json_pack("{s:O?,s:O?}", "effort", request_field(given, "effort"),
                                         "summary", request_field(given, "summary")));
}

static json_t *default_of(const struct translation *to, enum sampling_number number)
{
    return json_real(author_sampling_value(to->limits->sampling, number));
}

/* Those that are told only if they are what their type says: they are not looked at otherwise. */
static int echo_harmless(json_t *members, const struct translation *to)
{
    static const char *const TEXTS[] = {"prompt_cache_key", "safety_identifier"};
    json_t *calls = request_field(to->fields, "max_tool_calls");
    int failed =
        json_object_set(members, "max_tool_calls", json_is_integer(calls) ? calls : json_null());
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS && !failed; i++) {
        json_t *text = request_field(to->fields, TEXTS[i]);
        failed = json_object_set(members, TEXTS[i], json_is_string(text) ? text : json_null());
    }
    return failed;
}

static json_t *members_of(const struct reading *reading)
{
    const struct translation *to = &reading->to;
    json_t *members = json_pack("{s:b,s:O?,s:b,s:s,s:O}", "background", 0, "previous_response_id",
                                reading->previous, "store", reading->keeps, "service_tier",
                                "default", "tools", reading->tools.kept);
    json_t *most = to->max_tokens < 0 ? json_null() : json_integer(to->max_tokens);
    if (members && json_object_set_new(members, "max_output_tokens", most) == 0 &&
        !echo_harmless(members, to) && !echo(members, to, "instructions", json_null()) &&
        !echo(members, to, "user", json_null()) && !echo(members, to, "metadata", json_object()) &&
        !echo(members, to, "parallel_tool_calls", json_true()) &&
        !echo(members, to, "temperature", default_of(to, SAMPLING_temperature)) &&
        !echo(members, to, "top_p", default_of(to, SAMPLING_top_p)) &&
        !echo(members, to, "tool_choice", json_string("auto")) &&
        !echo(members, to, "top_logprobs", json_integer(0)) &&
        !echo(members, to, "truncation", json_string("disabled")) && !echo_text(members, to) &&
        !echo_reasoning(members, to))
        return members;
    json_decref(members);
    request_no_memory(to->err);
    return NULL;
}

/* What is asked, for the response's turn. */
static int echo_asked(struct responses_echo *echo, const struct reading *reading)
{
    const struct translation *to = &reading->to;
    json_t *asked = json_pack("{s:O,s:O?}", "input", request_field(to->fields, "input"),
                              "instructions", request_field(to->fields, "instructions"));
    int result = asked ? request_dump(asked, &echo->asked, &echo->asked_length, to->err)
                       : request_no_memory(to->err);
    json_decref(asked);
    return result;
}

static int make_echo(struct completion_request *request, const struct reading *reading)
{
    json_t *members = members_of(reading);
    if (members)
        request->echoed = responses_echo_make(members, reading->tools.renamed, reading->to.err);
    json_decref(members);
    if (!request->echoed || (reading->limits.response && echo_asked(request->echoed, reading))) {
        completion_request_clear(request);
        return -1;
    }
    request->echoed->logprobs = reading->logprobs;
    request->echoed->seals = reading->seals;
    request->chat_shortens = reading->shortens;
    return 0;
}

static int take_session(struct completion_request *request, const struct reading *reading)
{
    const char *previous = json_string_value(reading->previous);
    request->store = request->kept = reading->keeps;
    request->begins_with = previous ? strdup(previous) : NULL;
    request->session_id = previous && !reading->keeps ? strdup(previous) : NULL;
    if (!previous || (request->begins_with && (reading->keeps || request->session_id)))
        return 0;
    completion_request_clear(request);
    return request_no_memory(reading->to.err);
}

static int fill(struct completion_request *request, const struct reading *reading)
{
    return translation_parse(&reading->to, request) || make_echo(request, reading) ||
                   take_session(request, reading)
               ? -1
               : 0;
}

int responses_parse(struct completion_request *request, const char *body, size_t length,
                    const struct completion_limits *limits, struct api_error *err)
{
    struct reading reading;
    *request = (struct completion_request){0};
    int result = begin(&reading, body, length, limits, err);
    if (result == 0)
        result = fill(request, &reading);
    end(&reading);
    return result;
}

/* What is counted of one that goes on is known with what it goes on from. */
static int fill_goes_on(struct tokenize_request *request, const struct reading *reading)
{
    request->goes_on = calloc(1, sizeof *request->goes_on);
    if (!request->goes_on)
        return request_no_memory(reading->to.err);
    return fill(request->goes_on, reading);
}

int responses_count_parse(struct tokenize_request *request, const char *body, size_t length,
                          const struct completion_limits *limits, struct api_error *err)
{
    struct reading reading;
    *request = (struct tokenize_request){0};
    int result = begin(&reading, body, length, limits, err);
    if (result == 0)
        result = reading.previous ? fill_goes_on(request, &reading)
                                  : translation_count(&reading.to, request);
    end(&reading);
    if (result) { /* nothing is in it */
        free(request->goes_on);
        request->goes_on = NULL;
    }
    return result;
}

int responses_count_behind(struct tokenize_request *request, const char *turns, size_t length,
                           const struct completion_limits *limits, struct api_error *err)
{
    struct completion_request *from = request->goes_on;
    struct completion_limits silent = *limits;
    struct completion_prompt whole;
    struct chat_turn last;
    silent.warnings = NULL; /* they have been warned of */
    if (responses_turns_gather(&from->chat, turns, length, from->echoed, &silent, err) ||
        chat_render_body(&whole, NULL, &from->chat, NULL, limits, err))
        return -1;
    request->prompt = whole.text;
    request->length = whole.length;
    request->input = whole.input;
    if (!chat_turns_begin(turns, length, whole.text, whole.length, &last))
        return 0;
    /* The tokens of what was said are those that were drawn. */
    span_list_cut(&request->input, last.text_length, whole.length);
    request->before = last.position;
    request->length -= last.text_length;
    memmove(request->prompt, request->prompt + last.text_length, request->length + 1);
    return 0;
}
