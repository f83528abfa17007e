/* SPDX-License-Identifier: Apache-2.0 */
/* The error table and the error object. */
#include "api/errors.h"
#include "lib/text/unicode.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *encode(const struct api_error *err)
{
    struct strbuf buf = {0};
    api_error_encode(&buf, err);
    json_t *root = json_loadb(buf.data, buf.length, 0, NULL);
    cr_assert(json_is_object(root));
    cr_assert_eq(json_object_size(root), 1);
    json_t *error = json_incref(json_object_get(root, "error"));
    cr_assert_eq(json_object_size(error), 4);
    json_decref(root);
    strbuf_clear(&buf);
    return error;
}

static void expect_member(const json_t *error, const char *name, const char *expected)
{
    const json_t *value = json_object_get(error, name);
    cr_assert_not_null(value);
    if (expected)
        cr_expect_str_eq(json_string_value(value), expected);
    else
        cr_expect(json_is_null(value));
}

Test(errors, each_code_has_its_status)
{
    const struct {
        enum api_code code;
        int status;
        const char *name;
    } rows[] = {
        {API_MALFORMED, 400, "malformed_request"},
        {API_INVALID_JSON, 400, "invalid_json"},
        {API_INVALID_TYPE, 400, "invalid_type"},
        {API_INVALID_VALUE, 400, "invalid_value"},
        {API_MISSING_PARAMETER, 400, "missing_required_parameter"},
        {API_UNSUPPORTED, 400, "unsupported_parameter"},
        {API_CONTEXT_LENGTH, 400, "context_length_exceeded"},
        {API_INVALID_KEY, 401, "invalid_api_key"},
        {API_HOST_NOT_ALLOWED, 403, "host_not_allowed"},
        {API_ORIGIN_NOT_ALLOWED, 403, "origin_not_allowed"},
        {API_UNKNOWN_PATH, 404, "unknown_url"},
        {API_MODEL_NOT_FOUND, 404, "model_not_found"},
        {API_REQUEST_NOT_FOUND, 404, "request_not_found"},
        {API_SESSION_NOT_FOUND, 404, "session_not_found"},
        {API_RESPONSE_NOT_FOUND, 404, "response_not_found"},
        {API_PREVIOUS_NOT_FOUND, 404, "previous_response_not_found"},
        {API_SESSION_BUSY, 409, "session_busy"},
        {API_SESSION_CONFLICT, 409, "session_conflict"},
        {API_SESSION_EXISTS, 409, "session_exists"},
        {API_SESSION_NOT_CHAT, 409, "session_not_chat"},
        {API_POSITION_MISMATCH, 412, "position_mismatch"},
        {API_SESSION_QUOTA, 429, "session_quota"},
        {API_STATE_FILE, 400, "invalid_state_file"},
        {API_KEY_IN_FLIGHT, 409, "idempotency_in_flight"},
        {API_KEY_MISMATCH, 422, "idempotency_mismatch"},
        {API_KEY_LOST, 409, "idempotency_reply_lost"},
        {API_METHOD_NOT_ALLOWED, 405, "method_not_allowed"},
        {API_BODY_TOO_LARGE, 413, "request_too_large"},
        {API_MEDIA_TYPE, 415, "unsupported_media_type"},
        {API_QUEUE_FULL, 429, "queue_full"},
        {API_NOT_IMPLEMENTED, 501, "not_implemented"},
        {API_INTERNAL, 500, "internal_error"},
        {API_LOADING, 503, "loading"},
        {API_DRAINING, 503, "draining"},
        {API_ENGINE_FAILED, 503, "engine_failed"},
        {API_OUT_OF_MEMORY, 503, "out_of_memory"},
        {API_STORE_FAILED, 503, "store_failed"},
        {API_STORE_UNAVAILABLE, 503, "store_unavailable"},
        {API_CANCELLED, 409, "cancelled"},
    };
    cr_assert_eq(sizeof rows / sizeof *rows, API_NUM_CODES - 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct api_error_row *row = api_error_row(rows[i].code);
        cr_expect_eq(row->status, rows[i].status, "%s", rows[i].name);
        cr_expect_str_eq(row->code, rows[i].name);
        cr_expect_not_null(row->type);
        /* Time alone does not make room in a quota; it does free a session. */
        bool retry = rows[i].code == API_QUEUE_FULL || rows[i].code == API_SESSION_BUSY ||
                     row->status == 503;
        cr_expect_eq(row->retry_after_s > 0, retry, "%s", rows[i].name);
    }
    cr_expect(api_error_row(API_MALFORMED)->close);
    cr_expect(api_error_row(API_BODY_TOO_LARGE)->close);
    cr_expect_str_eq(api_error_row(API_NOT_IMPLEMENTED)->should_retry, "false");
    cr_expect_str_eq(api_error_row(API_CANCELLED)->should_retry, "false");
    cr_expect_str_eq(api_error_row(API_KEY_IN_FLIGHT)->should_retry, "false");
    cr_expect_null(api_error_row(API_SESSION_BUSY)->should_retry);
    cr_expect_eq(api_error_row((enum api_code)1000)->status, 500);
}

