/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions: the bytes of a request -> a validated struct.
 *
 * Everything that can be checked without the tokenizer is checked here (api.md, the table of
 * fields); what needs the prompt's tokens is left to completion_check_length. */
#ifndef API_COMPLETION_H
#define API_COMPLETION_H

#include "api/errors.h"
#include "engine/ops/sampler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Either a text (text != NULL; may hold NULs) or token ids, all in [0, vocab_size). */
struct completion_prompt {
    char *text;     /* [length], NUL-terminated besides */
    size_t length;  /* bytes */
    int32_t *ids;   /* [num_ids] */
    size_t num_ids; /* >= 1 unless a text */
};

struct completion_stop {
    char *text;    /* [length], NUL-terminated besides */
    size_t length; /* >= 1 */
};

struct completion_request {
    struct completion_prompt *prompts; /* [num_prompts] */
    size_t num_prompts;                /* >= 1 */
    int64_t max_tokens;                /* 0..2^53, so that sums of token counts fit */
    int64_t min_tokens;                /* >= 0, <= max_tokens */
    int n, best_of;                    /* 1..128, best_of >= n */
    bool stream;
    bool include_usage;          /* a last frame with the usage */
    bool continuous_usage_stats; /* usage on every frame */
    int logprobs;                /* -1: off; 0..20 */
    bool echo;
    struct completion_stop *stops; /* [num_stops] */
    size_t num_stops;
    int32_t *stop_token_ids; /* [num_stop_token_ids], each once */
    size_t num_stop_token_ids;
    bool include_stop_str_in_output;
    bool ignore_eos;
    bool add_special_tokens, skip_special_tokens;
    bool return_token_ids, return_tokens_as_token_ids;
    int64_t truncate_prompt_tokens; /* keep the last k; 0: off */
    bool seed_given;                /* else the server draws sampling.seed */
    /* sampling.logit_bias is owned by the request; sampling.choice is the server's to set. */
    struct sampling sampling;
    char *user;       /* NULL: absent */
    char *request_id; /* NULL: absent; else request_id_valid */
    char *cache_salt; /* NULL: absent; [cache_salt_length] */
    size_t cache_salt_length;
    int64_t priority;
    char *session_id;          /* NULL: none; else session_id_valid (sessions.h) */
    int64_t expected_position; /* tokens that the session holds; -1: whatever it does */
    bool store;                /* false: the session is read and left as it is */
};

/* What a request is checked against. */
struct completion_limits {
    const char *model;       /* the served model's name */
    int32_t vocab_size;      /* of the model: logits per position */
    int64_t max_model_len;   /* prompt + generated tokens; 0: unlimited */
    const char *limited_by;  /* what sets max_model_len; NULL: "--max-model-len" */
    size_t max_prompts;      /* of one request; 0: unlimited */
    bool allow_empty_prompt; /* "" is a text: the model has a BOS token to start from */
    bool token_ids_only;     /* there is no tokenizer: no texts, and replies bear token ids */
};

/* Parses body [length] into *request, which is overwritten; on 0 the caller frees what it holds
 * with completion_request_clear. On -1, *err is set and nothing is held. */
int completion_parse(struct completion_request *request, const char *body, size_t length,
                     const struct completion_limits *limits, struct api_error *err);
void completion_request_clear(struct completion_request *request);

/* prompt_tokens: of one prompt, after truncation, behind those of its session. Checks them and
 * max_tokens against limits: 400 context_length_exceeded naming the numbers. */
int completion_check_length(const struct completion_request *request, int64_t session_tokens,
                            int64_t prompt_tokens, const struct completion_limits *limits,
                            struct api_error *err);

enum { REQUEST_ID_SIZE = 129 };
/* Whether a request id may be logged and sent back in a header: 1..128 printable ASCII bytes
 * without spaces. */
bool request_id_valid(const char *text, size_t length);

#endif
