/* SPDX-License-Identifier: Apache-2.0 */
/* The texts that run: one step of the engine for as many of them as it has room for, what becomes
 * of its results, and who waits for whom. The engine thread's. */
#ifndef SERVER_SCHEDULE_BATCH_H
#define SERVER_SCHEDULE_BATCH_H

#include "server/schedule/inbox.h"
#include "server/schedule/plan.h"
#include "server/schedule/prefix.h"
#include "server/service.h"

/* What the engine is asked for at once. */
struct step {
    struct span *spans;        /* [max_tokens]: a span has at least one token */
    struct sequence **stepped; /* [max_tokens]: whose span it is */
    size_t num_spans;
};

struct batch {
    struct service *service;
    struct state_tree *tree;
    struct inbox *inbox;
    struct sequence **running; /* [num_running], oldest first */
    size_t num_running, capacity;
    struct plan_row *rows; /* [capacity] */
    struct state **states; /* [capacity]: a job's, while they are measured */
    struct plan_limits limits;
    struct plan_turn turn;
    struct step steps[2]; /* the second where steps overlap */
    int failed_steps;
    bool stalled; /* texts run, but all of them wait for their readers */
    bool lost;    /* some have lost their leaders */
};

/* The caller clears *batch in every case. prefill_chunk: as scheduler_create's. */
int batch_init(struct batch *batch, struct service *service, struct inbox *inbox, int max_texts,
               int prefill_chunk, struct error *err);
void batch_clear(struct batch *batch); /* no text runs any more */

/* Room for so many texts in all. */
int batch_reserve(struct batch *batch, size_t count, struct error *err);
/* Takes a text out, and closes it. */
void batch_close(struct batch *batch, size_t at);
/* A text of the job is about to end: notes the most state that its texts held together. */
void batch_note_bytes(struct batch *batch, struct job *job);

/* A text whose whole prompt was there, with its last logits [vocab_size]. */
int batch_begin_whole(struct batch *batch, struct sequence *sequence, const float *logits,
                      struct error *err);
/* Texts whose leaders have gone: each goes on from what there is, or waits for another. */
void batch_recover(struct batch *batch);

/* One step; whose job fails in it says so (job->failed). Where steps overlap, some more, as long as
 * the same texts go on and nothing else is to be done. */
void batch_step(struct batch *batch);

#endif
