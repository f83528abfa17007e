/* SPDX-License-Identifier: Apache-2.0 */
/* Gated Linear Attention, as `flash-linear-attention` saves GLAForCausalLM. */
#ifndef ENGINE_MODEL_FAMILY_GLA_H
#define ENGINE_MODEL_FAMILY_GLA_H

#include "engine/base/fields.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

int family_gla_parse(struct config *config, const struct fields *root, struct error *err);

/* Fills model's norms, matrices and layers [config->num_layers]. */
int family_gla_bind(struct model *model, const struct config *config, struct weights *weights,
                    struct error *err);

#endif
