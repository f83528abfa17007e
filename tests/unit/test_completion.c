/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for completions that are right: what each field becomes. */
#include "api/completion.h"

#include "api/request.h"
#include "engine/model/author_sampling.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *const served[] = {"tiny", "small"};
static const struct completion_limits limits = {
    .models = served, .num_models = 2, .vocab_size = 300, .max_model_len = 100, .max_prompts = 8};

static struct completion_request parse(const char *body)
{
    struct completion_request request;
    struct api_error err = {0};
    int result = completion_parse(&request, body, strlen(body), &limits, &err);
    cr_assert_eq(result, 0, "%s: %s", body, err.message);
    return request;
}

Test(completion, defaults)
{
    struct completion_request r = parse("{\"prompt\": \"Hello\"}");
    cr_assert_eq(r.num_prompts, 1);
    cr_expect_str_eq(r.prompts[0].text, "Hello");
    cr_expect_eq(r.prompts[0].length, 5);
    cr_expect_null(r.prompts[0].ids);
    cr_expect_eq(r.max_tokens, 16);
    cr_expect_eq(r.min_tokens, 0);
    cr_expect_eq(r.n, 1);
    cr_expect_eq(r.best_of, 1);
    cr_expect_not(r.stream);
    cr_expect_not(r.include_usage);
    cr_expect_not(r.continuous_usage_stats);
    cr_expect_eq(r.logprobs, -1);
    cr_expect_not(r.echo);
    cr_expect_eq(r.num_stops, 0);
    cr_expect_eq(r.num_stop_token_ids, 0);
    cr_expect_not(r.include_stop_str_in_output);
    cr_expect_not(r.ignore_eos);
    cr_expect(r.add_special_tokens);
    cr_expect(r.skip_special_tokens);
    cr_expect_not(r.return_token_ids);
    cr_expect_not(r.return_tokens_as_token_ids);
    cr_expect_eq(r.truncate_prompt_tokens, 0);
    cr_expect_not(r.seed_given);
    cr_expect_eq(r.sampling.temperature, 1);
    cr_expect_eq(r.sampling.top_p, 1);
    cr_expect_eq(r.sampling.top_k, 0);
    cr_expect_eq(r.sampling.min_p, 0);
    cr_expect_eq(r.sampling.presence_penalty, 0);
    cr_expect_eq(r.sampling.frequency_penalty, 0);
    cr_expect_eq(r.sampling.repetition_penalty, 1);
    cr_expect_eq(r.sampling.num_logit_bias, 0);
    cr_expect_null(r.user);
    cr_expect_null(r.request_id);
    cr_expect_null(r.cache_salt);
    cr_expect_null(r.session_id);
    cr_expect_eq(r.expected_position, -1);
    cr_expect(r.store);
    completion_request_clear(&r);
}

Test(completion, session_fields)
{
    struct completion_request r = parse(
        "{\"prompt\":\"x\",\"session_id\":\"A.z_9-\",\"expected_position\":7,\"store\":false}");
    cr_expect_str_eq(r.session_id, "A.z_9-");
    cr_expect_eq(r.expected_position, 7);
    cr_expect_not(r.store);
    completion_request_clear(&r);
    /* A session goes on by itself, and may be given a prompt only. */
    r = parse("{\"prompt\":\"\",\"session_id\":\"s\",\"max_tokens\":0,\"expected_position\":0}");
    cr_expect_eq(r.prompts[0].length, 0);
    cr_expect_eq(r.max_tokens, 0);
    cr_expect_eq(r.expected_position, 0);
    completion_request_clear(&r);
}

