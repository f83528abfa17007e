/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of /v1/responses and of its input_tokens. What parses is a chat with a
 * text, whose reply must be JSON, and in a stream events of two lines; its turns may go. If it is
 * kept, the reply and its stream are told again byte for byte, and the same request goes on from
 * it.
 */
#include "api/chat.h"
#include "api/chat_rules.h"
#include "api/chat_shorten.h"
#include "api/request.h"
#include "api/responses.h"
#include "api/responses_echo.h"
#include "api/responses_list.h"
#include "api/responses_replay.h"
#include "api/responses_stream.h"
#include "api/responses_turns.h"
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
    const struct sse_stream stream = {head, &blocks, usage};
    struct strbuf buf = {0};
    choice->blocks = &blocks;
    responses_pause_events(&buf, &stream);
    responses_choice_events(&buf, head, choice, SSE_USAGE_ABSENT, usage);
    responses_pause_events(&buf, &stream);
    responses_end_events(&buf, &stream, err, NULL);
    chats_check_events(&buf);
    strbuf_clear(&buf);
    reply_blocks_clear(&blocks);
}

static void check_told(const struct strbuf *turns, const struct strbuf *object)
{
    const struct responses_page page = {.limit = 20};
    struct api_error err = {0};
    struct strbuf buf = {0};
    const char *told;
    size_t length;
    int64_t events;
    require(responses_turns_object(turns->data, turns->length, &told, &length, &events, &err) == 0);
    require(length == object->length && memcmp(told, object->data, length) == 0);
    require(responses_turns_asked(turns->data, turns->length, &told, &length, &err) == 0);
    responses_page_encode(&buf, &page, told, length, "resp_1", &err);
    require(err.code == API_OK);
    require_json(buf.data, buf.length);
    strbuf_clear(&buf);
}

/* A kept reply's stream is told again, and from behind each of its events. */
static void check_retold(const struct completion_request *request, const struct reply_head *head,
                         struct reply_choice *choice, const struct reply_usage *usage,
                         const struct api_error *err)
{
    const struct chat_turn turn = {.position = 5, .text_length = 7, .text_hash = 9};
    struct reply_blocks blocks = {.tells = true};
    const struct sse_stream stream = {head, &blocks, usage};
    struct strbuf object = {0}, events = {0}, turns = {0}, again = {0};
    struct api_error wrong = {0};
    choice->blocks = &blocks;
    responses_reply_encode(&object, head, choice, 1, usage, NULL, NULL);
    responses_choice_events(&events, head, choice, SSE_USAGE_ABSENT, usage);
    responses_end_events(&events, &stream, err, NULL);
    const struct responses_telling telling = {object.data, object.length, blocks.events,
                                              &blocks.told};
    require(responses_turns_write(&turns, &turn, request->echoed, &telling, &wrong) == 0);
    for (int64_t after = -1; after <= blocks.events; after += 3) {
        strbuf_reset(&again);
        require(responses_replay(&again, turns.data, turns.length, after, &wrong) == 0);
        require(again.length <= events.length &&
                memcmp(again.data, events.data + events.length - again.length, again.length) == 0);
        require((after < 0) == (again.length == events.length));
    }
    strbuf_clear(&object);
    strbuf_clear(&events);
    strbuf_clear(&turns);
    strbuf_clear(&again);
    reply_blocks_clear(&blocks);
}

/* The turn of a response with this object, and what goes on from it. */
static void check_kept(const struct completion_request *request, const struct strbuf *object,
                       const struct completion_limits *limits)
{
    const struct chat_turn turn = {.position = 5, .text_length = 7, .text_hash = 9};
    struct chat_turn last;
    struct api_error err = {0};
    struct strbuf turns = {0}, more = {0};
    struct completion_string body = {strndup(request->chat.text, request->chat.length),
                                     request->chat.length};
    static const struct strbuf nothing;
    const struct responses_telling telling = {object->data, object->length, 0, &nothing};
    require(body.text &&
            responses_turns_write(&turns, &turn, request->echoed, &telling, &err) == 0);
    require(responses_replay(&more, turns.data, turns.length, -1, &err) == 0);
    chats_check_events(&more);
    strbuf_reset(&more);
    check_told(&turns, object);
    require(responses_turns_inherit(&more, turns.data, turns.length, 6, &err) == 0);
    require(chat_turns_last(more.data, more.length, &last) == 0 && last.position == 6);
    require(responses_turns_write(&more, &turn, request->echoed, &telling, &err) == 0);
    check_told(&more, object);
    if (responses_turns_gather(&body, more.data, more.length, request->echoed, limits, &err) == 0)
        require_json(body.text, body.length);
    else
        check_error(&err);
    free(body.text);
    strbuf_clear(&turns);
    strbuf_clear(&more);
}

/* A chat that is to have a session is rendered once it has. False: it cannot be. */
static bool render(struct completion_request *request, const struct completion_limits *limits)
{
    struct completion_prompt whole;
    struct api_error err = {0};
    if (request->chat_rules)
        return true;
    if (chat_render_body(&whole, &request->chat_rules, &request->chat, NULL, limits, &err)) {
        check_error(&err);
        return false;
    }
    free(request->prompts[0].text);
    request->prompts[0] = whole;
    return true;
}

/* The prompt as a reply, which calls the first tool that it calls otherwise, if there is one. */
static void check_reply(const struct completion_request *request,
                        const struct completion_limits *limits)
{
    const struct completion_prompt *prompt = &request->prompts[0];
    const struct responses_echo *echo = request->echoed;
    const struct reply_head head = {.id = RESPONSES_ID_PREFIX "1", .model = "tiny", .echo = echo};
    const struct reply_usage usage = {.prompt_tokens = 3, .cached_tokens = 1, .diverged_at = -1};
    const struct api_error cancelled = {.code = API_CANCELLED, .message = "cancelled"};
    const struct api_error failed = {.code = API_INTERNAL, .message = "failed"};
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
    if (echo->asked)
        check_kept(request, &buf, limits);
    strbuf_clear(&buf);
    check_stream(&head, &choice, &usage, NULL);
    choice.finish_reason = FINISH_LENGTH;
    check_stream(&head, &choice, &usage, NULL);
    choice.finish_reason = FINISH_NONE;
    check_stream(&head, &choice, &usage, &failed);
    check_stream(&head, &choice, &usage, &cancelled);
    if (!echo->asked)
        return;
    check_retold(request, &head, &choice, &usage, &cancelled);
    choice.finish_reason = FINISH_LENGTH;
    check_retold(request, &head, &choice, &usage, NULL);
    call.cut = true;
    check_retold(request, &head, &choice, &usage, NULL);
    call.cut = false;
    choice.finish_reason = FINISH_STOP;
    check_retold(request, &head, &choice, &usage, NULL);
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
        require(request.max_tokens_fit && request.prompts[0].text);
        require(!request.chat_rules == (request.kept || request.begins_with));
        require_json(request.chat.text, request.chat.length);
        if (render(&request, &limits))
            check_reply(&request, &limits);
        check_shorter(&request);
        completion_request_clear(&request);
    } else {
        check_error(&err);
    }
    api_error_clear(&err);
    if (responses_count_parse(&counted, (const char *)data, size, &limits, &err) == 0) {
        require(!counted.prompt == (counted.goes_on != NULL));
        if (counted.goes_on && responses_count_behind(&counted, "", 0, &limits, &err))
            check_error(&err);
        tokenize_request_clear(&counted);
    } else {
        check_error(&err);
    }
    reply_warnings_clear(&warnings);
    return 0;
}
