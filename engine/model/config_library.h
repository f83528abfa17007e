/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that transformers reads in every config.json and generation_config.json, whatever the model,
 * and that this program refuses, warns of, or shares among families. config-keys.md lists all. */
#ifndef ENGINE_MODEL_CONFIG_LIBRARY_H
#define ENGINE_MODEL_CONFIG_LIBRARY_H

#include "engine/model/config.h"

/* A key that would change what is computed, and the values that ask for nothing, as JSON, parted by
 * spaces; null always does. */
struct config_refusal {
    const char *key, *nothing;
};

int config_library_refuse(const struct fields *root, const struct config_refusal *refusals,
                          size_t count, struct error *err);

/* The keys of a config.json of transformers that have nothing to do with its model_type: refuses
 * some, takes quantization_config and dtype, warns of defaults of generate. */
int config_library_keys(struct config *config, const struct fields *root, struct error *err);

/* quantization_config, of which only what `regla quantize` writes is known. */
int config_library_blocks(struct config *config, const struct fields *root, struct error *err);

/* An activation, by any of the names that transformers has for it. */
int config_library_act(const struct fields *root, const char *key, enum hidden_act *act,
                       struct error *err);

/* A cap c of c tanh(z / c). null: 0, none; absent it stays as it is. */
int config_library_softcap(const struct fields *root, const char *key, float *softcap,
                           struct error *err);

/* Refuses what would change which keys a token sees; windows: but for the keys of windows. */
int config_library_attention(const struct fields *root, bool windows, struct error *err);

/* Takes bos_token_id and eos_token_id from the text of generation_config.json, where it has them,
 * and warns of defaults of generate that nobody here applies; author_sampling.h has the others. */
int config_library_generation(struct config *config, const char *text, size_t length,
                              struct error *err);

/* A name in a list of layers, and the kind that it means. */
struct config_layer_name {
    const char *name;
    int kind;
};

/* Kinds [num_layers; if that is 0, as many as there are], in the arena, of a list `key` of names
 * [count], of which errors tell the first `told`. *kinds is NULL where there is no such key. */
int config_library_layers(int **kinds, struct config *config, const char *key,
                          const struct config_layer_name *names, int told, int count,
                          const struct fields *root, struct error *err);

#endif
