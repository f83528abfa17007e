/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba-2's mixer (Dao & Gu 2024), as several families of transformers have it: one projection of
 * z, u, B, C and dt, a convolution of u, B and C, and norms of what z gates. In our terms B and C
 * are k and q of a group of heads, and u is v. */
#ifndef ENGINE_MODEL_MAMBA2_H
#define ENGINE_MODEL_MAMBA2_H

#include "engine/model/dense.h"

/* What a class calls its keys, and takes where a file leaves them out. NULL: it does not read such
 * a key. */
struct mamba2_class {
    const char *heads, *head_dim, *state, *groups, *width, *expand;
    int64_t usual_heads, usual_head_dim, usual_state, usual_groups; /* usual_head_dim 0: "auto" */
    const char *inner; /* H * P, which comes before hidden_size * expand */
    int64_t usual_inner;
    const char *act, *conv_bias, *in_bias, *out_bias;
};

/* Keys of Bamba, Granite 4 H and Falcon-H1; they differ in what else they read. */
#define MAMBA2_KEYS                                                                 \
    .heads = "mamba_n_heads", .head_dim = "mamba_d_head", .state = "mamba_d_state", \
    .groups = "mamba_n_groups", .width = "mamba_d_conv", .expand = "mamba_expand",  \
    .usual_heads = 128, .usual_state = 256, .usual_groups = 1, .act = "hidden_act", \
    .conv_bias = "mamba_conv_bias", .in_bias = "mamba_proj_bias"

/* What the configuration says beside struct config, at config->own. */
struct mamba2_config {
    struct dense_config dense; /* first: of layers that dense.h binds */
    enum weight_bias conv_bias, in_bias, out_bias;
    double in_scale;        /* of x */
    double scales[5];       /* of z, u, B, C and dt, as they are projected */
    double attention_scale; /* of attention's x: its scores and result have the number already */
};

/* Keys of the mixers. Puts a struct mamba2_config, which begins with what dense_parse left there,
 * at config->own; *own: where it is, unless own is NULL. */
int mamba2_parse(struct mixer_config *out, struct mamba2_config **own, struct config *config,
                 const struct fields *root, const struct mamba2_class *class, struct error *err);

/* Layers of attention and of Mamba-2, in place of each other: kind_of [num_layers] is 0 or 1. */
int mamba2_layers(const struct dense *dense, struct config *config, const struct rope *rope,
                  const struct mixer_config *mamba, const int *kind_of, const struct fields *root,
                  struct error *err);

/* kind_of [num_layers; if that is 0, as many as there are], in the arena, of a list `key` of names:
 * 0 for "attention" and "full_attention", 1 for "mamba" and "linear_attention", and where `mlps` is
 * true 2 for "mlp" and 3 for "moe". NULL: there is no such key. */
int mamba2_kinds(int **kind_of, struct config *config, const struct fields *root, const char *key,
                 bool mlps, struct error *err);

/* Names of tensors of Bamba and Falcon-H1, but of their layers. */
#define MAMBA2_FALCON_NAMES                                                         \
    .root = "model", .embeddings = "embed_tokens", .final_norm = "final_layernorm", \
    .gate_proj = "gate_proj", .up_proj = "up_proj", .down_proj = "down_proj",       \
    .lm_head = "lm_head", .mlp = BLOCK_MLP_GATED

/* Fills a model, whose MLPs have the biases that dense_parse has read. */
int mamba2_bind(struct model *model, const struct config *config, struct weights *weights,
                const struct block_names *names, struct error *err);

/* A_log and D of the heads. */
int mamba2_bind_heads(const struct block_mixer *block, struct error *err);
void mamba2_random_heads(struct random_list *list, const char *prefix, int64_t heads);

/* The mean of a preset's dt_bias: dt is about 0.01. */
#define MAMBA2_DT_BIAS (-4.6)

/* Binds either kind of mixer. */
int mamba2_bind_mixer(const struct block_mixer *block, struct error *err);
void mamba2_random_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer);

#endif
