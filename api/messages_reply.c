/* SPDX-License-Identifier: Apache-2.0 */
#include "api/messages_reply.h"

#include "api/reply_parts.h"
#include "api/sealed_thought.h"

#include <string.h>

struct writer {
    struct strbuf *buf;
    const struct reply_head *head;
    const struct reply_choice *choice;
    size_t blocks; /* of a whole reply, so far */
};

/* The id is made of that of the reply and of the call's place there. */
static void encode_call(struct writer *writer, const struct chat_call *call, size_t index)
{
    const char *id = writer->head->id;
    size_t prefix = strlen(MESSAGES_ID_PREFIX);
    if (strncmp(id, MESSAGES_ID_PREFIX, prefix) == 0)
        id += prefix;
    strbuf_printf(writer->buf, "{\"type\":\"tool_use\",\"id\":\"toolu_%s_%zu\",\"name\":", id,
                  index);
    strbuf_json_string(writer->buf, call->name, call->name_length);
    strbuf_puts(writer->buf, ",\"input\":");
}

/* What both forms say. */

static void encode_usage(struct strbuf *buf, const struct reply_usage *usage)
{
    strbuf_printf(buf, "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,",
                  (long long)(usage->prompt_tokens - usage->cached_tokens));
    strbuf_printf(buf, "\"cache_read_input_tokens\":%lld,\"output_tokens\":%lld",
                  (long long)usage->cached_tokens, (long long)usage->completion_tokens);
    if (usage->cache_miss_reason) {
        strbuf_puts(buf, ",\"cache_miss_reason\":");
        strbuf_json_cstring(buf, usage->cache_miss_reason);
    }
    if (usage->cache_miss_reason && usage->diverged_at >= 0)
        strbuf_printf(buf, ",\"diverged_at\":%lld", (long long)usage->diverged_at);
    strbuf_puts(buf, "}");
}

/* "stop_reason":...,"stop_sequence":... */
static void encode_ending(struct strbuf *buf, const struct reply_choice *choice)
{
    static const char *const REASONS[] = {[FINISH_NONE] = NULL,
                                          [FINISH_STOP] = "end_turn",
                                          [FINISH_LENGTH] = "max_tokens",
                                          [FINISH_TOOL_CALLS] = "tool_use"};
    bool stopped = choice->finish_reason == FINISH_STOP && choice->stop_string;
    strbuf_puts(buf, "\"stop_reason\":");
    strbuf_json_cstring(buf, stopped ? "stop_sequence" : REASONS[choice->finish_reason]);
    strbuf_puts(buf, ",\"stop_sequence\":");
    if (stopped)
        strbuf_json_string(buf, choice->stop_string, choice->stop_string_length);
    else
        strbuf_puts(buf, "null");
}

static void encode_head(struct strbuf *buf, const struct reply_head *head)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, head->id);
    strbuf_puts(buf, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    strbuf_json_cstring(buf, head->model);
    strbuf_puts(buf, ",\"content\":[");
}

/* Thoughts. */

/* What has no text comes back with each later request. */
enum { MOST_SEALED = 256 * 1024 };

static void encode_signature(struct strbuf *buf, const char *thought, size_t length)
{
    strbuf_puts(buf, "\"signature\":");
    if (length <= MOST_SEALED)
        sealed_thought_write(buf, thought, length);
    else
        strbuf_puts(buf, "\"\"");
}

/* A whole reply. */

