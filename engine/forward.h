/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of a batch of spans, as a program that is made once (engine/program/).
 *
 * forward_open packs a model's weights and makes its program: embeddings, the blocks, and the
 * vocabulary projection of the rows that want logits. It plans the state of a text with it.
 * forward_submit queues the program's operations for one step. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include "engine/model/model.h"
#include "engine/program/emitter.h"

struct forward;

/* Borrows model, ops and backend until forward_close. */
int forward_open(struct forward **out, const struct model *model, const struct ops *ops,
                 struct backend *backend, const struct emitter_options *options, struct error *err);
void forward_close(struct forward *forward); /* NULL is allowed */

const struct program *forward_program(const struct forward *forward);

/* Begins a step. Its arguments must have been checked, and its states must have their pages. The
 * batch may be changed at once. */
void forward_submit(struct forward *forward, const struct batch *batch);
/* Ends the oldest step that was begun. Returns the logits that no draw uses, [num_logits -
 * num_draws, V] in host memory, valid until the next step. On a failed device it returns NULL and
 * draws nothing. */
const float *forward_collect(struct forward *forward);

#endif
