/* SPDX-License-Identifier: Apache-2.0 */
#include "api/completion_reply.h"

#include "lib/text/unicode.h"

#include <string.h>

void reply_blocks_clear(struct reply_blocks *blocks)
{
    strbuf_clear(&blocks->text);
    strbuf_clear(&blocks->name);
    strbuf_clear(&blocks->output);
    strbuf_clear(&blocks->logprobs);
    strbuf_clear(&blocks->pending);
    strbuf_clear(&blocks->told);
    strbuf_clear(&blocks->deltas);
}

size_t reply_blocks_bytes(const struct reply_blocks *blocks)
{
    return blocks->text.capacity + blocks->name.capacity + blocks->output.capacity +
           blocks->logprobs.capacity + blocks->pending.capacity + blocks->told.capacity +
           blocks->deltas.capacity;
}

void reply_token_string(struct strbuf *buf, const struct tokenizer *tokenizer, int32_t id)
{
    size_t length = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (!bytes || length == 0) {
        strbuf_printf(buf, "\"token_id:%d\"", (int)id);
    } else if (utf8_valid_length(bytes, length) == length) {
        strbuf_json_string(buf, bytes, length);
    } else {
        strbuf_puts(buf, "\"bytes:");
        for (size_t i = 0; i < length; i++)
            strbuf_printf(buf, "\\\\x%02x", (unsigned char)bytes[i]);
        strbuf_puts(buf, "\"");
    }
}

static bool same_string(const struct tokenizer *tokenizer, int32_t a, int32_t b)
{
    size_t length_a = 0;
    size_t length_b = 0;
    const char *bytes_a = tokenizer_token_bytes(tokenizer, a, &length_a);
    const char *bytes_b = tokenizer_token_bytes(tokenizer, b, &length_b);
    return length_a == length_b && length_a > 0 && bytes_a && bytes_b &&
           memcmp(bytes_a, bytes_b, length_a) == 0;
}

/* One token's object {string: logprob}. The token itself keeps its string, so that a client finds
 * tokens[i] in top_logprobs[i]; any other of the same string goes by its id. */
static void encode_top(struct strbuf *buf, const struct reply_logprobs *logprobs,
                       const struct reply_token *token)
{
    struct token_logprob entries[SAMPLER_MOST_WANTED + 1];
    int count = 0;
    bool listed = false;
    for (int i = 0; i < token->num_top && i < SAMPLER_MOST_WANTED; i++) {
        if (token->top[i].id < 0) /* a vocabulary of fewer than num_top */
            break;
        listed |= token->top[i].id == token->id;
        entries[count++] = token->top[i];
    }
    if (!listed)
        entries[count++] = (struct token_logprob){token->id, token->logprob};
    strbuf_puts(buf, "{");
    for (int i = 0; i < count; i++) {
        int32_t id = entries[i].id;
        bool by_id = logprobs->as_token_ids ||
                     (id != token->id && same_string(logprobs->tokenizer, id, token->id));
        for (int j = 0; j < i && id != token->id && !by_id; j++)
            by_id = same_string(logprobs->tokenizer, id, entries[j].id);
        if (i > 0)
            strbuf_puts(buf, ",");
        if (by_id)
            strbuf_printf(buf, "\"token_id:%d\"", (int)id);
        else
            reply_token_string(buf, logprobs->tokenizer, id);
        strbuf_puts(buf, ":");
        strbuf_json_f32(buf, id == token->id ? token->logprob : entries[i].logprob);
    }
    strbuf_puts(buf, "}");
}

static void encode_token_string(struct strbuf *buf, const struct reply_logprobs *logprobs,
                                const struct reply_token *token)
{
    if (logprobs->as_token_ids)
        strbuf_printf(buf, "\"token_id:%d\"", (int)token->id);
    else
        reply_token_string(buf, logprobs->tokenizer, token->id);
}

static void encode_token_logprob(struct strbuf *buf, const struct reply_logprobs *logprobs,
                                 const struct reply_token *token)
{
    (void)logprobs;
    if (token->has_logprob)
        strbuf_json_f32(buf, token->logprob);
    else
        strbuf_puts(buf, "null");
}

static void encode_token_top(struct strbuf *buf, const struct reply_logprobs *logprobs,
                             const struct reply_token *token)
{
    if (token->has_logprob)
        encode_top(buf, logprobs, token);
    else
        strbuf_puts(buf, "null");
}