Test(completion, null_is_absent_everywhere)
{
    struct completion_request r = parse(
        "{\"prompt\":\"x\",\"model\":null,\"max_tokens\":null,\"temperature\":null,\"top_p\":null,"
        "\"top_k\":null,\"min_p\":null,\"n\":null,\"best_of\":null,\"stream\":null,"
        "\"stream_options\":null,\"logprobs\":null,\"echo\":null,\"stop\":null,"
        "\"stop_token_ids\":null,\"include_stop_str_in_output\":null,\"seed\":null,"
        "\"presence_penalty\":null,\"frequency_penalty\":null,\"repetition_penalty\":null,"
        "\"logit_bias\":null,\"min_tokens\":null,\"ignore_eos\":null,\"add_special_tokens\":null,"
        "\"skip_special_tokens\":null,\"return_token_ids\":null,"
        "\"return_tokens_as_token_ids\":null,\"truncate_prompt_tokens\":null,\"user\":null,"
        "\"request_id\":null,\"priority\":null,\"cache_salt\":null,\"session_id\":null,"
        "\"expected_position\":null,\"store\":null,\"suffix\":null,\"response_format\":null,"
        "\"structured_outputs\":null,\"guided_json\":null,\"grammar\":null,\"json_schema\":null,"
        "\"use_beam_search\":null,\"prompt_logprobs\":null,\"prompt_embeds\":null,"
        "\"logprob_token_ids\":null,\"typical_p\":null,"
        "\"bad_words\":null,\"allowed_token_ids\":null,\"logits_processors\":null}");
    cr_expect_eq(r.max_tokens, 16);
    cr_expect_eq(r.logprobs, -1);
    cr_expect_eq(r.prompt_logprobs, -1);
    cr_expect_eq(r.sampling.typical_p, 1);
    cr_expect_eq(r.sampling.num_allowed, 0);
    cr_expect_eq(r.num_bad_words, 0);
    cr_expect(r.add_special_tokens);
    cr_expect_not(r.seed_given);
    completion_request_clear(&r);
}

Test(completion, every_field_arrives)
{
    struct completion_request r = parse(
        "{\"model\":\"tiny\",\"prompt\":\"x\",\"max_tokens\":50,\"min_tokens\":3,"
        "\"temperature\":0.5,\"top_p\":0.9,\"top_k\":40,\"min_p\":0.05,\"n\":2,\"best_of\":2,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"continuous_usage_stats\":true},\"logprobs\":5,\"echo\":true,"
        "\"stop\":[\"\\n\",\"END\"],\"stop_token_ids\":[7,299],"
        "\"include_stop_str_in_output\":true,\"seed\":-9223372036854775808,"
        "\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_penalty\":1.5,"
        "\"logit_bias\":{\"0\":-100,\"299\":100,\"5\":1.5},\"ignore_eos\":true,"
        "\"add_special_tokens\":false,\"skip_special_tokens\":false,\"return_token_ids\":true,"
        "\"return_tokens_as_token_ids\":true,\"truncate_prompt_tokens\":9,\"user\":\"u\","
        "\"request_id\":\"r-1\",\"priority\":-3,\"cache_salt\":\"s\\u0000t\","
        "\"prompt_logprobs\":0,\"logprob_token_ids\":[3,299,3],\"allowed_token_ids\":[9,8,9],"
        "\"bad_words\":[\"no\",\" never\"],\"typical_p\":0.75}");
    cr_expect_eq(r.prompt_logprobs, 0);
    cr_assert_eq(r.num_logprob_token_ids, 2);
    cr_expect_eq(r.logprob_token_ids[1], 299);
    cr_assert_eq(r.sampling.num_allowed, 2);
    cr_expect_eq(r.sampling.allowed[0], 9);
    cr_assert_eq(r.num_bad_words, 2);
    cr_expect_str_eq(r.bad_words[1].text, " never");
    cr_expect_eq(r.sampling.typical_p, 0.75f);
    cr_expect_eq(r.max_tokens, 50);
    cr_expect_eq(r.min_tokens, 3);
    cr_expect_eq(r.sampling.temperature, 0.5f);
    cr_expect_eq(r.sampling.top_p, 0.9f);
    cr_expect_eq(r.sampling.top_k, 40);
    cr_expect_eq(r.sampling.min_p, 0.05f);
    cr_expect_eq(r.n, 2);
    cr_expect_eq(r.best_of, 2);
    cr_expect(r.stream);
    cr_expect(r.include_usage);
    cr_expect(r.continuous_usage_stats);
    cr_expect_eq(r.logprobs, 5);
    cr_expect(r.echo);
    cr_assert_eq(r.num_stops, 2);
    cr_expect_str_eq(r.stops[0].text, "\n");
    cr_expect_str_eq(r.stops[1].text, "END");
    cr_expect_eq(r.stops[1].length, 3);
    cr_assert_eq(r.num_stop_token_ids, 2);
    cr_expect_eq(r.stop_token_ids[1], 299);
    cr_expect(r.include_stop_str_in_output);
    cr_expect(r.seed_given);
    cr_expect_eq(r.sampling.seed, INT64_MIN);
    cr_expect_eq(r.sampling.presence_penalty, -2);
    cr_expect_eq(r.sampling.frequency_penalty, 2);
    cr_expect_eq(r.sampling.repetition_penalty, 1.5f);
    cr_assert_eq(r.sampling.num_logit_bias, 3);
    float bias_of[300] = {0};
    for (size_t i = 0; i < 3; i++)
        bias_of[r.sampling.logit_bias[i].id] = r.sampling.logit_bias[i].bias;
    cr_expect_eq(bias_of[0], -100);
    cr_expect_eq(bias_of[299], 100);
    cr_expect_eq(bias_of[5], 1.5f);
    cr_expect(r.ignore_eos);
    cr_expect_not(r.add_special_tokens);
    cr_expect_not(r.skip_special_tokens);
    cr_expect(r.return_token_ids);
    cr_expect(r.return_tokens_as_token_ids);
    cr_expect_eq(r.truncate_prompt_tokens, 9);
    cr_expect_str_eq(r.user, "u");
    cr_expect_str_eq(r.request_id, "r-1");
    cr_expect_eq(r.priority, -3);
    cr_assert_eq(r.cache_salt_length, 3);
    cr_expect_eq(memcmp(r.cache_salt, "s\0t", 3), 0);
    completion_request_clear(&r);
    cr_expect_null(r.prompts);
}

