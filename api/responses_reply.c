/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_reply.h"

#include "api/chat_reply.h"
#include "api/request.h"
#include "api/responses_echo.h"
#include "api/responses_items.h"
#include "api/responses_tools.h"
#include "api/sealed_thought.h"

#include <string.h>

/* --- The object --- */

const char *responses_status_name(enum responses_status status)
{
    static const char *const NAMES[] = {[RESPONSES_IN_PROGRESS] = "in_progress",
                                        [RESPONSES_COMPLETED] = "completed",
                                        [RESPONSES_INCOMPLETE] = "incomplete",
                                        [RESPONSES_FAILED] = "failed",
                                        [RESPONSES_CANCELLED] = "cancelled"};
    return NAMES[status];
}

enum responses_status responses_status_of(enum finish_reason finish)
{
    return finish == FINISH_NONE     ? RESPONSES_CANCELLED
           : finish == FINISH_LENGTH ? RESPONSES_INCOMPLETE
                                     : RESPONSES_COMPLETED;
}

/* By the codes that clients know. */
static const char *code_of(const struct api_error *err)
{
    int status = api_error_row(err->code)->status;
    if (err->code == API_CONTEXT_LENGTH)
        return api_error_row(err->code)->code;
    if (status == 429)
        return "rate_limit_exceeded";
    return status >= 500 || err->code == API_CANCELLED ? "server_error" : "invalid_prompt";
}

static void encode_error(struct strbuf *buf, const struct api_error *err)
{
    strbuf_printf(buf, "{\"code\":\"%s\",\"message\":", code_of(err));
    strbuf_json_cstring(buf, err->message);
    strbuf_puts(buf, "}");
}

void responses_object_begin(struct strbuf *buf, const struct reply_head *head,
                            enum responses_status status, const struct api_error *err)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, head->id);
    strbuf_printf(buf, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\"",
                  (long long)head->created, responses_status_name(status));
    if (status == RESPONSES_COMPLETED)
        strbuf_printf(buf, ",\"completed_at\":%lld", (long long)head->ended);
    else
        strbuf_puts(buf, ",\"completed_at\":null");
    strbuf_puts(buf, ",\"error\":");
    if (err)
        encode_error(buf, err);
    else
        strbuf_puts(buf, "null");
    strbuf_puts(buf, status == RESPONSES_INCOMPLETE
                         ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                         : ",\"incomplete_details\":null");
    strbuf_puts(buf, ",\"model\":");
    strbuf_json_cstring(buf, head->model);
    if (head->echo && head->echo->length > 0) {
        strbuf_puts(buf, ",");
        strbuf_append(buf, head->echo->members, head->echo->length);
    }
    strbuf_puts(buf, ",\"output\":[");
}

static void encode_usage(struct strbuf *buf, const struct reply_usage *usage)
{
    strbuf_printf(buf, "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,",
                  (long long)usage->prompt_tokens, (long long)usage->cached_tokens);
    strbuf_puts(buf, "\"cache_write_tokens\":0,\"cache_miss_reason\":");
    strbuf_json_cstring(buf, usage->cache_miss_reason);
    if (usage->diverged_at >= 0)
        strbuf_printf(buf, ",\"diverged_at\":%lld", (long long)usage->diverged_at);
    strbuf_printf(buf, "},\"output_tokens\":%lld,\"output_tokens_details\":{",
                  (long long)usage->completion_tokens);
    strbuf_printf(buf, "\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
                  (long long)usage->reasoning_tokens,
                  (long long)(usage->prompt_tokens + usage->completion_tokens));
}

void responses_object_end(struct strbuf *buf, const struct reply_head *head,
                          const struct reply_usage *usage)
{
    strbuf_puts(buf, "],\"usage\":");
    if (usage)
        encode_usage(buf, usage);
    else
        strbuf_puts(buf, "null");
    reply_warnings_encode(buf, head->warnings);
    strbuf_puts(buf, "}");
}

/* --- Items --- */

/* The name of what belongs to the reply: its own, less what stands before it. */
static const char *bare_id(const struct reply_head *head)
{
    size_t prefix = strlen(RESPONSES_ID_PREFIX);
    return head->id + (strncmp(head->id, RESPONSES_ID_PREFIX, prefix) == 0 ? prefix : 0);
}

