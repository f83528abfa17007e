/* SPDX-License-Identifier: Apache-2.0 */
#include "api/completion_fields.h"

#include "api/request.h"
#include "api/sessions.h"
#include "lib/base/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One prompt: a string, or a list of token ids. */
static int parse_one_prompt(const json_t *value, struct completion_prompt *prompt,
                            bool may_be_empty, const struct completion_limits *limits,
                            struct api_error *err)
{
    if (json_is_string(value)) {
        bool allowed = json_string_length(value) > 0 ? !limits->token_ids_only : may_be_empty;
        if (!allowed && limits->token_ids_only)
            return api_error_set(err, API_INVALID_VALUE, "prompt",
                                 "prompt: expected token ids, got a string, and this model has no "
                                 "tokenizer");
        if (!allowed)
            return api_error_set(err, API_INVALID_VALUE, "prompt",
                                 "prompt: an empty string needs a model with a BOS token");
        return request_copy_text(value, &prompt->text, &prompt->length, err);
    }
    if (json_array_size(value) == 0)
        return api_error_set(err, API_INVALID_VALUE, "prompt",
                             "prompt: an empty list of token ids");
    return request_token_ids(value, "prompt", limits->vocab_size, &prompt->ids, &prompt->num_ids,
                             err);
}

/* A list of strings or a list of lists of ids; all items are of the first one's kind. */
static int parse_prompt_list(const json_t *list, struct completion_request *request,
                             bool may_be_empty, const struct completion_limits *limits,
                             struct api_error *err)
{
    size_t size = json_array_size(list);
    json_type kind = json_typeof(json_array_get(list, 0));
    if (limits->max_prompts > 0 && size > limits->max_prompts)
        return api_error_set(err, API_INVALID_VALUE, "prompt",
                             "prompt: %zu prompts, at most %zu are allowed", size,
                             limits->max_prompts);
    for (size_t i = 0; i < size; i++) {
        const json_t *item = json_array_get(list, i);
        if (json_typeof(item) != kind)
            return api_error_set(err, API_INVALID_TYPE, "prompt",
                                 "prompt: item %zu is %s among others that are %s", i,
                                 fields_kind(item), fields_kind(json_array_get(list, 0)));
    }
    request->prompts = calloc(size, sizeof *request->prompts);
    if (!request->prompts)
        return request_no_memory(err);
    request->num_prompts = size;
    for (size_t i = 0; i < size; i++)
        if (parse_one_prompt(json_array_get(list, i), &request->prompts[i], may_be_empty, limits,
                             err) != 0)
            return -1;
    return 0;
}

int completion_read_prompt(const json_t *fields, struct completion_request *request,
                           const struct completion_limits *limits, struct api_error *err)
{
    const json_t *value = request_field(fields, "prompt");
    const bool may_be_empty = limits->allow_empty_prompt || limits->response ||
                              request_field(fields, "session_id"); /* it goes on by itself */
    if (!value)
        return api_error_set(err, API_MISSING_PARAMETER, "prompt", "prompt is required");
    if (!json_is_string(value) && !json_is_array(value))
        return request_wrong_type(err, "prompt", "a string or a list", value);
    const json_t *first = NULL;
    if (json_is_array(value)) {
        first = json_array_get(value, 0);
        if (!first)
            return api_error_set(err, API_INVALID_VALUE, "prompt", "prompt: an empty list");
        if (json_is_string(first) || json_is_array(first))
            return parse_prompt_list(value, request, may_be_empty, limits, err);
        if (!json_is_number(first))
            return request_wrong_type(err, "prompt", "a list of strings, ids or lists of ids",
                                      first);
    }
    request->prompts = calloc(1, sizeof *request->prompts);
    if (!request->prompts)
        return request_no_memory(err);
    request->num_prompts = 1;
    return parse_one_prompt(value, request->prompts, may_be_empty, limits, err);
}

/* A key of logit_bias: the decimal digits of a token id, with no sign, space or leading zero. */
static bool parse_id(const char *text, size_t length, int32_t vocab_size, int32_t *id)
{
    int64_t value = 0;
    if (length == 0 || length > 10 || (length > 1 && text[0] == '0'))
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
    }
    *id = (int32_t)value;
    return value < vocab_size;
}

/* Names all keys that are no token ids, as far as the message has room. */
static int check_bias_keys(json_t *object, int32_t vocab_size, struct api_error *err)
{
    enum { KEY_BYTES = 40 };
    char names[256] = "";
    size_t length = 0, bad = 0;
    bool cut = false;
    const char *key;
    json_t *value;
    int32_t id;
    json_object_foreach(object, key, value)
    {
        if (parse_id(key, strlen(key), vocab_size, &id))
            continue;
        /* With room left to say that there are more. */
        bool fits = !cut && length + KEY_BYTES + sizeof ", \"\", …" < sizeof names;
        if (fits)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s\"%.*s\"",
                                       bad ? ", " : "", KEY_BYTES, key);
        else if (!cut)
            length += (size_t)snprintf(names + length, sizeof names - length, ", …");
        cut = !fits;
        bad++;
    }
    if (bad == 0)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, "logit_bias",
                         "logit_bias: %zu keys are not token ids in [0, %d): %s", bad,
                         (int)vocab_size, names);
}

