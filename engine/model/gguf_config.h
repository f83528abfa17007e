/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file as the folder of the same model: its metadata as config.json, and its tensors under
 * the folder's names. So a family reads both with the same code; it only says in a table what
 * llama.cpp calls its keys and tensors (gguf.md). */
#ifndef ENGINE_MODEL_GGUF_CONFIG_H
#define ENGINE_MODEL_GGUF_CONFIG_H

#include "engine/model/tensors.h"
#include "lib/base/gguf.h"

struct config;

/* A key of the metadata below "ARCHITECTURE.", and of config.json. */
struct gguf_key {
    const char *key;
    const char *name; /* NULL: the family's `complete` reads it */
    enum field_need need;
};

/* How the file has a tensor otherwise than the folder. */
enum gguf_how {
    GGUF_SAME,
    GGUF_STACKED,   /* rows: q of all heads, k of all, v of all; the model has q, k, v by head */
    GGUF_PAIRED,    /* rows of a head: the first of each half, the second of each, ... */
    GGUF_ONE_ADDED, /* a norm of 1 + w: the file has the sums */
    GGUF_FLAT,      /* a vector, which the file has in several dimensions */
    GGUF_DECAY_AS_IT_IS, /* as GGUF_DECAY, in the folder's order */
    GGUF_DECAY,          /* a vector by value head, of A_log: the file has -e^A_log */
    /* Rows by value head, or numbers: the first of each key head, the second of each, ... In `last`
     * those of the last rows alone; the others are by themselves. */
    GGUF_VALUE_HEADS,
    GGUF_VALUE_HEADS_WHOLE, /* the same; the name is a whole one */
    GGUF_VALUE_HEADS_LAST,
};

/* A tensor without .weight and .bias; one that has neither gets .weight, unless it is a vector by
 * itself: GGUF_FLAT, both kinds of GGUF_DECAY, GGUF_VALUE_HEADS_WHOLE. A * in both is the number of
 * the layer. */
struct gguf_name {
    const char *gguf, *name;
    enum gguf_how how;
};

/* Where a configuration comes from. */
struct gguf_source {
    const struct gguf *gguf;
    const char *architecture; /* general.architecture */
    bool partial;             /* as the family's gguf_names */
    int64_t blocks, layers;   /* layers of the file, and those that are computed; 0: not said */
    struct tensors *tensors;  /* still under the names of the file */
};

struct gguf_names {
    const char *architecture;      /* NULL: only a base of others */
    const struct gguf_names *base; /* adds what is not here, keys too; its `complete` comes first */
    bool partial;                  /* heads may turn in part */
    const struct gguf_key *keys;
    size_t num_keys;
    const struct gguf_name *names;
    size_t num_names;
    /* Adds to config what is more than another name. NULL: nothing is. */
    int (*complete)(json_t *config, const struct gguf_source *source, struct error *err);
    /* Applies tensors that are no weights, once the family has read the configuration and tensors
     * have the folder's names. NULL: as the base says, or nothing. */
    int (*finish)(struct config *config, struct tensors *tensors, struct error *err);
    const struct gguf_names *also; /* of another architecture of the family; or NULL */
};

/* Makes *json, which the caller json_decrefs. tensors still have the names of the file. Warns of
 * keys that nobody knows. */
int gguf_config(json_t **json, const struct gguf_names *names, const char *model_type,
                const struct gguf *gguf, struct tensors *tensors, struct error *err);

/* Gives the tensors the folder's names, once a family has made *config of what gguf_config made. A
 * tensor that `names` lacks is an error. */
int gguf_config_finish(struct config *config, const struct gguf_names *names, const json_t *json,
                       struct tensors *tensors, struct error *err);

/* For `complete`. "ARCHITECTURE.key" into full; returns full. */
enum { GGUF_KEY_SIZE = 120 };
const char *gguf_config_key(char full[GGUF_KEY_SIZE], const struct gguf_source *source,
                            const char *key);
/* config.name = the value of ARCHITECTURE.key, if it is there. */
int gguf_config_copy(json_t *config, const char *name, const struct gguf_source *source,
                     const char *key, enum field_need need, struct error *err);
/* An integer, or a list of one for each layer, all the same. As gguf_int. */
int gguf_config_int(const struct gguf_source *source, const char *key, enum field_need need,
                    int64_t min, int64_t max, int64_t *value, struct error *err);
/* Integers or BOOLs by layer: a list, or one for all. *list is NULL where there are none. */
int gguf_config_list(const struct gguf_source *source, const char *key,
                     const struct gguf_entry **list, struct error *err);
/* That of a layer; a BOOL is 0 or 1. */
int64_t gguf_config_at(const struct gguf_entry *list, int64_t layer);
/* config.name = value, of which it takes the reference; NULL: there was no memory for it. */
int gguf_config_set(json_t *config, const char *name, json_t *value, struct error *err);

#endif
