/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a step on the device: sends its batch (step.cu, arrival.cu), launches its operations one by
 * one, timed and named for profilers (operations.cu), records and replays graphs of repeated steps
 * (graphs.cu), and draws tokens from its logits (draws.cu). */
#ifndef ENGINE_CUDA_STEP_H
#define ENGINE_CUDA_STEP_H

#include "engine/cuda/device.h"

/* Allocates all that steps need, once backend->limits are known. Steps allocate nothing. */
int step_open(struct backend *backend, struct error *err);
void step_close(struct backend *backend); /* also of what is half open */
/* Sets what a step goes through: begin, run, draw, send, receive; and perform and profile. */
void step_operations(struct ops *ops);

/* operations.cu */
void operations_set(struct ops *ops);
void operations_perform(struct backend *backend, const struct operation *operation, int num_rows);
/* Adds the times of the step that has just ended. */
void operations_count(struct backend *backend);
void operations_close(struct backend *backend);

/* graphs.cu. What a step's launches depend on besides the model: */
struct graph_key {
    int rows;   /* padded */
    bool draws; /* the batch says what they ask for */
    int64_t max_end;
    int image; /* which of the host's two images kernels read; not part of the kind */
};

/* The number of rows to which a step with `rows` rows of one token each is padded; 0: no padding.
 */
int graphs_bucket(const struct backend *backend, int rows);
/* Replays the step's launches from a graph, records them into one, or does neither. */
void graphs_begin(struct backend *backend, const struct graph_key *key);
void graphs_finish(struct backend *backend);
void graphs_close(struct backend *backend);

/* draws.cu */
int drawing_open(struct backend *backend, struct error *err); /* after the limits are known */
void drawing_close(struct backend *backend);                  /* also of what is half open */
size_t drawing_scratch(const struct backend *backend);        /* of device_scratch */
/* Gives the results of the draws of the step that has just ended to their texts. */
void drawing_take(struct backend *backend, int number);
/* On the device: what the step before has drawn, by the number of the draw. */
const struct sampling_drawn *drawing_results(const struct backend *backend);
/* Looks at what draws ask for, and keeps it for drawing_ask. Returns how many of them, from the
 * first on, have lists of no more than `room` bytes together. */
int drawing_look(struct backend *backend, struct draw *const *draws, int count, size_t room);
/* Writes what the draws that were looked at ask for to asked [rows], where rows >= count is
 * nobody's, and their lists from byte `lists` on, a multiple of 8, counted from `asked`. Returns
 * where they end. */
size_t drawing_ask(const struct backend *backend, struct draw *const *draws, int count, int rows,
                   struct sampling_text *asked, size_t lists);

#endif