int completion_read_logit_bias(const json_t *fields, struct completion_request *request,
                               const struct completion_limits *limits, struct api_error *err)
{
    static const char name[] = "logit_bias";
    json_t *object = request_field(fields, name);
    if (!object)
        return 0;
    if (!json_is_object(object))
        return request_wrong_type(err, name, "an object", object);
    if (check_bias_keys(object, limits->vocab_size, err))
        return -1;
    size_t size = json_object_size(object);
    struct logit_bias *biases = calloc(size ? size : 1, sizeof *biases);
    if (!biases)
        return request_no_memory(err);
    request->sampling.logit_bias = biases;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        struct logit_bias *bias = &biases[request->sampling.num_logit_bias];
        parse_id(key, strlen(key), limits->vocab_size, &bias->id);
        if (!json_is_number(value))
            return request_wrong_type(err, name, "numbers", value);
        double number = json_number_value(value);
        if (number < -100 || number > 100)
            return api_error_set(err, API_INVALID_VALUE, name,
                                 "logit_bias: token %s: expected a number in [-100, 100], got %g",
                                 key, number);
        bias->bias = (float)number;
        request->sampling.num_logit_bias++;
    }
    return 0;
}

/* A string or, with list_only, a list of non-empty strings, at most `most`. */
static int parse_strings(const json_t *value, const char *name, bool list_only, size_t most,
                         struct completion_string **strings, size_t *count, struct api_error *err)
{
    bool is_list = json_is_array(value);
    if (!is_list && (list_only || !json_is_string(value)))
        return request_wrong_type(
            err, name, list_only ? "a list of strings" : "a string or a list of strings", value);
    size_t size = is_list ? json_array_size(value) : 1;
    if (size > most)
        return api_error_set(err, API_INVALID_VALUE, name, "%s: expected at most %zu, got %zu",
                             name, most, size);
    *strings = calloc(size ? size : 1, sizeof **strings);
    if (!*strings)
        return request_no_memory(err);
    *count = size;
    for (size_t i = 0; i < size; i++) {
        const json_t *item = is_list ? json_array_get(value, i) : value;
        struct completion_string *string = &(*strings)[i];
        if (!json_is_string(item))
            return api_error_set(err, API_INVALID_TYPE, name,
                                 "%s: item %zu: expected a string, got %s", name, i,
                                 fields_kind(item));
        if (json_string_length(item) == 0)
            return api_error_set(err, API_INVALID_VALUE, name, "%s: item %zu: an empty string",
                                 name, i);
        if (request_copy_text(item, &string->text, &string->length, err) != 0)
            return -1;
    }
    return 0;
}

int completion_read_stop(const json_t *fields, struct completion_request *request,
                         const struct completion_limits *limits, struct api_error *err)
{
    const json_t *stop = request_field(fields, "stop");
    if (!stop)
        return 0;
    if (limits->token_ids_only)
        return api_error_set(err, API_INVALID_VALUE, "stop",
                             "stop: this model has no tokenizer, so that its text is empty; "
                             "stop_token_ids takes token ids");
    return parse_strings(stop, "stop", false, SIZE_MAX, &request->stops, &request->num_stops, err);
}

int completion_read_bad_words(const json_t *fields, struct completion_request *request,
                              const struct completion_limits *limits, struct api_error *err)
{
    const json_t *bad = request_field(fields, "bad_words");
    if (bad && parse_strings(bad, "bad_words", true, COMPLETION_MOST_BAD_WORDS, &request->bad_words,
                             &request->num_bad_words, err) != 0)
        return -1;
    if (request->num_bad_words > 0 && limits->token_ids_only)
        return api_error_set(err, API_INVALID_VALUE, "bad_words",
                             "bad_words: this model has no tokenizer; allowed_token_ids and "
                             "logit_bias take token ids");
    return 0;
}

int completion_read_stream_options(const json_t *fields, struct completion_request *request,
                                   const struct completion_limits *limits, struct api_error *err)
{
    (void)limits;
    const json_t *options = request_field(fields, "stream_options");
    if (!options)
        return 0;
    if (!json_is_object(options))
        return request_wrong_type(err, "stream_options", "an object", options);
    if (!request->stream)
        return api_error_set(err, API_INVALID_VALUE, "stream_options",
                             "stream_options is only allowed with stream");
    if (request_bool(options, "include_usage", &request->include_usage, err) == 0 &&
        request_bool(options, "continuous_usage_stats", &request->continuous_usage_stats, err) ==
            0) {
        request->continuous_usage_stats &= request->include_usage; /* as in vLLM */
        return 0;
    }
    if (err) /* the client's field is the outer one's member */
        memcpy(err->param, "stream_options", sizeof "stream_options");
    return -1;
}

