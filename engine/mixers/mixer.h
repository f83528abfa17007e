/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a block, mixers and MLPs, as operations of a program.
 *
 * A mixer is: project -> feature map -> gate -> position -> recurrence or attention -> norm ->
 * output projection. Each of these words is a file here; inputs.c is what stands between a
 * projection and q, k, v. A part packs its weights, lays out what it keeps of a text, and adds its
 * operations, all in the order of a step. */
#ifndef ENGINE_MIXERS_MIXER_H
#define ENGINE_MIXERS_MIXER_H

#include "engine/model/model.h"
#include "engine/program/emitter.h"

/* What a branch reads and what becomes of its output. */
struct branch_ends {
    struct rows x;               /* [N, D] */
    const struct ops_norm *norm; /* of x, whose y is used nowhere else; NULL: x as it is */
    struct rows out;             /* [N, D] */
    bool accumulate;             /* out += */
};

void mixer_emit(struct emitter *emitter, const struct mixer *config,
                const struct branch_ends *ends);

/* An MLP's first products, and what makes the branch's output of their results. Another branch may
 * come between them. */
struct mlp_hidden {
    struct rows rows;    /* gate, then up; of a row's experts all gates, then all ups */
    struct rows choices; /* of experts (ops_route) */
    /* of the shared expert: as `rows`, and the score of what it is multiplied with; or absent */
    struct rows shared, shared_gate;
};
struct mlp_hidden mlp_emit_up(struct emitter *emitter, const struct mlp *mlp,
                              const struct branch_ends *ends);
void mlp_emit_down(struct emitter *emitter, const struct mlp *mlp, const struct mlp_hidden *hidden,
                   const struct branch_ends *ends);

/* A convolution of adjacent columns, in their place; keeps the last rows of a text (conv.c). */
void convolution_emit(struct emitter *emitter, const struct convolution *conv, int64_t channels,
                      struct rows x);

/* ---- the words of a mixer, each in its own file ---- */

/* The first column of each matrix in the product of x, which stacks them. */
union mixer_at {
    struct {
        MIXER_MATRICES(PART_COLUMN)
    };
    int64_t columns[MIXER_MATRIX_COUNT]; /* the same, by their places in the list */
};

/* A mixer, or one of a pair, that becomes operations. */
struct mixer_build {
    struct emitter *emitter;
    const struct mixer *config;
    union mixer_at at;
    struct rows project; /* of x, all projections side by side */
    struct rows h;       /* [N, H*dv]: its own columns */
};

/* Its own matrices of one use, packed. */
static inline const struct program_weight *
mixer_pack(struct emitter *emitter, const struct mixer *config, enum matrix_use use)
{
    return emitter_pack_part(emitter, config, mixer_matrices, MIXER_MATRIX_COUNT, use);
}

/* Columns of the projections. */
static inline struct rows mixer_project(const struct mixer_build *mixer, int64_t column)
{
    return rows_from(mixer->project, column);
}

/* Factors and offsets on the device, for instance of a norm. NULL: there are none. */
struct mixer_scale {
    float *weight, *bias;
};

/* weight, bias: [size], or NULL. */
static inline struct mixer_scale mixer_scale_upload(struct emitter *emitter, const float *weight,
                                                    const float *bias, size_t size)
{
    return (struct mixer_scale){emitter_upload(emitter, weight, size * sizeof *weight),
                                emitter_upload(emitter, bias, size * sizeof *bias)};
}

/* linear.c, softmax.c: compute h (before the norm) from the projections. */
void mixer_linear_emit(const struct mixer_build *mixer);
void mixer_softmax_emit(const struct mixer_build *mixer);

/* inputs.c: q, k and v, from the projections. */
struct mixer_inputs {
    struct rows q, k, v; /* k follows q in memory; v absent: it is in k; both: another layer's */
};
struct mixer_inputs mixer_inputs_emit(const struct mixer_build *mixer);

/* linear.c: the recurrence of q, k and v, before its features and its gate. */
struct ops_recurrence mixer_recurrence(const struct mixer_build *mixer,
                                       const struct mixer_inputs *inputs);

/* rwkv7.c: the mixer whose matrices multiply mixes of x. Computes h; what is added to its norm, and
 * multiplies the sum then. */
struct mixer_output {
    struct rows bonus, gate; /* [N, H*dv] each */
};
struct mixer_output mixer_rwkv7_emit(struct mixer_build *mixer, const struct branch_ends *ends);

/* conv.c: a convolution of adjacent columns, in their place; and the mixer that is one, whose h is
 * what its output projection norms first. */
void mixer_conv_emit(const struct mixer_build *mixer, struct rows x);
void mixer_gated_conv_emit(const struct mixer_build *mixer);
struct ops_norm mixer_gated_conv_output(const struct mixer_build *mixer);

/* segments.c: long_short windows. Norms k and v, and makes the vectors of the segments that end in
 * this step, which attention then takes. */
struct ops_segments mixer_segments_emit(const struct mixer_build *mixer, struct rows *k,
                                        struct rows *v);

/* feature_maps.c: tells the recurrence about phi, and multiplies with a map's matrix. position:
 * room for what recurrence->phi will point to. */
void mixer_features_emit(const struct mixer_build *mixer, struct ops_positions *position,
                         struct ops_recurrence *recurrence);

/* gates.c: makes a, f, b, delta of a gate's projections. */
void mixer_gate_emit(const struct mixer_build *mixer, struct ops_recurrence *recurrence);

/* positions.c */
bool mixer_position_rotates(const struct mixer *config);
/* The position's operation without x and out; dim: the size of a head on which it acts. The step's
 * angles are computed where the first mixer needs them. */
struct ops_positions mixer_position_prepare(const struct mixer_build *mixer, int dim);
/* Applies the position to q and k, which may be absent. k follows q in memory, before and after. */
void mixer_position_emit(const struct mixer_build *mixer, const struct ops_positions *position,
                         struct rows *q, struct rows *k);

#endif
