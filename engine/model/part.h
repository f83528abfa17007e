/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a block have, as tables: mixers and MLPs, and whatever comes next.
 *
 * A part reads x and adds to it. Of each the engine asks the same: which matrices it multiplies
 * with (to pack and count them), what a text keeps of it between steps (state_layout.h), and which
 * numbers the configuration says of it (a model with others is another model). So matrices and
 * numbers are lists with a row a thing, here, and the fields of struct mixer and struct mlp
 * (model.h) are made of the lists: what stands in no list is in no struct. Packing and the
 * fingerprint walk a list, and name neither a kind of part nor a field; cost and limits are those
 * of the operations (engine/program/). A kind is named where it becomes operations
 * (engine/mixers/); who asks what it has finds that in kinds.h.
 *
 * A new matrix is a row of MIXER_MATRICES or MLP_MATRICES, a new number one of MIXER_NUMBERS. */
#ifndef ENGINE_MODEL_PART_H
#define ENGINE_MODEL_PART_H

#include <stddef.h>
#include <stdint.h>

/* What a part multiplies with a matrix. */
enum matrix_use {
    MATRIX_OF_X,    /* x: all of these are stacked, in the order of their list, and one product */
    MATRIX_OF_MIX,  /* x mixed with the token before, by itself (mixers/rwkv7.c) */
    MATRIX_OF_PAIR, /* likewise, behind those of both mixers of a pair */
    MATRIX_INNER,   /* some of that product's columns */
    MATRIX_INNER_GATE, /* likewise, of the output gate */
    MATRIX_OF_HEADS, /* a head's q or k: a matrix a head, below each other, packed as in the file */
    MATRIX_ROUTER,   /* x, in f32 whatever the weights' format is: the scores of experts */
    MATRIX_LAST      /* what the part has made; the result is added to x */
};

/* X(field, use): */
#define MIXER_MATRICES(X)                                                                        \
    X(in_proj, MATRIX_OF_X) /* conv: [3 channels, D] */                                          \
    X(qk_proj, MATRIX_OF_X) /* shared_qk, in place of q_proj and k_proj: [H*d, D] */             \
    X(q_proj, MATRIX_OF_X)                                                                       \
    X(k_proj, MATRIX_OF_X)                                                                       \
    X(v_proj, MATRIX_OF_X)                                                                       \
    X(segment_proj, MATRIX_OF_X) /* long_short: [H*r, D] */                                      \
    X(z_proj, MATRIX_OF_X)       /* fast_decay: [H*dv, D] */                                     \
    X(f_proj, MATRIX_OF_X)       /* fast_decay, rwkv7: [H*m, D] */                               \
    X(g_proj, MATRIX_OF_X)       /* scalar: [H, D]; refined: [H*dv, D] */                        \
    X(r_proj, MATRIX_OF_X)       /* refined: [H*dv, D] */                                        \
    X(gk_proj_0, MATRIX_OF_X)    /* gla, kda: [rank, D], no bias */                              \
    X(gk_proj_1, MATRIX_INNER)   /* gla, kda: [Hkv*m, rank] */                                   \
    X(b_proj, MATRIX_OF_X)       /* delta, gated_delta, kda: [H, D] */                           \
    X(a_proj, MATRIX_OF_X)       /* gated_delta: [H, D] */                                       \
    X(dt_proj, MATRIX_OF_X)      /* mamba2: [H, D]; its bias is dt_bias too */                   \
    X(erase_proj, MATRIX_OF_X)   /* rwkv7: [H*m, D] */                                           \
    X(write_proj, MATRIX_OF_X)   /* rwkv7: [H*m, D] */                                           \
    /* rwkv7 with mixes: each of an x of its own, and of low rank together with what follows */  \
    X(f_low, MATRIX_OF_MIX)            /* [rank, D]; f_proj is [H*m, rank] then */               \
    X(write_low, MATRIX_OF_MIX)        /* write_proj */                                          \
    X(out_gate_low, MATRIX_OF_MIX)     /* out_gate_proj */                                       \
    X(v_low, MATRIX_OF_MIX)            /* [rank, D]: how much v is the first layer's, */         \
    X(v_share, MATRIX_OF_MIX)          /* [H*dv, rank] */                                        \
    X(bonus, MATRIX_OF_HEADS)          /* [H, m]: of r k, a row a head */                        \
    X(out_gate_in, MATRIX_OF_X)        /* an output gate of low rank: [rank, D], no bias, and */ \
    X(out_gate_out, MATRIX_INNER_GATE) /* [H*dv, rank], in place of out_gate_proj */             \
    X(feature_q, MATRIX_OF_HEADS)      /* hedgehog: [H*d, d]; and of q and k, one for both, */   \
    X(feature_k, MATRIX_OF_HEADS)      /* favor: [H*m, d]; (unit_)cos_sin: [H*m/2, d] */         \
    X(out_gate_proj, MATRIX_OF_PAIR)   /* [H*dv, D]; with gate_per_head [H, D] */                \
    X(o_proj, MATRIX_LAST)