Test(errors, the_contract_lists_every_code)
{
    FILE *file = fopen(REGLA_SOURCE_DIR "/api/openapi.json", "r");
    cr_assert_not_null(file);
    static char contract[256 * 1024];
    size_t length = fread(contract, 1, sizeof contract - 1, file);
    fclose(file);
    cr_assert(length > 0 && length < sizeof contract - 1);
    for (int code = API_OK + 1; code < API_NUM_CODES; code++) {
        const struct api_error_row *row = api_error_row((enum api_code)code);
        char line[120];
        snprintf(line, sizeof line, "{\"const\": \"%s\", \"description\": \"status %d\"}",
                 row->code, row->status);
        cr_expect(strstr(contract, line), "openapi.json lacks %s", line);
        cr_expect(strstr(contract, row->type), "openapi.json lacks the type %s", row->type);
    }
}

Test(errors, the_object_has_four_members)
{
    struct api_error err = {0};
    cr_expect_eq(api_error_set(&err, API_INVALID_VALUE, "top_p", "top_p: %d \"quoted\"", 3), -1);
    json_t *error = encode(&err);
    expect_member(error, "message", "top_p: 3 \"quoted\"");
    expect_member(error, "type", "invalid_request_error");
    expect_member(error, "param", "top_p");
    expect_member(error, "code", "invalid_value");
    json_decref(error);
}

Test(errors, no_param_is_null)
{
    struct api_error err = {0};
    api_error_unknown_path(&err, "/v2/nothing");
    json_t *error = encode(&err);
    expect_member(error, "param", NULL);
    expect_member(error, "message", "there is no endpoint /v2/nothing");
    json_decref(error);
}

Test(errors, the_first_failure_wins)
{
    struct api_error err = {0};
    api_error_set(&err, API_INVALID_VALUE, "a", "first");
    api_error_set(&err, API_INTERNAL, "b", "second");
    api_error_method(&err, "PUT", "GET");
    cr_expect_eq(err.code, API_INVALID_VALUE);
    cr_expect_str_eq(err.message, "first");
    cr_expect_str_eq(err.param, "a");
    cr_expect_str_eq(err.allow, "");
    api_error_clear(&err);
    cr_expect_eq(err.code, API_OK);
    cr_expect_eq(api_error_set(NULL, API_INTERNAL, NULL, "nobody listens"), -1);
}

Test(errors, what_is_quoted_is_made_printable)
{
    struct api_error err = {0};
    api_error_model(&err, "a\xff\n\x01z", "m");
    cr_expect_str_eq(err.message, "the model \"a???z\" does not exist; here is \"m\"");
    cr_expect_str_eq(err.param, "model");
    struct api_error cut = {0};
    char name[300];
    memset(name, 0, sizeof name);
    memset(name, 'a', 199);
    memcpy(name + 199, "\xe2\x82\xac", 3); /* "%.200s" cuts inside it */
    api_error_model(&cut, name, "m");
    cr_expect_eq(utf8_valid_length(cut.message, strlen(cut.message)), strlen(cut.message));
}

Test(errors, context_length_names_the_three_numbers)
{
    struct api_error err = {0};
    api_error_context_length(&err, 0, 90, 16, 100, "--max-model-len");
    cr_expect_str_eq(err.message,
                     "This model's maximum context length is 100 tokens (--max-model-len): the "
                     "prompt has 90 tokens and max_tokens asks for 16 more");
    cr_expect_str_eq(err.param, "max_tokens");
    cr_expect_eq(api_error_row(err.code)->status, 400);
    api_error_clear(&err);
    api_error_context_length(&err, 0, 101, 16, 100, "memory");
    cr_expect_str_eq(err.param, "max_tokens");
}

Test(errors, a_wrong_method_says_which_are_allowed)
{
    struct api_error err = {0};
    api_error_method(&err, "BREW", "GET, HEAD");
    cr_expect_eq(api_error_row(err.code)->status, 405);
    cr_expect_str_eq(err.allow, "GET, HEAD");
}

Test(errors, engine_errors_have_a_status)
{
    const struct {
        enum error_code engine;
        int status;
    } rows[] = {{ERROR_INVALID, 400},   {ERROR_UNSUPPORTED, 400}, {ERROR_IO, 500},
                {ERROR_NO_MEMORY, 503}, {ERROR_INTERNAL, 500},    {ERROR_NONE, 500}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error engine = ERROR_INIT;
        if (rows[i].engine != ERROR_NONE)
            error_set(&engine, rows[i].engine, "because");
        struct api_error err = {0};
        api_error_from_engine(&err, &engine, "prompt");
        cr_expect_eq(api_error_row(err.code)->status, rows[i].status);
        cr_expect_str_eq(err.message, rows[i].engine ? "because" : "internal error");
        cr_expect_str_eq(err.param, "prompt");
    }
}
