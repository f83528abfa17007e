/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file as the folder of the same model: its metadata as config.json, and its tensors under
 * the folder's names. So a family reads both with the same code; it only says in a table what
 * llama.cpp calls its keys and tensors (gguf.md). */
#ifndef ENGINE_MODEL_GGUF_CONFIG_H
#define ENGINE_MODEL_GGUF_CONFIG_H

#include "engine/base/gguf.h"
#include "engine/model/tensors.h"

/* A key of the metadata below "ARCHITECTURE.", and of config.json. */
struct gguf_key {
    const char *key;
    const char *name; /* NULL: the family's `complete` reads it */
    enum field_need need;
};

/* In which order the file has the rows of a matrix and the numbers of its bias. */
enum gguf_rows {
    GGUF_ROWS_SAME,
    GGUF_ROWS_STACKED, /* q of all heads, k of all, v of all, where the model has q, k, v by head */
};

/* A tensor without .weight and .bias. A * in both is the number of the layer. */
struct gguf_name {
    const char *gguf, *name;
    enum gguf_rows rows;
};

struct gguf_names {
    const char *architecture; /* general.architecture */
    const struct gguf_key *keys;
    size_t num_keys;
    const struct gguf_name *names;
    size_t num_names;
    /* Adds to config what is more than another name. NULL: nothing is. */
    int (*complete)(json_t *config, const struct gguf *gguf, struct error *err);
};

/* Makes *config, which the caller json_decrefs. tensors still have the names of the file. Warns of
 * keys that nobody knows. */
int gguf_config(json_t **config, const struct gguf_names *names, const char *model_type,
                const struct gguf *gguf, struct tensors *tensors, struct error *err);

/* Gives the tensors the folder's names. A tensor that `names` lacks is an error. */
int gguf_config_rename(const struct gguf_names *names, int64_t num_heads, struct tensors *tensors,
                       struct error *err);

#endif
