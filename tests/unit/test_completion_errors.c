/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for completions that are wrong: the code and the exact param of each violation. */
#include "api/completion.h"
#include "lib/text/unicode.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const served[] = {"tiny", "small"};
static const struct completion_limits limits = {
    .models = served, .num_models = 2, .vocab_size = 300, .max_model_len = 100, .max_prompts = 3};

static struct api_error fail(const char *body, size_t length)
{
    struct completion_request request;
    struct api_error err = {0};
    cr_assert_eq(completion_parse(&request, body, length, &limits, &err), -1, "%s", body);
    cr_expect_null(request.prompts);
    cr_expect_neq(err.message[0], 0);
    return err;
}

struct violation {
    const char *members; /* of the body, after "prompt": "x" unless they hold a prompt */
    enum api_code code;
    const char *param;
};

static void expect_violations(const struct violation *violations, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct violation *v = &violations[i];
        char body[512];
        bool has_prompt = strstr(v->members, "\"prompt\"") != NULL;
        snprintf(body, sizeof body, "{%s%s}", has_prompt ? "" : "\"prompt\":\"x\",", v->members);
        struct api_error err = fail(body, strlen(body));
        cr_expect_eq(err.code, v->code, "%s: code %d: %s", body, (int)err.code, err.message);
        cr_expect_str_eq(err.param, v->param, "%s: %s", body, err.param);
    }
}

#define EXPECT_VIOLATIONS(list) expect_violations(list, sizeof(list) / sizeof *(list))

Test(completion_errors, model)
{
    const struct violation list[] = {
        {"\"model\":\"other\"", API_MODEL_NOT_FOUND, "model"},
        {"\"model\":\"tin\"", API_MODEL_NOT_FOUND, "model"},
        {"\"model\":\"tiny\\u0000\"", API_MODEL_NOT_FOUND, "model"},
        {"\"model\":1", API_INVALID_TYPE, "model"},
    };
    EXPECT_VIOLATIONS(list);
}

