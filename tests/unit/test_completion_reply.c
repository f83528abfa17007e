/* SPDX-License-Identifier: Apache-2.0 */
/* Replies: choices, log-probabilities, usage. */
#include "api/completion_reply.h"
#include "api/responses_echo.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Ids: 0 "a", 1 " b", 2 the first two bytes of the euro sign, 3 its last, 4 "x", 5 "h" and e with
 * an acute accent, 6 a newline and a quote, 7 a special token. */
static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":7,\"content\":\"<|end|>\",\"single_word\":"
    "false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":"
    "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"\xc4\xa0"
    "b\":1,\"\xc3\xa2\xc4\xa4\":2,\"\xc2\xac\":3,\"x\":4,\"h\xc3\x83\xc2\xa9\":5,\"\xc4\x8a\\\"\":"
    "6},\"merges\":[]}}";

static struct tokenizer *tokenizer;

static void load(void)
{
    struct error err = ERROR_INIT;
    cr_assert_eq(tokenizer_load(&tokenizer, tokenizer_json, strlen(tokenizer_json), &err), 0, "%s",
                 err.message);
}

static void unload(void)
{
    tokenizer_free(tokenizer);
}

static json_t *read_back(struct strbuf *buf)
{
    cr_assert_not(buf->failed);
    json_error_t error;
    json_t *value =
        json_loadb(buf->data, buf->length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    cr_assert_not_null(value, "%s: %.*s", error.text, (int)buf->length, buf->data);
    return value;
}

static void expect_buffer(struct strbuf *buf, const char *expected)
{
    cr_assert_not(buf->failed);
    strbuf_append(buf, "", 1);
    cr_expect_str_eq(buf->data, expected);
    strbuf_clear(buf);
}

/* The encoded `logprobs` of tokens. */
static void encode(struct strbuf *buf, const struct reply_token *tokens, size_t count, bool as_ids)
{
    struct reply_logprobs logprobs = {tokenizer, tokens, count, as_ids, false};
    struct reply_choice choice = {.stop_token = -1, .logprobs = &logprobs};
    reply_choice_encode(buf, &choice);
}

TestSuite(reply, .init = load, .fini = unload);

Test(reply, token_strings)
{
    const struct {
        int32_t id;
        const char *expected;
    } cases[] = {
        {0, "\"a\""},
        {1, "\" b\""},
        {2, "\"bytes:\\\\xe2\\\\x82\""},
        {3, "\"bytes:\\\\xac\""},
        {5, "\"h\xc3\xa9\""},
        {6, "\"\\n\\\"\""},
        {7, "\"<|end|>\""},
        {8, "\"token_id:8\""},
        {-1, "\"token_id:-1\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf buf = {0};
        reply_token_string(&buf, tokenizer, cases[i].id);
        expect_buffer(&buf, cases[i].expected);
    }
}

Test(reply, logprobs_have_four_arrays)
{
    const struct token_logprob top[] = {{1, -0.5f}, {0, -1.25f}};
    const struct reply_token tokens[] = {
        {.id = 0, .text_offset = 0},
        {.id = 1,
         .text_offset = 1,
         .has_logprob = true,
         .logprob = -0.5f,
         .top = top,
         .num_top = 2},
    };
    struct strbuf buf = {0};
    encode(&buf, tokens, 2, false);
    expect_buffer(&buf, "{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[\"a\",\" b\"],"
                        "\"token_logprobs\":[null,-0.5],\"top_logprobs\":[null,{\" b\":-0.5,"
                        "\"a\":-1.25}],\"text_offset\":[0,1]},\"finish_reason\":null,"
                        "\"stop_reason\":null,\"token_ids\":null,\"prompt_token_ids\":null,"
                        "\"prompt_logprobs\":null}");
}

Test(reply, the_chosen_token_is_always_in_its_top)
{
    const struct token_logprob top[] = {{1, -0.5f}, {0, -1.25f}};
    const struct reply_token tokens[] = {
        {.id = 4, .has_logprob = true, .logprob = -3.1415927f, .top = top, .num_top = 2},
        {.id = 4, .has_logprob = true, .logprob = -INFINITY, .top = NULL, .num_top = 0},
    };
    struct strbuf buf = {0};
    encode(&buf, tokens, 2, false);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, "\"token_logprobs\":[-3.1415927,-9999.0],"), "%s", buf.data);
    cr_expect(strstr(buf.data, "\"top_logprobs\":[{\" b\":-0.5,\"a\":-1.25,\"x\":-3.1415927},"
                               "{\"x\":-9999.0}],"),
              "%s", buf.data);
    strbuf_clear(&buf);
}

