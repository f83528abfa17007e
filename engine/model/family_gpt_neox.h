/* SPDX-License-Identifier: Apache-2.0 */
/* Pythia / GPT-NeoX, as `transformers` 4 and 5 save GPTNeoXForCausalLM. */
#ifndef ENGINE_MODEL_FAMILY_GPT_NEOX_H
#define ENGINE_MODEL_FAMILY_GPT_NEOX_H

#include "engine/base/fields.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

int family_gpt_neox_parse(struct config *config, const struct fields *root, struct error *err);

/* Fills model's norms, matrices and layers [config->num_layers]; query_key_value is split. */
int family_gpt_neox_bind(struct model *model, const struct config *config, struct weights *weights,
                         struct error *err);

#endif
