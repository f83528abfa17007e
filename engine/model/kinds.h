/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of everything that a model is made of, with their names in config.json. A kind that the
 * rest of the program tells from others by a property has that property here, so that nobody else
 * needs to know which kinds have it. */
#ifndef ENGINE_MODEL_KINDS_H
#define ENGINE_MODEL_KINDS_H

#include <stdbool.h>

#define MODEL_NORMS(X)                       \
    X(NORM_NONE, "none")                     \
    X(NORM_LAYERNORM, "layernorm")           \
    X(NORM_RMSNORM, "rmsnorm")               \
    X(NORM_SIMPLE_RMSNORM, "simple_rmsnorm") \
    X(NORM_GATED_RMSNORM, "gated_rmsnorm")   \
    X(NORM_L2, "l2")
#define MODEL_ACTS(X)           \
    X(ACT_GELU, "gelu")         \
    X(ACT_GELU_NEW, "gelu_new") \
    X(ACT_RELU, "relu")         \
    X(ACT_SILU, "silu")         \
    X(ACT_RELU2, "relu2")       \
    X(ACT_IDENTITY, "identity")
#define MODEL_ACTIVATIONS(X)          \
    X(SOFTMAX_ACT_SOFTMAX, "softmax") \
    X(SOFTMAX_ACT_RELU, "relu")       \
    X(SOFTMAX_ACT_RELU2, "relu2")
/* What a window has. */
enum window_trait {
    KEEPS_ALL_KEYS = 1, /* of a text, in pages; the others a bounded number, in the slot */
    HAS_SEGMENTS = 2    /* vectors of what is before the window, in pages */
};
#define MODEL_WINDOWS(X)                   \
    X(WINDOW_FULL, "full", KEEPS_ALL_KEYS) \
    X(WINDOW_BLOCK, "block", 0)            \
    X(WINDOW_SLIDING, "sliding", 0)        \
    X(WINDOW_LONG_SHORT, "long_short", HAS_SEGMENTS)
/* What a position does, and how many parameters r1, r2, .. of a head it has (KERPLE). */
enum position_trait {
    TURNS = 1,    /* q and k, or phi of them */
    IS_LRPE = 2,  /* it has a basis */
    DOUBLES = 4,  /* of each feature it makes two */
    OF_HEADS = 8, /* it has parameters of each head, or of a head's features */
    BIASES = 16   /* scores, by distance */
};
#define MODEL_POSITIONS(X)                                                            \
    X(POSITION_NONE, "none", 0, 0)                                                    \
    X(POSITION_ROPE, "rope", TURNS, 0)                                                \
    X(POSITION_LRPE_UNITARY, "lrpe_unitary", TURNS | IS_LRPE | DOUBLES | OF_HEADS, 0) \
    X(POSITION_LRPE_ORTHOGONAL, "lrpe_orthogonal", TURNS | IS_LRPE | OF_HEADS, 0)     \
    X(POSITION_LRPE_PERMUTATION, "lrpe_permutation", TURNS | IS_LRPE | OF_HEADS, 0)   \
    X(POSITION_ALIBI, "alibi", OF_HEADS | BIASES, 0)                                  \
    X(POSITION_KERPLE_LOG, "kerple_log", OF_HEADS | BIASES, 2)                        \
    X(POSITION_KERPLE_POWER, "kerple_power", OF_HEADS | BIASES, 2)                    \
    X(POSITION_KERPLE_3PARA_LOG, "kerple_3para_log", OF_HEADS | BIASES, 3)            \
    X(POSITION_KERPLE_BIAS_WHT, "kerple_bias_wht", OF_HEADS | BIASES, 4)              \
    X(POSITION_T5, "t5", OF_HEADS | BIASES, 0)                                        \
    X(POSITION_SPE, "spe", TURNS | OF_HEADS, 0)
#define MODEL_FEATURE_MAPS(X)               \
    X(FEATURE_IDENTITY, "identity")         \
    X(FEATURE_RELU, "relu")                 \
    X(FEATURE_ELU, "elu")                   \
    X(FEATURE_ELU_PLUS_1, "elu+1")          \
    X(FEATURE_EXP, "exp")                   \
    X(FEATURE_FAVOR, "favor")               \
    X(FEATURE_COS_SIN, "cos_sin")           \
    X(FEATURE_HEDGEHOG, "hedgehog")         \
    X(FEATURE_DPFP, "dpfp")                 \
    X(FEATURE_UNIT_COS_SIN, "unit_cos_sin") \
    X(FEATURE_SILU, "silu")
/* What a mixer has. */
enum mixer_trait {
    HAS_HEADS = 1,   /* q, k and v */
    HAS_FEATURES = 2 /* phi of q and k, a gate and a recurrent state; who has heads and not these
                        has scores and keeps keys */
};
#define MODEL_MIXERS(X)                                 \
    X(MIXER_LINEAR, "linear", HAS_HEADS | HAS_FEATURES) \
    X(MIXER_SOFTMAX, "softmax", HAS_HEADS)              \
    X(MIXER_CONV, "conv", 0)

