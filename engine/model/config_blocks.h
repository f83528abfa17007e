/* SPDX-License-Identifier: Apache-2.0 */
/* layer_types and blocks of the family regla's config.json: what its layers are made of. */
#ifndef ENGINE_MODEL_CONFIG_BLOCKS_H
#define ENGINE_MODEL_CONFIG_BLOCKS_H

#include "engine/model/config.h"

/* Fills kinds and layer_kinds. All else of config has been read. */
int config_blocks_parse(struct config *config, const struct fields *root, struct error *err);

#endif
