/* SPDX-License-Identifier: Apache-2.0 */
#include "api/errors.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define REQUEST "invalid_request_error"
#define SERVER "server_error"

/* 501 and 405 would fail again: the openai clients retry what is >= 500 unless told not to. */
static const struct api_error_row rows[API_NUM_CODES] = {
    [API_OK] = {200, REQUEST, NULL, NULL, 0, NULL, false},
    [API_INVALID_JSON] = {400, REQUEST, "invalid_json", NULL, 0, NULL, false},
    [API_INVALID_TYPE] = {400, REQUEST, "invalid_type", NULL, 0, NULL, false},
    [API_MALFORMED] = {400, REQUEST, "malformed_request", NULL, 0, NULL, true},
    [API_INVALID_VALUE] = {400, REQUEST, "invalid_value", NULL, 0, NULL, false},
    [API_MISSING_PARAMETER] = {400, REQUEST, "missing_required_parameter", NULL, 0, NULL, false},
    [API_UNSUPPORTED] = {400, REQUEST, "unsupported_parameter", NULL, 0, NULL, false},
    [API_CONTEXT_LENGTH] = {400, REQUEST, "context_length_exceeded", "max_tokens", 0, NULL, false},
    [API_INVALID_KEY] = {401, "authentication_error", "invalid_api_key", NULL, 0, NULL, false},
    [API_HOST_NOT_ALLOWED] = {403, "permission_error", "host_not_allowed", NULL, 0, NULL, true},
    [API_ORIGIN_NOT_ALLOWED] = {403, "permission_error", "origin_not_allowed", NULL, 0, NULL,
                                false},
    [API_UNKNOWN_PATH] = {404, REQUEST, "unknown_url", NULL, 0, NULL, false},
    [API_MODEL_NOT_FOUND] = {404, REQUEST, "model_not_found", "model", 0, NULL, false},
    [API_REQUEST_NOT_FOUND] = {404, REQUEST, "request_not_found", "id", 0, NULL, false},
    [API_SESSION_NOT_FOUND] = {404, REQUEST, "session_not_found", "id", 0, NULL, false},
    [API_RESPONSE_NOT_FOUND] = {404, REQUEST, "response_not_found", "response_id", 0, NULL, false},
    [API_PREVIOUS_NOT_FOUND] = {404, REQUEST, "previous_response_not_found", "previous_response_id",
                                0, NULL, false},
    [API_METHOD_NOT_ALLOWED] = {405, REQUEST, "method_not_allowed", NULL, 0, NULL, false},
    [API_SESSION_BUSY] = {409, REQUEST, "session_busy", NULL, 1, NULL, false},
    [API_SESSION_CONFLICT] = {409, REQUEST, "session_conflict", NULL, 0, "false", false},
    [API_SESSION_EXISTS] = {409, REQUEST, "session_exists", "id", 0, "false", false},
    [API_SESSION_NOT_CHAT] = {409, REQUEST, "session_not_chat", "session_id", 0, "false", false},
    [API_POSITION_MISMATCH] = {412, REQUEST, "position_mismatch", "expected_position", 0, NULL,
                               false},
    [API_BODY_TOO_LARGE] = {413, REQUEST, "request_too_large", NULL, 0, NULL, true},
    [API_MEDIA_TYPE] = {415, REQUEST, "unsupported_media_type", NULL, 0, NULL, false},
    [API_QUEUE_FULL] = {429, "rate_limit_error", "queue_full", NULL, 1, NULL, false},
    [API_SESSION_QUOTA] = {429, "rate_limit_error", "session_quota", NULL, 0, "false", false},
    [API_STATE_FILE] = {400, REQUEST, "invalid_state_file", NULL, 0, NULL, false},
    [API_KEY_IN_FLIGHT] = {409, REQUEST, "idempotency_in_flight", NULL, 0, "false", false},
    [API_KEY_MISMATCH] = {422, REQUEST, "idempotency_mismatch", NULL, 0, NULL, false},
    [API_KEY_LOST] = {409, REQUEST, "idempotency_reply_lost", NULL, 0, "false", false},
    [API_NOT_IMPLEMENTED] = {501, REQUEST, "not_implemented", NULL, 0, "false", false},
    [API_INTERNAL] = {500, SERVER, "internal_error", NULL, 0, NULL, false},
    [API_LOADING] = {503, SERVER, "loading", NULL, 1, NULL, false},
    [API_DRAINING] = {503, SERVER, "draining", NULL, 5, NULL, false},
    [API_ENGINE_FAILED] = {503, SERVER, "engine_failed", NULL, 5, NULL, false},
    [API_OUT_OF_MEMORY] = {503, SERVER, "out_of_memory", NULL, 1, NULL, false},
    [API_STORE_FAILED] = {503, SERVER, "store_failed", NULL, 2, NULL, false},
    [API_STORE_UNAVAILABLE] = {503, SERVER, "store_unavailable", NULL, 2, NULL, false},
    [API_CANCELLED] = {409, REQUEST, "cancelled", NULL, 0, "false", false},
};

