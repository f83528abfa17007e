/* SPDX-License-Identifier: Apache-2.0 */
/* A text's part of a step, and what is wanted of it (engine.h). */
#ifndef ENGINE_SPAN_H
#define ENGINE_SPAN_H

#include <stdint.h>

struct state;
struct draw; /* sampler.h */

enum { ENGINE_MOST_KEPT = 16 }; /* tokens that a text may go back over */

/* Consecutive tokens of one text in a step, and what is wanted of them. */
struct span {
    struct state *state;   /* no two spans of a step may share one */
    const int32_t *tokens; /* [num_tokens], each in [0, vocab_size); NULL: engine_submit */
    int num_tokens;        /* >= 1 */
    int num_logits;        /* the last num_logits positions want logits; 0..num_tokens */
    const float *logits;   /* out: [num_logits, vocab_size], valid until the next step */
    struct draw *draw;     /* NULL, or: draw the token after these. num_logits must be 0 then,
                            * and no two draws of a step may share a sampler */
    int num_hidden; /* the last num_hidden positions want their hidden rows, which the head reads
                       (behind the last norm); 0..num_tokens; 0 without engine_options.hidden */
    const float *hidden; /* out: [num_hidden, hidden_size], valid until the next step */
    int num_kept; /* the text may go back over its last num_kept tokens; at most ENGINE_MOST_KEPT,
                     of a step max_step_kept, and less than num_tokens */
};

#endif
