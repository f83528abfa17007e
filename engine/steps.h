/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of an engine: checks what spans ask for, lays them out as a batch, and hands on what
 * comes back. Two may be under way where the device overlaps them. */
#ifndef ENGINE_STEPS_H
#define ENGINE_STEPS_H

#include "engine/forward.h"
#include "engine/kept.h"
#include "engine/state_memory.h"

/* A step under way. */
struct flight {
    struct span *spans; /* [num_spans], the caller's */
    int num_spans;
};

struct steps {
    const struct engine_info *info;
    const struct ops *ops;
    struct backend *backend;
    struct forward *forward;
    const struct state_memory *memory;
    int hidden_size;
    /* arrays of a step */
    int32_t *tokens;          /* [max_step_tokens] */
    int64_t *positions;       /* [max_step_tokens] */
    int32_t *logit_rows;      /* [max_step_logits] */
    struct draw **draws;      /* [max_step_logits] */
    int32_t *token_draws;     /* [max_step_tokens] */
    struct batch_span *spans; /* [max_step_tokens]: every span has a token */
    struct kept kept;
    float *hidden;     /* [max_step_tokens, hidden_size], of the last step; NULL: without */
    const void **seen; /* hash table [seen_size] of the states and samplers of a step */
    size_t seen_size;
    struct flight flights[2]; /* [num_flights], the older first */
    int num_flights;
};

/* What steps->info says of a step's size; all above the arrays is set but for memory. The caller
 * closes it in every case. */
int steps_open(struct steps *steps, bool poison, struct error *err);
void steps_close(struct steps *steps);

/* engine_submit, engine_collect, engine_go_back (engine.h) */
int steps_submit(struct steps *steps, struct span *spans, int num_spans, struct error *err);
int steps_collect(struct steps *steps, struct error *err);
int steps_go_back(struct steps *steps, struct state *state, int tokens, struct error *err);

#endif