Test(completion_errors, prompt)
{
    const struct violation list[] = {
        {"\"prompt\":null", API_MISSING_PARAMETER, "prompt"},
        {"\"prompt\":\"\"", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[\"a\",\"\"]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[[]]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[[1],[]]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":3", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":true", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":{}", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[\"a\",1]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[1,\"a\"]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[[1],2]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[1,[2]]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[[1,[2]]]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[[\"a\"]]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[null]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[true]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[\"a\",null]", API_INVALID_TYPE, "prompt"},
        {"\"prompt\":[-1]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[300]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[4294967296]", API_INVALID_VALUE, "prompt"}, /* 0 as 32 bits */
        {"\"prompt\":[1,18446744073709551617]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[1.5]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[[1],[2,300]]", API_INVALID_VALUE, "prompt"},
        {"\"prompt\":[\"a\",\"b\",\"c\",\"d\"]", API_INVALID_VALUE, "prompt"},
    };
    EXPECT_VIOLATIONS(list);
    struct api_error err = fail("{}", 2);
    cr_expect_eq(err.code, API_MISSING_PARAMETER);
    cr_expect_str_eq(err.param, "prompt");
}

Test(completion_errors, counts)
{
    const struct violation list[] = {
        {"\"max_tokens\":-2", API_INVALID_VALUE, "max_tokens"},
        {"\"max_tokens\":0", API_INVALID_VALUE, "max_tokens"},
        {"\"max_tokens\":1.5", API_INVALID_TYPE, "max_tokens"},
        {"\"max_tokens\":\"16\"", API_INVALID_TYPE, "max_tokens"},
        {"\"max_tokens\":true", API_INVALID_TYPE, "max_tokens"},
        {"\"max_tokens\":99999999999999999999", API_INVALID_VALUE, "max_tokens"},
        {"\"max_tokens\":9007199254740993", API_INVALID_VALUE, "max_tokens"},
        {"\"max_tokens\":1e300", API_INVALID_VALUE, "max_tokens"},
        {"\"n\":0", API_INVALID_VALUE, "n"},
        {"\"n\":129", API_INVALID_VALUE, "n"},
        {"\"n\":[1]", API_INVALID_TYPE, "n"},
        {"\"best_of\":0", API_INVALID_VALUE, "best_of"},
        {"\"best_of\":129", API_INVALID_VALUE, "best_of"},
        {"\"n\":3,\"best_of\":2", API_INVALID_VALUE, "best_of"},
        {"\"best_of\":2,\"stream\":true", API_INVALID_VALUE, "best_of"},
        {"\"logprobs\":-1", API_INVALID_VALUE, "logprobs"},
        {"\"logprobs\":21", API_INVALID_VALUE, "logprobs"},
        {"\"logprobs\":true", API_INVALID_TYPE, "logprobs"},
        {"\"prompt_logprobs\":-1", API_INVALID_VALUE, "prompt_logprobs"},
        {"\"prompt_logprobs\":21", API_INVALID_VALUE, "prompt_logprobs"},
        {"\"prompt_logprobs\":true", API_INVALID_TYPE, "prompt_logprobs"},
        {"\"prompt_logprobs\":1,\"stream\":true", API_INVALID_VALUE, "prompt_logprobs"},
        {"\"logprob_token_ids\":[1]", API_INVALID_VALUE, "logprob_token_ids"},
        {"\"logprobs\":1,\"logprob_token_ids\":[]", API_INVALID_VALUE, "logprob_token_ids"},
        {"\"logprobs\":1,\"logprob_token_ids\":[300]", API_INVALID_VALUE, "logprob_token_ids"},
        {"\"logprobs\":1,\"logprob_token_ids\":1", API_INVALID_TYPE, "logprob_token_ids"},
        {"\"logprobs\":1,\"logprob_token_ids\":[1],\"echo\":true,\"max_tokens\":0",
         API_INVALID_VALUE, "logprob_token_ids"},
        {"\"min_tokens\":-1", API_INVALID_VALUE, "min_tokens"},
        {"\"min_tokens\":17", API_INVALID_VALUE, "min_tokens"},
        {"\"truncate_prompt_tokens\":0", API_INVALID_VALUE, "truncate_prompt_tokens"},
        {"\"truncate_prompt_tokens\":\"1\"", API_INVALID_TYPE, "truncate_prompt_tokens"},
        {"\"priority\":\"high\"", API_INVALID_TYPE, "priority"},
    };
    EXPECT_VIOLATIONS(list);
}

Test(completion_errors, all_bad_keys_of_logit_bias_are_named)
{
    struct completion_request request;
    struct api_error err = {0};
    static const char body[] =
        "{\"prompt\":\"x\",\"logit_bias\":{\"a\":1,\"5\":1,\"300\":1,\"é\":1}}";
    cr_assert(completion_parse(&request, body, sizeof body - 1, &limits, &err) != 0);
    cr_expect_str_eq(err.message,
                     "logit_bias: 3 keys are not token ids in [0, 300): \"a\", \"300\", \"é\"");
}

/* The list of them ends before it is full, whatever their lengths. */
Test(completion_errors, many_bad_keys_of_logit_bias)
{
    for (int longest = 1; longest <= 60; longest++) {
        char body[8192];
        struct completion_request request;
        struct api_error err = {0};
        int length = snprintf(body, sizeof body, "{\"prompt\":\"x\",\"logit_bias\":{");
        for (int i = 0; i < 40; i++)
            length += snprintf(body + length, sizeof body - (size_t)length, "%s\"x%02d%.*s\":1",
                               i ? "," : "", i, i ? 60 : longest,
                               "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy");
        length += snprintf(body + length, sizeof body - (size_t)length, "}}");
        cr_assert(completion_parse(&request, body, (size_t)length, &limits, &err) != 0);
        cr_expect(strstr(err.message, "40 keys") && strstr(err.message, "\"x00y"), "%s",
                  err.message);
        size_t end = strlen(err.message);
        cr_expect(end > 5 && strcmp(err.message + end - 5, ", …") == 0, "%s", err.message);
    }
}

Test(completion_errors, sampling)
{
    const struct violation list[] = {
        {"\"temperature\":-0.1", API_INVALID_VALUE, "temperature"},
        {"\"temperature\":2.1", API_INVALID_VALUE, "temperature"},
        {"\"temperature\":1e308", API_INVALID_VALUE, "temperature"},
        {"\"temperature\":99999999999999999999", API_INVALID_VALUE, "temperature"},
        {"\"temperature\":\"1\"", API_INVALID_TYPE, "temperature"},
        {"\"top_p\":1.01", API_INVALID_VALUE, "top_p"},
        {"\"top_p\":-1", API_INVALID_VALUE, "top_p"},
        {"\"top_p\":{}", API_INVALID_TYPE, "top_p"},
        {"\"top_k\":-2", API_INVALID_VALUE, "top_k"},
        {"\"top_k\":2147483648", API_INVALID_VALUE, "top_k"},
        {"\"top_k\":0.5", API_INVALID_TYPE, "top_k"},
        {"\"min_p\":-0.5", API_INVALID_VALUE, "min_p"},
        {"\"min_p\":1.5", API_INVALID_VALUE, "min_p"},
        {"\"typical_p\":0", API_INVALID_VALUE, "typical_p"},
        {"\"typical_p\":1.01", API_INVALID_VALUE, "typical_p"},
        {"\"typical_p\":\"x\"", API_INVALID_TYPE, "typical_p"},
        {"\"seed\":1.5", API_INVALID_TYPE, "seed"},
        {"\"seed\":9223372036854775808", API_INVALID_VALUE, "seed"},
        {"\"seed\":\"x\"", API_INVALID_TYPE, "seed"},
        {"\"presence_penalty\":-2.5", API_INVALID_VALUE, "presence_penalty"},
        {"\"presence_penalty\":2.5", API_INVALID_VALUE, "presence_penalty"},
        {"\"frequency_penalty\":-2.5", API_INVALID_VALUE, "frequency_penalty"},
        {"\"frequency_penalty\":2.5", API_INVALID_VALUE, "frequency_penalty"},
        {"\"frequency_penalty\":[]", API_INVALID_TYPE, "frequency_penalty"},
        {"\"repetition_penalty\":0", API_INVALID_VALUE, "repetition_penalty"},
        {"\"repetition_penalty\":-1", API_INVALID_VALUE, "repetition_penalty"},
        {"\"repetition_penalty\":1e300", API_INVALID_VALUE, "repetition_penalty"},
        {"\"logit_bias\":[]", API_INVALID_TYPE, "logit_bias"},
        {"\"logit_bias\":{\"300\":1}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"01\":1}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"a\":1}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"\":1}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"99999999999\":1}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"5\":101}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"5\":-101}", API_INVALID_VALUE, "logit_bias"},
        {"\"logit_bias\":{\"5\":null}", API_INVALID_TYPE, "logit_bias"},
    };
    EXPECT_VIOLATIONS(list);
}

Test(completion_errors, stops_and_stream)
{
    const struct violation list[] = {
        {"\"stop\":\"\"", API_INVALID_VALUE, "stop"},
        {"\"stop\":[\"a\",\"\"]", API_INVALID_VALUE, "stop"},
        {"\"stop\":[1]", API_INVALID_TYPE, "stop"},
        {"\"stop\":1", API_INVALID_TYPE, "stop"},
        {"\"stop_token_ids\":[-1]", API_INVALID_VALUE, "stop_token_ids"},
        {"\"stop_token_ids\":[300]", API_INVALID_VALUE, "stop_token_ids"},
        {"\"stop_token_ids\":[\"1\"]", API_INVALID_TYPE, "stop_token_ids"},
        {"\"stop_token_ids\":1", API_INVALID_TYPE, "stop_token_ids"},
        {"\"allowed_token_ids\":[]", API_INVALID_VALUE, "allowed_token_ids"},
        {"\"allowed_token_ids\":[-1]", API_INVALID_VALUE, "allowed_token_ids"},
        {"\"allowed_token_ids\":7", API_INVALID_TYPE, "allowed_token_ids"},
        {"\"bad_words\":\"x\"", API_INVALID_TYPE, "bad_words"},
        {"\"bad_words\":[\"\"]", API_INVALID_VALUE, "bad_words"},
        {"\"bad_words\":[\"a\",1]", API_INVALID_TYPE, "bad_words"},
        {"\"stream\":1", API_INVALID_TYPE, "stream"},
        {"\"stream_options\":{\"include_usage\":true}", API_INVALID_VALUE, "stream_options"},
        {"\"stream\":false,\"stream_options\":{}", API_INVALID_VALUE, "stream_options"},
        {"\"stream\":true,\"stream_options\":true", API_INVALID_TYPE, "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", API_INVALID_TYPE,
         "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":1}", API_INVALID_TYPE,
         "stream_options"},
    };
    EXPECT_VIOLATIONS(list);
}

