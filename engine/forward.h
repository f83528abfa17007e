/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of a batch of spans, written once against engine/ops/ops.h.
 *
 * forward_open packs a model's weights and plans the state of a text and the workspace.
 * forward_submit queues the operations of one step: embeddings, the blocks, and the vocabulary
 * projection of the rows that want logits. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "engine/state_layout.h"

struct forward;

struct forward_options {
    int max_rows, max_logits;                         /* of a step */
    enum kv_format kv;                                /* never auto */
    enum weight_format weights;                       /* auto: each as in the file */
    bool poison;                                      /* fill the workspace with NaN first */
    void (*progress)(void *context, double fraction); /* may be NULL */
    void *progress_context;
};

/* Borrows model, ops and backend until forward_close. */
int forward_open(struct forward **out, const struct model *model, const struct ops *ops,
                 struct backend *backend, const struct forward_options *options, struct error *err);
void forward_close(struct forward *forward); /* NULL is allowed */

const struct state_layout *forward_layout(const struct forward *forward);
/* The bytes as packed (auto), or in another format. */
size_t forward_weights_bytes(const struct forward *forward, enum weight_format format);
size_t forward_workspace_bytes(const struct forward *forward);

/* Begins a step. Its arguments must have been checked, and its states must have their pages. The
 * batch may be changed at once. */
void forward_submit(struct forward *forward, const struct batch *batch);
/* Ends the oldest step that was begun. Returns the logits that no draw uses, [num_logits -
 * num_draws, V] in host memory, valid until the next step. On a failed device it returns NULL and
 * draws nothing. */
const float *forward_collect(struct forward *forward);

#endif
