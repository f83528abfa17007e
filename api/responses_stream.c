/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_stream.h"

#include "api/responses_echo.h"

#include <string.h>

struct writer {
    struct strbuf *buf;
    const struct reply_head *head;
    const struct reply_choice *choice;
    struct reply_blocks *blocks;
};

void responses_event_begin(struct strbuf *buf, struct reply_blocks *blocks, const char *name)
{
    strbuf_printf(buf, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", name, name,
                  (long long)blocks->events++);
}

void responses_event_end(struct strbuf *buf)
{
    strbuf_puts(buf, "}\n\n");
}

/* An event with the object as it is now. */
static void object_event(struct strbuf *buf, const struct sse_stream *stream, const char *name,
                         enum responses_status status, const struct api_error *err,
                         const struct reply_usage *usage)
{
    const struct strbuf *output = &stream->blocks->output;
    responses_event_begin(buf, stream->blocks, name);
    strbuf_puts(buf, ",\"response\":");
    responses_object_begin(buf, stream->head, status, err);
    strbuf_append(buf, output->data, output->length);
    responses_object_end(buf, stream->head, usage);
    responses_event_end(buf);
}

/* --- How it is told --- */

static void note_delta(struct reply_blocks *blocks, size_t length)
{
    if (blocks->tells)
        strbuf_printf(&blocks->deltas, "%s%zu", blocks->deltas.length > 0 ? "," : "", length);
}

static void note_deltas(struct reply_blocks *blocks)
{
    strbuf_puts(&blocks->told, "[");
    strbuf_append(&blocks->told, blocks->deltas.data, blocks->deltas.length);
    strbuf_puts(&blocks->told, "]");
    strbuf_reset(&blocks->deltas);
}

static void note_item(struct reply_blocks *blocks)
{
    if (!blocks->tells)
        return;
    strbuf_puts(&blocks->told, blocks->told.length > 0 ? "," : "");
    note_deltas(blocks);
}

/* A call that was cut off is in no object. */
static void note_cut(struct reply_blocks *blocks, const struct responses_call *call)
{
    const struct strbuf *name = &blocks->name, *text = &blocks->text;
    const struct responses_tool *tool = call->tool;
    struct strbuf *told = &blocks->told;
    if (!blocks->tells)
        return;
    strbuf_puts(told, told->length > 0 ? ",{\"called\":" : "{\"called\":");
    strbuf_json_string(told, name->length > 0 ? name->data : "", name->length);
    if (tool) {
        strbuf_puts(told, ",\"tool\":[");
        strbuf_json_string(told, tool->name, tool->name_length);
        strbuf_puts(told, ",");
        strbuf_json_cstring(told, tool->space);
        strbuf_puts(told, tool->custom ? ",true]" : ",false]");
    }
    strbuf_puts(told, ",\"arguments\":");
    bool whole = tool && tool->custom; /* it is told in one piece, or not at all */
    size_t length = whole ? 0 : text->length;
    strbuf_json_string(told, length > 0 ? text->data : "", length);
    strbuf_puts(told, ",\"deltas\":");
    note_deltas(blocks);
    strbuf_puts(told, "}");
}

/* --- The open item --- */

static struct responses_item open_item(const struct writer *writer)
{
    return (struct responses_item){.part = (enum reply_part)writer->blocks->open,
                                   .index = (size_t)writer->blocks->count - 1,
                                   .status = RESPONSES_IN_PROGRESS};
}

/* Up to what the event says of its own. */
static void begin_item_event(struct writer *writer, const char *name,
                             const struct responses_item *item)
{
    responses_event_begin(writer->buf, writer->blocks, name);
    strbuf_puts(writer->buf, ",\"item_id\":");
    responses_item_id(writer->buf, writer->head, item);
    strbuf_printf(writer->buf, ",\"output_index\":%zu,\"content_index\":0", item->index);
}

static void open_block(struct writer *writer, enum reply_part part)
{
    struct reply_blocks *blocks = writer->blocks;
    blocks->open = (int)part;
    blocks->count++;
    strbuf_reset(&blocks->text);
    strbuf_reset(&blocks->logprobs);
    struct responses_item item = open_item(writer);
    responses_event_begin(writer->buf, blocks, "response.output_item.added");
    strbuf_printf(writer->buf, ",\"output_index\":%zu,\"item\":", item.index);
    responses_item_encode(writer->buf, writer->head, &item);
    responses_event_end(writer->buf);
    begin_item_event(writer, "response.content_part.added", &item);
    strbuf_puts(writer->buf, ",\"part\":");
    responses_part_encode(writer->buf, &item);
    responses_event_end(writer->buf);
}

