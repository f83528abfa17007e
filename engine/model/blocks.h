/* SPDX-License-Identifier: Apache-2.0 */
/* What families have in common: embeddings, layers of norm, mixer, norm and MLP, a last norm, and
 * the matrix that makes logits. A family names the tensors and binds its mixers; the rest is here.
 */
#ifndef ENGINE_MODEL_BLOCKS_H
#define ENGINE_MODEL_BLOCKS_H

#include "engine/model/block_names.h"
#include "engine/model/config.h"
#include "engine/model/random_list.h"
#include "engine/model/weights.h"

/* The names that flash-linear-attention gives, and the family regla with it. */
#define BLOCK_FLA_NAMES                                                                          \
    .root = "model", .embeddings = "embeddings", .final_norm = "norm", .gate_proj = "gate_proj", \
    .up_proj = "up_proj", .down_proj = "down_proj", .lm_head = "lm_head"
#define BLOCK_FLA_LAYER                        \
    {                                          \
        "attn_norm", "attn", "mlp_norm", "mlp" \
    }

/* A layer's mixer, which its family binds. */
struct block_mixer {
    struct weights *weights;
    const struct config *config;
    const struct rope *rope;
    char prefix[WEIGHT_NAME_SIZE / 2]; /* of its tensors: "model.layers.3.attn" */
    int layer;
    struct mixer *mixer;            /* as in the configuration, with num_heads for k and v too */
    const struct rope *second_rope; /* of a pair's second part; else NULL */
};

/* Fills model's norms, matrices and layers [config->num_layers]. */
int blocks_bind(struct model *model, const struct config *config, struct weights *weights,
                const struct block_names *names,
                int (*bind_mixer)(const struct block_mixer *, struct error *), struct error *err);

/* A matrix of a mixer, "prefix.name". */
struct block_matrix {
    const char *name;
    int64_t rows, cols; /* WEIGHT_ANY: as the tensor has it */
    enum weight_bias biased;
    struct matrix *matrix;
};

/* Binds matrices [count] in that order. */
int blocks_bind_matrices(const struct block_mixer *block, const struct block_matrix *matrices,
                         size_t count, struct error *err);

/* Parts [count] of a matrix whose rows are those of each part's first head, then of their second
 * ones and so on. Their biases are copies in the arena. */
int blocks_split_heads(const struct block_mixer *block, const struct matrix *fused,
                       struct matrix *const *parts, int count, struct error *err);

/* Sets the mixer's decay: e^A_log [num_heads], or what the file has negated in its place. */
int blocks_decay(const struct block_mixer *block, struct error *err);

/* The same for each feature of a head: [num_heads * features]. */
int blocks_decay_by_feature(const struct block_mixer *block, struct error *err);

/* The mixer's convolution, of one tensor for each of q, k and v, "prefix.NAME_conv1d" of names [3].
 */
int blocks_bind_convs(const struct block_mixer *block, const char *const *names, struct error *err);

/* A mixer's q_norm and k_norm, where it has them, of the size that their scope says. */
int blocks_bind_qk_norms(const struct block_mixer *block, struct error *err);
void blocks_random_qk_norms(struct random_list *list, const char *prefix, const struct mixer *mixer,
                            int64_t head_dim);

/* Lists a preset's tensors; list_mixer those of a mixer, whose names begin with prefix. */
void blocks_random(struct random_list *list, const struct block_names *names,
                   void (*list_mixer)(struct random_list *, const char *prefix,
                                      const struct mixer *));

#endif
