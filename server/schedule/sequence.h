/* SPDX-License-Identifier: Apache-2.0 */
/* One text that the engine advances: its state, and how its next token is drawn. A text that is set
 * aside has no state, and all else: it goes on with the same bits.
 *
 * Turns its tokens into text that never shows a stop string or half a character. All functions are
 * for the engine thread. */
#ifndef SERVER_SCHEDULE_SEQUENCE_H
#define SERVER_SCHEDULE_SEQUENCE_H

#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "lib/grammar/grammar_text.h"
#include "lib/text/detokenize.h"
#include "server/schedule/bad_words.h"
#include "server/schedule/job.h"
#include "server/schedule/thinking.h"

/* Tokens that a text that decodes has memory for, in a step and those that overlap it. */
enum { SEQUENCE_ROOM = 16 };

/* What the text shares with others (prefix.h). */
struct prefix {
    struct space *space;
    bool keeps;              /* leaves checkpoints */
    int64_t cached;          /* tokens of the prompt that were not computed here */
    enum miss_reason miss;   /* why there were no more of them */
    int64_t diverged_at;     /* MISS_DIVERGED: tokens that the tree knows; else -1 */
    int64_t branch_at;       /* two prompts part there, so a checkpoint is due; 0: nowhere */
    struct sequence *leader; /* computes the prompt up to wait_at for this text, too; or NULL */
    int64_t wait_at;
    int waiters;           /* texts whose leader this is */
    bool left;             /* it was set aside, so that states of it are in the tree */
    bool asked;            /* other servers were asked for its prompt */
    uint64_t ask;          /* shared_prefixes.h */
    size_t row;            /* in the step's plan */
    struct token_list ids; /* generated, without an EOS or stop token that ended the text */
};

struct sequence {
    struct job *job;
    struct job_prompt *prompt;
    struct job_choice *choice;
    int index;   /* of the choice, within the request */
    size_t held; /* bytes, that the job has reserved for it */
    struct state *state;
    struct sampler *sampler;
    struct draw draws[2]; /* for tokens of even and of odd index */
    struct detokenizer *detokenizer;
    struct stop_scan scan;
    struct bad_words_text words; /* if the job has any of several tokens */
    struct grammar_text *form;   /* what constrains the text; NULL: nothing */
    size_t form_held;            /* bytes of `held` that are for it */
    const uint32_t *mask;        /* of the next draw; NULL without a form */
    bool mask_due;               /* it is to be made before the next draw */
    struct thinking thinking;    /* of a chat with a budget for it */
    int64_t taken;               /* tokens of the prompt that the state holds */
    int32_t next_token;          /* to feed next, once the prompt is done */
    bool decoding;               /* the prompt is done */
    uint64_t number;             /* later texts have larger ones */
    int64_t placed_at;           /* sequence_length when it got its place in the batch */
    int64_t again;               /* tokens that it had to take once more then */
    uint64_t stepped;            /* of the plan: plan_row.stepped */
    bool has_run;                /* its start was counted */
    bool blocked;                /* it waits for a file */
    bool paused;                 /* aside: its reader was behind when it was last looked at */
    struct prefix prefix;
    int64_t characters; /* of the choice's text so far, echo included */
    double opened;      /* clock_seconds() */
    double first_token, last_token;
};

/* Opens the text of choice `index`. The caller sets its state. */
int sequence_open(struct sequence **out, struct job *job, size_t index, struct error *err);
void sequence_close(struct sequence *sequence);

/* Tokens that its state must hold before it goes on; those that it may come to at most. */
int64_t sequence_length(const struct sequence *sequence);
int64_t sequence_most(const struct sequence *sequence);
/* Of these tokens the ones that its state has still to take once more: it was set aside, and had to
 * begin on an earlier state. */
int64_t sequence_behind(const struct sequence *sequence);

/* The prompt is done: sends a stream its echo. From now on the text generates, unless
 * choice->finish says that it has ended: no token is asked for, or its form is whole without one.
 */
int sequence_begin(struct sequence *sequence, struct error *err);

/* How to draw the next token, for the engine or sampler_draw; with `ahead`, the one after it. */
struct draw *sequence_draw(struct sequence *sequence, bool ahead);
/* Takes the token that was drawn, and adds it to *generated. Afterwards choice->finish says whether
 * the text has ended. -1: the text cannot continue. */
int sequence_take(struct sequence *sequence, double now, int *generated, struct error *err);
/* Makes the mask that is due, and adds the steps that it took to *work. -1 as sequence_take. */
int sequence_mask(struct sequence *sequence, size_t *work, struct error *err);

#endif