/* An item that has ended is one of the reply. */
static void keep(struct reply_blocks *blocks, const char *item, size_t length)
{
    strbuf_puts(&blocks->output, blocks->output.length > 0 ? "," : "");
    strbuf_append(&blocks->output, item, length);
}

/* The item from `at` of the buffer on ends the event. */
static void end_item(struct writer *writer, size_t at)
{
    struct strbuf *buf = writer->buf;
    if (!buf->failed)
        keep(writer->blocks, buf->data + at, buf->length - at);
    responses_event_end(buf);
}

/* The tokens that wait belong to the item. */
static void take_pending(struct writer *writer)
{
    struct reply_blocks *blocks = writer->blocks;
    if (blocks->bare)
        strbuf_reset(&blocks->pending);
    strbuf_append(writer->buf, blocks->pending.data, blocks->pending.length);
    if (blocks->pending.length > 0)
        strbuf_puts(&blocks->logprobs, blocks->logprobs.length > 0 ? "," : "");
    strbuf_append(&blocks->logprobs, blocks->pending.data, blocks->pending.length);
    strbuf_reset(&blocks->pending);
}

static void delta(struct writer *writer, const char *text, size_t length)
{
    struct responses_item item = open_item(writer);
    bool thought = item.part == REPLY_THOUGHT;
    begin_item_event(
        writer, thought ? "response.reasoning_text.delta" : "response.output_text.delta", &item);
    strbuf_puts(writer->buf, ",\"delta\":");
    strbuf_json_string(writer->buf, text, length);
    if (!thought) {
        strbuf_puts(writer->buf, ",\"logprobs\":[");
        take_pending(writer);
        strbuf_puts(writer->buf, "]");
    }
    responses_event_end(writer->buf);
    note_delta(writer->blocks, length);
    strbuf_append(&writer->blocks->text, text, length);
}

static void close_block(struct writer *writer, enum responses_status status)
{
    struct reply_blocks *blocks = writer->blocks;
    struct strbuf *buf = writer->buf;
    struct responses_item item = open_item(writer);
    bool thought = item.part == REPLY_THOUGHT;
    item.status = status;
    item.text = &blocks->text;
    item.logprobs = &blocks->logprobs;
    begin_item_event(writer, thought ? "response.reasoning_text.done" : "response.output_text.done",
                     &item);
    strbuf_puts(buf, ",\"text\":");
    strbuf_json_string(buf, blocks->text.data ? blocks->text.data : "", blocks->text.length);
    if (!thought) {
        strbuf_puts(buf, ",\"logprobs\":[");
        strbuf_append(buf, blocks->logprobs.data, blocks->logprobs.length);
        strbuf_puts(buf, "]");
    }
    responses_event_end(buf);
    begin_item_event(writer, "response.content_part.done", &item);
    strbuf_puts(buf, ",\"part\":");
    responses_part_encode(buf, &item);
    responses_event_end(buf);
    responses_event_begin(buf, blocks, "response.output_item.done");
    strbuf_printf(buf, ",\"output_index\":%zu,\"item\":", item.index);
    size_t at = buf->length;
    responses_item_encode(buf, writer->head, &item);
    end_item(writer, at);
    note_item(blocks);
    blocks->open = REPLY_NOTHING;
}

/* --- The choice's parts --- */

static void stream_part(void *context, enum reply_part part, const char *text, size_t length)
{
    struct writer *writer = context;
    struct reply_blocks *blocks = writer->blocks;
    if (blocks->open != REPLY_NOTHING && blocks->open != (int)part)
        close_block(writer, RESPONSES_COMPLETED);
    if (blocks->open == REPLY_NOTHING)
        open_block(writer, part);
    delta(writer, text, length);
}

/* The open call; its name is borrowed. */
static struct responses_call open_call(const struct writer *writer, size_t number)
{
    const struct reply_blocks *blocks = writer->blocks;
    struct responses_call call = {.name = blocks->name.data,
                                  .name_length = blocks->name.length,
                                  .index = (size_t)blocks->count - 1,
                                  .number = number};
    responses_call_begin(&call, writer->head);
    return call;
}

static bool is_custom(const struct responses_call *call)
{
    return call->tool && call->tool->custom;
}