Test(completion_errors, what_is_wrong_is_told_with_its_place_and_what_there_is)
{
    const struct {
        const char *body, *told;
    } cases[] = {
        {"{\"prompt\":\"x\",\"stop\":[\"a\",1]}", "stop: item 1: expected a string, got a number"},
        {"{\"prompt\":\"x\",\"stop\":[\"a\",\"b\",\"\"]}", "stop: item 2: an empty string"},
        {"{\"prompt\":\"x\",\"model\":\"other\"}",
         "the model \"other\" does not exist; here is \"tiny\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_error err = fail(cases[i].body, strlen(cases[i].body));
        cr_expect_str_eq(err.message, cases[i].told);
    }
}

Test(completion_errors, flags_and_names)
{
    const struct violation list[] = {
        {"\"echo\":0", API_INVALID_TYPE, "echo"},
        {"\"include_stop_str_in_output\":1", API_INVALID_TYPE, "include_stop_str_in_output"},
        {"\"ignore_eos\":\"no\"", API_INVALID_TYPE, "ignore_eos"},
        {"\"add_special_tokens\":1", API_INVALID_TYPE, "add_special_tokens"},
        {"\"skip_special_tokens\":1", API_INVALID_TYPE, "skip_special_tokens"},
        {"\"return_token_ids\":1", API_INVALID_TYPE, "return_token_ids"},
        {"\"return_tokens_as_token_ids\":1", API_INVALID_TYPE, "return_tokens_as_token_ids"},
        {"\"user\":1", API_INVALID_TYPE, "user"},
        {"\"request_id\":1", API_INVALID_TYPE, "request_id"},
        {"\"request_id\":\"\"", API_INVALID_VALUE, "request_id"},
        {"\"request_id\":\"a\\r\\nb\"", API_INVALID_VALUE, "request_id"},
        {"\"cache_salt\":\"\"", API_INVALID_VALUE, "cache_salt"},
        {"\"cache_salt\":1", API_INVALID_TYPE, "cache_salt"},
    };
    EXPECT_VIOLATIONS(list);
}

Test(completion_errors, fields_we_cannot_honour)
{
    const char *const names[] = {
        "suffix",        "guided_whitespace_pattern", "use_beam_search",
        "prompt_embeds", "logits_processors",
    };
    const char *const values[] = {"true", "\"x\"", "1", "0", "[1]", "{\"type\":\"json_object\"}"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            char body[200];
            snprintf(body, sizeof body, "{\"prompt\":\"x\",\"%s\":%s}", names[i], values[j]);
            struct api_error err = fail(body, strlen(body));
            cr_expect_eq(err.code, API_UNSUPPORTED, "%s", body);
            cr_expect_str_eq(err.param, names[i]);
        }
    }
}

