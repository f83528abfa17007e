/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the tables of a mixer's position encoding: reads them from its tensors or computes them. */
#ifndef ENGINE_MODEL_POSITION_TABLES_H
#define ENGINE_MODEL_POSITION_TABLES_H

#include "engine/model/model.h"
#include "engine/model/random_list.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"

/* Fills mixer->position and features_positioned. The mixer must have its kind, num_heads, head_dim
 * and features, and its position's kind, base and basis. prefix is the mixer's,
 * "model.layers.3.attn"; the tensors are below prefix.position. */
int position_tables_bind(struct weights *weights, struct mixer *mixer, const char *prefix,
                         const struct rope *rope, struct error *err);

/* Lists the same tensors of a preset; m: features of a head. */
void position_tables_random(struct random_list *list, const char *prefix, const struct mixer *mixer,
                            int64_t m);

#endif
