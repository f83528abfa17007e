/* SPDX-License-Identifier: Apache-2.0 */
/* Runs texts: puts as many of them into a step of the engine as it has room for, and hands each its
 * results. Knows which text waits for which.
 *
 * A text has a place in the batch, and a state; or it is aside, without one. Aside is what waits
 * for a place, for memory, for a file, or for its leader (prefix.h). All functions are for the
 * engine thread. */
#ifndef SERVER_SCHEDULE_BATCH_H
#define SERVER_SCHEDULE_BATCH_H

#include "server/schedule/inbox.h"
#include "server/schedule/pace.h"
#include "server/schedule/plan.h"
#include "server/schedule/prefix.h"
#include "server/schedule/tenants.h"
#include "server/service.h"

/* After so many overlapping steps the scheduler looks around. */
enum { BATCH_MOST_STEPS = SEQUENCE_ROOM };

/* One call of the engine. */
struct step {
    struct span *spans;        /* [max_tokens]: a span has at least one token */
    struct sequence **stepped; /* [max_tokens]: whose span it is */
    size_t num_spans;
    int32_t *tokens; /* [max_tokens]: of spans with drafts */
    double prompt_s; /* what its prompts should take (pace.h) */
    bool drafts;     /* it has some: what it takes says nothing of other steps */
};

struct batch {
    struct service *service;
    struct state_tree *tree;
    struct inbox *inbox;
    struct sequence **running; /* [num_running], oldest first */
    size_t num_running, capacity;
    struct sequence **aside; /* [num_aside], oldest first */
    size_t num_aside, aside_capacity;
    struct plan_row *rows; /* [capacity] */
    struct state **states; /* [capacity]: a job's, while they are measured */
    struct plan_limits limits;
    struct plan_turn turn;
    size_t mask_row; /* whose mask is made first in the next turn */
    struct pace pace;
    double shared_s;      /* clock_seconds() of the last step that was not of one prompt alone */
    struct step steps[2]; /* the second is used where steps overlap */
    int failed_steps;
    int64_t experts_before; /* engine_experts_read, before the first step */
    int generated;          /* tokens, since the results of the last step began to be taken */
    bool stalled;           /* texts run, but all of them wait for their readers */
};

/* The caller clears *batch in every case. prefill_chunk, pace: as scheduler_create's. */
int batch_init(struct batch *batch, struct service *service, struct inbox *inbox, int max_texts,
               int prefill_chunk, const struct pace *pace, struct error *err);
void batch_clear(struct batch *batch); /* no text may run any more */

/* Makes room for `count` texts with a place in all, and for `aside` more texts aside. */
int batch_reserve(struct batch *batch, size_t count, size_t aside, struct error *err);
/* A text that is new; it is aside. */
void batch_open(struct batch *batch, struct sequence *sequence);
/* The text, which is aside, has its state, and gets a place. */
void batch_place(struct batch *batch, struct sequence *sequence);
/* Takes its place from the text at this index, and gives its state to the tree. */
void batch_set_aside(struct batch *batch, size_t at);
/* Takes the text at this index out, of those with a place or of those aside, and closes it. */
void batch_close(struct batch *batch, size_t at);
void batch_close_aside(struct batch *batch, size_t at);
/* Texts that wait for this one within its first `end` tokens lose their leader. */
void batch_lose_waiters(struct batch *batch, struct sequence *leader, int64_t end);
/* Whether the reader of the text's stream is behind. Its texts then pause, and the batch goes on. A
 * reader that takes nothing for too long is cancelled. */
bool batch_pauses(const struct sequence *sequence, double now);
/* Before a text of the job ends: updates job->run.peak_state_bytes. */
void batch_note_bytes(struct batch *batch, struct job *job);

/* Begins a text whose whole prompt the tree had; logits [vocab_size]: after its last token. */
int batch_begin_whole(struct batch *batch, struct sequence *sequence, const float *logits,
                      struct error *err);
/* Runs one step, and where steps overlap more of them, as long as the same texts continue and
 * nothing else is to be done. A job that fails in it gets its error (job_fail_engine). */
void batch_step(struct batch *batch);

#endif