Test(reply, the_same_digits_in_both_places)
{
    unsigned random = 7;
    for (int round = 0; round < 500; round++) {
        random = random * 1664525u + 1013904223u;
        float logprob = -(float)random / 1e8f;
        const struct token_logprob top[] = {{0, logprob}};
        const struct reply_token token = {
            .id = 0, .has_logprob = true, .logprob = logprob, .top = top, .num_top = 1};
        struct strbuf buf = {0};
        encode(&buf, &token, 1, false);
        strbuf_append(&buf, "", 1);
        char digits[64];
        cr_assert_eq(sscanf(strstr(buf.data, "token_logprobs\":[") + 17, "%63[^]]", digits), 1);
        char entry[80];
        snprintf(entry, sizeof entry, "{\"a\":%s}", digits);
        cr_expect(strstr(buf.data, entry), "%s in %s", entry, buf.data);
        strbuf_clear(&buf);
    }
}

Test(reply, tokens_of_the_same_string_stay_apart)
{
    /* One id twice stands for two ids of one string: only strings are compared. */
    const struct token_logprob top[] = {{4, -0.1f}, {4, -0.2f}, {0, -0.3f}};
    const struct reply_token token = {
        .id = 0, .has_logprob = true, .logprob = -0.3f, .top = top, .num_top = 3};
    struct strbuf buf = {0};
    encode(&buf, &token, 1, false);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, "[{\"x\":-0.1,\"token_id:4\":-0.2,\"a\":-0.3}]"), "%s", buf.data);
    strbuf_clear(&buf);
}

Test(reply, tokens_as_ids)
{
    const struct token_logprob top[] = {{2, -0.5f}, {3, -0.75f}};
    const struct reply_token token = {
        .id = 7, .has_logprob = true, .logprob = -1, .top = top, .num_top = 2};
    struct strbuf buf = {0};
    encode(&buf, &token, 1, true);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, "\"tokens\":[\"token_id:7\"]"));
    cr_expect(strstr(buf.data, "[{\"token_id:2\":-0.5,\"token_id:3\":-0.75,\"token_id:7\":-1.0}]"),
              "%s", buf.data);
    strbuf_clear(&buf);
}

Test(reply, a_vocabulary_of_fewer_than_k)
{
    const struct token_logprob top[] = {{0, -0.5f}, {-1, -INFINITY}};
    const struct reply_token token = {
        .id = 0, .has_logprob = true, .logprob = -0.5f, .top = top, .num_top = 2};
    struct strbuf buf = {0};
    encode(&buf, &token, 1, false);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, "\"top_logprobs\":[{\"a\":-0.5}]"), "%s", buf.data);
    strbuf_clear(&buf);
}

Test(reply, choices_say_why_they_ended)
{
    const struct {
        struct reply_choice choice;
        const char *expected;
    } cases[] = {
        {{.finish_reason = FINISH_LENGTH, .stop_token = -1},
         "\"finish_reason\":\"length\",\"stop_reason\":null,"},
        {{.finish_reason = FINISH_STOP, .stop_token = -1},
         "\"finish_reason\":\"stop\",\"stop_reason\":null,"},
        {{.finish_reason = FINISH_STOP, .stop_token = 7},
         "\"finish_reason\":\"stop\",\"stop_reason\":7,"},
        {{.finish_reason = FINISH_STOP,
          .stop_string = "\n\n",
          .stop_string_length = 2,
          .stop_token = -1},
         "\"finish_reason\":\"stop\",\"stop_reason\":\"\\n\\n\","},
        {{.finish_reason = FINISH_NONE, .stop_token = -1},
         "\"finish_reason\":null,\"stop_reason\":null,"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf buf = {0};
        reply_choice_encode(&buf, &cases[i].choice);
        strbuf_append(&buf, "", 1);
        cr_expect(strstr(buf.data, cases[i].expected), "%s", buf.data);
        strbuf_clear(&buf);
    }
}

Test(reply, token_ids_come_when_asked_for)
{
    const int32_t ids[] = {4, 5};
    const int32_t prompt[] = {1};
    const struct reply_choice choice = {.stop_token = -1,
                                        .token_ids = ids,
                                        .num_token_ids = 2,
                                        .prompt_token_ids = prompt,
                                        .num_prompt_token_ids = 1};
    struct strbuf buf = {0};
    reply_choice_encode(&buf, &choice);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, ",\"token_ids\":[4,5],\"prompt_token_ids\":[1],"), "%s", buf.data);
    strbuf_clear(&buf);
}