void responses_item_id(struct strbuf *buf, const struct reply_head *head,
                       const struct responses_item *item)
{
    strbuf_printf(buf, "\"%s_%s_%zu\"", item->part == REPLY_THOUGHT ? "rs" : "msg", bare_id(head),
                  item->index);
}

void responses_part_encode(struct strbuf *buf, const struct responses_item *item)
{
    const struct strbuf *text = item->text, *logprobs = item->logprobs;
    bool thought = item->part == REPLY_THOUGHT;
    strbuf_puts(buf, thought ? "{\"type\":\"reasoning_text\",\"text\":"
                             : "{\"type\":\"output_text\",\"text\":");
    strbuf_json_string(buf, text && text->data ? text->data : "", text ? text->length : 0);
    if (!thought) {
        strbuf_puts(buf, ",\"annotations\":[],\"logprobs\":[");
        if (logprobs)
            strbuf_append(buf, logprobs->data, logprobs->length);
        strbuf_puts(buf, "]");
    }
    strbuf_puts(buf, "}");
}

void responses_item_encode(struct strbuf *buf, const struct reply_head *head,
                           const struct responses_item *item)
{
    bool thought = item->part == REPLY_THOUGHT;
    const struct strbuf *text = item->text;
    strbuf_puts(buf, "{\"id\":");
    responses_item_id(buf, head, item);
    strbuf_printf(buf, ",\"type\":\"%s\",\"status\":\"%s\",", thought ? "reasoning" : "message",
                  responses_status_name(item->status));
    strbuf_puts(buf,
                thought ? "\"summary\":[],\"content\":[" : "\"role\":\"assistant\",\"content\":[");
    if (text)
        responses_part_encode(buf, item);
    strbuf_puts(buf, "]");
    if (thought && text && head->echo && head->echo->seals) {
        strbuf_puts(buf, ",\"encrypted_content\":");
        sealed_thought_write(buf, text->data, text->length);
    } else if (thought) {
        strbuf_puts(buf, ",\"encrypted_content\":null");
    }
    strbuf_puts(buf, "}");
}

/* --- Calls --- */

void responses_call_begin(struct responses_call *call, const struct reply_head *head)
{
    call->tool = responses_echo_tool(head->echo, call->name, call->name_length);
}

/* Of a custom tool its text, or all that the model wrote where that is no such text. */
void responses_call_take(struct responses_call *call, const char *arguments, size_t length)
{
    struct api_error err = {0};
    bool custom = call->tool && call->tool->custom;
    json_t *loaded = custom ? request_load_repeats(arguments, length, &err) : NULL;
    const json_t *input = json_object_get(loaded, RESPONSES_CUSTOM_ARGUMENT);
    if (json_is_string(input))
        strbuf_append(&call->input, json_string_value(input), json_string_length(input));
    else
        strbuf_append(&call->input, arguments, length);
    json_decref(loaded);
}

void responses_call_id(struct strbuf *buf, const struct reply_head *head,
                       const struct responses_call *call)
{
    strbuf_printf(buf, "\"%s_%s_%zu\"", call->tool && call->tool->custom ? "ctc" : "fc",
                  bare_id(head), call->index);
}

void responses_call_name(struct strbuf *buf, const struct responses_call *call)
{
    const struct responses_tool *tool = call->tool;
    strbuf_json_string(buf, tool ? tool->name : call->name,
                       tool ? tool->name_length : call->name_length);
}

void responses_call_encode(struct strbuf *buf, const struct reply_head *head,
                           const struct responses_call *call)
{
    const struct responses_tool *tool = call->tool;
    bool custom = tool && tool->custom;
    strbuf_puts(buf, "{\"id\":");
    responses_call_id(buf, head, call);
    strbuf_printf(buf, ",\"type\":\"%s\"", custom ? "custom_tool_call" : "function_call");
    if (!custom)
        strbuf_printf(buf, ",\"status\":\"%s\"", call->told ? "completed" : "in_progress");
    strbuf_printf(buf, ",\"call_id\":\"call_%s_%zu\",\"name\":", bare_id(head), call->number);
    responses_call_name(buf, call);
    if (tool && tool->space) {
        strbuf_puts(buf, ",\"namespace\":");
        strbuf_json_string(buf, tool->space, tool->space_length);
    }
    strbuf_puts(buf, custom ? ",\"input\":" : ",\"arguments\":");
    strbuf_json_string(buf, call->told && call->input.data ? call->input.data : "",
                       call->told ? call->input.length : 0);
    strbuf_puts(buf, "}");
}