static void whole_part(void *context, enum reply_part block, const char *text, size_t length)
{
    struct writer *writer = context;
    bool thinks = block == REPLY_THOUGHT;
    strbuf_puts(writer->buf, writer->blocks++ > 0 ? "," : "");
    if (thinks && writer->head->seals) {
        strbuf_puts(writer->buf, "{\"type\":\"thinking\",\"thinking\":\"\",");
        encode_signature(writer->buf, text, length);
        strbuf_puts(writer->buf, "}");
        return;
    }
    strbuf_puts(writer->buf,
                thinks ? "{\"type\":\"thinking\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
    strbuf_json_string(writer->buf, text, length);
    strbuf_puts(writer->buf, thinks ? ",\"signature\":\"\"}" : "}");
}

/* Of one that was cut off there is no object. */
static void whole_call(void *context, const struct chat_call *call, size_t index)
{
    struct writer *writer = context;
    if (call->cut)
        return;
    strbuf_puts(writer->buf, writer->blocks++ > 0 ? "," : "");
    encode_call(writer, call, index);
    strbuf_append(writer->buf, call->arguments, call->arguments_length);
    strbuf_puts(writer->buf, "}");
}

void messages_reply_encode(struct strbuf *buf, const struct reply_head *head,
                           const struct reply_choice *choices, size_t num_choices,
                           const struct reply_usage *usage, const struct reply_timings *timings,
                           const struct session_card *session)
{
    struct writer writer = {.buf = buf, .head = head, .choice = &choices[0]};
    const struct reply_parts parts = {&writer, whole_part, whole_call};
    (void)num_choices;
    (void)timings;
    encode_head(buf, head);
    reply_parts_write(&parts, &choices[0]);
    strbuf_puts(buf, "],");
    encode_ending(buf, &choices[0]);
    strbuf_puts(buf, ",\"usage\":");
    encode_usage(buf, usage);
    if (session) {
        strbuf_puts(buf, ",\"session\":");
        session_brief_encode(buf, session);
    }
    reply_warnings_encode(buf, head->warnings);
    strbuf_puts(buf, "}");
}

/* A stream. */

static void begin_event(struct strbuf *buf, const char *name)
{
    strbuf_printf(buf, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void end_event(struct strbuf *buf)
{
    strbuf_puts(buf, "}\n\n");
}

static void begin_block(struct writer *writer)
{
    begin_event(writer->buf, "content_block_start");
    strbuf_printf(writer->buf,
                  ",\"index\":%lld,\"content_block\":", (long long)writer->choice->blocks->count++);
}

/* Up to its type. */
static void begin_delta(struct writer *writer)
{
    begin_event(writer->buf, "content_block_delta");
    strbuf_printf(writer->buf, ",\"index\":%lld,\"delta\":{\"type\":",
                  (long long)writer->choice->blocks->count - 1);
}

/* Of a thought that was not shown. */
static void seal_block(struct writer *writer)
{
    struct strbuf *thought = &writer->choice->blocks->text;
    begin_delta(writer);
    strbuf_puts(writer->buf, "\"signature_delta\",");
    encode_signature(writer->buf, thought->data, thought->length);
    strbuf_puts(writer->buf, "}");
    end_event(writer->buf);
    strbuf_reset(thought);
}

static void end_block(struct writer *writer)
{
    if (writer->choice->blocks->open == REPLY_THOUGHT && writer->head->seals)
        seal_block(writer);
    begin_event(writer->buf, "content_block_stop");
    strbuf_printf(writer->buf, ",\"index\":%lld", (long long)writer->choice->blocks->count - 1);
    end_event(writer->buf);
    writer->choice->blocks->open = REPLY_NOTHING;
}

static void stream_part(void *context, enum reply_part block, const char *text, size_t length)
{
    struct writer *writer = context;
    struct reply_blocks *blocks = writer->choice->blocks;
    bool thinks = block == REPLY_THOUGHT;
    if (blocks->open != REPLY_NOTHING && blocks->open != (int)block)
        end_block(writer);
    if (blocks->open == REPLY_NOTHING) {
        begin_block(writer);
        strbuf_puts(writer->buf,
                    thinks ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                           : "{\"type\":\"text\",\"text\":\"\"}");
        end_event(writer->buf);
        blocks->open = (int)block;
    }
    if (thinks && writer->head->seals) {
        strbuf_append(&blocks->text, text, length);
        return;
    }
    begin_delta(writer);
    strbuf_puts(writer->buf,
                thinks ? "\"thinking_delta\",\"thinking\":" : "\"text_delta\",\"text\":");
    strbuf_json_string(writer->buf, text, length);
    strbuf_puts(writer->buf, "}");
    end_event(writer->buf);
}

/* One that is cut off ends as any other: its parts are no JSON. */
static void stream_call(void *context, const struct chat_call *call, size_t index)
{
    struct writer *writer = context;
    struct reply_blocks *blocks = writer->choice->blocks;
    if (call->name && blocks->open != REPLY_NOTHING)
        end_block(writer);
    if (call->name) {
        begin_block(writer);
        encode_call(writer, call, index);
        strbuf_puts(writer->buf, "{}}");
        end_event(writer->buf);
        blocks->open = REPLY_CALL;
    }
    if (call->arguments_length > 0) {
        begin_delta(writer);
        strbuf_puts(writer->buf, "\"input_json_delta\",\"partial_json\":");
        strbuf_json_string(writer->buf, call->arguments, call->arguments_length);
        strbuf_puts(writer->buf, "}");
        end_event(writer->buf);
    }
    if (!call->open)
        end_block(writer);
}

static void start_event(struct strbuf *buf, const struct reply_head *head,
                        struct reply_blocks *blocks, const struct reply_usage *usage)
{
    blocks->begun = true;
    begin_event(buf, "message_start");
    strbuf_puts(buf, ",\"message\":");
    encode_head(buf, head);
    strbuf_puts(buf, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    encode_usage(buf, usage);
    strbuf_puts(buf, "}");
    end_event(buf);
}

static void ending_event(struct writer *writer, const struct reply_usage *usage)
{
    struct strbuf *buf = writer->buf;
    if (writer->choice->blocks->open != REPLY_NOTHING)
        end_block(writer);
    begin_event(buf, "message_delta");
    strbuf_puts(buf, ",\"delta\":{");
    encode_ending(buf, writer->choice);
    strbuf_puts(buf, "},\"usage\":");
    encode_usage(buf, usage);
    reply_warnings_encode(buf, writer->head->warnings);
    end_event(buf);
}

void messages_choice_events(struct strbuf *buf, const struct reply_head *head,
                            const struct reply_choice *choice, enum sse_usage usage_kind,
                            const struct reply_usage *usage)
{
    struct writer writer = {.buf = buf, .head = head, .choice = choice};
    const struct reply_parts parts = {&writer, stream_part, stream_call};
    (void)usage_kind;
    if (!choice->blocks->begun)
        start_event(buf, head, choice->blocks, choice->before);
    reply_parts_write(&parts, choice);
    if (choice->finish_reason != FINISH_NONE)
        ending_event(&writer, usage);
    buf->failed |= choice->blocks->text.failed;
}

void messages_pause_events(struct strbuf *buf, const struct sse_stream *stream)
{
    if (!stream->blocks->begun)
        start_event(buf, stream->head, stream->blocks, stream->usage);
    begin_event(buf, "ping");
    end_event(buf);
}

/* Errors. */

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void messages_error_encode(struct strbuf *buf, const struct api_error *err, const char *request_id)
{
    strbuf_puts(buf, "{\"type\":\"error\",\"error\":{\"type\":");
    strbuf_json_cstring(buf, error_type(api_error_row(err->code)->status));
    strbuf_puts(buf, ",\"message\":");
    if (err->code == API_CONTEXT_LENGTH) /* clients know these words */
        strbuf_printf(buf, "\"prompt is too long: %lld tokens > %lld maximum\"",
                      (long long)err->prompt_tokens, (long long)err->most_tokens);
    else
        strbuf_json_cstring(buf, err->message);
    strbuf_puts(buf, "},\"request_id\":");
    strbuf_json_cstring(buf, request_id);
    strbuf_puts(buf, "}");
}

void messages_end_events(struct strbuf *buf, const struct sse_stream *stream,
                         const struct api_error *err, const char *request_id)
{
    (void)stream;
    if (!err) {
        begin_event(buf, "message_stop");
        end_event(buf);
        return;
    }
    strbuf_puts(buf, "event: error\ndata: ");
    messages_error_encode(buf, err, request_id);
    strbuf_puts(buf, "\n\n");
}

void messages_count_encode(struct strbuf *buf, size_t count, const struct reply_warnings *warnings)
{
    strbuf_puts(buf, "{\"input_tokens\":");
    strbuf_json_int(buf, (int64_t)count);
    reply_warnings_encode(buf, warnings);
    strbuf_puts(buf, "}");
}