Test(reply, prompt_logprobs_are_those_of_vllm)
{
    const struct token_logprob top[] = {{7, -0.25f}, {4, -1.5f}, {-1, 0}};
    const struct reply_token tokens[] = {
        {.id = 4},
        {.id = 4, .has_logprob = true, .logprob = -1.5f, .rank = 2, .top = top},
        {.id = 0, .has_logprob = true, .logprob = -INFINITY, .rank = 9, .top = top},
    };
    const struct reply_prompt_logprobs three = {tokenizer, tokens, 3, 3};
    const struct reply_choice choice = {.stop_token = -1, .prompt_logprobs = &three};
    struct strbuf buf = {0};
    reply_choice_encode(&buf, &choice);
    json_decref(read_back(&buf));
    expect_buffer(
        &buf, "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":"
              "null,\"token_ids\":null,\"prompt_token_ids\":null,\"prompt_logprobs\":[null,"
              "{\"4\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":\"x\"},"
              "\"7\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"<|end|>\"}},"
              "{\"0\":{\"logprob\":-9999.0,\"rank\":9,\"decoded_token\":\"a\"},"
              "\"7\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"<|end|>\"},"
              "\"4\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":\"x\"}}]}");
}

Test(reply, the_whole_reply)
{
    const struct reply_head head = {"cmpl-1", 1700000000, "tiny", "fp", NULL, NULL, 0, false};
    const struct reply_choice choices[] = {
        {.index = 0,
         .text = "a\n",
         .text_length = 2,
         .finish_reason = FINISH_LENGTH,
         .stop_token = -1},
        {.index = 1, .finish_reason = FINISH_STOP, .stop_token = -1},
    };
    const struct reply_usage usage = {3, 4, 2, "diverged", 17, -1, false, 0};
    const struct reply_timings timings = {.queue_ms = 0.5,
                                          .prefill_ms = 2,
                                          .prefill_tokens_per_second = 1500,
                                          .decode_ms = 1.25,
                                          .decode_tokens_per_second = NAN};
    struct strbuf buf = {0};
    completion_reply_encode(&buf, &head, choices, 2, &usage, &timings, NULL);
    json_decref(read_back(&buf));
    expect_buffer(
        &buf,
        "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1700000000,"
        "\"model\":\"tiny\",\"system_fingerprint\":\"fp\",\"choices\":["
        "{\"index\":0,\"text\":\"a\\n\",\"logprobs\":null,\"finish_reason\":\"length\","
        "\"stop_reason\":null,\"token_ids\":null,\"prompt_token_ids\":null,"
        "\"prompt_logprobs\":null},{\"index\":1,\"text\":\"\",\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null,"
        "\"prompt_token_ids\":null,\"prompt_logprobs\":null}],\"usage\":{\"prompt_tokens\":3,"
        "\"completion_tokens\":4,\"total_tokens\":7,\"prompt_tokens_details\":"
        "{\"cached_tokens\":2,\"cache_miss_reason\":\"diverged\",\"diverged_at\":17}},\"timings\":"
        "{\"queue_ms\":0.5,\"prefill_ms\":2.0,\"prefill_tokens_per_second\":1500.0,"
        "\"decode_ms\":1.25,\"decode_tokens_per_second\":null}}");
}

/* A stream looks for one at each of its parts. */
Test(reply, each_of_many_tools_is_found_at_once)
{
    enum { TOOLS = 100000, MOST_S = 5 };
    struct api_error err = {0};
    json_t *members = json_pack("{s:s}", "a", "b"), *tools = json_object();
    char called[32];
    for (int i = 0; i < TOOLS; i++) {
        snprintf(called, sizeof called, "c%d", i);
        json_object_set_new(tools, called, json_pack("[s,n,b]", called + 1, 1));
    }
    struct responses_echo *echo = responses_echo_make(members, tools, &err);
    cr_assert(echo);
    clock_t begun = clock();
    for (int i = 0; i < TOOLS; i++) {
        snprintf(called, sizeof called, "c%d", i);
        const struct responses_tool *tool = responses_echo_tool(echo, called, strlen(called));
        cr_assert(tool && strcmp(tool->name, called + 1) == 0, "%s", called);
    }
    cr_expect_not(responses_echo_tool(echo, "c", 1));
    cr_expect_not(responses_echo_tool(echo, "x100", 4));
    cr_expect_lt((double)(clock() - begun) / CLOCKS_PER_SEC, MOST_S);
    responses_echo_free(echo);
    json_decref(members);
    json_decref(tools);
}
