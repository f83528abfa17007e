/* SPDX-License-Identifier: Apache-2.0 */
/* The native family's tensors (model-format.md): names, shapes, sizes per head. */
#ifndef ENGINE_MODEL_FAMILY_REGLA_H
#define ENGINE_MODEL_FAMILY_REGLA_H

#include "engine/model/config.h"
#include "engine/model/weights.h"

/* Fills model's norms, matrices and layers [config->num_layers]. */
int family_regla_bind(struct model *model, const struct config *config, struct weights *weights,
                      struct error *err);

#endif
