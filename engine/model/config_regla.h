/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the native family's config.json (model-format.md): keys, defaults, refused combinations.
 */
#ifndef ENGINE_MODEL_CONFIG_REGLA_H
#define ENGINE_MODEL_CONFIG_REGLA_H

#include "engine/model/config.h"
#include "lib/base/fields.h"

int config_regla_parse(struct config *config, const struct fields *root, struct error *err);

#endif
