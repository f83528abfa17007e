/* SPDX-License-Identifier: Apache-2.0 */
/* One text that the engine advances: its state, how its next token is drawn, and how its tokens
 * become text that never shows a stop string or half a character. The engine thread's. */
#ifndef SERVER_SCHEDULE_SEQUENCE_H
#define SERVER_SCHEDULE_SEQUENCE_H

#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "engine/text/detokenize.h"
#include "server/schedule/job.h"

/* How a text shares what it begins with: server/schedule/prefix.h. */
struct prefix {
    struct space *space;
    bool keeps;              /* leaves checkpoints */
    int64_t cached;          /* tokens of the prompt that others have computed */
    enum miss_reason miss;   /* why no more of them */
    int64_t branch_at;       /* a checkpoint is due there: two prompts part; 0: nowhere */
    struct sequence *leader; /* NULL, or who computes the prompt up to wait_at for this text */
    int64_t wait_at;
    int waiters;           /* texts whose leader this is */
    bool lost;             /* its leader has gone */
    size_t row;            /* of the step's plan */
    struct token_list ids; /* generated, without an EOS or stop token that ended the text */
};

struct sequence {
    struct job *job;
    struct job_prompt *prompt;
    struct job_choice *choice;
    int index; /* of the choice, within the request */
    struct state *state;
    struct sampler *sampler;
    struct draw draws[2]; /* of every other token */
    struct detokenizer *detokenizer;
    struct stop_scan scan;
    int64_t taken;      /* tokens of the prompt that the state holds */
    int32_t next_token; /* to feed next, once the prompt is done */
    bool decoding;      /* the prompt is done */
    struct prefix prefix;
    int64_t characters; /* of the choice's text so far, echo included */
    double last_token;  /* clock_seconds() */
    double first_token;
};

/* A text for choice `index`; its state is the caller's to set. */
int sequence_open(struct sequence **out, struct job *job, size_t index, struct error *err);
void sequence_close(struct sequence *sequence);

/* The prompt is done: tells a stream so (its echo), and makes ready to generate. */
int sequence_begin(struct sequence *sequence, struct error *err);

/* What is to be drawn next, for the engine or sampler_draw; `ahead`: after that. */
struct draw *sequence_draw(struct sequence *sequence, bool ahead);
/* Takes what was drawn: afterwards choice->finish says whether the text has ended. -1 with *err
 * when the text cannot go on. */
int sequence_take(struct sequence *sequence, double now, struct error *err);

#endif
