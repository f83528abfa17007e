/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of /v1/messages and of its count_tokens. What parses is a chat with a text,
 * whose reply must be JSON, and in a stream events of two lines. */
#include "api/chat_rules.h"
#include "api/messages.h"
#include "api/messages_reply.h"
#include "tests/fuzz/chats.h"

static void check_error(const struct api_error *err)
{
    struct strbuf buf = {0};
    require(err->code != API_OK && err->message[0]);
    messages_error_encode(&buf, err, NULL);
    require_json(buf.data, buf.length);
    strbuf_clear(&buf);
}

static void check_reply(const struct completion_request *request)
{
    const struct completion_prompt *prompt = &request->prompts[0];
    const struct reply_head head = {
        .id = MESSAGES_ID_PREFIX "1", .model = "tiny", .seals = request->seals_thoughts};
    const struct reply_usage usage = {.prompt_tokens = 3, .cached_tokens = 1, .diverged_at = -1};
    const struct chat_call call = chats_call(prompt);
    struct reply_blocks blocks = {0};
    struct reply_choice choice = chats_choice(prompt, &call);
    struct strbuf buf = {0};
    choice.before = &usage;
    choice.blocks = &blocks;
    if (request->num_stops > 0) {
        choice.stop_string = request->stops[0].text;
        choice.stop_string_length = request->stops[0].length;
    }
    messages_reply_encode(&buf, &head, &choice, 1, &usage, NULL, NULL);
    require_json(buf.data, buf.length);
    strbuf_reset(&buf);
    messages_choice_events(&buf, &head, &choice, SSE_USAGE_ABSENT, &usage);
    chats_check_events(&buf);
    strbuf_clear(&buf);
    reply_blocks_clear(&blocks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reply_warnings warnings = {0};
    const struct completion_limits limits = chats_limits(size, &warnings);
    struct completion_request request;
    struct tokenize_request counted;
    struct api_error err = {0};
    if (messages_parse(&request, (const char *)data, size, &limits, &err) == 0) {
        require(request.num_prompts == 1 && request.n == 1 && request.max_tokens >= 1);
        require(request.max_tokens_fit && request.prompts[0].text && request.chat_rules);
        require_json(request.chat.text, request.chat.length);
        check_reply(&request);
        completion_request_clear(&request);
    } else {
        check_error(&err);
    }
    api_error_clear(&err);
    if (messages_count_parse(&counted, (const char *)data, size, &limits, &err) == 0)
        tokenize_request_clear(&counted);
    else
        check_error(&err);
    reply_warnings_clear(&warnings);
    return 0;
}