Test(completion_errors, sessions)
{
    const struct violation list[] = {
        {"\"session_id\":1", API_INVALID_TYPE, "session_id"},
        {"\"session_id\":\"\"", API_INVALID_VALUE, "session_id"},
        {"\"session_id\":\"a/b\"", API_INVALID_VALUE, "session_id"},
        {"\"session_id\":\"a b\"", API_INVALID_VALUE, "session_id"},
        {"\"session_id\":\"\u00e9\"", API_INVALID_VALUE, "session_id"},
        {"\"session_id\":\"a\\u0000\"", API_INVALID_VALUE, "session_id"},
        {"\"expected_position\":0", API_INVALID_VALUE, "expected_position"},
        {"\"session_id\":\"a\",\"expected_position\":-1", API_INVALID_VALUE, "expected_position"},
        {"\"session_id\":\"a\",\"expected_position\":\"1\"", API_INVALID_TYPE, "expected_position"},
        {"\"session_id\":\"a\",\"store\":1", API_INVALID_TYPE, "store"},
        {"\"session_id\":\"a\",\"n\":2", API_INVALID_VALUE, "n"},
        {"\"session_id\":\"a\",\"best_of\":2", API_INVALID_VALUE, "best_of"},
        {"\"session_id\":\"a\",\"cache_salt\":\"s\"", API_INVALID_VALUE, "cache_salt"},
        {"\"session_id\":\"a\",\"prompt\":[\"x\",\"y\"]", API_INVALID_VALUE, "prompt"},
        {"\"session_id\":\"a\",\"prompt\":[]", API_INVALID_VALUE, "prompt"},
    };
    EXPECT_VIOLATIONS(list);
}

