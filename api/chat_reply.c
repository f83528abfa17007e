/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_reply.h"

#include <string.h>

static void encode_bytes(struct strbuf *buf, const struct tokenizer *tokenizer, int32_t id)
{
    size_t length = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (!bytes || length == 0) {
        strbuf_puts(buf, "null");
        return;
    }
    for (size_t i = 0; i < length; i++)
        strbuf_printf(buf, "%s%d", i ? "," : "[", (unsigned char)bytes[i]);
    strbuf_puts(buf, "]");
}

/* "token", "logprob" and "bytes" of a token. */
static void encode_entry(struct strbuf *buf, const struct reply_logprobs *logprobs, int32_t id,
                         float logprob)
{
    strbuf_puts(buf, "{\"token\":");
    if (logprobs->as_token_ids)
        strbuf_printf(buf, "\"token_id:%d\"", (int)id);
    else
        reply_token_string(buf, logprobs->tokenizer, id);
    strbuf_puts(buf, ",\"logprob\":");
    strbuf_json_f32(buf, logprob);
    strbuf_puts(buf, ",\"bytes\":");
    encode_bytes(buf, logprobs->tokenizer, id);
}

/* The token itself stands before those that were asked for, as vLLM has it. */
static void encode_top(struct strbuf *buf, const struct reply_logprobs *logprobs,
                       const struct reply_token *token)
{
    bool own = logprobs->listed;
    for (int i = 0; i < token->num_top && token->top[i].id >= 0; i++)
        own &= token->top[i].id != token->id;
    if (own) {
        encode_entry(buf, logprobs, token->id, token->logprob);
        strbuf_puts(buf, "}");
    }
    for (int i = 0; i < token->num_top && token->top[i].id >= 0; i++) {
        strbuf_puts(buf, i > 0 || own ? "," : "");
        encode_entry(buf, logprobs, token->top[i].id, token->top[i].logprob);
        strbuf_puts(buf, "}");
    }
}

void chat_reply_logprob_encode(struct strbuf *buf, const struct reply_logprobs *logprobs,
                               const struct reply_token *token)
{
    encode_entry(buf, logprobs, token->id, token->logprob);
    strbuf_puts(buf, ",\"top_logprobs\":[");
    encode_top(buf, logprobs, token);
    strbuf_puts(buf, "]}");
}

static void encode_logprobs(struct strbuf *buf, const struct reply_logprobs *logprobs)
{
    if (!logprobs) {
        strbuf_puts(buf, "null");
        return;
    }
    strbuf_puts(buf, "{\"content\":[");
    for (size_t i = 0; i < logprobs->num_tokens; i++) {
        strbuf_puts(buf, i ? "," : "");
        chat_reply_logprob_encode(buf, logprobs, &logprobs->tokens[i]);
    }
    strbuf_puts(buf, "],\"refusal\":null}");
}

static void encode_text(struct strbuf *buf, const char *name, const char *text, size_t length)
{
    strbuf_printf(buf, ",\"%s\":", name);
    strbuf_json_string(buf, text ? text : "", length);
}

/* By the name of DeepSeek, SGLang and llama.cpp, and by that of vLLM. */
static void encode_reasoning(struct strbuf *buf, const struct reply_choice *choice)
{
    encode_text(buf, "reasoning_content", choice->reasoning, choice->reasoning_length);
    encode_text(buf, "reasoning", choice->reasoning, choice->reasoning_length);
}

/* The id of a call is what the model wrote, or made of that of the reply and of its place there. In
 * a delta it stands beside the name only, as with OpenAI. */
static void encode_calls(struct strbuf *buf, const struct reply_head *head,
                         const struct reply_choice *choice, bool delta)
{
    const char *name = strchr(head->id, '-');
    strbuf_puts(buf, ",\"tool_calls\":[");
    for (size_t i = 0; i < choice->num_calls; i++) {
        const struct chat_call *call = &choice->calls[i];
        size_t index = choice->first_call + i;
        strbuf_puts(buf, i ? ",{" : "{");
        if (delta)
            strbuf_printf(buf, "\"index\":%zu,", index);
        if (call->id) {
            strbuf_puts(buf, "\"id\":");
            strbuf_json_cstring(buf, call->id);
        } else if (call->name) {
            strbuf_printf(buf, "\"id\":\"call_%s_%d_%zu\"", name ? name + 1 : head->id,
                          choice->index, index);
        }
        strbuf_puts(buf, call->name ? ",\"type\":\"function\"," : "");
        strbuf_puts(buf, "\"function\":{");
        if (call->name) {
            strbuf_puts(buf, "\"name\":");
            strbuf_json_string(buf, call->name, call->name_length);
            strbuf_puts(buf, ",");
        }
        strbuf_puts(buf, "\"arguments\":");
        strbuf_json_string(buf, call->arguments, call->arguments_length);
        strbuf_puts(buf, "}}");
    }
    strbuf_puts(buf, "]");
}

