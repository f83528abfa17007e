/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of /v1/responses and of its input_tokens. What parses is a chat with a
 * text, whose reply must be JSON, and in a stream events of two lines; its turns may go. */
#include "api/chat_rules.h"
#include "api/chat_shorten.h"
#include "api/request.h"
#include "api/responses.h"
#include "api/responses_echo.h"
#include "api/responses_stream.h"
#include "tests/fuzz/chats.h"

static void check_error(const struct api_error *err)
{
    struct strbuf buf = {0};
    require(err->code != API_OK && err->message[0]);
    api_error_encode(&buf, err);
    require_json(buf.data, buf.length);
    strbuf_clear(&buf);
}

static void check_stream(const struct reply_head *head, struct reply_choice *choice,
                         const struct reply_usage *usage, const struct api_error *err)
{
    struct reply_blocks blocks = {0};
    const struct sse_stream stream = {head, &blocks};
    struct strbuf buf = {0};
    choice->blocks = &blocks;
    responses_begin_events(&buf, &stream);
    responses_choice_events(&buf, head, choice, SSE_USAGE_ABSENT, usage);
    responses_pause_event(&buf, &stream);
    responses_end_events(&buf, &stream, err, NULL);
    chats_check_events(&buf);
    strbuf_clear(&buf);
    reply_blocks_clear(&blocks);
}

/* The prompt as a reply, which calls the first tool that it calls otherwise, if there is one. */
static void check_reply(const struct completion_request *request)
{
    const struct completion_prompt *prompt = &request->prompts[0];
    const struct responses_echo *echo = request->echoed;
    const struct reply_head head = {.id = RESPONSES_ID_PREFIX "1", .model = "tiny", .echo = echo};
    const struct reply_usage usage = {.prompt_tokens = 3, .cached_tokens = 1, .diverged_at = -1};
    const struct api_error failed = {.code = API_CANCELLED, .message = "cancelled"};
    struct chat_call call = chats_call(prompt);
    struct reply_choice choice = chats_choice(prompt, &call);
    struct strbuf buf = {0};
    if (echo->num_tools > 0) {
        call.name = echo->tools[0].called;
        call.name_length = echo->tools[0].called_length;
        call.arguments = "{\"input\":\"a\\nb\"}";
        call.arguments_length = strlen(call.arguments);
    }
    responses_reply_encode(&buf, &head, &choice, 1, &usage, NULL, NULL);
    require_json(buf.data, buf.length);
    strbuf_clear(&buf);
    check_stream(&head, &choice, &usage, NULL);
    choice.finish_reason = FINISH_LENGTH;
    check_stream(&head, &choice, &usage, NULL);
    choice.finish_reason = FINISH_NONE;
    check_stream(&head, &choice, &usage, &failed);
}

/* Its turns go, until there is one. */
static void check_shorter(const struct completion_request *request)
{
    struct api_error err = {0};
    size_t dropped = 1;
    json_t *fields = request_load(request->chat.text, request->chat.length, &err);
    require(fields != NULL);
    for (int i = 0; dropped > 0; i++) {
        size_t before = json_array_size(json_object_get(fields, "messages"));
        require(chat_shorten(fields, 10, 9, i, &dropped, &err) == 0);
        size_t after = json_array_size(json_object_get(fields, "messages"));
        require(after >= 1 && before - after >= dropped && (dropped > 0 || before == after));
    }
    json_decref(fields);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reply_warnings warnings = {0};
    const struct completion_limits limits = chats_limits(size, &warnings);
    struct completion_request request;
    struct tokenize_request counted;
    struct api_error err = {0};
    if (responses_parse(&request, (const char *)data, size, &limits, &err) == 0) {
        require(request.num_prompts == 1 && request.n == 1 && request.echoed);
        require(request.max_tokens_fit && request.prompts[0].text && request.chat_rules);
        require_json(request.chat.text, request.chat.length);
        check_reply(&request);
        check_shorter(&request);
        completion_request_clear(&request);
    } else {
        check_error(&err);
    }
    api_error_clear(&err);
    if (responses_count_parse(&counted, (const char *)data, size, &limits, &err) == 0)
        tokenize_request_clear(&counted);
    else
        check_error(&err);
    reply_warnings_clear(&warnings);
    return 0;
}
