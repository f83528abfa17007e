/* SPDX-License-Identifier: Apache-2.0 */
/* An MLP: down_proj(act(gate_proj x) * up_proj x), or without a gate. Or a mixture of such experts:
 * the router's scores choose some for each row, whose results lie beside each other until their
 * weighted sum; a shared one is added last. */
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
    case ACT_IDENTITY:
        break;
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

static bool is_gated(const struct mlp *mlp)
{
    return mlp_shape(mlp)->gate_proj.rows > 0;
}

/* What becomes of the first product, where no gate follows it. */
static enum formula first_activation(const struct mlp *mlp)
{
    return is_gated(mlp) || mlp->layer_input ? FORMULA_IDENTITY : activation(mlp->act);
}

/* Scores, and behind them that of the shared expert's gate. */
static void emit_route(struct emitter *emitter, const struct mlp *mlp, struct rows x,
                       struct mlp_hidden *hidden)
{
    const struct norm *norm = &mlp->router_norm;
    const int experts = mlp->num_experts;
    const struct rows scores = emitter_rows(emitter, experts + mlp->shared_gate.rows);
    hidden->choices = emitter_rows(emitter, 2 * (int64_t)mlp->experts_per_token);
    if (mlp->shared_gate.rows > 0)
        hidden->shared_gate = rows_from(scores, experts);
    const int64_t size = mlp->router.cols;
    struct ops_matmul product = {.x = x, .y = scores};
    struct ops_norm call;
    if (norm->kind != NORM_NONE) {
        product.x = emitter_rows(emitter, size);
        call = (struct ops_norm){
            .kind = norm->kind,
            .eps = norm->eps,
            .weight = mixer_scale_upload(emitter, norm->weight, NULL, (size_t)size).weight,
            .groups = 1,
            .size = (int)size,
            .x = x,
            .y = product.x};
        product.norm = &call;
    }
    emitter_product(emitter, pack(emitter, mlp, MATRIX_ROUTER), &product);
    emitter_route(emitter, &(struct ops_route){
                               .num_experts = experts,
                               .chosen = mlp->experts_per_token,
                               .rule = mlp->rule,
                               .bias = emitter_upload(emitter, mlp->score_bias,
                                                      (size_t)experts * sizeof *mlp->score_bias),
                               .scale = emitter_upload(emitter, mlp->expert_scale,
                                                       (size_t)experts * sizeof *mlp->expert_scale),
                               .scores = scores,
                               .choices = hidden->choices});
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

/* hidden->rows have room. raw: x before the branch's norm. */
static void emit_experts_up(struct emitter *emitter, const struct mlp *mlp, struct rows x,
                            struct rows raw, struct mlp_hidden *hidden)
{
    struct rows of = x;
    emit_route(emitter, mlp, mlp->router_norm.kind != NORM_NONE ? raw : x, hidden);
    if (mlp->latent_in.rows > 0) {
        of = emitter_rows(emitter, mlp->latent_in.rows);
        emitter_product(emitter, pack(emitter, mlp, MATRIX_OF_X),
                        &(struct ops_matmul){.x = x, .y = of});
    }
    emit_routed(emitter, mlp, MATRIX_OF_X,
                (struct ops_matmul){.x = of,
                                    .y = hidden->rows,
                                    .activation = first_activation(mlp),
                                    .choices = hidden->choices});
    if (mlp->shared != NULL)
        hidden->shared = mlp_emit_up(emitter, mlp->shared, &(struct branch_ends){.x = x}).rows;
}

struct mlp_hidden mlp_emit_up(struct emitter *emitter, const struct mlp *mlp,
                              const struct branch_ends *ends)
{
    struct mlp_hidden hidden = {.rows =
                                    emitter_rows(emitter, width_of(mlp) * (is_gated(mlp) ? 2 : 1))};
    const struct rows x = ends->norm != NULL ? ends->norm->y : ends->x;
    if (mlp->num_experts > 0) {
        if (ends->norm != NULL)
            emitter_norm(emitter, ends->norm);
        emit_experts_up(emitter, mlp, x, ends->x, &hidden);
        return hidden;
    }
    emitter_product(
        emitter, pack(emitter, mlp, MATRIX_OF_X),
        &(struct ops_matmul){
            .x = x, .y = hidden.rows, .activation = first_activation(mlp), .norm = ends->norm});
    return hidden;
}

/* A gate's part in what down_proj takes: rows, gates first, become their products. That of a
 * layer's input is with the rows' part of the inputs. */
static struct ops_norm gate_of(struct emitter *emitter, const struct mlp *mlp, struct rows rows)
{
    const int64_t size = width_of(mlp);
    const struct rows by = mlp->layer_input
                               ? rows_from(emitter->layer_inputs, emitter->layer * size)
                               : rows_from(rows, size);
    return (struct ops_norm){.kind = NORM_NONE,
                             .groups = 1,
                             .size = (int)size,
                             .x = by,
                             .y = rows,
                             .formula = activation(mlp->act),
                             .gate = rows};
}

static void emit_experts_gate(struct emitter *emitter, const struct mlp *mlp, struct rows rows)
{
    const int64_t size = width_of(mlp);
    if (mlp->glu_limit != 0)
        emitter_map(emitter, &(struct ops_map){.formula = FORMULA_CLAMPED_GLU,
                                               .constant = mlp->glu_limit,
                                               .num_cols = (int)size,
                                               .out = rows,
                                               .u = rows,
                                               .w = rows_from(rows, size)});
    if (mlp->glu_limit != 0)
        return;
    const struct ops_norm gate = gate_of(emitter, mlp, rows);
    emitter_norm(emitter, &gate);
}

static void emit_experts_down(struct emitter *emitter, const struct mlp *mlp,
                              const struct mlp_hidden *hidden, const struct branch_ends *ends)
{
    const int64_t size = mlp->experts->down_proj.rows;
    const bool latent = mlp->latent_out.rows > 0;
    const struct rows parts = emitter_rows(emitter, mlp->experts_per_token * size);
    const struct rows sum = latent ? emitter_rows(emitter, size) : ends->out;
    if (is_gated(mlp))
        emit_experts_gate(emitter, mlp, hidden->rows);
    emit_routed(emitter, mlp, MATRIX_LAST,
                (struct ops_matmul){
                    .x = hidden->rows, .y = parts, .by_part = true, .choices = hidden->choices});
    emitter_combine(emitter, &(struct ops_combine){.chosen = mlp->experts_per_token,
                                                   .num_cols = (int)size,
                                                   .choices = hidden->choices,
                                                   .x = parts,
                                                   .out = sum,
                                                   .accumulate = !latent && ends->accumulate});
    if (latent)
        emitter_product(
            emitter, pack(emitter, mlp, MATRIX_LAST),
            &(struct ops_matmul){.x = sum, .y = ends->out, .accumulate = ends->accumulate});
}

/* What the shared expert has made is added to the others' sum. */
static void emit_shared_down(struct emitter *emitter, const struct mlp *mlp,
                             const struct mlp_hidden *hidden, const struct branch_ends *ends)
{
    const struct mlp_hidden own = {.rows = hidden->shared, .shared_gate = hidden->shared_gate};
    mlp_emit_down(emitter, mlp->shared, &own,
                  &(struct branch_ends){.out = ends->out, .accumulate = true});
}

void mlp_emit_down(struct emitter *emitter, const struct mlp *mlp, const struct mlp_hidden *hidden,
                   const struct branch_ends *ends)
{
    const struct rows rows = hidden->rows;
    const int64_t size = width_of(mlp);
    if (mlp->gate_scale != 1)
        emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SCALE,
                                               .constant = mlp->gate_scale,
                                               .num_cols = (int)size,
                                               .out = rows,
                                               .u = rows});
    if (mlp->num_experts > 0) {
        emit_experts_down(emitter, mlp, hidden, ends);
        if (mlp->shared != NULL)
            emit_shared_down(emitter, mlp, hidden, ends);
        return;
    }
    struct ops_norm gate = gate_of(emitter, mlp, rows);
    const bool gates_all = hidden->shared_gate.data != NULL;
    if (gates_all) {
        if (is_gated(mlp))
            emitter_norm(emitter, &gate);
        gate = (struct ops_norm){.kind = NORM_NONE,
                                 .groups = 1,
                                 .size = (int)size,
                                 .x = rows,
                                 .y = rows,
                                 .formula = FORMULA_SIGMOID,
                                 .gate = hidden->shared_gate,
                                 .gate_of_group = true};
    }
    emitter_product(emitter, pack(emitter, mlp, MATRIX_LAST),
                    &(struct ops_matmul){
                        .x = rows,
                        .y = ends->out,
                        .accumulate = ends->accumulate,
                        .norm = gates_all || is_gated(mlp) || mlp->layer_input ? &gate : NULL});
}