/* All of a reply. A text that is only reasoning or calls has no content, nor where calls are
 * demanded.
 */
static void encode_message(struct strbuf *buf, const struct reply_head *head,
                           const struct reply_choice *choice)
{
    strbuf_puts(buf, "\"role\":\"assistant\"");
    if (choice->text_length == 0 &&
        (choice->reasoning || choice->num_calls > 0 || choice->demanded))
        strbuf_puts(buf, ",\"content\":null");
    else
        encode_text(buf, "content", choice->text, choice->text_length);
    strbuf_puts(buf, ",\"refusal\":null");
    if (choice->reasoning)
        encode_reasoning(buf, choice);
    if (choice->num_calls > 0)
        encode_calls(buf, head, choice, false);
}

/* What is new of it. */
static void encode_delta(struct strbuf *buf, const struct reply_head *head,
                         const struct reply_choice *choice)
{
    struct strbuf members = {0};
    if (choice->reasoning_length > 0)
        encode_reasoning(&members, choice);
    if (choice->text_length > 0)
        encode_text(&members, "content", choice->text, choice->text_length);
    if (choice->num_calls > 0)
        encode_calls(&members, head, choice, true);
    if (members.length > 0) /* the first has no comma before it */
        strbuf_append(buf, members.data + 1, members.length - 1);
    buf->failed |= members.failed;
    strbuf_clear(&members);
}

/* What follows the message or delta. */
static void encode_rest(struct strbuf *buf, const struct reply_choice *choice)
{
    strbuf_puts(buf, ",\"logprobs\":");
    encode_logprobs(buf, choice->logprobs);
    reply_ending_encode(buf, choice);
    strbuf_puts(buf, "}");
}

void chat_reply_encode(struct strbuf *buf, const struct reply_head *head,
                       const struct reply_choice *choices, size_t num_choices,
                       const struct reply_usage *usage, const struct reply_timings *timings,
                       const struct session_card *session)
{
    strbuf_puts(buf, "{");
    reply_head_encode(buf, head, "chat.completion");
    strbuf_puts(buf, ",\"choices\":[");
    for (size_t i = 0; i < num_choices; i++) {
        strbuf_printf(buf, "%s{\"index\":%d,\"message\":{", i ? "," : "", choices[i].index);
        encode_message(buf, head, &choices[i]);
        strbuf_puts(buf, "}");
        encode_rest(buf, &choices[i]);
    }
    strbuf_puts(buf, "]");
    reply_prompt_encode(buf, &choices[0]); /* all choices have one prompt */
    strbuf_puts(buf, ",");
    reply_account_encode(buf, usage, timings, session);
    strbuf_puts(buf, "}");
}

static void begin_frame(struct strbuf *buf, const struct reply_head *head)
{
    strbuf_puts(buf, "data: {");
    reply_head_encode(buf, head, "chat.completion.chunk");
    strbuf_puts(buf, ",\"choices\":[");
}

static void end_frame(struct strbuf *buf, enum sse_usage usage_kind,
                      const struct reply_usage *usage)
{
    if (usage_kind != SSE_USAGE_ABSENT)
        strbuf_puts(buf, usage_kind == SSE_USAGE_NULL ? ",\"usage\":null" : ",\"usage\":");
    if (usage_kind == SSE_USAGE_GIVEN)
        reply_usage_encode(buf, usage);
    strbuf_puts(buf, "}\n\n");
}

void chat_choice_frame(struct strbuf *buf, const struct reply_head *head,
                       const struct reply_choice *choice, enum sse_usage usage_kind,
                       const struct reply_usage *usage)
{
    if (choice->begins) {
        struct reply_head first = *head;
        first.warnings = NULL; /* if this is the last part, too, its second frame has them */
        begin_frame(buf, &first);
        strbuf_printf(buf,
                      "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                      "\"logprobs\":null,\"finish_reason\":null}",
                      choice->index);
        strbuf_puts(buf, "]");
        if (choice->prompt_token_ids || choice->prompt_logprobs)
            reply_prompt_encode(buf, choice);
        end_frame(buf, usage_kind, choice->before);
    }
    begin_frame(buf, head);
    strbuf_printf(buf, "{\"index\":%d,\"delta\":{", choice->index);
    encode_delta(buf, head, choice);
    strbuf_puts(buf, "}");
    encode_rest(buf, choice);
    strbuf_puts(buf, "]");
    end_frame(buf, usage_kind, usage);
}

void chat_usage_frame(struct strbuf *buf, const struct reply_head *head,
                      const struct reply_usage *usage, const struct reply_timings *timings,
                      const struct session_card *session)
{
    begin_frame(buf, head);
    strbuf_puts(buf, "],");
    reply_account_encode(buf, usage, timings, session);
    strbuf_puts(buf, "}\n\n");
}
