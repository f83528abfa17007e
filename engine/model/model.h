/* SPDX-License-Identifier: Apache-2.0 */
/* A model as the engine sees it: one description and its tensors, whatever family it came from.
 *
 * model_load.h makes one out of files, whose format is model-format.md. Every family becomes the
 * structs below, and nothing outside this folder knows families.
 *
 * Letters: V vocabulary, D hidden_size, H num_heads, d head_dim, dv value_dim, m features, m2
 * features after the position (2m for lrpe_unitary, R for spe, else m). */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/model/dtype.h"
#include "engine/model/kinds.h"
#include "engine/model/part.h"
#include "engine/model/row_order.h"
#include "lib/base/arena.h"
#include "lib/base/error.h"
#include "lib/base/file.h"
#include "lib/base/warnings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix of the file, not yet packed for a device. */
struct matrix {
    int64_t rows, cols; /* y = W x + b: x [cols], y [rows]; rows = 0: absent */
    enum dtype dtype;
    const void *data;  /* [rows, cols], row-major, little-endian, in whole blocks of a row, at any
                          alignment; mapped, or owned by the model */
    const void *q4;    /* the same place in blocks of Q4_1 (four_bits.h), or NULL */
    const float *bias; /* [rows], or NULL */
    bool mapped;       /* in a file: pages that are given back are read again on the next access */
    struct row_part part;        /* of the rows at data; embeddings have all, */
    struct tensor_order order;   /* and in the model's order */
    struct tensor_order columns; /* likewise: of a row's numbers */
};

struct norm {
    enum norm_kind kind;
    float eps;
    bool plus_one;       /* the file has weight - 1 (Gemma, Qwen3.5) */
    const float *weight; /* [size]; NULL for simple_rmsnorm and l2 */
    const float *bias;   /* [size], or NULL */
    const float *gate;   /* [size]; gated_rmsnorm, which only output_norm may be */
};

struct position {
    enum position_kind kind;
    /* rope and lrpe_orthogonal: the first `rotary_dims` dimensions (even) are rotated */
    int rotary_dims;
    double base;
    const double *frequencies; /* rope: [rotary_dims / 2]; NULL: base^(-2i / rotary_dims) */
    float factor;              /* rope: of cosines and sines; 0: none */
    enum rope_pairing pairing;
    enum rope_stage stage; /* linear mixers only */
    enum lrpe_basis basis;
    const float *theta;             /* LRPE: [H, m] (unitary) or [H, rotary_dims/2] (orthogonal);
                                       NULL: the default, which f32 could not hold exactly */
    const float *householder;       /* [m], of unit length, or NULL */
    const int32_t *permutation;     /* lrpe_permutation: [m], a permutation of 0..m-1 */
    const float *r1, *r2, *r3, *r4; /* KERPLE: [H] each; NULL where the kernel has none */
    const float *slopes;            /* alibi: [H] */
    const float *bucket_bias;       /* t5: [32, H] */
    bool gated;                     /* spe */
    int sines;                      /* spe: K */
    const float *freqs;             /* spe: [H, m, K], before their sigmoid */
    /* spe: [H, m, 2K, or 2K + 1 where gated, R]: what each feature's cosines, sines and, where
       gated, itself are multiplied with */
    const float *code_q, *code_k;
    int distances;              /* rope: those of distance_bias; 0: there is none */
    const float *distance_bias; /* [distances, H] */
};

/* y = x * weight + bias, element by element. */
struct offset_scale {
    const float *weight, *bias; /* [size]; bias may be NULL */
};

/* A causal convolution of each channel by itself:
 * y_t = act(bias + sum over j < width of weight[j] * u_{t - width + 1 + j}); u before the text is
 * 0.
 */
struct convolution {
    int width; /* K; 0: there is none */
    enum value_activation activation;
    const float *weight; /* [channels, K], the last is now; channels: mixer_conv_channels */
    const float *bias;   /* [channels], or NULL */
};

/* RWKV-7: what its matrices multiply, x + change * share, each with its own share [D], where change
 * is x of the token before - x; and factors of k [H*m]: of kappa, and k's own, rate_rest + alpha *
 * rate_scale. */
enum token_mix { MIX_RECEPTANCE, MIX_DECAY, MIX_KEY, MIX_VALUE, MIX_RATE, MIX_GATE, MIX_COUNT };
struct token_mixes {
    const float *shares[MIX_COUNT];
    struct convolution change;
    const float *erase_scale, *rate_scale, *rate_rest;
};