Test(completion, four_shapes_of_a_prompt)
{
    struct completion_request r = parse("{\"prompt\":[\"a\",\"bc\"]}");
    cr_assert_eq(r.num_prompts, 2);
    cr_expect_str_eq(r.prompts[0].text, "a");
    cr_expect_str_eq(r.prompts[1].text, "bc");
    completion_request_clear(&r);

    r = parse("{\"prompt\":[1, 2.0, 299]}");
    cr_assert_eq(r.num_prompts, 1);
    cr_expect_null(r.prompts[0].text);
    cr_assert_eq(r.prompts[0].num_ids, 3);
    cr_expect_eq(r.prompts[0].ids[1], 2);
    cr_expect_eq(r.prompts[0].ids[2], 299);
    completion_request_clear(&r);

    r = parse("{\"prompt\":[[0],[1,2]]}");
    cr_assert_eq(r.num_prompts, 2);
    cr_assert_eq(r.prompts[0].num_ids, 1);
    cr_expect_eq(r.prompts[0].ids[0], 0);
    cr_assert_eq(r.prompts[1].num_ids, 2);
    cr_expect_eq(r.prompts[1].ids[1], 2);
    completion_request_clear(&r);
}

Test(completion, text_keeps_nul_and_unicode)
{
    struct completion_request r = parse("{\"prompt\":\"a\\u0000\\u20ac\\ud83d\\ude00\"}");
    cr_assert_eq(r.prompts[0].length, 9);
    cr_expect_eq(memcmp(r.prompts[0].text, "a\0\xe2\x82\xac\xf0\x9f\x98\x80", 10), 0);
    completion_request_clear(&r);
}

Test(completion, integers_may_be_written_as_reals)
{
    struct completion_request r =
        parse("{\"prompt\":\"x\",\"max_tokens\":32.0,\"n\":1e0,\"seed\":-5.0,\"logprobs\":0.0}");
    cr_expect_eq(r.max_tokens, 32);
    cr_expect_eq(r.n, 1);
    cr_expect_eq(r.sampling.seed, -5);
    cr_expect_eq(r.logprobs, 0);
    completion_request_clear(&r);
}

Test(completion, bounds_are_inclusive_where_they_should_be)
{
    struct completion_request r =
        parse("{\"prompt\":\"x\",\"temperature\":0,\"top_p\":1,\"top_k\":-1,\"min_p\":1,"
              "\"n\":128,\"logprobs\":20,\"seed\":9223372036854775807,\"max_tokens\":0,"
              "\"echo\":true,\"repetition_penalty\":0.001}");
    cr_expect_eq(r.sampling.temperature, 0);
    cr_expect_eq(r.sampling.top_k, -1);
    cr_expect_eq(r.n, 128);
    cr_expect_eq(r.best_of, 128);
    cr_expect_eq(r.sampling.seed, INT64_MAX);
    cr_expect_eq(r.max_tokens, 0);
    completion_request_clear(&r);
    r = parse("{\"prompt\":\"x\",\"temperature\":2,\"top_p\":1e-30,\"n\":2,\"best_of\":128}");
    cr_expect_eq(r.best_of, 128);
    completion_request_clear(&r);
    r = parse("{\"prompt\":\"x\",\"top_p\":0}"); /* the best token alone */
    cr_expect(r.sampling.top_p > 0 && r.sampling.top_p < 1e-30f);
    completion_request_clear(&r);
}

