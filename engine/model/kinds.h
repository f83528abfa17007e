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
    X(ACT_RELU2, "relu2")
#define MODEL_ACTIVATIONS(X)          \
    X(SOFTMAX_ACT_SOFTMAX, "softmax") \
    X(SOFTMAX_ACT_RELU, "relu")       \
    X(SOFTMAX_ACT_RELU2, "relu2")
#define MODEL_WINDOWS(X)         \
    X(WINDOW_FULL, "full")       \
    X(WINDOW_BLOCK, "block")     \
    X(WINDOW_SLIDING, "sliding") \
    X(WINDOW_LONG_SHORT, "long_short")
#define MODEL_POSITIONS(X)                           \
    X(POSITION_NONE, "none")                         \
    X(POSITION_ROPE, "rope")                         \
    X(POSITION_LRPE_UNITARY, "lrpe_unitary")         \
    X(POSITION_LRPE_ORTHOGONAL, "lrpe_orthogonal")   \
    X(POSITION_LRPE_PERMUTATION, "lrpe_permutation") \
    X(POSITION_ALIBI, "alibi")                       \
    X(POSITION_KERPLE_LOG, "kerple_log")             \
    X(POSITION_KERPLE_POWER, "kerple_power")         \
    X(POSITION_KERPLE_3PARA_LOG, "kerple_3para_log") \
    X(POSITION_KERPLE_BIAS_WHT, "kerple_bias_wht")   \
    X(POSITION_T5, "t5")                             \
    X(POSITION_SPE, "spe")
#define MODEL_FEATURE_MAPS(X)       \
    X(FEATURE_IDENTITY, "identity") \
    X(FEATURE_RELU, "relu")         \
    X(FEATURE_ELU, "elu")           \
    X(FEATURE_ELU_PLUS_1, "elu+1")  \
    X(FEATURE_EXP, "exp")           \
    X(FEATURE_FAVOR, "favor")       \
    X(FEATURE_COS_SIN, "cos_sin")   \
    X(FEATURE_HEDGEHOG, "hedgehog") \
    X(FEATURE_DPFP, "dpfp")         \
    X(FEATURE_UNIT_COS_SIN, "unit_cos_sin")
#define MODEL_MIXERS(X)         \
    X(MIXER_LINEAR, "linear")   \
    X(MIXER_SOFTMAX, "softmax") \
    X(MIXER_CONV, "conv")

/* What a gate does with the state s of a linear mixer (engine/README.md, "The two kernels"). */
enum gate_does {
    DECAYS_ROWS = 1,     /* it has a: of each value */
    DECAYS_FEATURES = 2, /* f: of each feature, so nothing may mix them after it */
    ERASES = 4,          /* delta: what the key had stored before, by the key itself */
    KEEPS_SUM = 8,       /* the normalizer c decays as the values do, so sum_norm is allowed */
    ERASES_APART = 16    /* what another vector than the key had stored, by a third one */
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
    X(GATE_RWKV7, "rwkv7", DECAYS_FEATURES | ERASES_APART)
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
enum output_gate { OUTPUT_GATE_NONE, OUTPUT_GATE_SWISH, OUTPUT_GATE_SIGMOID };
enum softmax_activation { MODEL_ACTIVATIONS(MODEL_VALUE) };
enum value_activation { VALUE_ACTIVATION_NONE, VALUE_ACTIVATION_SILU };
enum window_kind { MODEL_WINDOWS(MODEL_VALUE) };
enum position_kind { MODEL_POSITIONS(MODEL_VALUE) };
enum rope_stage { ROPE_STAGE_BEFORE, ROPE_STAGE_AFTER };
enum rope_pairing { ROPE_PAIRING_HALF, ROPE_PAIRING_ADJACENT };
enum lrpe_basis { BASIS_IDENTITY, BASIS_HOUSEHOLDER, BASIS_ODD_EVEN };

enum { CONVOLUTION_MIN_WIDTH = 2, CONVOLUTION_MAX_WIDTH = 8 }; /* tokens */

#define MODEL_GATE_DOES(value, name, does) kind == value ? (does):

/* Of enum gate_does. */
static inline int gate_does(enum gate_kind kind)
{
    return MODEL_GATES(MODEL_GATE_DOES) 0;
}

#endif