#define MLP_MATRICES(X)                                                         \
    X(router, MATRIX_ROUTER)      /* of experts: [E, D] */                      \
    X(shared_gate, MATRIX_ROUTER) /* of the shared one: [1, D] */               \
    X(latent_in, MATRIX_OF_X)     /* of all of them: experts' x, [latent, D] */ \
    X(gate_proj, MATRIX_OF_X)     /* rows = 0: not gated */                     \
    X(up_proj, MATRIX_OF_X)                                                     \
    X(down_proj, MATRIX_LAST)                                                   \
    X(latent_out, MATRIX_LAST) /* of their sum: [D, latent] */

/* Fields of a struct: the matrices, or for each of them one number. */
#define PART_MATRIX(name, use) struct matrix name;
#define PART_COLUMN(name, use) int64_t name;

#define PART_ONE(...) +1
enum {
    MIXER_MATRIX_COUNT = 0 MIXER_MATRICES(PART_ONE),
    MLP_MATRIX_COUNT = 0 MLP_MATRICES(PART_ONE)
};

/* The numbers of a mixer, in the order in which the fingerprint takes them. How it does is the rule
 * of a row. Most rules leave a number out that says nothing, so that fingerprints of models that
 * were there before a row stay: a new row is the last one, NAMED, and usual in all other models.
 *   ALWAYS           the number; REAL likewise, of a fraction; POSITION and NORM, of a struct
 *   SET              the number, where it is not 0; NORM_SET: the norm, where it is one
 *   PLACED, n        n and the number, where it is not 0
 *   NAMED, t, usual  the text t and the number, where it is not the usual one
 *   WITH, condition  the number, where the condition holds
 *   FACTORS, count   an array of `count` numbers, each with its place, where it is not 1
 * X(type, field, rule) is a field of the struct, V(field, rule) is in one of its other fields. What
 * a rule is given may ask `mixer`, the struct. */