enum { MIXER_MAX_FACTORS = 6 };

/* conv (LFM 2): with [B | C | u] = in_proj x, h = C conv(B u). There is one head. Of what is here
 * it has conv, in_proj and o_proj only. */
struct mixer {
    const char *name; /* as in config.json's `mixers`; owned by the model */
    MIXER_NUMBERS(PART_NUMBER, PART_NOTHING)
    MIXER_MATRICES(PART_MATRIX)
    /* What the configuration multiplies x and its projections with, where only numbers that were
     * made of the tensors say so: the fingerprint is of both. */
    double factors[MIXER_MAX_FACTORS];
    int num_factors;

    struct offset_scale q_scale, k_scale; /* of a shared qk_proj: [H*d] */
    struct convolution conv; /* linear: over q, k and v side by side, as they are projected */
    /* gated_delta, mamba2: [H], of softplus(a_proj x), of dt; kda: [H*m], of softplus, or of the
     * sigmoid's input; fixed: [H], a itself; hgrn2: [H*m], the least f */
    const float *decay;
    const float *skip;               /* mamba2: D [H], or NULL */
    const float *sinks;              /* softmax: [H] (ops_attention), or NULL */
    const struct token_mixes *mixes; /* rwkv7, or NULL: all matrices multiply x */
    struct norm v_norm;              /* softmax: of each head's value */
    struct offset_scale gate_scale;  /* mamba2: of the columns of dt_proj and out_gate_proj, [H +
                                        H*dv]; dt's bias is in it then; NULL: none */

    /* A pair: this mixer and another one, both of x. Their h, after their norms, are concatenated
     * or added; the output gate and o_proj, which follow, are this one's. Added h are of the same
     * values, and of one z where q and k are shared: then `second` has no v_proj, and no qk_proj.
     */
    struct mixer *second; /* NULL: not a pair */
};

static inline bool mixer_has(const struct mixer *mixer, enum mixer_trait trait)
{
    return mixer_kind_has(mixer->kind, trait);
}

/* Make a mixer that is still empty one of a kind. */
void mixer_make_linear(struct mixer *mixer, enum gate_kind gate);
void mixer_make_softmax(struct mixer *mixer);
void mixer_make_conv(struct mixer *mixer, int width); /* of K tokens */

/* Heads of k, of its features and of their gate: with q's or with v's, whichever are fewer. */
static inline int mixer_key_heads(const struct mixer *mixer)
{
    return mixer->num_qk_heads < mixer->num_kv_heads ? mixer->num_qk_heads : mixer->num_kv_heads;
}

enum { MLP_MAX_EXPERTS = 512 };

/* down_proj(act(gate_proj x) * up_proj x), or without a gate down_proj(act(up_proj x)). Or a
 * mixture of experts, which are MLPs of one shape: the sum of those that router x chooses
 * (ops_route), each times its weight, and at last a shared one, times sigmoid(shared_gate x) where
 * that is there. With latent_in experts are of that x, and latent_out follows their sum. */
struct mlp {
    MLP_MATRICES(PART_MATRIX)
    enum hidden_act act;
    float gate_scale;                   /* of gate_proj x */
    float glu_limit;                    /* not 0: act is that of gpt-oss (formula_clamped_glu) */
    struct mlp *experts;                /* [num_experts]; they have matrices only */
    int num_experts, experts_per_token; /* 0: it is one MLP */
    struct route_rule rule;
    const float *score_bias; /* [num_experts]: of choices, not of weights; or NULL */
    struct norm router_norm; /* of the router's x, which is then the stream's as it is (Gemma 4) */
    const float *expert_scale; /* [num_experts]: of weights, once they are made; or NULL */
    bool layer_input;   /* down_proj(act(up_proj x) * the token's input of the layer): see model */
    struct mlp *shared; /* or NULL */
};

/* The MLP, or one of its experts, whose matrices have the same shapes. */
static inline const struct mlp *mlp_shape(const struct mlp *mlp)
{
    return mlp->num_experts > 0 ? mlp->experts : mlp;
}

/* What a block adds: a mixer or an MLP, of pre(x), or of that where `shift` has mixed a part of the
 * token before into it. */
