/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a block have, as tables: mixers and MLPs, and whatever comes next.
 *
 * A part reads x and adds to it. Of each the engine asks the same: which matrices it multiplies
 * with (to pack and count them), what a text keeps of it between steps, and which numbers the
 * configuration says of it (a model with others is another model). So each of these is a list with
 * a row a thing, here, and the fields of struct mixer and struct mlp (model.h) are made of the
 * lists: what stands in no list is in no struct. Who packs, counts, hashes or prints walks a list,
 * and names neither a kind of part nor a field. A kind is named where it is a row, where it becomes
 * operations (engine/mixers/), and by the families that have it.
 *
 * A new matrix is a row of MIXER_MATRICES or MLP_MATRICES. */
#ifndef ENGINE_MODEL_PART_H
#define ENGINE_MODEL_PART_H

#include <stddef.h>
#include <stdint.h>

/* What a part multiplies with a matrix. */
enum matrix_use {
    MATRIX_OF_X,    /* x: all of these are stacked, in the order of their list, and one product */
    MATRIX_OF_PAIR, /* likewise, behind those of both mixers of a pair */
    MATRIX_INNER,   /* some of that product's columns */
    MATRIX_LAST     /* what the part has made; the result is added to x */
};

/* X(field, use): */
#define MIXER_MATRICES(X)                                                            \
    X(in_proj, MATRIX_OF_X) /* conv: [3 channels, D] */                              \
    X(qk_proj, MATRIX_OF_X) /* shared_qk, in place of q_proj and k_proj: [H*d, D] */ \
    X(q_proj, MATRIX_OF_X)                                                           \
    X(k_proj, MATRIX_OF_X)                                                           \
    X(v_proj, MATRIX_OF_X)                                                           \
    X(segment_proj, MATRIX_OF_X)     /* long_short: [H*r, D] */                      \
    X(z_proj, MATRIX_OF_X)           /* fast_decay: [H*dv, D] */                     \
    X(f_proj, MATRIX_OF_X)           /* fast_decay: [H*m, D] */                      \
    X(g_proj, MATRIX_OF_X)           /* scalar: [H, D]; refined: [H*dv, D] */        \
    X(r_proj, MATRIX_OF_X)           /* refined: [H*dv, D] */                        \
    X(gk_proj_0, MATRIX_OF_X)        /* gla: [rank, D], no bias */                   \
    X(gk_proj_1, MATRIX_INNER)       /* gla: [Hkv*m, rank] */                        \
    X(b_proj, MATRIX_OF_X)           /* delta, gated_delta: [H, D] */                \
    X(a_proj, MATRIX_OF_X)           /* gated_delta: [H, D] */                       \
    X(dt_proj, MATRIX_OF_X)          /* mamba2: [H, D]; its bias is dt_bias too */   \
    X(out_gate_proj, MATRIX_OF_PAIR) /* [H*dv, D]; with gate_per_head [H, D] */      \
    X(o_proj, MATRIX_LAST)

#define MLP_MATRICES(X)                                 \
    X(gate_proj, MATRIX_OF_X) /* rows = 0: not gated */ \
    X(up_proj, MATRIX_OF_X)                             \
    X(down_proj, MATRIX_LAST)

/* Fields of a struct: the matrices, or for each of them one number. */
#define PART_MATRIX(name, use) struct matrix name;
#define PART_COLUMN(name, use) int64_t name;

#define PART_ONE(...) +1
enum {
    MIXER_MATRIX_COUNT = 0 MIXER_MATRICES(PART_ONE),
    MLP_MATRIX_COUNT = 0 MLP_MATRICES(PART_ONE)
};

/* A list as an array: of each matrix its place in the part's struct. */
struct part_matrix {
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