const struct api_error_row *api_error_row(enum api_code code)
{
    return &rows[(unsigned)code < API_NUM_CODES ? code : API_INTERNAL];
}

int api_error_set(struct api_error *err, enum api_code code, const char *param, const char *format,
                  ...)
{
    if (!err || err->code != API_OK)
        return -1;
    char text[sizeof err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct error printable = ERROR_INIT;
    error_set(&printable, ERROR_INVALID, "%s", text);
    err->code = code;
    memcpy(err->message, printable.message, sizeof err->message);
    if (!param)
        param = rows[code].param;
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    err->retry_after_s = 0;
    err->allow[0] = 0;
    err->prompt_tokens = err->most_tokens = 0;
    return -1;
}

void api_error_clear(struct api_error *err)
{
    if (err)
        *err = (struct api_error){0};
}

int api_error_context_length(struct api_error *err, int64_t session_tokens, int64_t prompt_tokens,
                             int64_t max_tokens, int64_t limit_tokens, const char *limit)
{
    char session[64] = "";
    if (session_tokens > 0)
        snprintf(session, sizeof session, "the session holds %lld tokens, ",
                 (long long)session_tokens);
    if (!err || err->code != API_OK)
        return -1;
    /* By the first words clients know this error: LiteLLM's ContextWindowExceededError. */
    api_error_set(err, API_CONTEXT_LENGTH, "max_tokens",
                  "This model's maximum context length is %lld tokens (%s): %sthe prompt has "
                  "%lld tokens and max_tokens asks for %lld more",
                  (long long)limit_tokens, limit, session, (long long)prompt_tokens,
                  (long long)max_tokens);
    err->prompt_tokens = session_tokens + prompt_tokens;
    err->most_tokens = limit_tokens > max_tokens ? limit_tokens - max_tokens : 0;
    return -1;
}

int api_error_method(struct api_error *err, const char *method, const char *allow)
{
    if (!err || err->code != API_OK)
        return -1;
    api_error_set(err, API_METHOD_NOT_ALLOWED, NULL, "method %.16s is not allowed here, only %s",
                  method, allow);
    snprintf(err->allow, sizeof err->allow, "%s", allow);
    return -1;
}

int api_error_unknown_path(struct api_error *err, const char *path)
{
    return api_error_set(err, API_UNKNOWN_PATH, NULL, "there is no endpoint %.200s", path);
}

int api_error_model(struct api_error *err, const char *name, const char *served)
{
    return api_error_set(err, API_MODEL_NOT_FOUND, "model",
                         "the model \"%.200s\" does not exist; here is \"%.200s\"", name, served);
}

int api_error_from_engine(struct api_error *err, const struct error *engine, const char *param)
{
    static const enum api_code codes[] = {
        [ERROR_NONE] = API_INTERNAL,           [ERROR_INVALID] = API_INVALID_VALUE,
        [ERROR_UNSUPPORTED] = API_UNSUPPORTED, [ERROR_IO] = API_INTERNAL,
        [ERROR_NO_MEMORY] = API_OUT_OF_MEMORY, [ERROR_INTERNAL] = API_INTERNAL,
    };
    bool known = (unsigned)engine->code < sizeof codes / sizeof *codes;
    return api_error_set(err, known ? codes[engine->code] : API_INTERNAL, param, "%s",
                         engine->message[0] ? engine->message : "internal error");
}

void api_error_encode(struct strbuf *buf, const struct api_error *err)
{
    const struct api_error_row *row = api_error_row(err->code);
    strbuf_puts(buf, "{\"error\":{\"message\":");
    strbuf_json_cstring(buf, err->message);
    strbuf_puts(buf, ",\"type\":");
    strbuf_json_cstring(buf, row->type);
    strbuf_puts(buf, ",\"param\":");
    strbuf_json_cstring(buf, err->param[0] ? err->param : NULL);
    strbuf_puts(buf, ",\"code\":");
    strbuf_json_cstring(buf, row->code);
    strbuf_puts(buf, "}}");
}

void api_error_encode_as(struct strbuf *buf, api_error_encoder *encode, const struct api_error *err,
                         const char *request_id)
{
    if (encode)
        encode(buf, err, request_id);
    else
        api_error_encode(buf, err);
}