/* --- Logprobs --- */

void responses_logprobs_encode(struct strbuf *buf, const struct reply_choice *choice)
{
    const struct reply_logprobs *logprobs = choice->logprobs;
    for (size_t i = 0; logprobs && i < logprobs->num_tokens; i++) {
        if (logprobs->tokens[i].text_offset < choice->text_from)
            continue;
        strbuf_puts(buf, buf->length > 0 ? "," : "");
        chat_reply_logprob_encode(buf, logprobs, &logprobs->tokens[i]);
    }
}

/* --- A whole reply --- */

struct writer {
    struct strbuf *buf;
    const struct reply_head *head;
    const struct reply_choice *choice;
    size_t items; /* that were written */
    size_t index; /* of the next: calls that were cut off count, as in a stream */
};

static void write_item(struct writer *writer, enum reply_part part, const struct strbuf *text,
                       bool last)
{
    bool cut = last && responses_status_of(writer->choice->finish_reason) != RESPONSES_COMPLETED;
    struct strbuf logprobs = {0};
    if (part == REPLY_TEXT)
        responses_logprobs_encode(&logprobs, writer->choice);
    const struct responses_item item = {.part = part,
                                        .index = writer->index++,
                                        .status = cut ? RESPONSES_INCOMPLETE : RESPONSES_COMPLETED,
                                        .text = text,
                                        .logprobs = &logprobs};
    strbuf_puts(writer->buf, writer->items++ > 0 ? "," : "");
    responses_item_encode(writer->buf, writer->head, &item);
    writer->buf->failed |= logprobs.failed;
    strbuf_clear(&logprobs);
}

/* Whether no item follows the part that ends there in the text. */
static bool is_last(const struct reply_choice *choice, size_t end)
{
    bool last = end == choice->text_length;
    for (size_t i = 0; i < choice->num_calls && last; i++)
        last = choice->calls[i].at < end;
    return last;
}

static void write_part(void *context, enum reply_part part, const char *text, size_t length)
{
    struct writer *writer = context;
    const struct strbuf borrowed = {.data = (char *)text, .length = length};
    size_t end = part == REPLY_THOUGHT ? 0 : (size_t)(text - writer->choice->text) + length;
    write_item(writer, part, &borrowed, is_last(writer->choice, end));
}

static void write_call(void *context, const struct chat_call *call, size_t number)
{
    struct writer *writer = context;
    struct responses_call item = {.name = call->name,
                                  .name_length = call->name_length,
                                  .index = writer->index++,
                                  .number = number,
                                  .told = true};
    if (call->cut)
        return;
    responses_call_begin(&item, writer->head);
    responses_call_take(&item, call->arguments, call->arguments_length);
    strbuf_puts(writer->buf, writer->items++ > 0 ? "," : "");
    responses_call_encode(writer->buf, writer->head, &item);
    writer->buf->failed |= item.input.failed;
    strbuf_clear(&item.input);
}

void responses_reply_encode(struct strbuf *buf, const struct reply_head *head,
                            const struct reply_choice *choices, size_t num_choices,
                            const struct reply_usage *usage, const struct reply_timings *timings,
                            const struct session_card *session)
{
    struct writer writer = {.buf = buf, .head = head, .choice = &choices[0]};
    const struct reply_parts parts = {&writer, write_part, write_call};
    const enum responses_status status = responses_status_of(choices[0].finish_reason);
    static const struct strbuf nothing;
    (void)num_choices;
    (void)timings;
    (void)session;
    responses_object_begin(buf, head, status, NULL);
    reply_parts_write(&parts, &choices[0]);
    if (writer.items == 0 && status == RESPONSES_COMPLETED)
        write_item(&writer, REPLY_TEXT, &nothing, true);
    responses_object_end(buf, head, usage);
}

void responses_count_encode(struct strbuf *buf, size_t count, const struct reply_warnings *warnings)
{
    strbuf_puts(buf, "{\"object\":\"response.input_tokens\",\"input_tokens\":");
    strbuf_json_int(buf, (int64_t)count);
    reply_warnings_encode(buf, warnings);
    strbuf_puts(buf, "}");
}
