/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the bodies of POST /tokenize, POST /detokenize and GET /tokenizer_info, in
 * vLLM's formats. lm-evaluation-harness needs these endpoints to score a model that is not on the
 * hub. */
#ifndef API_TOKENIZER_H
#define API_TOKENIZER_H

#include "api/completion.h"
#include "api/strbuf.h"
#include "lib/text/tokenizer.h"

struct tokenize_request {
    char *prompt;           /* [length], and a NUL after it; may contain NULs */
    size_t length;          /* bytes */
    struct span_list input; /* of messages: where special tokens are text */
    char *cache_salt;       /* NULL: absent; [cache_salt_length] */
    size_t cache_salt_length;
    bool add_special_tokens; /* default true */
    bool return_token_strs;  /* default false */
    bool unrendered;         /* it has messages, and no prompt yet */
    /* Of /v1/responses that goes on from a kept one: no prompt yet either; NULL: it does not. */
    struct completion_request *goes_on;
    int64_t before; /* tokens before the prompt, of that */
};

/* Like completion_parse. The prompt of `messages` is the text that the chat template makes; without
 * `renders` there is none then. */
int tokenize_parse(struct tokenize_request *request, const char *body, size_t length, bool renders,
                   const struct completion_limits *limits, struct api_error *err);
void tokenize_request_clear(struct tokenize_request *request);

/* {"count", "max_model_len", "tokens", "token_strs"}, and warnings. With tokenizer NULL token_strs
 * is null; with max_model_len 0 that is null. */
void tokenize_reply_encode(struct strbuf *buf, const int32_t *ids, size_t count,
                           int64_t max_model_len, const struct tokenizer *tokenizer,
                           const struct reply_warnings *warnings);

struct detokenize_request {
    int32_t *ids; /* [count], each in [0, vocab_size); may be empty */
    size_t count;
};

int detokenize_parse(struct detokenize_request *request, const char *body, size_t length,
                     const struct completion_limits *limits, struct api_error *err);
void detokenize_request_clear(struct detokenize_request *request);

/* {"prompt"}, and warnings. */
void detokenize_reply_encode(struct strbuf *buf, const char *text, size_t length,
                             const struct reply_warnings *warnings);

/* What a client needs to know about a tokenizer. An id of -1: there is no such token. */
struct tokenizer_info {
    const struct tokenizer *tokenizer;
    int32_t bos_token_id, eos_token_id;
    int64_t max_model_len; /* 0: null */
    int32_t vocab_size;
};

void tokenizer_info_encode(struct strbuf *buf, const struct tokenizer_info *info);

#endif
