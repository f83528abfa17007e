/* SPDX-License-Identifier: Apache-2.0 */
/* /tokenize, /detokenize and /tokenizer_info. */
#include "api/tokenizer.h"
#include "tests/unit/token_id.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

static const char *const served[] = {"tiny", "small"};
static const struct completion_limits limits = {
    .models = served, .num_models = 2, .vocab_size = 300};

static struct tokenizer *open_tokenizer(void)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = ERROR_INIT;
    cr_assert_eq(
        tokenizer_open(&tokenizer, REGLA_SOURCE_DIR "/tests/golden/regla/tokenizer.json", &err), 0,
        "%s", err.message);
    return tokenizer;
}

static void expect_body(struct strbuf *buf, const char *expected)
{
    cr_assert_not(buf->failed);
    strbuf_append(buf, "", 1);
    cr_expect_str_eq(buf->data, expected);
    strbuf_clear(buf);
}

Test(tokenizer_api, tokenize_defaults_and_fields)
{
    struct tokenize_request r;
    const char *body = "{\"prompt\":\"a\\u0000b\"}";
    cr_assert_eq(tokenize_parse(&r, body, strlen(body), true, &limits, NULL), 0);
    cr_assert_eq(r.length, 3);
    cr_expect_eq(memcmp(r.prompt, "a\0b", 4), 0);
    cr_expect(r.add_special_tokens);
    cr_expect_not(r.return_token_strs);
    tokenize_request_clear(&r);
    body = "{\"model\":\"tiny\",\"prompt\":\"\",\"add_special_tokens\":false,"
           "\"return_token_strs\":true,\"messages\":null}";
    cr_assert_eq(tokenize_parse(&r, body, strlen(body), true, &limits, NULL), 0);
    cr_expect_eq(r.length, 0);
    cr_expect_not(r.add_special_tokens);
    cr_expect(r.return_token_strs);
    tokenize_request_clear(&r);
}

Test(tokenizer_api, tokenize_violations)
{
    const struct {
        const char *body;
        enum api_code code;
        const char *param;
    } cases[] = {
        {"{}", API_MISSING_PARAMETER, "prompt"},
        {"{\"prompt\":[1]}", API_INVALID_TYPE, "prompt"},
        {"{\"prompt\":\"x\",\"model\":\"y\"}", API_MODEL_NOT_FOUND, "model"},
        {"{\"prompt\":\"x\",\"cache_salt\":\"\"}", API_INVALID_VALUE, "cache_salt"},
        {"{\"prompt\":\"x\",\"add_special_tokens\":1}", API_INVALID_TYPE, "add_special_tokens"},
        {"{\"prompt\":\"x\",\"return_token_strs\":1}", API_INVALID_TYPE, "return_token_strs"},
        {"{\"messages\":[]}", API_UNSUPPORTED, "messages"},
        {"{\"prompt\":", API_INVALID_JSON, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenize_request r;
        struct api_error err = {0};
        const char *body = cases[i].body;
        cr_assert_eq(tokenize_parse(&r, body, strlen(body), true, &limits, &err), -1, "%s", body);
        cr_expect_eq(err.code, cases[i].code, "%s", body);
        cr_expect_str_eq(err.param, cases[i].param);
    }
}

Test(tokenizer_api, tokenize_reply)
{
    const int32_t ids[] = {1, 20, 300};
    struct strbuf buf = {0};
    tokenize_reply_encode(&buf, ids, 3, 0, NULL, NULL);
    expect_body(&buf, "{\"count\":3,\"max_model_len\":null,\"tokens\":[1,20,300],"
                      "\"token_strs\":null}");
    tokenize_reply_encode(&buf, NULL, 0, 2048, NULL, NULL);
    expect_body(&buf, "{\"count\":0,\"max_model_len\":2048,\"tokens\":[],\"token_strs\":null}");
}

Test(tokenizer_api, token_strings_are_spelled_as_in_the_file)
{
    struct tokenizer *tokenizer = open_tokenizer();
    const int32_t ids[] = {0, token_id(tokenizer, "\xc4\xa0t"), 100000};
    struct strbuf buf = {0};
    tokenize_reply_encode(&buf, ids, 3, 0, tokenizer, NULL);
    json_t *reply = json_loadb(buf.data, buf.length, 0, NULL);
    const json_t *strings = json_object_get(reply, "token_strs");
    cr_expect_str_eq(json_string_value(json_array_get(strings, 0)), "<|endoftext|>");
    cr_expect_str_eq(json_string_value(json_array_get(strings, 1)), "\xc4\xa0t");
    cr_expect(json_is_null(json_array_get(strings, 2)));
    json_decref(reply);
    strbuf_clear(&buf);
    tokenizer_free(tokenizer);
}

Test(tokenizer_api, detokenize)
{
    struct detokenize_request r;
    const char *body = "{\"tokens\":[0,5,299]}";
    cr_assert_eq(detokenize_parse(&r, body, strlen(body), &limits, NULL), 0);
    cr_assert_eq(r.count, 3);
    cr_expect_eq(r.ids[2], 299);
    detokenize_request_clear(&r);
    body = "{\"tokens\":[],\"model\":\"tiny\"}";
    cr_assert_eq(detokenize_parse(&r, body, strlen(body), &limits, NULL), 0);
    cr_expect_eq(r.count, 0);
    detokenize_request_clear(&r);
    struct strbuf buf = {0};
    detokenize_reply_encode(&buf, "a\n\"", 3, NULL);
    expect_body(&buf, "{\"prompt\":\"a\\n\\\"\"}");
}

Test(tokenizer_api, detokenize_violations)
{
    const struct {
        const char *body;
        enum api_code code;
        const char *param;
    } cases[] = {
        {"{}", API_MISSING_PARAMETER, "tokens"},
        {"{\"tokens\":\"x\"}", API_INVALID_TYPE, "tokens"},
        {"{\"tokens\":[\"x\"]}", API_INVALID_TYPE, "tokens"},
        {"{\"tokens\":[300]}", API_INVALID_VALUE, "tokens"},
        {"{\"tokens\":[-1]}", API_INVALID_VALUE, "tokens"},
        {"{\"tokens\":[1],\"model\":\"y\"}", API_MODEL_NOT_FOUND, "model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct detokenize_request r;
        struct api_error err = {0};
        const char *body = cases[i].body;
        cr_assert_eq(detokenize_parse(&r, body, strlen(body), &limits, &err), -1, "%s", body);
        cr_expect_eq(err.code, cases[i].code, "%s", body);
        cr_expect_str_eq(err.param, cases[i].param);
    }
}

Test(tokenizer_api, info_is_what_lm_evaluation_harness_reads)
{
    struct tokenizer *tokenizer = open_tokenizer();
    const struct tokenizer_info info = {.tokenizer = tokenizer,
                                        .bos_token_id = -1,
                                        .eos_token_id = 0,
                                        .max_model_len = 512,
                                        .vocab_size = 275};
    struct strbuf buf = {0};
    tokenizer_info_encode(&buf, &info);
    expect_body(&buf, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"bos_token\":null,"
                      "\"bos_token_id\":null,\"eos_token\":\"<|endoftext|>\",\"eos_token_id\":0,"
                      "\"pad_token\":null,\"unk_token\":null,\"chat_template\":null,"
                      "\"vocab_size\":275,\"max_model_len\":512}");
    tokenizer_free(tokenizer);
}