/* Clients of the chat API send max_completion_tokens. Those of llama.cpp and LM Studio send -1 for
 * as many as fit. */
int completion_read_max_tokens(const json_t *fields, struct completion_request *request,
                               const struct completion_limits *limits, struct api_error *err)
{
    static const char other_name[] = "max_completion_tokens";
    int64_t other = -1;
    (void)limits;
    if (request_int(fields, "max_tokens", -1, COMPLETION_MOST_TOKENS, &request->max_tokens, err) !=
            0 ||
        request_int(fields, other_name, -1, COMPLETION_MOST_TOKENS, &other, err) != 0)
        return -1;
    bool both = request_field(fields, "max_tokens") && request_field(fields, other_name);
    if (both && other != request->max_tokens)
        return api_error_set(err, API_INVALID_VALUE, other_name,
                             "max_completion_tokens: %lld is not max_tokens, %lld",
                             (long long)other, (long long)request->max_tokens);
    if (request_field(fields, other_name))
        request->max_tokens = other;
    request->max_tokens_fit = request->any_length = request->max_tokens < 0;
    if (request->max_tokens_fit)
        request->max_tokens = COMPLETION_MOST_TOKENS;
    return 0;
}

int completion_read_seed(const json_t *fields, struct completion_request *request,
                         const struct completion_limits *limits, struct api_error *err)
{
    (void)limits;
    request->seed_given = request_field(fields, "seed") != NULL;
    return request_int(fields, "seed", INT64_MIN, INT64_MAX, &request->sampling.seed, err);
}

int completion_read_truncation(const json_t *fields, struct completion_request *request,
                               const struct completion_limits *limits, struct api_error *err)
{
    static const char name[] = "truncate_prompt_tokens";
    (void)limits;
    if (request_int(fields, name, -1, INT64_MAX, &request->truncate_prompt_tokens, err) != 0)
        return -1;
    if (request->truncate_prompt_tokens == 0 && request_field(fields, name))
        return api_error_set(err, API_INVALID_VALUE, name,
                             "%s: expected -1, or a number of 1 or more, got 0", name);
    return 0;
}

int completion_read_side(const json_t *fields, struct completion_request *request,
                         const struct completion_limits *limits, struct api_error *err)
{
    static const char name[] = "truncation_side";
    const json_t *given = request_field(fields, name);
    (void)limits;
    if (given && !json_is_string(given))
        return request_wrong_type(err, name, "a string", given);
    const char *side = given ? json_string_value(given) : "left";
    request->truncate_end = strcmp(side, "right") == 0;
    if (!request->truncate_end && strcmp(side, "left") != 0)
        return api_error_set(err, API_INVALID_VALUE, name,
                             "%s: expected left or right, got \"%.40s\"", name, side);
    return 0;
}

int completion_read_salt(const json_t *fields, struct completion_request *request,
                         const struct completion_limits *limits, struct api_error *err)
{
    (void)limits;
    return request_salt(fields, &request->cache_salt, &request->cache_salt_length, err);
}

int completion_read_request_id(const json_t *fields, struct completion_request *request,
                               const struct completion_limits *limits, struct api_error *err)
{
    size_t length = 0;
    (void)limits;
    if (request_text(fields, "request_id", &request->request_id, &length, err) != 0)
        return -1;
    if (request->request_id && !request_id_valid(request->request_id, length))
        return api_error_set(err, API_INVALID_VALUE, "request_id",
                             "request_id: expected 1 to 128 printable ASCII characters");
    return 0;
}

int completion_read_session(const json_t *fields, struct completion_request *request,
                            const struct completion_limits *limits, struct api_error *err)
{
    size_t length = 0;
    (void)limits;
    if (request_text(fields, "session_id", &request->session_id, &length, err) != 0)
        return -1;
    return request->session_id ? session_id_check(request->session_id, length, "session_id", err)
                               : 0;
}

int completion_read_drafts(const json_t *fields, struct completion_request *request,
                           const struct completion_limits *limits, struct api_error *err)
{
    const json_t *list = request_field(fields, COMPLETION_DRAFTS);
    if (!list)
        return 0;
    if (!limits->drafts)
        return api_error_set(err, API_UNSUPPORTED, COMPLETION_DRAFTS,
                             COMPLETION_DRAFTS " is for tests of this server alone");
    if (!json_is_array(list))
        return request_wrong_type(err, COMPLETION_DRAFTS, "a list of token ids", list);
    return request_token_ids(list, COMPLETION_DRAFTS, limits->vocab_size, &request->draft_token_ids,
                             &request->num_draft_token_ids, err);
}

int completion_read_constraint(const json_t *fields, struct completion_request *request,
                               const struct completion_limits *limits, struct api_error *err)
{
    const struct constraint *constraint = &request->constraint;
    if (constraint_parse(&request->constraint, fields, err) != 0)
        return -1;
    if (!constraint->param || !limits->token_ids_only)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, constraint->param,
                         "%s: this model has no tokenizer, so that its text is empty",
                         constraint->name);
}
