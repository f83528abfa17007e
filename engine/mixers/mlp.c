/* SPDX-License-Identifier: Apache-2.0 */
/* An MLP: down_proj(act(gate_proj x) * up_proj x), or without a gate. */
#include "engine/mixers/mixer.h"

static enum formula activation(enum hidden_act act)
{
    switch (act) {
    case ACT_GELU:
        return FORMULA_GELU;
    case ACT_GELU_NEW:
        return FORMULA_GELU_NEW;
    case ACT_RELU:
        return FORMULA_RELU;
    case ACT_SILU:
        return FORMULA_SILU;
    case ACT_RELU2:
        return FORMULA_RELU2;
    }
    return FORMULA_IDENTITY;
}

static const struct program_weight *pack(struct emitter *emitter, const struct mlp *mlp,
                                         enum matrix_use use)
{
    return emitter_pack_part(emitter, mlp, mlp_matrices, MLP_MATRIX_COUNT, use);
}

struct rows mlp_emit_up(struct emitter *emitter, const struct mlp *mlp,
                        const struct branch_ends *ends)
{
    const bool gated = mlp->gate_proj.rows > 0;
    const struct rows hidden = emitter_rows(emitter, mlp->gate_proj.rows + mlp->up_proj.rows);
    emitter_matmul(
        emitter, pack(emitter, mlp, MATRIX_OF_X),
        &(struct ops_matmul){.x = ends->norm != NULL ? ends->norm->y : ends->x,
                             .y = hidden,
                             .activation = gated ? FORMULA_IDENTITY : activation(mlp->act),
                             .norm = ends->norm});
    return hidden;
}

void mlp_emit_down(struct emitter *emitter, const struct mlp *mlp, struct rows hidden,
                   const struct branch_ends *ends)
{
    const int64_t size = mlp->up_proj.rows;
    if (mlp->gate_scale != 1)
        emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SCALE,
                                               .constant = mlp->gate_scale,
                                               .num_cols = (int)size,
                                               .out = hidden,
                                               .u = hidden});
    const struct ops_norm gate = {.kind = NORM_NONE,
                                  .groups = 1,
                                  .size = (int)size,
                                  .x = rows_from(hidden, size),
                                  .y = hidden,
                                  .formula = activation(mlp->act),
                                  .gate = hidden};
    emitter_matmul(emitter, pack(emitter, mlp, MATRIX_LAST),
                   &(struct ops_matmul){.x = hidden,
                                        .y = ends->out,
                                        .accumulate = ends->accumulate,
                                        .norm = mlp->gate_proj.rows > 0 ? &gate : NULL});
}
