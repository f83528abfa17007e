/* SPDX-License-Identifier: Apache-2.0 */
/* What a body of POST /v1/completions asks for, once it is read, and what it is held against. */
#ifndef API_COMPLETION_REQUEST_H
#define API_COMPLETION_REQUEST_H

#include "api/constraint.h"
#include "engine/model/author_sampling.h"
#include "engine/ops/sampler.h"
#include "lib/text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reply_warnings;
struct responses_echo;
struct chat_rules;
struct chat_syntax;
struct chat_template;

/* Either a text (text != NULL; may contain NULs) or token ids, all in [0, vocab_size). */
struct completion_prompt {
    char *text;             /* [length], and a NUL after it */
    size_t length;          /* bytes */
    struct span_list input; /* of a chat's text: where special tokens are text */
    int32_t *ids;           /* [num_ids] */
    size_t num_ids;         /* >= 1 unless a text */
};

struct completion_string {
    char *text;    /* [length], and a NUL after it */
    size_t length; /* >= 1 */
};

/* Most of bad_words in a request: each is looked for at every token. */
enum { COMPLETION_MOST_BAD_WORDS = 1024 };
#define COMPLETION_MOST_TOKENS (INT64_C(1) << 53) /* so that sums of token counts fit */

struct completion_request {
    struct completion_prompt *prompts; /* [num_prompts] */
    size_t num_prompts;                /* >= 1 */
    int64_t max_tokens;                /* 0..COMPLETION_MOST_TOKENS */
    bool max_tokens_fit;               /* so many as fit, from min_tokens */
    bool any_length;                   /* no max_tokens was given; then they fit */
    int64_t min_tokens;                /* >= 0, <= max_tokens */
    int n, best_of;                    /* best_of >= n >= 1 */
    bool stream;
    bool include_usage;          /* a last frame with the usage */
    bool continuous_usage_stats; /* usage on every frame */
    int logprobs;                /* -1: off; 0..20 */
    int prompt_logprobs;         /* the same */
    int32_t *logprob_token_ids;  /* [num_logprob_token_ids]: instead of the best; each once */
    size_t num_logprob_token_ids;
    int32_t *draft_token_ids; /* [num_draft_token_ids]: guesses of the reply (limits->drafts) */
    size_t num_draft_token_ids;
    bool echo;
    struct completion_string *stops; /* [num_stops] */
    size_t num_stops;
    struct completion_string *bad_words; /* [num_bad_words] */
    size_t num_bad_words;
    int32_t *stop_token_ids; /* [num_stop_token_ids], each once */
    size_t num_stop_token_ids;
    bool include_stop_str_in_output;
    bool ignore_eos;
    bool add_special_tokens, skip_special_tokens;
    bool return_token_ids, return_tokens_as_token_ids;
    int64_t truncate_prompt_tokens; /* keeps so many tokens; 0: all; -1: as many as leave room */
    bool truncate_end;              /* drops the last ones, not the first */
    bool seed_given;                /* false: the server draws sampling.seed */
    /* The request owns sampling.logit_bias and allowed. The server sets sampling.choice. */
    struct sampling sampling;
    struct constraint constraint;
    char *model;      /* the name that was asked for; "" or NULL: none */
    char *user;       /* NULL: absent */
    char *request_id; /* NULL: absent; else request_id_valid */
    char *cache_salt; /* NULL: absent; [cache_salt_length] */
    size_t cache_salt_length;
    int64_t priority;
    char *session_id;              /* NULL: none; else session_id_valid (sessions.h) */
    int64_t expected_position;     /* tokens that the session must hold; -1: any number */
    bool store;                    /* false: reads the session, does not change it */
    struct completion_string chat; /* the body of a chat; text NULL: it is none */
    int64_t thinking_budget;       /* of a chat: tokens of thought that it may have; -1: any */
    bool chat_replied;             /* its messages have one of the assistant */
    bool seals_thoughts;           /* its replies show none (sealed_thought.h) */
    bool chat_shortens;            /* turns of it may go where there is no room (chat_shorten.h) */
    struct chat_rules *chat_rules; /* of a chat that is rendered: how its replies are taken apart */
    bool kept;                     /* a response: it becomes a session, by the name of its reply */
    char *begins_with; /* NULL; or the response that it goes on from, which must be there */
    struct responses_echo *echoed; /* of /v1/responses: what its replies say again */
};

/* What a request is checked against. */
struct completion_limits {
    const char *const *models; /* [num_models]: names of the served model and patterns of others */
    size_t num_models;
    int32_t vocab_size;         /* of the model: number of logits per position */
    int64_t max_model_len;      /* prompt + generated tokens; 0: unlimited */
    int64_t default_max_tokens; /* of a chat that names no max_tokens, without max_model_len */
    const char *limited_by;     /* what sets max_model_len, for messages; NULL: "--max-model-len" */
    size_t max_prompts;         /* of one request; 0: unlimited */
    bool allow_empty_prompt;    /* "" is allowed: the model has a BOS token to start from */
    bool token_ids_only; /* there is no tokenizer: texts are refused, replies have token ids */
    const struct chat_template *chat;       /* for the chat API; NULL: there is no tokenizer */
    const struct chat_syntax *syntax;       /* [2]: of its template, and of that for tools */
    bool reasoning;                         /* reasoning is split off */
    const struct author_sampling *sampling; /* of requests that say nothing; NULL: the API's */
    bool content_tokens;    /* special tokens in what the clients of chats wrote are such */
    bool response;          /* is kept, or goes on from one: it will have a session */
    bool drafts;            /* for tests: requests may guess their replies */
    const char *session_id; /* of the request's X-Session-Id, valid; NULL: it has none */
    struct reply_warnings *warnings; /* where those of the request go; NULL: nowhere */
};

#endif