Test(completion, a_length_of_minus_one_is_as_many_tokens_as_fit)
{
    static const char *const BODIES[] = {
        "{\"prompt\":\"x\",\"max_tokens\":-1,\"min_tokens\":20}",
        "{\"prompt\":\"x\",\"max_completion_tokens\":-1}",
        "{\"prompt\":\"x\",\"max_tokens\":-1,\"max_completion_tokens\":-1}"};
    for (size_t i = 0; i < sizeof BODIES / sizeof *BODIES; i++) {
        struct completion_request r = parse(BODIES[i]);
        cr_expect(r.max_tokens_fit && r.any_length);
        completion_request_clear(&r);
    }
    struct completion_request r = parse("{\"prompt\":\"x\"}");
    cr_expect(!r.max_tokens_fit && r.max_tokens == 16);
    completion_request_clear(&r);
}

Test(completion, stop_may_be_one_string_or_none)
{
    struct completion_request r = parse("{\"prompt\":\"x\",\"stop\":\"ab\"}");
    cr_assert_eq(r.num_stops, 1);
    cr_expect_str_eq(r.stops[0].text, "ab");
    completion_request_clear(&r);
    r = parse("{\"prompt\":\"x\",\"stop\":[],\"logit_bias\":{},\"stop_token_ids\":[]}");
    cr_expect_eq(r.num_stops, 0);
    cr_expect_eq(r.num_stop_token_ids, 0);
    completion_request_clear(&r);
}

Test(completion, unknown_fields_are_ignored)
{
    struct completion_request r = parse(
        "{\"prompt\":\"x\",\"banana\":[1,{\"a\":null}],\"big\":123456789012345678901234567890,"
        "\"use_beam_search\":false,\"best_of\":1,\"stream\":true}");
    cr_expect(r.stream);
    completion_request_clear(&r);
}

Test(completion, bodies_as_clients_send_them)
{
    const char *const bodies[] = {
        /* vllm bench serve */
        "{\"model\":\"tiny\",\"prompt\":\"x\",\"temperature\":0.0,\"repetition_penalty\":1.0,"
        "\"max_tokens\":128,\"logprobs\":null,\"stream\":true,\"ignore_eos\":true,"
        "\"stream_options\":{\"include_usage\":true},\"best_of\":1}",
        /* guidellm */
        "{\"model\":\"tiny\",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"continuous_usage_stats\":true},\"max_tokens\":64,\"stop\":null,\"ignore_eos\":true,"
        "\"prompt\":\"a b\"}",
        /* aiperf */
        "{\"prompt\":[\"a b\"],\"model\":\"tiny\",\"stream\":true,\"max_tokens\":10}",
        /* langchain */
        "{\"model\":\"tiny\",\"prompt\":[\"x\"],\"frequency_penalty\":0,\"logit_bias\":{},"
        "\"max_tokens\":256,\"n\":1,\"presence_penalty\":0,\"temperature\":0.7,\"top_p\":1}",
        /* lm-evaluation-harness: loglikelihood, generate_until */
        "{\"model\":\"tiny\",\"prompt\":[[1,2,3],[4]],\"temperature\":0,\"max_tokens\":1,"
        "\"logprobs\":1,\"seed\":1234,\"echo\":true}",
        "{\"prompt\":[[1,2]],\"model\":\"tiny\",\"max_tokens\":256,\"temperature\":0,"
        "\"stop\":[\"\\n\",\"<|endoftext|>\"],\"seed\":1234}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct completion_request r = parse(bodies[i]);
        cr_expect_geq(r.num_prompts, 1);
        completion_request_clear(&r);
    }
}

Test(completion, nesting_of_64_is_allowed)
{
    char body[400] = "{\"prompt\":\"]}[{\\\"[\",\"x\":";
    size_t at = strlen(body);
    memset(body + at, '[', 63);
    memset(body + at + 63, ']', 63);
    strcpy(body + at + 126, "}");
    struct completion_request r = parse(body);
    completion_request_clear(&r);
}

