/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the reply to POST /v1/completions, and the parts that its stream shares (sse.h). Encoders
 * append to a strbuf and keep nothing. */
#ifndef API_COMPLETION_REPLY_H
#define API_COMPLETION_REPLY_H

#include "api/chat_call.h"
#include "api/reply_warnings.h"
#include "api/sessions.h"
#include "api/strbuf.h"
#include "engine/ops/sampler.h"
#include "lib/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct responses_echo;

/* The fields that all parts of one reply share. */
struct reply_head {
    const char *id;                        /* "cmpl-..." */
    int64_t created;                       /* seconds since 1970 */
    const char *model;                     /* the served name */
    const char *system_fingerprint;        /* build, model and kernel set */
    const struct reply_warnings *warnings; /* NULL: this part tells none */
    const struct responses_echo *echo;     /* of /v1/responses */
    int64_t ended;                         /* its text; as created; 0: not yet */
    bool seals;                            /* thoughts are told as letters (sealed_thought.h) */
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_TOOL_CALLS };

/* One token's entry in `logprobs`. */
struct reply_token {
    int32_t id;
    int32_t rank;        /* 1: the likeliest; with prompt_logprobs, else 0 */
    int64_t text_offset; /* characters of the choice's own text before this token */
    bool has_logprob;    /* false: null (the first token of an echoed prompt) */
    float logprob;
    const struct token_logprob *top; /* [num_top], best first; the token itself may be missing */
    int num_top;
};

struct reply_logprobs {
    const struct tokenizer *tokenizer;
    const struct reply_token *tokens; /* [num_tokens] */
    size_t num_tokens;
    bool as_token_ids; /* every token string is "token_id:N" */
    bool listed;       /* top has the tokens that were asked for, not the best */
};

/* prompt_logprobs: of every token its own log-probability, and the num_top best. */
struct reply_prompt_logprobs {
    const struct tokenizer *tokenizer;
    const struct reply_token *tokens; /* [num_tokens], whose top has num_top at least */
    size_t num_tokens;
    int num_top;
};

struct reply_usage {
    int64_t prompt_tokens, completion_tokens, cached_tokens;
    const char *cache_miss_reason; /* NULL: not known yet; "none", "no_checkpoint", "diverged",
                                      "evicted", "disabled" */
    int64_t diverged_at;           /* "diverged": from which token of the prompt on; else -1 */
    int64_t diverged_message;      /* of a chat: in which message; else -1 */
    bool chat;                     /* says how many are reasoning_tokens */
    int64_t reasoning_tokens;      /* of completion_tokens */
};

/* A stream of a choice in blocks, as /v1/messages and /v1/responses have it. Zero-initialise;
 * reply_blocks_clear frees. */
struct reply_blocks {
    bool begun;    /* what stands before the blocks has been told */
    int64_t count; /* of blocks that were begun */
    int open;      /* what the last of them is, while more may come; 0: it has ended */

    /* Of /v1/responses, whose last event has all of the reply. */
    int64_t events;                  /* that have been written */
    enum finish_reason finish;       /* of the choice, once it has ended */
    bool undecided;                  /* pending may be thoughts */
    struct strbuf text;              /* of the open block; of a call its arguments */
    struct strbuf name;              /* of the open call */
    struct strbuf output;            /* those that have ended */
    struct strbuf logprobs, pending; /* of tokens that the open block has, and of the next */
    bool bare;                       /* without those, and without warnings, as a kept one is */
    bool tells;                      /* how its items are told is noted (responses_replay.h) */
    struct strbuf told;              /* of each, with commas between */
    struct strbuf deltas;            /* bytes of each so far, of the open item */
};
void reply_blocks_clear(struct reply_blocks *blocks);
/* What it holds. */
size_t reply_blocks_bytes(const struct reply_blocks *blocks);

/* One choice: all of it or, in a stream, what is new of it. */
struct reply_choice {
    int index;
    const char *text; /* [text_length], UTF-8; NULL: empty */
    size_t text_length;
    enum finish_reason finish_reason;
    const char *stop_string; /* [stop_string_length]: the stop string that ended it, or NULL */
    size_t stop_string_length;
    int32_t stop_token;                                  /* the stop token that ended it, or -1 */
    const struct reply_logprobs *logprobs;               /* NULL: null */
    const struct reply_prompt_logprobs *prompt_logprobs; /* the same; in a stream likewise only in
                                                            the first part */
    const int32_t *token_ids;                            /* [num_token_ids]; NULL: not requested */
    size_t num_token_ids;
    const int32_t
        *prompt_token_ids; /* [num_prompt_token_ids], or NULL; in a stream only in the first part */
    size_t num_prompt_token_ids;
    bool begins;                      /* in a stream: its first part */
    const struct reply_usage *before; /* begins, in a chat: what the frames before it have told */

    /* Of a chat. */
    const char *reasoning; /* [reasoning_length], UTF-8; NULL: none */
    size_t reasoning_length;
    const struct chat_call *calls; /* [num_calls]; in a stream also parts of them (chat_call.h) */
    size_t num_calls;
    bool demanded;               /* calls are */
    size_t first_call;           /* in a stream: the index of the first of these */
    struct reply_blocks *blocks; /* in a stream: its own, of all its choices */
    int64_t text_from; /* tokens of the text are those from that text_offset on; -1: it is not
                          known yet whether these are thoughts */
};

struct reply_timings {
    double queue_ms, prefill_ms, decode_ms;
    double prefill_tokens_per_second, decode_tokens_per_second; /* NaN: null */
};

/* The whole reply of a request without `stream`. session NULL: the request has none. */
void completion_reply_encode(struct strbuf *buf, const struct reply_head *head,
                             const struct reply_choice *choices, size_t num_choices,
                             const struct reply_usage *usage, const struct reply_timings *timings,
                             const struct session_card *session);

/* Parts of a reply, for sse.c: members or objects without what surrounds them. */
void reply_head_encode(struct strbuf *buf, const struct reply_head *head,
                       const char *object); /* "id":...,"model":... and, if any, warnings */
void reply_choice_encode(struct strbuf *buf, const struct reply_choice *choice);
/* ,"finish_reason":...,"token_ids":... */
void reply_ending_encode(struct strbuf *buf, const struct reply_choice *choice);
/* ,"prompt_token_ids":...,"prompt_logprobs":... */
void reply_prompt_encode(struct strbuf *buf, const struct reply_choice *choice);
void reply_usage_encode(struct strbuf *buf, const struct reply_usage *usage);
/* "usage":...,"timings":... and, if there is one, "session":... */
void reply_account_encode(struct strbuf *buf, const struct reply_usage *usage,
                          const struct reply_timings *timings, const struct session_card *session);

/* A token's string as logprobs print it: its text; "bytes:\xe2\x80" (each byte in hexadecimal)
 * when it is not whole characters; "token_id:N" when it has no text. */
void reply_token_string(struct strbuf *buf, const struct tokenizer *tokenizer, int32_t id);

#endif
