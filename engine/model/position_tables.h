/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a mixer's position encoding: read from its tensors, or computed. */
#ifndef ENGINE_MODEL_POSITION_TABLES_H
#define ENGINE_MODEL_POSITION_TABLES_H

#include "engine/model/model.h"
#include "engine/model/weights.h"

/* Fills mixer->position and features_positioned. Needs kind, base, basis, num_heads, head_dim and
 * features. prefix: the mixer's, "model.layers.3.attn"; tensors are under prefix.position. */
int position_tables_bind(struct weights *weights, struct mixer *mixer, const char *prefix,
                         double rotary_pct, struct error *err);

#endif