static void call_event(struct writer *writer, const struct responses_call *call, const char *what,
                       const char *member, const char *text, size_t length)
{
    char name[64];
    snprintf(name, sizeof name, "response.%s.%s",
             is_custom(call) ? "custom_tool_call_input" : "function_call_arguments", what);
    responses_event_begin(writer->buf, writer->blocks, name);
    strbuf_puts(writer->buf, ",\"item_id\":");
    responses_call_id(writer->buf, writer->head, call);
    strbuf_printf(writer->buf, ",\"output_index\":%zu,\"%s\":", call->index, member);
    strbuf_json_string(writer->buf, length > 0 ? text : "", length);
    if (!is_custom(call) && strcmp(what, "done") == 0) {
        strbuf_puts(writer->buf, ",\"name\":");
        responses_call_name(writer->buf, call);
    }
    responses_event_end(writer->buf);
}

static void call_item_event(struct writer *writer, const struct responses_call *call)
{
    responses_event_begin(writer->buf, writer->blocks,
                          call->told ? "response.output_item.done" : "response.output_item.added");
    strbuf_printf(writer->buf, ",\"output_index\":%zu,\"item\":", call->index);
    size_t at = writer->buf->length;
    responses_call_encode(writer->buf, writer->head, call);
    if (call->told)
        end_item(writer, at);
    else
        responses_event_end(writer->buf);
}

static void open_call_item(struct writer *writer, const struct chat_call *given, size_t number)
{
    struct reply_blocks *blocks = writer->blocks;
    if (blocks->open != REPLY_NOTHING)
        close_block(writer, RESPONSES_COMPLETED);
    blocks->open = REPLY_CALL;
    blocks->count++;
    strbuf_reset(&blocks->text);
    strbuf_reset(&blocks->name);
    strbuf_append(&blocks->name, given->name, given->name_length);
    const struct responses_call call = open_call(writer, number);
    call_item_event(writer, &call);
}

/* The text of a custom tool is known when its arguments are whole. */
static void close_call_item(struct writer *writer, struct responses_call *call)
{
    const struct strbuf *arguments = &writer->blocks->text;
    responses_call_take(call, arguments->data, arguments->length);
    const struct strbuf *input = &call->input;
    if (is_custom(call))
        call_event(writer, call, "delta", "delta", input->data, input->length);
    call_event(writer, call, "done", is_custom(call) ? "input" : "arguments", input->data,
               input->length);
    call->told = true;
    call_item_event(writer, call);
    note_item(writer->blocks);
    writer->buf->failed |= input->failed;
    strbuf_clear(&call->input);
}

/* An item whose call was cut off is never done. */
static void stream_call(void *context, const struct chat_call *given, size_t number)
{
    struct writer *writer = context;
    struct reply_blocks *blocks = writer->blocks;
    if (given->name)
        open_call_item(writer, given, number);
    struct responses_call call = open_call(writer, number);
    strbuf_append(&blocks->text, given->arguments, given->arguments_length);
    if (given->arguments_length > 0 && !is_custom(&call)) {
        call_event(writer, &call, "delta", "delta", given->arguments, given->arguments_length);
        note_delta(blocks, given->arguments_length);
    }
    if (given->open)
        return;
    if (given->cut)
        note_cut(blocks, &call);
    else
        close_call_item(writer, &call);
    blocks->open = REPLY_NOTHING;
}

/* Tokens wait for the text that they make; those that have turned out to be thoughts are dropped.
 */
static void take_logprobs(struct reply_blocks *blocks, const struct reply_choice *choice)
{
    bool undecided = choice->text_from < 0;
    if (blocks->undecided && choice->text_from > 0)
        strbuf_reset(&blocks->pending);
    blocks->undecided = undecided;
    responses_logprobs_encode(&blocks->pending, choice);
}

/* The text has ended, or is cut off there. */
static void finish(struct writer *writer, enum finish_reason reason)
{
    struct reply_blocks *blocks = writer->blocks;
    enum responses_status status = responses_status_of(reason);
    if (blocks->output.length == 0 && blocks->open == REPLY_NOTHING &&
        status == RESPONSES_COMPLETED)
        open_block(writer, REPLY_TEXT);
    if (blocks->open == REPLY_TEXT && blocks->pending.length > 0)
        delta(writer, "", 0);
    if (blocks->open == REPLY_THOUGHT || blocks->open == REPLY_TEXT)
        close_block(writer, status == RESPONSES_COMPLETED ? status : RESPONSES_INCOMPLETE);
    if (blocks->open == REPLY_CALL) {
        const struct responses_call call = open_call(writer, 0);
        note_cut(blocks, &call);
        blocks->open = REPLY_NOTHING;
    }
    blocks->finish = reason;
}

