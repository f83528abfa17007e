/* SPDX-License-Identifier: Apache-2.0 */
/* A step on the device: its batch on the way there (step.cu), its operations one by one, timed and
 * named for profilers (operations.cu), the graphs of steps that come again (graphs.cu), and the
 * tokens drawn from its logits (draws.cu). */
#ifndef ENGINE_CUDA_STEP_H
#define ENGINE_CUDA_STEP_H

#include "engine/cuda/device.h"

/* All that steps need, after backend->limits are known: they allocate nothing. */
int step_open(struct backend *backend, struct error *err);
void step_close(struct backend *backend); /* also of what is half open */
/* Sets begin, the operations, send, receive, measure and profile. */
void step_operations(struct ops *ops);

/* operations.cu */
void operations_set(struct ops *ops);
/* Adds the times of the step that has just been waited for. */
void operations_count(struct backend *backend);
void operations_close(struct backend *backend);

/* graphs.cu. What a step's launches depend on, beyond the model: */
struct graph_key {
    int rows; /* padded */
    int64_t max_end;
};

/* The rows a step of `rows` rows of one token each is padded to; 0: it runs as it is. */
int graphs_bucket(const struct backend *backend, int rows);
/* The step's launches are taken from a graph, put into one, or neither. */
void graphs_begin(struct backend *backend, const struct graph_key *key);
void graphs_finish(struct backend *backend);
void graphs_close(struct backend *backend);

/* draws.cu */
int drawing_open(struct backend *backend, struct error *err); /* after the limits are known */
void drawing_close(struct backend *backend);                  /* also of what is half open */
size_t drawing_scratch(const struct backend *backend);        /* of device_scratch */
/* Hands out what was drawn in a step that has just been waited for. */
void drawing_take(struct backend *backend, int number);
/* Puts what was drawn in the step before into the rows of this one: arrays as of device_batch, and
 * [num_rows] which draw, or -1. */
void drawing_feed(struct backend *backend, const int32_t *token_draws, const int32_t *row_span,
                  int num_rows, int32_t *tokens, struct device_span *spans);

#endif
