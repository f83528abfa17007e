/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of /v1/messages and of its count_tokens. What parses is a chat with a text,
 * whose reply must be JSON, and in a stream events of two lines. */
#include "api/chat_rules.h"
#include "api/messages.h"
#include "api/messages_reply.h"
#include "engine/jinja/chat_template.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

static const char SOURCE[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "
    "\"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
    "{{ tools | tojson }}{{ enable_thinking }}{{ reasoning_effort }}";
static const char *const served[] = {"tiny"};
static struct chat_template chat;
static struct chat_syntax syntax[2] = {
    {.calls = {"<tool_call>", "</tool_call>"}, .format = CHAT_CALLS_JSON}};

static void check_error(const struct api_error *err)
{
    struct strbuf buf = {0};
    require(err->code != API_OK && err->message[0]);
    messages_error_encode(&buf, err, NULL);
    require_json(buf.data, buf.length);
    strbuf_clear(&buf);
}

/* Each event is its name, and JSON. */
static void check_events(const struct strbuf *buf)
{
    const char *at = buf->data, *end = buf->data + buf->length;
    while (at < end) {
        require(end - at > 7 && memcmp(at, "event: ", 7) == 0);
        const char *data = memchr(at, '\n', (size_t)(end - at));
        require(data && end - data > 7 && memcmp(++data, "data: ", 6) == 0);
        const char *stop = memchr(data, '\n', (size_t)(end - data));
        require(stop && stop + 1 < end && stop[1] == '\n');
        require_json(data + 6, (size_t)(stop - data) - 6);
        at = stop + 2;
    }
}

/* The prompt as a reply: its parts are cut as a call's place says. */
static void check_reply(const struct completion_request *request)
{
    const struct completion_prompt *prompt = &request->prompts[0];
    const struct reply_head head = {.id = MESSAGES_ID_PREFIX "1", .model = "tiny"};
    const struct reply_usage usage = {.prompt_tokens = 3, .cached_tokens = 1, .diverged_at = -1};
    struct chat_call call = {.name = prompt->text,
                             .name_length = prompt->length,
                             .arguments = "{}",
                             .arguments_length = 2,
                             .at = prompt->length / 2};
    struct reply_blocks blocks = {0};
    struct reply_choice choice = {.text = prompt->text,
                                  .text_length = prompt->length,
                                  .reasoning = prompt->text,
                                  .reasoning_length = prompt->length,
                                  .calls = &call,
                                  .num_calls = 1,
                                  .finish_reason = FINISH_STOP,
                                  .begins = true,
                                  .before = &usage,
                                  .blocks = &blocks};
    struct strbuf buf = {0};
    if (request->num_stops > 0) {
        choice.stop_string = request->stops[0].text;
        choice.stop_string_length = request->stops[0].length;
    }
    messages_reply_encode(&buf, &head, &choice, 1, &usage, NULL, NULL);
    require_json(buf.data, buf.length);
    strbuf_reset(&buf);
    messages_choice_events(&buf, &head, &choice, SSE_USAGE_ABSENT, &usage);
    check_events(&buf);
    strbuf_clear(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reply_warnings warnings = {0};
    struct error error = ERROR_INIT;
    if (!chat.template)
        require(jinja_compile(&chat.template, "fuzz", SOURCE, sizeof SOURCE - 1, &error) == 0);
    syntax[0].systems = size % 3 == 0   ? CHAT_SYSTEMS_NONE
                        : size % 3 == 1 ? CHAT_SYSTEMS_FIRST
                                        : CHAT_SYSTEMS_ALL;
    const struct completion_limits limits = {.models = served,
                                             .num_models = 1,
                                             .vocab_size = 300,
                                             .max_prompts = 64,
                                             .allow_empty_prompt = true,
                                             .chat = &chat,
                                             .syntax = syntax,
                                             .warnings = &warnings};
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
