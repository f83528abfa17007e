/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json and generation_config.json say: a model without its tensors.
 *
 * A family's parser (family.h) fills a struct config; its binder then turns that and the tensors
 * into a struct model. Below are the steps that parsers share. A mixer here is a struct mixer whose
 * pointers and sizes are still empty. */
#ifndef ENGINE_MODEL_CONFIG_H
#define ENGINE_MODEL_CONFIG_H

#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "lib/base/arena.h"
#include "lib/base/fields.h"
#include "lib/base/warnings.h"

/* Bounds of a sane model: products of any three stay inside 64 bits. */
enum {
    CONFIG_MAX_VOCAB = 1 << 24,
    CONFIG_MAX_HIDDEN = 1 << 18,
    CONFIG_MAX_INTERMEDIATE = 1 << 20,
    CONFIG_MAX_LAYERS = 4096,
    CONFIG_MAX_HEADS = 4096,
    CONFIG_MAX_WINDOW = 1 << 24,
    CONFIG_MAX_DPFP_NU = 256,
    CONFIG_MAX_SEGMENT = 64, /* tokens: of a KV page */
    CONFIG_MIN_CHUNK = 16,   /* tokens: a CUDA step launches kernels for each chunk */
    CONFIG_MAX_EOS = 64,
};

struct family;

struct mixer_config {
    struct mixer mixer; /* kinds, flags and output_norm's kind and eps */
    struct rope rope;   /* its part is of lrpe_orthogonal too */
    /* A pair says how its two parts are combined and has their output gate; nothing else of its
     * mixer counts. */
    bool is_pair;
    const char *part_names[2];
    int parts[2]; /* indices into mixers */
};

/* A tensor's name below its layer, and what kind of norm it is. eps is the model's. */
struct norm_config {
    enum norm_kind kind;
    const char *name;
};

/* As struct branch. The tensors of its mixer or MLP are below `name`. */
struct branch_config {
    const char *name;
    struct norm_config pre, post;
    const char *shift; /* the token shift's tensor, below the layer; NULL: none */
    float scale;
    int mixer; /* index into config->mixers; -1: it is an MLP */
    enum hidden_act act;
    int64_t mlp_size;
    float gate_scale, glu_limit; /* of an MLP, as in struct mlp; so what follows */
    int num_experts, experts_per_token;
    struct route_rule rule;
    bool score_bias;                  /* there is one */
    int64_t shared_size, latent_size; /* 0: there is no shared expert; no latent_in */
    const char *shared;               /* its name below the layer */
    bool layer_input;                 /* as in struct mlp */
};

struct block_config {
    struct norm_config input, post;
    float alpha, beta;
    struct branch_config branches[BLOCK_MAX_BRANCHES];
    int num_branches;
};

/* A kind of layer. */
struct layer_config {
    const char *name;
    struct block_config blocks[LAYER_MAX_BLOCKS];
    int num_blocks;
};

/* How matrices of F8_E4M3 become numbers: each is multiplied by the scale of its block. */
struct fp8_config {
    bool scaled;      /* tensors NAME_scale_inv and NAME_scale are scales; else they are unknown */
    int64_t block[2]; /* rows and columns of a block; 0: as the shapes say */
    enum dtype dtype; /* what the products are rounded to */
};

struct config {
    const struct family *family;
    int64_t vocab_size, hidden_size, num_layers, num_heads, intermediate_size;
    enum hidden_act hidden_act;
    enum norm_kind norm_kind;
    float norm_eps;
    bool norm_plus_one;    /* of layers and the last one: the file has weight - 1 */
    float embedding_scale; /* 0: none given */
    float logit_scale;     /* likewise */
    float logit_softcap;   /* 0: none */
    bool parallel_residual, tied, embedding_norm;
    int64_t layer_size, layer_vocab; /* inputs of layers (struct model): P, rows; 0: none */
    enum position_embedding position_embedding;
    int64_t max_position_embeddings; /* 0: none given */
    int32_t bos_token_id;            /* -1: none */
    int32_t eos[CONFIG_MAX_EOS];
    size_t num_eos;
    struct mixer_config *mixers; /* [num_mixers] */
    int num_mixers;
    struct layer_config *kinds; /* [num_kinds] */
    int num_kinds;
    int *layer_kinds; /* [num_layers]: indices into kinds */

    struct fp8_config fp8;
    bool q4_1; /* tensors of U8 are matrices in blocks of Q4_1 */
    struct warnings warnings;

    const void *own; /* what only the family's parser and binder know: in the arena, or NULL */

    struct arena *arena; /* owns the arrays and names above; the caller's */
};

/* Parses the text of a JSON file, whose name errors give, and hands its fields to parse_root. */
typedef int config_parse_root(struct config *config, const struct fields *root, struct error *err);
int config_parse_file(struct config *config, const char *file, const char *text, size_t length,
                      config_parse_root *parse_root, struct error *err);

/* bos_token_id and eos_token_id (an id, a list, or null) of `fields`. An id outside the vocabulary
 * is a warning, as in transformers: no text has it. */
int config_token_ids(struct config *config, const struct fields *fields, struct error *err);

/* The sizes that all of them have, where they are still 0; heads_key names the heads' number. */
int config_sizes(struct config *config, const struct fields *root, const char *heads_key,
                 struct error *err);

/* Where a class demands that num_attention_heads divides the hidden size. */
int config_check_heads(const struct config *config, const struct fields *root, struct error *err);

/* The mixer's index, or -1 with an error at `place` that lists the names. */
int config_find_mixer(const struct config *config, const char *place, const char *name,
                      struct error *err);

/* Names of a layer's tensors where it is x += mixer(norm(x)); x += mlp(norm(x)). */
struct layer_names {
    const char *attn_norm, *mixer, *mlp_norm, *mlp;
};

/* Such a layer, of the mixer number `mixer`, the model's norm_kind, hidden_act and
 * intermediate_size (0: it has no MLP), or with parallel_residual both of the same x. It has no
 * name yet. */
struct layer_config config_plain_layer(const struct config *config, const struct layer_names *names,
                                       int mixer);

/* Room for kinds [num_kinds] and mixers [num_mixers], and layer_kinds of zeros. */
int config_layers(struct config *config, int num_kinds, int num_mixers, struct error *err);

/* Plain layers of one mixer, named `name`. */
int config_single_mixer(struct config *config, const char *name, const struct mixer_config *mixer,
                        const struct layer_names *names, struct error *err);

#endif