static void begin_events(struct strbuf *buf, const struct sse_stream *stream)
{
    stream->blocks->begun = true;
    object_event(buf, stream, "response.created", RESPONSES_IN_PROGRESS, NULL, NULL);
    object_event(buf, stream, "response.in_progress", RESPONSES_IN_PROGRESS, NULL, NULL);
}

void responses_choice_events(struct strbuf *buf, const struct reply_head *head,
                             const struct reply_choice *choice, enum sse_usage usage_kind,
                             const struct reply_usage *usage)
{
    struct reply_blocks *blocks = choice->blocks;
    struct reply_head first = *head;
    struct writer writer = {.buf = buf, .head = head, .choice = choice, .blocks = blocks};
    const struct reply_parts parts = {&writer, stream_part, stream_call};
    (void)usage_kind;
    first.warnings = NULL; /* the last event has them */
    if (!blocks->begun)
        begin_events(buf, &(struct sse_stream){&first, blocks, usage});
    take_logprobs(blocks, choice);
    reply_parts_write(&parts, choice);
    if (choice->finish_reason != FINISH_NONE)
        finish(&writer, choice->finish_reason);
    buf->failed |= blocks->text.failed || blocks->name.failed || blocks->output.failed ||
                   blocks->logprobs.failed || blocks->pending.failed || blocks->told.failed ||
                   blocks->deltas.failed;
}

void responses_part_events(struct strbuf *buf, const struct reply_head *head,
                           struct reply_blocks *blocks, enum reply_part part, const char *text,
                           size_t length)
{
    struct writer writer = {.buf = buf, .head = head, .blocks = blocks};
    stream_part(&writer, part, text, length);
}

void responses_call_events(struct strbuf *buf, const struct reply_head *head,
                           struct reply_blocks *blocks, const struct chat_call *call, size_t number)
{
    struct writer writer = {.buf = buf, .head = head, .blocks = blocks};
    stream_call(&writer, call, number);
}

void responses_finish_events(struct strbuf *buf, const struct reply_head *head,
                             struct reply_blocks *blocks, enum finish_reason reason)
{
    struct writer writer = {.buf = buf, .head = head, .blocks = blocks};
    finish(&writer, reason);
}

void responses_pause_events(struct strbuf *buf, const struct sse_stream *stream)
{
    if (!stream->blocks->begun) {
        begin_events(buf, stream);
        return;
    }
    stream->blocks->events--; /* the number of the event before it: it is not told again */
    object_event(buf, stream, "response.in_progress", RESPONSES_IN_PROGRESS, NULL, NULL);
}

void responses_progress_encode(struct strbuf *buf, const struct sse_stream *stream)
{
    const struct reply_blocks *blocks = stream->blocks;
    struct writer writer = {.buf = buf, .head = stream->head, .blocks = stream->blocks};
    responses_object_begin(buf, stream->head, RESPONSES_IN_PROGRESS, NULL);
    strbuf_append(buf, blocks->output.data, blocks->output.length);
    if (blocks->open == REPLY_THOUGHT || blocks->open == REPLY_TEXT) {
        struct responses_item item = open_item(&writer);
        item.text = &blocks->text;
        strbuf_puts(buf, blocks->output.length > 0 ? "," : "");
        responses_item_encode(buf, stream->head, &item);
    }
    responses_object_end(buf, stream->head, NULL);
}

void responses_end_events(struct strbuf *buf, const struct sse_stream *stream,
                          const struct api_error *err, const char *request_id)
{
    struct reply_blocks *blocks = stream->blocks;
    struct writer writer = {.buf = buf, .head = stream->head, .blocks = blocks};
    bool cancelled = err && err->code == API_CANCELLED;
    (void)request_id;
    if (!blocks->begun)
        begin_events(buf, stream);
    if (err && !cancelled) {
        object_event(buf, stream, "response.failed", RESPONSES_FAILED, err, NULL);
        return;
    }
    if (cancelled)
        finish(&writer, FINISH_NONE);
    enum responses_status status = responses_status_of(blocks->finish);
    object_event(buf, stream,
                 status == RESPONSES_COMPLETED ? "response.completed" : "response.incomplete",
                 status, NULL, stream->usage);
}