/* What a gate does with the state s of a linear mixer (engine/README.md, "The two kernels"). */
enum gate_does {
    DECAYS_ROWS = 1,     /* it has a: of each value */
    DECAYS_FEATURES = 2, /* f: of each feature, so nothing may mix them after it */
    ERASES = 4,          /* delta: what the key had stored before, by the key itself */
    KEEPS_SUM = 8,       /* the normalizer c decays as the values do, so sum_norm is allowed */
    ERASES_APART = 16,   /* what another vector than the key had stored, by a third one */
    MAKES_KEYS = 32      /* of what k_proj makes: phi is the identity, and there is no position */
};
/* And the gates, by what they do. */
#define MODEL_GATES(X)                                              \
    X(GATE_NONE, "none", KEEPS_SUM)                                 \
    X(GATE_SCALAR, "scalar", DECAYS_ROWS | KEEPS_SUM)               \
    X(GATE_FAST_DECAY, "fast_decay", DECAYS_ROWS | DECAYS_FEATURES) \
    X(GATE_REFINED, "refined", DECAYS_ROWS)                         \
    X(GATE_GLA, "gla", DECAYS_FEATURES)                             \
    X(GATE_DELTA, "delta", ERASES)                                  \
    X(GATE_GATED_DELTA, "gated_delta", DECAYS_ROWS | ERASES)        \
    X(GATE_MAMBA2, "mamba2", DECAYS_ROWS)                           \
    X(GATE_RWKV7, "rwkv7", DECAYS_FEATURES | ERASES_APART)          \
    X(GATE_FIXED, "fixed", DECAYS_ROWS | KEEPS_SUM)                 \
    X(GATE_HGRN2, "hgrn2", DECAYS_FEATURES | MAKES_KEYS)            \
    X(GATE_KDA, "kda", DECAYS_FEATURES | ERASES)
#define MODEL_VALUE(value, ...) value,
#define MODEL_NAME(value, name, ...) name,

enum norm_kind { MODEL_NORMS(MODEL_VALUE) };
enum hidden_act { MODEL_ACTS(MODEL_VALUE) };
enum position_embedding {
    POSITION_EMBEDDING_NONE,
    POSITION_EMBEDDING_SINUSOIDAL,
    POSITION_EMBEDDING_LEARNED
};
enum mixer_kind { MODEL_MIXERS(MODEL_VALUE) };
enum feature_map { MODEL_FEATURE_MAPS(MODEL_VALUE) };
enum gate_kind { MODEL_GATES(MODEL_VALUE) };
enum query_scale { QUERY_SCALE_NONE, QUERY_SCALE_SQRT_DIM, QUERY_SCALE_EXP_VARIANCE };
enum norm_scope { NORM_SCOPE_HEAD, NORM_SCOPE_HIDDEN };
enum output_gate { OUTPUT_GATE_NONE, OUTPUT_GATE_SWISH, OUTPUT_GATE_SIGMOID, OUTPUT_GATE_LINEAR };
enum softmax_activation { MODEL_ACTIVATIONS(MODEL_VALUE) };
enum value_activation { VALUE_ACTIVATION_NONE, VALUE_ACTIVATION_SILU };
enum window_kind { MODEL_WINDOWS(MODEL_VALUE) };
enum position_kind { MODEL_POSITIONS(MODEL_VALUE) };
enum rope_stage { ROPE_STAGE_BEFORE, ROPE_STAGE_AFTER };
enum rope_pairing { ROPE_PAIRING_HALF, ROPE_PAIRING_ADJACENT };
enum lrpe_basis { BASIS_IDENTITY, BASIS_HOUSEHOLDER, BASIS_ODD_EVEN };

/* What a router makes of its scores (formula_route). */
enum route_score { ROUTE_SOFTMAX, ROUTE_SIGMOID };
struct route_rule {
    enum route_score score;
    bool renormalize;       /* a row's weights are divided by their sum plus `least` */
    float least;            /* above what rounding loses in them */
    int groups, top_groups; /* 0: none; else experts lie in so many groups, and those of the
                               top_groups with the greatest sums of their two best count */
    float factor;           /* of the weights; 0: none */
};
enum { ROUTE_MOST_GROUPS = 64 };

enum { CONVOLUTION_MIN_WIDTH = 2, CONVOLUTION_MAX_WIDTH = 8 }; /* tokens */

#define MODEL_TRAITS(value, name, traits, ...) kind == value ? (traits):
#define MODEL_PARAMETERS(value, name, traits, count) kind == value ? (count):

/* Of enum gate_does. */
static inline int gate_does(enum gate_kind kind)
{
    return MODEL_GATES(MODEL_TRAITS) 0;
}

static inline bool window_has(enum window_kind kind, enum window_trait trait)
{
    return ((MODEL_WINDOWS(MODEL_TRAITS) 0) & trait) != 0;
}

static inline bool position_does(enum position_kind kind, enum position_trait trait)
{
    return ((MODEL_POSITIONS(MODEL_TRAITS) 0) & trait) != 0;
}

static inline int position_parameters(enum position_kind kind)
{
    return MODEL_POSITIONS(MODEL_PARAMETERS) 0;
}

static inline bool mixer_kind_has(enum mixer_kind kind, enum mixer_trait trait)
{
    return ((MODEL_MIXERS(MODEL_TRAITS) 0) & trait) != 0;
}

#endif
