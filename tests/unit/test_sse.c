/* SPDX-License-Identifier: Apache-2.0 */
/* The stream, byte for byte. */
#include "api/messages_reply.h"
#include "api/sse.h"
#include "lib/text/unicode.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct reply_head head = {"cmpl-1", 1700000000, "tiny", "fp", NULL, NULL, 0, false};
static const struct reply_usage usage = {3, 1, 0, "no_checkpoint", -1, -1, false, 0};
static const struct reply_choice choice = {
    .index = 2, .text = "a\nb", .text_length = 3, .stop_token = -1};

#define HEAD                                                                          \
    "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1700000000," \
    "\"model\":\"tiny\",\"system_fingerprint\":\"fp\",\"choices\":["
#define CHOICE                                                                  \
    "{\"index\":2,\"text\":\"a\\nb\",\"logprobs\":null,\"finish_reason\":null," \
    "\"stop_reason\":null,\"token_ids\":null,\"prompt_token_ids\":null,\"prompt_logprobs\":null}]"
#define USAGE                                                          \
    "{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4," \
    "\"prompt_tokens_details\":{\"cached_tokens\":0,\"cache_miss_reason\":\"no_checkpoint\"}}"

static void expect_stream(struct strbuf *buf, const char *expected)
{
    cr_assert_not(buf->failed);
    strbuf_append(buf, "", 1);
    cr_expect_str_eq(buf->data, expected);
    strbuf_clear(buf);
}

Test(sse, a_frame_without_usage)
{
    struct strbuf buf = {0};
    sse_choice_frame(&buf, &head, &choice, SSE_USAGE_ABSENT, NULL);
    expect_stream(&buf, HEAD CHOICE "}\n\n");
}

Test(sse, include_usage_is_null_until_the_last_frame)
{
    struct strbuf buf = {0};
    sse_choice_frame(&buf, &head, &choice, SSE_USAGE_NULL, NULL);
    expect_stream(&buf, HEAD CHOICE ",\"usage\":null}\n\n");
}

Test(sse, continuous_usage_is_on_every_frame)
{
    struct strbuf buf = {0};
    sse_choice_frame(&buf, &head, &choice, SSE_USAGE_GIVEN, &usage);
    expect_stream(&buf, HEAD CHOICE ",\"usage\":" USAGE "}\n\n");
}

Test(sse, the_usage_frame_has_no_choices)
{
    const struct reply_timings timings = {0};
    struct strbuf buf = {0};
    sse_usage_frame(&buf, &head, &usage, &timings, NULL);
    expect_stream(&buf,
                  HEAD "],\"usage\":" USAGE ",\"timings\":{\"queue_ms\":0.0,\"prefill_ms\":0.0,"
                       "\"prefill_tokens_per_second\":0.0,\"decode_ms\":0.0,"
                       "\"decode_tokens_per_second\":0.0}}\n\n");
}

Test(sse, an_error_and_the_end)
{
    struct api_error err = {0};
    api_error_set(&err, API_INTERNAL, NULL, "the engine failed");
    struct strbuf buf = {0};
    sse_end(&buf, NULL, &err, NULL);
    expect_stream(&buf, "data: {\"error\":{\"message\":\"the engine failed\",\"type\":"
                        "\"server_error\",\"param\":null,\"code\":\"internal_error\"}}\n\n"
                        "data: [DONE]\n\n");
}

Test(sse, no_text_can_break_a_frame)
{
    char text[256];
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    struct reply_choice hostile = {.text = text, .text_length = sizeof text, .stop_token = -1};
    struct strbuf buf = {0};
    sse_choice_frame(&buf, &head, &hostile, SSE_USAGE_ABSENT, NULL);
    cr_expect_eq(utf8_valid_length(buf.data, buf.length), buf.length);
    cr_expect_null(memchr(buf.data, '\n', buf.length - 2));
    cr_expect_null(memchr(buf.data, '\r', buf.length));
    cr_expect_null(memchr(buf.data, 0, buf.length));
    cr_expect_eq(memcmp(buf.data + buf.length - 3, "}\n\n", 3), 0);
    strbuf_clear(&buf);
}

/* A session may take its time to be settled. */
Test(sse, nothing_comes_behind_the_end_of_a_message)
{
    static const char STOP[] = "event: message_stop\n";
    struct strbuf buf = {0};
    struct reply_blocks blocks = {0};
    struct reply_choice last = {.finish_reason = FINISH_STOP, .stop_token = -1, .blocks = &blocks};
    const struct sse_stream stream = {&head, &blocks, &usage};
    last.before = &usage;
    messages_choice_events(&buf, &head, &last, SSE_USAGE_ABSENT, &usage);
    messages_pause_events(&buf, &stream);
    messages_end_events(&buf, &stream, NULL, "req-1");
    strbuf_append(&buf, "", 1);
    const char *stop = strstr(buf.data, STOP);
    cr_assert(stop);
    cr_expect_not(strstr(stop + 1, "event: "), "%s", stop);
    strbuf_clear(&buf);
    reply_blocks_clear(&blocks);
}