#define MIXER_NUMBERS(X, V)                                                                        \
    X(enum mixer_kind, kind, ALWAYS)                                                               \
    X(int, num_heads, ALWAYS)                                                                      \
    /* < num_heads: k, v and gk have so many, each serves num_heads / num_kv_heads consecutive     \
       ones (gla) */                                                                               \
    X(int, num_kv_heads, ALWAYS)                                                                   \
    X(int, head_dim, ALWAYS)            /* d */                                                    \
    X(int, value_dim, ALWAYS)           /* dv; conv: its channels */                               \
    X(int, features, ALWAYS)            /* m; softmax: d */                                        \
    X(int, features_positioned, ALWAYS) /* m2 */                                                   \
    X(enum feature_map, feature_map, ALWAYS)                                                       \
    X(enum gate_kind, gate, ALWAYS)                                                                \
    X(enum query_scale, query_scale, ALWAYS)                                                       \
    X(bool, sum_norm, ALWAYS)                                                                      \
    X(int, dpfp_nu, ALWAYS)                                                                        \
    X(int, feature_rows, ALWAYS) /* of a head's feature_q; not of hedgehog */                      \
    X(enum softmax_activation, activation, ALWAYS)                                                 \
    X(enum window_kind, window, ALWAYS)                                                            \
    X(int, window_size, ALWAYS)                                                                    \
    X(enum norm_scope, output_norm_scope, ALWAYS)                                                  \
    X(enum output_gate, output_gate, ALWAYS)                                                       \
    X(float, gate_logit_normalizer, REAL) /* gla */                                                \
    X(struct position, position, POSITION)                                                         \
    /* of size dv (scope head; shared by the heads) or H*dv (hidden) */                            \
    X(struct norm, output_norm, NORM)                                                              \
    X(int, segment_length, SET)           /* long_short: l */                                      \
    X(int, segment_rank, SET)             /* r */                                                  \
    X(struct norm, window_norm, NORM_SET) /* long_short: [H*d], of keys and of values (d = dv) */  \
    X(struct norm, segment_norm, NORM_SET)                                                         \
    X(bool, shared_qk, PLACED, 0) /* q and k are q_scale and k_scale of silu(qk_proj x) */         \
    X(enum value_activation, value_activation, PLACED, 1)                                          \
    X(int, score_divisor, PLACED, 2) /* relu2: n */                                                \
    V(position.distances, PLACED, 3)                                                               \
    /* linear: C: h reads S as it was at the start of a token's chunk; 0: after the token */       \
    X(int, chunk_size, PLACED, 4)                                                                  \
    /* linear: < num_heads: q and k have so many heads, likewise (gated_delta) */                  \
    X(int, num_qk_heads, NAMED, "num_qk_heads", mixer->num_heads)                                  \
    /* delta, gated_delta: times sigmoid(b_proj x); 0: 1 */                                        \
    X(float, beta_max, NAMED, "beta_max", 0)                                                       \
    /* mamba2: limits of dt, 0 and INFINITY: none; both are 0 in other mixers */                   \
    X(float, dt_least, NAMED, "dt_least", 0)                                                       \
    X(float, dt_most, NAMED, "dt_most", mixer->dt_most == 0 ? 0 : (double)INFINITY)                \
    V(factors, FACTORS, mixer->num_factors)                                                        \
    /* scope hidden: each normed by itself; 0: one */                                              \
    X(int, output_norm_parts, NAMED, "output_norm_parts", 0)                                       \
    X(bool, gate_first, NAMED, "gate_first", 0)    /* the output gate comes before output_norm */  \
    X(float, score_scale, NAMED, "score_scale", 0) /* of q.k; 0: 1/sqrt(d) */                      \
    X(float, score_softcap, NAMED, "score_softcap", 0) /* c tanh(score / c); 0: none */            \
    V(conv.width, NAMED, "convolution", 0)                                                         \
    V(conv.activation, NAMED, "convolution's activation", 0)                                       \
    /* not of a pair, nor after a norm of all heads together */                                    \
    X(bool, gate_per_head, NAMED, "gate per head", 0)                                              \
    X(struct norm, q_norm, NORM_SET) /* before the position: [d], shared by the heads, or [H*d] */ \
    X(struct norm, k_norm, NORM_SET) /* [Hkv*d] */                                                 \
    X(enum norm_scope, qk_norm_scope, WITH, mixer->q_norm.kind != NORM_NONE)                       \
    X(bool, concatenates, WITH, mixer->second != NULL) /* a pair; else the h are added */          \
    /* softmax: v is the first dv numbers of k, after its position; there is no v_proj */          \
    X(bool, values_in_keys, NAMED, "values in keys", 0)                                            \
    /* softmax: v is k as it is projected; there is no v_proj */                                   \
    X(bool, keys_are_values, NAMED, "keys are values", 0)                                          \
    /* softmax: 1 + the layer whose keys and values these are, too; 0: its own */                  \
    X(int, keys_of, NAMED, "keys of layer", 0)                                                     \
    V(v_norm.kind, NAMED, "norm of values", 0)                                                     \
    V(v_norm.eps, NAMED, "epsilon of values", 0)                                                   \
    /* rwkv7: v is mixed with the first layer's */                                                 \
    X(bool, mixes_values, NAMED, "mixes values", 0)                                                \
    /* kda: the logarithm of the least decay; 0: there is none */                                  \
    X(float, decay_bound, NAMED, "decay bound", 0)

#define PART_NUMBER(type, name, ...) type name;
#define PART_NOTHING(...)

/* A list as an array: of each matrix its name, and its place in the part's struct. */
struct part_matrix {
    const char *name;
    size_t place;
    enum matrix_use use;
};
extern const struct part_matrix mixer_matrices[MIXER_MATRIX_COUNT];
extern const struct part_matrix mlp_matrices[MLP_MATRIX_COUNT];

struct matrix;

/* The matrix of a struct mixer or a struct mlp; without rows where the part lacks it. */
static inline const struct matrix *part_matrix_of(const void *part, const struct part_matrix *row)
{
    return (const struct matrix *)(const void *)((const char *)part + row->place);
}

#endif
