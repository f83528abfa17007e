/* SPDX-License-Identifier: Apache-2.0 */
/* What the families of dense decoders share (llama, qwen3 and their kin, as transformers saves
 * them): layers of softmax attention with rotary embeddings and gated MLPs, and RMS norms. A family
 * says what its class takes for keys that a file leaves out, and which layers it has. */
#ifndef ENGINE_MODEL_DENSE_H
#define ENGINE_MODEL_DENSE_H

#include "engine/model/blocks.h"
#include "engine/model/config.h"
#include "engine/model/family.h"
#include "engine/model/rope.h"

/* What a class of transformers says of absent keys, and which keys it reads. */
struct dense_class {
    int64_t num_kv_heads; /* 0: as many as heads, which null always means */
    int64_t head_dim;     /* 0: hidden_size / num_attention_heads */
    bool head_dim_null;   /* null is as absent; else it is an error */
    int64_t longest;      /* max_position_embeddings */
    double rope_theta;
    double norm_eps;                 /* 0: 1e-6 */
    const char *act_key;             /* NULL: hidden_act */
    const char *eps_key, *inner_key; /* NULL: rms_norm_eps, intermediate_size */
    enum hidden_act act;
    bool tied;
    bool windows;                  /* it reads sliding_window or layer_types */
    bool attention_bias, mlp_bias; /* it reads these keys */
    bool qkv_bias;                 /* q_proj, k_proj and v_proj have a bias whatever they say */
    enum norm_kind qk_norm;
    enum norm_scope qk_norm_scope;
};

/* What all layers of a model have alike. A family may change it before it makes the layers. */
struct dense {
    struct mixer_config mixer; /* without window and position */
    struct layer_config layer; /* norms, scales, MLP */
};

/* A kind of layer. */
struct dense_kind {
    const char *name;
    int64_t window;                   /* tokens; 0: full */
    const struct rope *rope;          /* NULL: it has no positions */
    const struct mixer *mixer;        /* NULL: the model's attention */
    const struct layer_config *layer; /* NULL: as all layers */
};

/* What the configuration says beside struct config: at config->own, or first in what is there. */
struct dense_config {
    enum weight_bias qkv_bias, o_bias, mlp_bias;
};

/* All keys of config.json but those of rotary embeddings and of windows. names: NULL: the usual. */
int dense_parse(struct dense *dense, struct config *config, const struct fields *root,
                const struct dense_class *class, const struct layer_names *names,
                struct error *err);

/* The keys of rotary embeddings, which are the same in all layers. */
int dense_rope(struct rope *rope, struct config *config, const struct fields *root,
               const struct dense_class *class, struct error *err);

/* sliding_window: an integer, or 0 for null; absent it stays as it is. */
int dense_window(int64_t *window, const struct fields *root, struct error *err);

/* A list of indices [num_layers], in the arena: of layer_types 0 for full_attention, and 1 for what
 * is called `other`; *kinds is NULL where there is no list. */
int dense_layer_types(int **kinds, struct config *config, const char *other,
                      const struct fields *root, struct error *err);

/* A list of indices [num_layers], in the arena: 1 for layers of sliding_attention, as layer_types
 * says or, where there is none, those that `slides`; else 0. needs: the keys that give a window,
 * for the error where a layer slides without one. */
int dense_sliding(int **kind_of, struct config *config, int64_t window,
                  bool (*slides)(int64_t layer, const void *context), const void *context,
                  const char *needs, const struct fields *root, struct error *err);

/* Makes the layers: layer i is of kinds[kind_of[i]], or all are of the first if kind_of is NULL.
 * Kinds [count] without layers are left out. */
int dense_layers(const struct dense *dense, struct config *config, const struct dense_kind *kinds,
                 int count, const int *kind_of, const struct fields *root, struct error *err);

/* Layers of Qwen 2 and 3: those from max_window_layers on have a window if use_sliding_window is
 * true, unless layer_types says which. */
int dense_windowed_layers(const struct dense *dense, struct config *config, const struct rope *rope,
                          const struct fields *root, struct error *err);

/* Layers of Olmo 3, Gemma 2 and 3: each `pattern`-th is full and the others have a window, unless
 * layer_types says which. ropes: of these kinds. */
int dense_pattern_layers(const struct dense *dense, struct config *config,
                         const struct rope *const ropes[2], int64_t pattern,
                         const struct fields *root, struct error *err);

/* The norms behind each branch, with the names that all families give them. */
void dense_post_norms(struct dense *dense);

int dense_bind(struct model *model, const struct config *config, struct weights *weights,
               struct error *err);
void dense_random(struct random_list *list);

/* Names of tensors, but of their layers. */
#define DENSE_NAMES_BUT_MLP                                                                    \
    .root = "model", .embeddings = "embed_tokens", .final_norm = "norm", .lm_head = "lm_head", \
    .mlp = BLOCK_MLP_GATED
#define DENSE_NAMES \
    DENSE_NAMES_BUT_MLP, .gate_proj = "gate_proj", .up_proj = "up_proj", .down_proj = "down_proj"

/* The same where some layers have other mixers, and other names before the layers'; or where all
 * names are given, but whether MLPs have biases. */
typedef int dense_bind_layer(const struct block_mixer *block, struct error *err);
typedef void dense_random_layer(struct random_list *list, const char *prefix,
                                const struct mixer *mixer);
int dense_bind_layers(struct model *model, const struct config *config, struct weights *weights,
                      const char *root, dense_bind_layer *bind_mixer, struct error *err);
int dense_bind_named(struct model *model, const struct config *config, struct weights *weights,
                     const struct block_names *named, dense_bind_layer *bind_mixer,
                     struct error *err);
void dense_random_layers(struct random_list *list, dense_random_layer *list_mixer);

/* Of a layer of softmax attention. */
int dense_bind_attention(const struct block_mixer *block, struct error *err);
void dense_random_attention(struct random_list *list, const char *prefix,
                            const struct mixer *mixer);

#endif