static void encode_text_offset(struct strbuf *buf, const struct reply_logprobs *logprobs,
                               const struct reply_token *token)
{
    (void)logprobs;
    strbuf_json_int(buf, token->text_offset);
}

/* Four arrays, one entry a token in each. */
static void encode_logprobs(struct strbuf *buf, const struct reply_logprobs *logprobs)
{
    static const struct {
        const char *name;
        void (*encode)(struct strbuf *, const struct reply_logprobs *, const struct reply_token *);
    } columns[] = {
        {"tokens", encode_token_string},
        {"token_logprobs", encode_token_logprob},
        {"top_logprobs", encode_token_top},
        {"text_offset", encode_text_offset},
    };
    for (size_t column = 0; column < sizeof columns / sizeof *columns; column++) {
        strbuf_printf(buf, "%s\"%s\":[", column ? "," : "{", columns[column].name);
        for (size_t i = 0; i < logprobs->num_tokens; i++) {
            if (i > 0)
                strbuf_puts(buf, ",");
            columns[column].encode(buf, logprobs, &logprobs->tokens[i]);
        }
        strbuf_puts(buf, "]");
    }
    strbuf_puts(buf, "}");
}

static void encode_ranked(struct strbuf *buf, const struct tokenizer *tokenizer,
                          const struct token_logprob *entry, int rank)
{
    strbuf_printf(buf, "\"%d\":{\"logprob\":", (int)entry->id);
    strbuf_json_f32(buf, entry->logprob);
    strbuf_printf(buf, ",\"rank\":%d,\"decoded_token\":", rank);
    reply_token_string(buf, tokenizer, entry->id);
    strbuf_puts(buf, "}");
}

/* As vLLM: null for the first token, of the others {id: ...}, the token itself first. */
static void encode_prompt_logprobs(struct strbuf *buf, const struct reply_prompt_logprobs *prompt)
{
    strbuf_puts(buf, "[");
    for (size_t i = 0; i < prompt->num_tokens; i++) {
        const struct reply_token *token = &prompt->tokens[i];
        const struct token_logprob own = {token->id, token->logprob};
        strbuf_puts(buf, i > 0 ? "," : "");
        if (!token->has_logprob) {
            strbuf_puts(buf, "null");
            continue;
        }
        strbuf_puts(buf, "{");
        encode_ranked(buf, prompt->tokenizer, &own, token->rank);
        for (int j = 0; j < prompt->num_top && token->top[j].id >= 0; j++) {
            if (token->top[j].id == token->id)
                continue;
            strbuf_puts(buf, ",");
            encode_ranked(buf, prompt->tokenizer, &token->top[j], j + 1);
        }
        strbuf_puts(buf, "}");
    }
    strbuf_puts(buf, "]");
}

static void encode_ids(struct strbuf *buf, const char *name, const int32_t *ids, size_t count)
{
    strbuf_printf(buf, ",\"%s\":", name);
    if (ids)
        strbuf_json_ints(buf, ids, count);
    else
        strbuf_puts(buf, "null");
}

void reply_ending_encode(struct strbuf *buf, const struct reply_choice *choice)
{
    static const char *const reasons[] = {[FINISH_NONE] = NULL,
                                          [FINISH_STOP] = "stop",
                                          [FINISH_LENGTH] = "length",
                                          [FINISH_TOOL_CALLS] = "tool_calls"};
    strbuf_puts(buf, ",\"finish_reason\":");
    strbuf_json_cstring(buf, reasons[choice->finish_reason]);
    strbuf_puts(buf, ",\"stop_reason\":");
    if (choice->stop_string)
        strbuf_json_string(buf, choice->stop_string, choice->stop_string_length);
    else if (choice->finish_reason != FINISH_NONE && choice->stop_token >= 0)
        strbuf_json_int(buf, choice->stop_token);
    else
        strbuf_puts(buf, "null");
    encode_ids(buf, "token_ids", choice->token_ids, choice->num_token_ids);
}

void reply_prompt_encode(struct strbuf *buf, const struct reply_choice *choice)
{
    encode_ids(buf, "prompt_token_ids", choice->prompt_token_ids, choice->num_prompt_token_ids);
    strbuf_puts(buf, ",\"prompt_logprobs\":");
    if (choice->prompt_logprobs)
        encode_prompt_logprobs(buf, choice->prompt_logprobs);
    else
        strbuf_puts(buf, "null");
}

