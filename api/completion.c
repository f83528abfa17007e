/* SPDX-License-Identifier: Apache-2.0 */
#include "api/completion.h"

#include "api/chat_rules.h"
#include "api/completion_fields.h"
#include "api/parameter_read.h"
#include "api/parameters.h"
#include "api/request.h"
#include "api/responses_echo.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

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
    if (request->expected_position >= 0 && !request->session_id)
        return api_error_set(err, API_INVALID_VALUE, "expected_position",
                             "expected_position is only allowed with session_id");
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
    if (request_model(fields, limits->models, limits->num_models, err) != 0 ||
        parameters_check(fields, limits->warnings, err) != 0 ||
        parameter_read_all(request, fields, limits, err) != 0 ||
        completion_read_drafts(fields, request, limits, err) != 0)
        return -1;
    if (request->best_of == 0)
        request->best_of = request->n;
    if (request->sampling.top_p == 0) /* OpenAI's range has it: the first token alone reaches it */
        request->sampling.top_p = FLT_MIN;
    return check_session(request, err) != 0 ? -1 : check_together(request, err);
}

int completion_parse_fields(struct completion_request *request, const json_t *fields,
                            const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct completion_request){.thinking_budget = -1};
    parameter_read_usual(request, limits);
    request->return_token_ids = limits->token_ids_only;
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

static void free_strings(struct completion_string *strings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(strings[i].text);
    free(strings);
}

void completion_request_clear(struct completion_request *request)
{
    parameter_read_clear(request);
    for (size_t i = 0; i < request->num_prompts; i++) {
        free(request->prompts[i].text);
        span_list_clear(&request->prompts[i].input);
        free(request->prompts[i].ids);
    }
    free(request->prompts);
    free_strings(request->stops, request->num_stops);
    free_strings(request->bad_words, request->num_bad_words);
    free(request->draft_token_ids);
    free((void *)request->sampling.logit_bias);
    constraint_clear(&request->constraint);
    free(request->begins_with);
    chat_rules_free(request->chat_rules);
    responses_echo_free(request->echoed);
    free(request->chat.text);
    *request = (struct completion_request){0};
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
