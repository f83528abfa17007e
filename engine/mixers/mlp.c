/* SPDX-License-Identifier: Apache-2.0 */
/* An MLP: down_proj(act(gate_proj x) * up_proj x), or without a gate. Or a mixture of such experts:
 * the router's scores choose some for each row, whose results lie beside each other until their
 * weighted sum. */
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

/* Columns of gates or of ups: of all experts of a row. */
static int64_t width_of(const struct mlp *mlp)
{
    return mlp_shape(mlp)->up_proj.rows * (mlp->num_experts > 0 ? mlp->experts_per_token : 1);
}

static struct rows emit_route(struct emitter *emitter, const struct mlp *mlp, struct rows x)
{
    const struct rows scores = emitter_rows(emitter, mlp->num_experts);
    const struct rows choices = emitter_rows(emitter, 2 * (int64_t)mlp->experts_per_token);
    emitter_product(emitter, pack(emitter, mlp, MATRIX_ROUTER),
                    &(struct ops_matmul){.x = x, .y = scores});
    emitter_route(emitter, &(struct ops_route){.num_experts = mlp->num_experts,
                                               .chosen = mlp->experts_per_token,
                                               .renormalize = mlp->norm_topk_prob,
                                               .scores = scores,
                                               .choices = choices});
    return choices;
}

/* A product with the experts' matrices of each row of the list that is of one use; y side by side.
 */
static void emit_routed(struct emitter *emitter, const struct mlp *mlp, enum matrix_use use,
                        struct ops_matmul product)
{
    for (int i = 0; i < MLP_MATRIX_COUNT; i++) {
        const struct part_matrix *row = &mlp_matrices[i];
        const struct matrix *matrix = part_matrix_of(mlp->experts, row);
        if (row->use != use || matrix->rows == 0)
            continue;
        product.chosen = mlp->experts_per_token;
        emitter_product(emitter, emitter_pack_experts(emitter, mlp->experts, mlp->num_experts, row),
                        &product);
        product.y = rows_from(product.y, mlp->experts_per_token * matrix->rows);
    }
}

struct mlp_hidden mlp_emit_up(struct emitter *emitter, const struct mlp *mlp,
                              const struct branch_ends *ends)
{
    const bool gated = mlp_shape(mlp)->gate_proj.rows > 0;
    struct mlp_hidden hidden = {.rows = emitter_rows(emitter, width_of(mlp) * (gated ? 2 : 1))};
    struct ops_matmul product = {.x = ends->norm != NULL ? ends->norm->y : ends->x,
                                 .y = hidden.rows,
                                 .activation = gated ? FORMULA_IDENTITY : activation(mlp->act)};
    if (mlp->num_experts == 0) {
        product.norm = ends->norm;
        emitter_product(emitter, pack(emitter, mlp, MATRIX_OF_X), &product);
        return hidden;
    }
    if (ends->norm != NULL)
        emitter_norm(emitter, ends->norm);
    hidden.choices = product.choices = emit_route(emitter, mlp, product.x);
    emit_routed(emitter, mlp, MATRIX_OF_X, product);
    return hidden;
}

static void emit_experts_down(struct emitter *emitter, const struct mlp *mlp,
                              const struct mlp_hidden *hidden, const struct branch_ends *ends)
{
    const int size = emitter->model->hidden_size;
    const struct rows parts = emitter_rows(emitter, (int64_t)mlp->experts_per_token * size);
    emit_routed(emitter, mlp, MATRIX_LAST,
                (struct ops_matmul){
                    .x = hidden->rows, .y = parts, .by_part = true, .choices = hidden->choices});
    emitter_combine(emitter, &(struct ops_combine){.chosen = mlp->experts_per_token,
                                                   .num_cols = size,
                                                   .choices = hidden->choices,
                                                   .x = parts,
                                                   .out = ends->out,
                                                   .accumulate = ends->accumulate});
}

void mlp_emit_down(struct emitter *emitter, const struct mlp *mlp, const struct mlp_hidden *hidden,
                   const struct branch_ends *ends)
{
    const struct rows rows = hidden->rows;
    const int64_t size = width_of(mlp);
    const bool gated = mlp_shape(mlp)->gate_proj.rows > 0;
    if (mlp->gate_scale != 1)
        emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SCALE,
                                               .constant = mlp->gate_scale,
                                               .num_cols = (int)size,
                                               .out = rows,
                                               .u = rows});
    const struct ops_norm gate = {.kind = NORM_NONE,
                                  .groups = 1,
                                  .size = (int)size,
                                  .x = rows_from(rows, size),
                                  .y = rows,
                                  .formula = activation(mlp->act),
                                  .gate = rows};
    if (mlp->num_experts > 0) {
        if (gated)
            emitter_norm(emitter, &gate);
        emit_experts_down(emitter, mlp, hidden, ends);
        return;
    }
    emitter_product(emitter, pack(emitter, mlp, MATRIX_LAST),
                    &(struct ops_matmul){.x = rows,
                                         .y = ends->out,
                                         .accumulate = ends->accumulate,
                                         .norm = gated ? &gate : NULL});
}