Test(completion_errors, malformed_json_names_the_byte)
{
    const struct {
        const char *body;
        const char *part; /* of the message */
    } cases[] = {
        {"", "at byte 0"},
        {"{\"prompt\":\"x\"", "at byte 13"},
        {"{\"prompt\":\"x\",}", "at byte 15"},
        {"{\"prompt\":'x'}", "at byte 11"},
        {"{\"prompt\":\"x\"} x", "at byte 16"},
        {"{\"prompt\":NaN}", "at byte 13"},
        {"{\"prompt\":\"x\",\"top_p\":Infinity}", "at byte"},
        {"{\"prompt\":\"x\",\"top_p\":1e999}", "at byte"},
        {"{\"prompt\":\"x\",\"top_p\":01}", "at byte"},
        {"{\"prompt\":\"\xff\"}", "not UTF-8 at byte 11"},
        {"{\"prompt\":\"\xc0\x80\"}", "not UTF-8 at byte 11"},
        {"{\"prompt\":\"\xed\xa0\x80\"}", "not UTF-8 at byte 11"},
        {"{\"prompt\":\"\\ud800\"}", "at byte"},
        {"{\"prompt\":\"a\nb\"}", "at byte"},
        {"{\"prompt\":\"x\",\"prompt\":\"y\"}", "at byte"},
        {"{\"prompt\":\"x\",\"a\\u0000b\":1}", "at byte"},
        {"\xef\xbb\xbf{\"prompt\":\"x\"}", "at byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_error err = fail(cases[i].body, strlen(cases[i].body));
        cr_expect_eq(err.code, API_INVALID_JSON, "%s", cases[i].body);
        cr_expect_str_eq(err.param, "");
        cr_expect(strstr(err.message, cases[i].part), "%s: %s", cases[i].body, err.message);
        cr_expect_eq(utf8_valid_length(err.message, strlen(err.message)), strlen(err.message));
    }
    struct api_error nul = fail("{\"prompt\":\"x\"}\0", 15);
    cr_expect_eq(nul.code, API_INVALID_JSON);
}

Test(completion_errors, the_body_is_an_object)
{
    const char *const bodies[] = {"[]", "[{\"prompt\":\"x\"}]"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct api_error err = fail(bodies[i], strlen(bodies[i]));
        cr_expect_eq(api_error_row(err.code)->status, 400);
    }
}

Test(completion_errors, nesting_over_64)
{
    char body[400] = "{\"prompt\":\"x\",\"x\":";
    size_t at = strlen(body);
    memset(body + at, '[', 64);
    memset(body + at + 64, ']', 64);
    strcpy(body + at + 128, "}");
    struct api_error err = fail(body, strlen(body));
    cr_expect_eq(err.code, API_INVALID_JSON);
    cr_expect(strstr(err.message, "64 deep at byte 81"), "%s", err.message);
}

Test(completion_errors, a_body_of_nothing_but_brackets_is_refused_cheaply)
{
    const size_t length = 1 << 20;
    char *deep = malloc(length);
    cr_assert_not_null(deep);
    memset(deep, '[', length);
    cr_expect_eq(fail(deep, length).code, API_INVALID_JSON);
    for (size_t i = 1; i + 2 < length; i += 3)
        memcpy(deep + i, "[],", 3);
    struct api_error err = fail(deep, length);
    cr_expect_eq(err.code, API_INVALID_JSON);
    cr_expect(strstr(err.message, "arrays and objects"), "%s", err.message);
    free(deep);
}
