/* SPDX-License-Identifier: Apache-2.0 */
#include "api/completion.h"

#include "api/completion_words.h"
#include "api/parameters.h"
#include "api/request.h"
#include "api/sessions.h"
#include "engine/base/fields.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS (INT64_C(1) << 53)

/* One prompt: a string, or a list of token ids. */
static int parse_one_prompt(const json_t *value, struct completion_prompt *prompt,
                            const struct completion_limits *limits, struct api_error *err)
{
    if (json_is_string(value)) {
        bool allowed =
            json_string_length(value) > 0 ? !limits->token_ids_only : limits->allow_empty_prompt;
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
                             const struct completion_limits *limits, struct api_error *err)
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
        if (parse_one_prompt(json_array_get(list, i), &request->prompts[i], limits, err) != 0)
            return -1;
    return 0;
}

static int parse_prompt(const json_t *fields, struct completion_request *request,
                        const struct completion_limits *limits, struct api_error *err)
{
    const json_t *value = request_field(fields, "prompt");
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
            return parse_prompt_list(value, request, limits, err);
        if (!json_is_number(first))
            return request_wrong_type(err, "prompt", "a list of strings, ids or lists of ids",
                                      first);
    }
    request->prompts = calloc(1, sizeof *request->prompts);
    if (!request->prompts)
        return request_no_memory(err);
    request->num_prompts = 1;
    return parse_one_prompt(value, request->prompts, limits, err);
}

static int parse_sampling(const json_t *fields, struct completion_request *request,
                          struct api_error *err)
{
    struct sampling *s = &request->sampling;
    int64_t top_k = s->top_k;
    if (request_float(fields, "temperature", 0, 2, false, &s->temperature, err) != 0 ||
        request_float(fields, "top_p", 0, 1, false, &s->top_p, err) != 0 ||
        request_int(fields, "top_k", -1, INT32_MAX, &top_k, err) != 0 ||
        request_float(fields, "min_p", 0, 1, false, &s->min_p, err) != 0 ||
        request_float(fields, "typical_p", 0, 1, true, &s->typical_p, err) != 0 ||
        request_float(fields, "presence_penalty", -2, 2, false, &s->presence_penalty, err) != 0 ||
        request_float(fields, "frequency_penalty", -2, 2, false, &s->frequency_penalty, err) != 0 ||
        request_float(fields, "repetition_penalty", 0, FLT_MAX, true, &s->repetition_penalty,
                      err) != 0 ||
        request_int(fields, "seed", INT64_MIN, INT64_MAX, &s->seed, err) != 0)
        return -1;
    s->top_k = (int32_t)top_k;
    if (s->top_p == 0) /* OpenAI's range has it: the first token alone reaches it */
        s->top_p = FLT_MIN;
    request->seed_given = request_field(fields, "seed") != NULL;
    return 0;
}