void reply_choice_encode(struct strbuf *buf, const struct reply_choice *choice)
{
    strbuf_puts(buf, "{\"index\":");
    strbuf_json_int(buf, choice->index);
    strbuf_puts(buf, ",\"text\":");
    strbuf_json_string(buf, choice->text ? choice->text : "", choice->text_length);
    strbuf_puts(buf, ",\"logprobs\":");
    if (choice->logprobs)
        encode_logprobs(buf, choice->logprobs);
    else
        strbuf_puts(buf, "null");
    reply_ending_encode(buf, choice);
    reply_prompt_encode(buf, choice);
    strbuf_puts(buf, "}");
}

void reply_head_encode(struct strbuf *buf, const struct reply_head *head, const char *object)
{
    strbuf_puts(buf, "\"id\":");
    strbuf_json_cstring(buf, head->id);
    strbuf_printf(buf, ",\"object\":\"%s\",\"created\":", object);
    strbuf_json_int(buf, head->created);
    strbuf_puts(buf, ",\"model\":");
    strbuf_json_cstring(buf, head->model);
    strbuf_puts(buf, ",\"system_fingerprint\":");
    strbuf_json_cstring(buf, head->system_fingerprint);
    reply_warnings_encode(buf, head->warnings);
}

void reply_usage_encode(struct strbuf *buf, const struct reply_usage *usage)
{
    strbuf_puts(buf, "{\"prompt_tokens\":");
    strbuf_json_int(buf, usage->prompt_tokens);
    strbuf_puts(buf, ",\"completion_tokens\":");
    strbuf_json_int(buf, usage->completion_tokens);
    strbuf_puts(buf, ",\"total_tokens\":");
    strbuf_json_int(buf, usage->prompt_tokens + usage->completion_tokens);
    strbuf_puts(buf, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    strbuf_json_int(buf, usage->cached_tokens);
    strbuf_puts(buf, ",\"cache_miss_reason\":");
    strbuf_json_cstring(buf, usage->cache_miss_reason);
    if (usage->diverged_at >= 0)
        strbuf_printf(buf, ",\"diverged_at\":%lld", (long long)usage->diverged_at);
    if (usage->diverged_message >= 0)
        strbuf_printf(buf, ",\"diverged_message\":%lld", (long long)usage->diverged_message);
    strbuf_puts(buf, "}");
    if (usage->chat) {
        strbuf_puts(buf, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
        strbuf_json_int(buf, usage->reasoning_tokens);
        strbuf_puts(buf, "}");
    }
    strbuf_puts(buf, "}");
}

static void timings_encode(struct strbuf *buf, const struct reply_timings *timings)
{
    const struct {
        const char *name;
        double value;
    } parts[] = {
        {"queue_ms", timings->queue_ms},
        {"prefill_ms", timings->prefill_ms},
        {"prefill_tokens_per_second", timings->prefill_tokens_per_second},
        {"decode_ms", timings->decode_ms},
        {"decode_tokens_per_second", timings->decode_tokens_per_second},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        strbuf_printf(buf, "%s\"%s\":", i ? "," : "{", parts[i].name);
        strbuf_json_decimal(buf, parts[i].value);
    }
    strbuf_puts(buf, "}");
}

void reply_account_encode(struct strbuf *buf, const struct reply_usage *usage,
                          const struct reply_timings *timings, const struct session_card *session)
{
    strbuf_puts(buf, "\"usage\":");
    reply_usage_encode(buf, usage);
    strbuf_puts(buf, ",\"timings\":");
    timings_encode(buf, timings);
    if (session) {
        strbuf_puts(buf, ",\"session\":");
        session_brief_encode(buf, session);
    }
}

void completion_reply_encode(struct strbuf *buf, const struct reply_head *head,
                             const struct reply_choice *choices, size_t num_choices,
                             const struct reply_usage *usage, const struct reply_timings *timings,
                             const struct session_card *session)
{
    strbuf_puts(buf, "{");
    reply_head_encode(buf, head, "text_completion");
    strbuf_puts(buf, ",\"choices\":[");
    for (size_t i = 0; i < num_choices; i++) {
        if (i > 0)
            strbuf_puts(buf, ",");
        reply_choice_encode(buf, &choices[i]);
    }
    strbuf_puts(buf, "],");
    reply_account_encode(buf, usage, timings, session);
    strbuf_puts(buf, "}");
}