struct branch {
    struct norm pre, post;    /* post: of its output */
    struct convolution shift; /* token shift (RWKV): of 2 tokens; width 0: none */
    float scale;              /* of its output */
    struct mixer *mixer;      /* NULL: it is the MLP */
    struct mlp *mlp;
};

enum { BLOCK_MAX_BRANCHES = 2, LAYER_MAX_BLOCKS = 4 };

/* x <- alpha x + beta post(sum of scale * branch.post(branch(pre(x)))). With an input norm x <-
 * input(x) first. A norm that is none has the kind NORM_NONE. */
struct block {
    struct norm input, post;
    float alpha, beta;
    struct branch branches[BLOCK_MAX_BRANCHES];
    int num_branches;
};

struct layer {
    const char *name; /* of its kind, as in config.json */
    struct block *blocks;
    int num_blocks;
};

/* The layer's branch number i, from 0 on; NULL past the last. */
const struct branch *layer_branch(const struct layer *layer, int i);

/* Channels of a mixer's convolution: its own, or those of q, k and v. */
int64_t mixer_conv_channels(const struct mixer *mixer);

/* What a model owns beside its description: the files its tensors lie in, and what was made of
 * them. The loader fills it. */
struct model_storage {
    struct tensors *file;
    struct tensors *beside; /* of four_bits.h, or NULL */
    struct file_map map;    /* of the file, if it is not the safetensors' own */
    bool lent;              /* the file's memory is the caller's */
    struct arena arena;     /* the model's strings, arrays and converted tensors */
};

/* Which token ends a text: generation_config.json's eos_token_id (an id or a list), else
 * config.json's. */
struct model_eos {
    int32_t *ids; /* [count] */
    size_t count;
};

struct model {
    char *directory;
    char *name;         /* the directory's last part */
    const char *family; /* model_type of its config.json */
    int32_t vocab_size;
    int hidden_size, num_layers, intermediate_size;
    bool tied;
    float embedding_scale; /* 1: the embeddings as they are */
    float logit_scale;     /* 1: the logits as they are */
    float logit_softcap;   /* then c tanh(logit / c); 0: none */
    enum position_embedding position_embedding;
    int64_t max_position_embeddings; /* a limit only with learned positions; 0: none given */
    int32_t bos_token_id;            /* -1: none */
    struct model_eos eos;
    enum dtype dtype;     /* of most of its matrices' bytes */
    enum dtype fp8_dtype; /* of matrices that the file has as F8_E4M3 */
    int64_t parameters;
    int64_t file_bytes; /* of all shards; 0: it is from memory */

    struct matrix embeddings;          /* [V, D] */
    struct matrix position_embeddings; /* learned: [max_position_embeddings, D] */
    struct norm embedding_norm;        /* kind NORM_NONE: absent */
    struct norm final_norm;
    /* Inputs of the layers (Gemma 3n, 4), P numbers for each layer and token: of a token's row e in
     * a table of their own and its embedding x, (layer_norm(layer_proj x / sqrt(D)) + sqrt(P) e) /
     * sqrt(2). layer_size 0: there are none. */
    int layer_size;                 /* P */
    struct matrix layer_embeddings; /* [V or more, num_layers * P] */
    struct matrix layer_proj;       /* [num_layers * P, D] */
    struct norm layer_norm;         /* [P], of each layer's part */
    struct matrix lm_head;          /* [V, D]; the same data as embeddings when tied */
    struct layer *layers;           /* [num_layers] */

    struct warnings warnings; /* of what was read */
    struct model_storage *storage;
};

/* Makes a model that has only its names; directory is the one that messages print. NULL with the
 * error set. */
struct model *model_new(const char *directory, const char *name, struct error *err);
void model_close(struct model *model); /* NULL is allowed */

/* The tensors of its files. Their numbers are there until the first matrix is packed. */
struct tensors *model_tensors(const struct model *model);

/* Tells the model that a device has packed the matrix and reads it no more. Its memory goes back to
 * the system where it is the file's or the model owns it. Embeddings that are not in a file stay,
 * as tables borrow their rows. */
void model_packed(const struct model *model, const struct matrix *matrix);
/* Tells it that all matrices are packed: only embeddings are read from now on. */
void model_all_packed(const struct model *model);

size_t model_matrix_bytes(const struct matrix *matrix);
/* Where among the rows at its data the matrix has its row i. */
int64_t model_matrix_row(const struct matrix *matrix, int64_t i);

#endif