static int parse_stream(const json_t *fields, struct completion_request *request,
                        struct api_error *err)
{
    if (request_bool(fields, "stream", &request->stream, err) != 0)
        return -1;
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
static int parse_max_tokens(const json_t *fields, struct completion_request *request,
                            struct api_error *err)
{
    static const char other_name[] = "max_completion_tokens";
    int64_t other = -1;
    if (request_int(fields, "max_tokens", -1, MAX_TOKENS, &request->max_tokens, err) != 0 ||
        request_int(fields, other_name, -1, MAX_TOKENS, &other, err) != 0)
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
        request->max_tokens = MAX_TOKENS;
    return 0;
}

static int parse_truncation(const json_t *fields, struct completion_request *request,
                            struct api_error *err)
{
    const char *side = "left";
    const json_t *given = request_field(fields, "truncation_side");
    if (request_int(fields, "truncate_prompt_tokens", -1, INT64_MAX,
                    &request->truncate_prompt_tokens, err) != 0)
        return -1;
    if (request->truncate_prompt_tokens == 0 && request_field(fields, "truncate_prompt_tokens"))
        return api_error_set(
            err, API_INVALID_VALUE, "truncate_prompt_tokens",
            "truncate_prompt_tokens: expected -1, or a number of 1 or more, got 0");
    if (given && !json_is_string(given))
        return request_wrong_type(err, "truncation_side", "a string", given);
    if (given)
        side = json_string_value(given);
    request->truncate_end = strcmp(side, "right") == 0;
    if (!request->truncate_end && strcmp(side, "left") != 0)
        return api_error_set(err, API_INVALID_VALUE, "truncation_side",
                             "truncation_side: expected left or right, got \"%.40s\"", side);
    return 0;
}

static int parse_counts(const json_t *fields, struct completion_request *request,
                        struct api_error *err)
{
    int64_t n = 1;
    int64_t logprobs = -1, prompt_logprobs = -1;
    if (request_int(fields, "n", 1, 128, &n, err) != 0 ||
        request_int(fields, "logprobs", 0, SAMPLER_MOST_TOP, &logprobs, err) != 0 ||
        request_int(fields, "prompt_logprobs", 0, SAMPLER_MOST_TOP, &prompt_logprobs, err) != 0 ||
        parse_max_tokens(fields, request, err) != 0 ||
        request_int(fields, "min_tokens", 0, INT64_MAX, &request->min_tokens, err) != 0 ||
        parse_truncation(fields, request, err) != 0 ||
        request_int(fields, "priority", INT64_MIN, INT64_MAX, &request->priority, err) != 0)
        return -1;
    int64_t best_of = n;
    if (request_int(fields, "best_of", 1, 128, &best_of, err) != 0)
        return -1;
    request->n = (int)n;
    request->best_of = (int)best_of;
    request->logprobs = (int)logprobs;
    request->prompt_logprobs = (int)prompt_logprobs;
    return 0;
}

static int parse_flags(const json_t *fields, struct completion_request *request,
                       struct api_error *err)
{
    const struct {
        const char *name;
        bool *value;
    } flags[] = {
        {"echo", &request->echo},
        {"include_stop_str_in_output", &request->include_stop_str_in_output},
        {"ignore_eos", &request->ignore_eos},
        {"add_special_tokens", &request->add_special_tokens},
        {"skip_special_tokens", &request->skip_special_tokens},
        {"return_token_ids", &request->return_token_ids},
        {"return_tokens_as_token_ids", &request->return_tokens_as_token_ids},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (request_bool(fields, flags[i].name, flags[i].value, err) != 0)
            return -1;
    return 0;
}

static int parse_names(const json_t *fields, struct completion_request *request,
                       struct api_error *err)
{
    size_t length = 0;
    if (request_text(fields, "model", &request->model, NULL, err) != 0 ||
        request_text(fields, "user", &request->user, NULL, err) != 0 ||
        request_salt(fields, &request->cache_salt, &request->cache_salt_length, err) != 0 ||
        request_text(fields, "request_id", &request->request_id, &length, err) != 0)
        return -1;
    if (request->request_id && !request_id_valid(request->request_id, length))
        return api_error_set(err, API_INVALID_VALUE, "request_id",
                             "request_id: expected 1 to 128 printable ASCII characters");
    return 0;
}

static int parse_constraint(const json_t *fields, struct completion_request *request,
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

/* session_id, expected_position, store. */
static int parse_session(const json_t *fields, struct completion_request *request,
                         struct api_error *err)
{
    size_t length = 0;
    if (request_text(fields, "session_id", &request->session_id, &length, err) != 0 ||
        request_int(fields, "expected_position", 0, MAX_TOKENS, &request->expected_position, err) !=
            0 ||
        request_bool(fields, "store", &request->store, err) != 0)
        return -1;
    if (request->session_id)
        return session_id_check(request->session_id, length, "session_id", err);
    if (request->expected_position >= 0)
        return api_error_set(err, API_INVALID_VALUE, "expected_position",
                             "expected_position is only allowed with session_id");
    return 0;
}

/* A session is one text, in the space of its owner. */
static int check_session(const struct completion_request *request, struct api_error *err)
{
    const struct {
        const char *name;
        bool given;
        const char *why;
    } refused[] = {
        {"prompt", request->num_prompts > 1, "several prompts are"},
        {"n", request->n > 1, "more than 1 is"},
        {"best_of", request->best_of > 1, "more than 1 is"},
        {"cache_salt", request->cache_salt != NULL, "it is"},
    };
    for (size_t i = 0; request->session_id && i < sizeof refused / sizeof *refused; i++)
        if (refused[i].given)
            return api_error_set(err, API_INVALID_VALUE, refused[i].name,
                                 "%s: %s not allowed with session_id", refused[i].name,
                                 refused[i].why);
    return 0;
}

static int check_logprobs(const struct completion_request *request, struct api_error *err)
{
    static const char name[] = "logprob_token_ids";
    size_t count = request->num_logprob_token_ids;
    if (count > SAMPLER_MOST_WANTED)
        return api_error_set(err, API_INVALID_VALUE, name,
                             "logprob_token_ids: expected at most %d, got %zu", SAMPLER_MOST_WANTED,
                             count);
    if (count > 0 && request->logprobs < 0)
        return api_error_set(err, API_INVALID_VALUE, name,
                             "logprob_token_ids is only allowed with logprobs");
    if (count > 0 && request->max_tokens == 0)
        return api_error_set(err, API_INVALID_VALUE, name,
                             "logprob_token_ids is not allowed with max_tokens 0: it is about "
                             "generated tokens");
    if (request->prompt_logprobs > 0 && request->stream)
        return api_error_set(err, API_INVALID_VALUE, "prompt_logprobs",
                             "prompt_logprobs: with stream expected 0, got %d",
                             request->prompt_logprobs);
    return 0;
}

static int check_together(const struct completion_request *request, struct api_error *err)
{
    if (request->max_tokens == 0 && !request->echo && !request->session_id)
        return api_error_set(err, API_INVALID_VALUE, "max_tokens",
                             "max_tokens: 0 is only allowed with echo or session_id");
    if (request->min_tokens > request->max_tokens)
        return api_error_set(err, API_INVALID_VALUE, "min_tokens",
                             "min_tokens: %lld is more than max_tokens, %lld",
                             (long long)request->min_tokens, (long long)request->max_tokens);
    if (request->best_of < request->n)
        return api_error_set(err, API_INVALID_VALUE, "best_of", "best_of: %d is less than n, %d",
                             request->best_of, request->n);
    if (request->best_of > request->n && request->stream)
        return api_error_set(err, API_INVALID_VALUE, "best_of",
                             "best_of: more than n is not allowed with stream");
    return check_logprobs(request, err);
}

static int parse_fields(const json_t *fields, struct completion_request *request,
                        const struct completion_limits *limits, struct api_error *err)
{
    struct completion_limits of_prompt = *limits;
    if (request_model(fields, limits->models, limits->num_models, err) != 0 ||
        parameters_check(fields, limits->warnings, err) != 0 ||
        parse_session(fields, request, err) != 0)
        return -1;
    of_prompt.allow_empty_prompt |=
        request->session_id != NULL || limits->response; /* "": it goes on by itself */
    if (parse_prompt(fields, request, &of_prompt, err) != 0 ||
        parse_counts(fields, request, err) != 0 || parse_flags(fields, request, err) != 0 ||
        parse_sampling(fields, request, err) != 0 || parse_stream(fields, request, err) != 0 ||
        completion_words_read(fields, request, limits, err) != 0 ||
        parse_constraint(fields, request, limits, err) != 0 ||
        parse_names(fields, request, err) != 0 || check_session(request, err) != 0)
        return -1;
    return check_together(request, err);
}

double completion_default(const struct author_sampling *author, enum author_parameter parameter)
{
    static const double usual[AUTHOR_PARAMETERS] = {[AUTHOR_TEMPERATURE] = 1,
                                                    [AUTHOR_TOP_P] = 1,
                                                    [AUTHOR_TYPICAL_P] = 1,
                                                    [AUTHOR_REPETITION_PENALTY] = 1};
    return author ? author_sampling_value(author, parameter, usual[parameter]) : usual[parameter];
}

static struct sampling default_sampling(const struct author_sampling *author)
{
    return (struct sampling){
        .temperature = (float)completion_default(author, AUTHOR_TEMPERATURE),
        .top_p = (float)completion_default(author, AUTHOR_TOP_P),
        .top_k = (int32_t)completion_default(author, AUTHOR_TOP_K),
        .min_p = (float)completion_default(author, AUTHOR_MIN_P),
        .typical_p = (float)completion_default(author, AUTHOR_TYPICAL_P),
        .repetition_penalty = (float)completion_default(author, AUTHOR_REPETITION_PENALTY),
    };
}

int completion_parse_fields(struct completion_request *request, const json_t *fields,
                            const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct completion_request){
        .max_tokens = 16,
        .n = 1,
        .best_of = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .add_special_tokens = true,
        .skip_special_tokens = true,
        .expected_position = -1,
        .thinking_budget = -1,
        .store = true,
        .return_token_ids = limits->token_ids_only,
        .sampling = default_sampling(limits->sampling),
    };
    int result = parse_fields(fields, request, limits, err);
    if (result != 0)
        completion_request_clear(request);
    return result;
}

int completion_take_session(json_t *fields, const struct completion_limits *limits,
                            struct api_error *err)
{
    const json_t *given = request_field(fields, "session_id");
    if (!limits->session_id)
        return 0;
    if (!given)
        return json_object_set_new(fields, "session_id", json_string(limits->session_id))
                   ? request_no_memory(err)
                   : 0;
    if (json_is_string(given) && strcmp(json_string_value(given), limits->session_id) != 0)
        return api_error_set(err, API_INVALID_VALUE, "session_id",
                             "session_id: the body names \"%.128s\", X-Session-Id \"%s\"",
                             json_string_value(given), limits->session_id);
    return 0; /* of another type: it is refused where it is read */
}

int completion_parse(struct completion_request *request, const char *body, size_t length,
                     const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct completion_request){0};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    int result = completion_take_session(fields, limits, err);
    if (result == 0)
        result = completion_parse_fields(request, fields, limits, err);
    json_decref(fields);
    return result;
}

int completion_check_length(const struct completion_request *request, int64_t session_tokens,
                            int64_t prompt_tokens, const struct completion_limits *limits,
                            struct api_error *err)
{
    int64_t limit = limits->max_model_len, num_tokens = session_tokens + prompt_tokens;
    if (limit > 0 && (num_tokens > limit || request->max_tokens > limit - num_tokens))
        return api_error_context_length(
            err, session_tokens, prompt_tokens, request->max_tokens, limit,
            limits->limited_by ? limits->limited_by : "--max-model-len");
    return 0;
}

bool request_id_valid(const char *text, size_t length)
{
    if (length == 0 || length > 128)
        return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] <= ' ' || text[i] >= 0x7F)
            return false;
    return true;
}