Test(completion, a_field_that_is_ignored_changes_no_other)
{
    struct completion_request r =
        parse("{\"seed\":-9007199254740993,\"x\":[1,-123456789012345678901234,{\"y\":"
              "9223372036854775808}],\"prompt\":[7,9],\"user\":\"\\\\\\\"99999999999999999999\","
              "\"temperature\":0.50000000000000000000000,\"max_tokens\":12}");
    cr_expect_eq((int64_t)r.sampling.seed, -9007199254740993);
    cr_expect_eq(r.prompts[0].ids[1], 9);
    cr_expect_str_eq(r.user, "\\\"99999999999999999999");
    cr_expect_eq(r.sampling.temperature, 0.5f);
    cr_expect_eq(r.max_tokens, 12);
    completion_request_clear(&r);
}

Test(completion, what_the_author_recommends_is_the_default)
{
    const struct author_sampling author = {
        .said = {[SAMPLING_temperature] = true, [SAMPLING_top_k] = true, [SAMPLING_min_p] = true},
        .values = {[SAMPLING_temperature] = 0.6, [SAMPLING_top_k] = 20, [SAMPLING_min_p] = 0.1}};
    struct completion_limits by_author = limits;
    by_author.sampling = &author;
    struct completion_request r;
    const char *body = "{\"prompt\":\"x\",\"min_p\":0,\"top_k\":null}";
    cr_assert_eq(completion_parse(&r, body, strlen(body), &by_author, NULL), 0);
    cr_expect_eq(r.sampling.temperature, 0.6f);
    cr_expect_eq(r.sampling.top_k, 20, "null says nothing");
    cr_expect_eq(r.sampling.min_p, 0);
    cr_expect_eq(r.sampling.top_p, 1);
    cr_expect_eq(r.sampling.repetition_penalty, 1);
    completion_request_clear(&r);
}

Test(completion, an_empty_string_needs_a_bos)
{
    struct completion_limits with_bos = limits;
    with_bos.allow_empty_prompt = true;
    struct completion_request r;
    const char *body = "{\"prompt\":[\"\",\"x\"]}";
    cr_assert_eq(completion_parse(&r, body, strlen(body), &with_bos, NULL), 0);
    cr_expect_not_null(r.prompts[0].text);
    cr_expect_eq(r.prompts[0].length, 0);
    completion_request_clear(&r);
}

Test(completion, length_is_checked_against_the_limit)
{
    struct completion_request r = parse("{\"prompt\":\"x\",\"max_tokens\":20}");
    struct api_error err = {0};
    cr_expect_eq(completion_check_length(&r, 0, 80, &limits, &err), 0);
    cr_expect_eq(completion_check_length(&r, 0, 81, &limits, &err), -1);
    cr_expect_eq(err.code, API_CONTEXT_LENGTH);
    cr_expect(strstr(err.message, "81") && strstr(err.message, "20") && strstr(err.message, "100"));
    r.max_tokens = INT64_MAX; /* no overflow */
    cr_expect_eq(completion_check_length(&r, 0, 1, &limits, NULL), -1);
    cr_expect_eq(completion_check_length(&r, 0, 101, &limits, NULL), -1);
    struct completion_limits unlimited = limits;
    unlimited.max_model_len = 0;
    struct completion_limits learned = limits;
    learned.limited_by = "the learned positions";
    api_error_clear(&err);
    cr_expect_eq(completion_check_length(&r, 0, 81, &learned, &err), -1);
    cr_expect(strstr(err.message, "the learned positions"));
    cr_expect_eq(completion_check_length(&r, 0, 1, &unlimited, NULL), 0);
    completion_request_clear(&r);
}

Test(completion, request_ids_are_fit_for_a_header)
{
    char longest[129];
    memset(longest, 'a', sizeof longest);
    cr_expect(request_id_valid("abc-123_~!", 10));
    cr_expect(request_id_valid(longest, 128));
    cr_expect_not(request_id_valid(longest, 129));
    cr_expect_not(request_id_valid("", 0));
    cr_expect_not(request_id_valid("a b", 3));
    cr_expect_not(request_id_valid("a\r\nX: y", 7));
    cr_expect_not(request_id_valid("a\0b", 3));
    cr_expect_not(request_id_valid("\xc3\xa9", 2));
    cr_expect_not(request_id_valid("\x7f", 1));
}

Test(completion, stop_token_ids_are_kept_once)
{
    struct completion_request r =
        parse("{\"prompt\":[1],\"stop_token_ids\":[299,7,7,299,0,8,7,299]}");
    static const int32_t once[] = {299, 7, 0, 8};
    cr_assert_eq(r.num_stop_token_ids, 4);
    cr_expect_arr_eq(r.stop_token_ids, once, sizeof once);
    completion_request_clear(&r);
}
