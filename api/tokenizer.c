/* SPDX-License-Identifier: Apache-2.0 */
#include "api/tokenizer.h"

#include "api/chat.h"
#include "api/chat_rules.h"
#include "api/reply_warnings.h"
#include "api/request.h"

#include <stdlib.h>

/* The prompt, or the text of messages. */
static int parse_tokenize_text(const json_t *fields, size_t length,
                               struct tokenize_request *request,
                               const struct completion_limits *limits, struct api_error *err)
{
    if (request_field(fields, "messages")) {
        if (request_field(fields, "prompt"))
            return api_error_set(err, API_INVALID_VALUE, "messages",
                                 "messages is not allowed with prompt");
        struct completion_prompt prompt;
        request->add_special_tokens = false;
        if (chat_rules_check_tools(fields, err))
            return -1;
        if (request->unrendered)
            return 0;
        if (chat_render(&prompt, NULL, fields, length, NULL, limits, err))
            return -1;
        request->prompt = prompt.text;
        request->length = prompt.length;
        request->input = prompt.input;
        return 0;
    }
    request->unrendered = false;
    if (!request_field(fields, "prompt"))
        return api_error_set(err, API_MISSING_PARAMETER, "prompt", "prompt is required");
    return request_text(fields, "prompt", &request->prompt, &request->length, err);
}

static int parse_tokenize_fields(const json_t *fields, size_t length,
                                 struct tokenize_request *request,
                                 const struct completion_limits *limits, struct api_error *err)
{
    static const char *const KNOWN[] = {"model",
                                        "prompt",
                                        "messages",
                                        "add_special_tokens",
                                        "cache_salt",
                                        "return_token_strs",
                                        "tools",
                                        "tool_choice",
                                        "documents",
                                        "reasoning_effort",
                                        "chat_template_kwargs",
                                        "add_generation_prompt",
                                        "continue_final_message",
                                        NULL};
    if (request_model(fields, limits->models, limits->num_models, err) != 0)
        return -1;
    reply_warnings_others(limits->warnings, fields, KNOWN);
    if (parse_tokenize_text(fields, length, request, limits, err) != 0 ||
        request_salt(fields, &request->cache_salt, &request->cache_salt_length, err) != 0 ||
        request_bool(fields, "add_special_tokens", &request->add_special_tokens, err) != 0 ||
        request_bool(fields, "return_token_strs", &request->return_token_strs, err) != 0)
        return -1;
    return 0;
}

int tokenize_parse(struct tokenize_request *request, const char *body, size_t length, bool renders,
                   const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct tokenize_request){.add_special_tokens = true, .unrendered = !renders};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    int result = parse_tokenize_fields(fields, length, request, limits, err);
    json_decref(fields);
    if (result != 0)
        tokenize_request_clear(request);
    return result;
}

void tokenize_request_clear(struct tokenize_request *request)
{
    free(request->prompt);
    free(request->cache_salt);
    if (request->goes_on)
        completion_request_clear(request->goes_on);
    free(request->goes_on);
    span_list_clear(&request->input);
    *request = (struct tokenize_request){0};
}

static void encode_max_model_len(struct strbuf *buf, int64_t max_model_len)
{
    strbuf_puts(buf, "\"max_model_len\":");
    if (max_model_len > 0)
        strbuf_json_int(buf, max_model_len);
    else
        strbuf_puts(buf, "null");
}

void tokenize_reply_encode(struct strbuf *buf, const int32_t *ids, size_t count,
                           int64_t max_model_len, const struct tokenizer *tokenizer,
                           const struct reply_warnings *warnings)
{
    strbuf_puts(buf, "{\"count\":");
    strbuf_json_int(buf, (int64_t)count);
    strbuf_puts(buf, ",");
    encode_max_model_len(buf, max_model_len);
    strbuf_puts(buf, ",\"tokens\":");
    strbuf_json_ints(buf, ids, count);
    strbuf_puts(buf, ",\"token_strs\":");
    if (tokenizer) {
        strbuf_puts(buf, "[");
        for (size_t i = 0; i < count; i++) {
            if (i > 0)
                strbuf_puts(buf, ",");
            strbuf_json_cstring(buf, tokenizer_token_content(tokenizer, ids[i]));
        }
        strbuf_puts(buf, "]");
    } else {
        strbuf_puts(buf, "null");
    }
    reply_warnings_encode(buf, warnings);
    strbuf_puts(buf, "}");
}

static int parse_detokenize_fields(const json_t *fields, struct detokenize_request *request,
                                   const struct completion_limits *limits, struct api_error *err)
{
    static const char *const KNOWN[] = {"model", "tokens", NULL};
    if (request_model(fields, limits->models, limits->num_models, err) != 0)
        return -1;
    reply_warnings_others(limits->warnings, fields, KNOWN);
    const json_t *tokens = request_field(fields, "tokens");
    if (!tokens)
        return api_error_set(err, API_MISSING_PARAMETER, "tokens", "tokens is required");
    if (!json_is_array(tokens))
        return request_wrong_type(err, "tokens", "a list of token ids", tokens);
    return request_token_ids(tokens, "tokens", limits->vocab_size, &request->ids, &request->count,
                             err);
}

int detokenize_parse(struct detokenize_request *request, const char *body, size_t length,
                     const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct detokenize_request){0};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    int result = parse_detokenize_fields(fields, request, limits, err);
    json_decref(fields);
    return result;
}

void detokenize_request_clear(struct detokenize_request *request)
{
    free(request->ids);
    *request = (struct detokenize_request){0};
}

void detokenize_reply_encode(struct strbuf *buf, const char *text, size_t length,
                             const struct reply_warnings *warnings)
{
    strbuf_puts(buf, "{\"prompt\":");
    strbuf_json_string(buf, text, length);
    reply_warnings_encode(buf, warnings);
    strbuf_puts(buf, "}");
}

static void encode_special(struct strbuf *buf, const char *name, const struct tokenizer *tokenizer,
                           int32_t id)
{
    strbuf_printf(buf, ",\"%s\":", name);
    strbuf_json_cstring(buf, id >= 0 ? tokenizer_token_content(tokenizer, id) : NULL);
    strbuf_printf(buf, ",\"%s_id\":", name);
    if (id >= 0)
        strbuf_json_int(buf, id);
    else
        strbuf_puts(buf, "null");
}

void tokenizer_info_encode(struct strbuf *buf, const struct tokenizer_info *info)
{
    strbuf_puts(buf, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"");
    encode_special(buf, "bos_token", info->tokenizer, info->bos_token_id);
    encode_special(buf, "eos_token", info->tokenizer, info->eos_token_id);
    strbuf_puts(buf,
                ",\"pad_token\":null,\"unk_token\":null,\"chat_template\":null,\"vocab_size\":");
    strbuf_json_int(buf, info->vocab_size);
    strbuf_puts(buf, ",");
    encode_max_model_len(buf, info->max_model_len);
    strbuf_puts(buf, "}");
}
