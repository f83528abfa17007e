/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/blocks_mlp.h"

#include <math.h>
#include <stdio.h>

/* "prefix.name", without a dot where one of them is empty. */
static const char *below(char full[WEIGHT_NAME_SIZE], const char *prefix, const char *name)
{
    return weights_name(full, "%s%s%s", prefix, *prefix && *name ? "." : "", name);
}

/* "prefix.experts.3" */
static const char *expert_name(char name[WEIGHT_NAME_SIZE], const struct block_names *names,
                               const char *prefix, int i)
{
    return weights_name(name, "%s.%s.%d", prefix, names->experts, i);
}

/* What a file with gates and ups in one calls it. */
static const char *both_name(const struct block_names *names)
{
    return names->gate_up_proj ? names->gate_up_proj : "gate_up_proj";
}

static int bind_linear(const struct blocks_mlp *place, const char *prefix, const char *name,
                       int64_t rows, int64_t cols, enum weight_bias biased, struct matrix *matrix,
                       struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_linear(place->weights, below(full, prefix, name), rows, cols, biased, matrix,
                          err);
}

/* x of an MLP, or of an expert. */
static int64_t input_of(const struct blocks_mlp *place, const struct branch_config *branch)
{
    return branch->latent_size > 0 ? branch->latent_size : place->config->hidden_size;
}

/* An MLP, or an expert. */
struct shape {
    bool gated;
    int64_t inner, cols; /* of its hidden numbers, and of x */
    enum weight_bias biased;
};

/* The matrices below prefix. */
static int bind_matrices(const struct blocks_mlp *place, const char *prefix,
                         const struct shape *shape, struct mlp *mlp, struct error *err)
{
    const struct block_names *names = place->names;
    const int64_t inner = shape->inner, cols = shape->cols;
    char name[WEIGHT_NAME_SIZE];
    struct matrix both;
    if (names->gate_up_proj &&
        weights_has(place->weights,
                    weights_name(name, "%s.%s.weight", prefix, names->gate_up_proj))) {
        if (bind_linear(place, prefix, names->gate_up_proj, 2 * inner, cols, shape->biased, &both,
                        err) != 0)
            return -1;
        mlp->gate_proj = weights_rows(&both, 0, inner);
        mlp->up_proj = weights_rows(&both, inner, inner);
    } else if ((shape->gated && bind_linear(place, prefix, names->gate_proj, inner, cols,
                                            shape->biased, &mlp->gate_proj, err) != 0) ||
               bind_linear(place, prefix, names->up_proj, inner, cols, shape->biased, &mlp->up_proj,
                           err) != 0)
        return -1;
    return bind_linear(place, prefix, names->down_proj, cols, inner, shape->biased, &mlp->down_proj,
                       err);
}

/* Whether the MLP, or the expert, has a gate. */
static bool is_gated(const struct blocks_mlp *place, const char *prefix)
{
    char name[WEIGHT_NAME_SIZE];
    const struct block_names *names = place->names;
    return names->mlp == BLOCK_MLP_EITHER
               ? weights_has(place->weights,
                             weights_name(name, "%s.%s.weight", prefix, names->gate_proj))
               : names->mlp == BLOCK_MLP_GATED;
}

/* ---- experts ---- */

static struct matrix *matrix_at(struct mlp *mlp, size_t place)
{
    return (struct matrix *)(void *)((char *)mlp + place);
}

/* Each expert's rows of a stack: `rows` of them from `first` on, of `all` that an expert has. */
static void split_stack(struct mlp *mlp, const struct matrix *stack, int64_t all, int64_t first,
                        int64_t rows, size_t place)
{
    for (int i = 0; i < mlp->num_experts; i++)
        *matrix_at(&mlp->experts[i], place) = weights_rows(stack, i * all + first, rows);
}

/* [E, rows], as `name`.bias or, where a file has those of weights without .weight, `name`_bias. */
static int bind_stack_bias(const struct blocks_mlp *place, const char *name, const int64_t *shape,
                           bool turns, struct matrix *stack, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t own[2] = {shape[0], shape[1]};
    const int64_t rows = shape[1], half = rows / 2;
    const float *bias;
    if (place->names->experts_biased == WEIGHT_NO_BIAS)
        return 0;
    weights_name(full, "%s.bias", name);
    if (!weights_has(place->weights, full))
        weights_name(full, "%s_bias", name);
    if (weights_floats(place->weights, full, 2, own, &bias, err) != 0)
        return -1;
    stack->bias = bias;
    if (!turns)
        return 0;
    float *out = arena_alloc(place->weights->arena, (size_t)(shape[0] * rows), sizeof *out, err);
    for (int64_t i = 0; out && i < shape[0] * rows; i++)
        out[i] = bias[i / rows * rows + i % rows % half * 2 + i % rows / half];
    stack->bias = out;
    return out ? 0 : -1;
}

/* Experts' matrices [rows, cols]. both: gates and ups, whose rows a file may have in turns. */
static int bind_stack(const struct blocks_mlp *place, const char *prefix, const char *name,
                      int64_t rows, int64_t cols, bool both, struct mlp *mlp, struct matrix *stack,
                      struct error *err)
{
    const int64_t shape[] = {mlp->num_experts, rows, cols};
    const bool turns = both && place->names->alternates;
    char full[WEIGHT_NAME_SIZE];
    int result;
    below(full, prefix, name);
    const bool halves = !place->names->alternates || weights_has_weight(place->weights, full);
    if (halves)
        result = weights_stack(place->weights, full, shape, stack, err);
    else if (weights_has_blocks(place->weights, full))
        result = weights_stack_mxfp4(place->weights, full, shape, turns, stack, err);
    else
        result = weights_stack_turned(place->weights, full, shape, turns, stack, err);
    return result == 0 ? bind_stack_bias(place, full, shape, turns && !halves, stack, err) : -1;
}

static int bind_stacks(const struct blocks_mlp *place, const char *prefix,
                       const struct branch_config *branch, struct mlp *mlp, struct error *err)
{
    const struct block_names *names = place->names;
    const int64_t inner = branch->mlp_size, cols = input_of(place, branch);
    const size_t gates = offsetof(struct mlp, gate_proj), ups = offsetof(struct mlp, up_proj);
    struct matrix stack;
    char name[WEIGHT_NAME_SIZE];
    if (names->mlp == BLOCK_MLP_GATED &&
        weights_has_stack(place->weights, below(name, prefix, both_name(names)))) {
        if (bind_stack(place, prefix, both_name(names), 2 * inner, cols, true, mlp, &stack, err) !=
            0)
            return -1;
        split_stack(mlp, &stack, 2 * inner, 0, inner, gates);
        split_stack(mlp, &stack, 2 * inner, inner, inner, ups);
    } else {
        if (names->mlp == BLOCK_MLP_GATED) {
            if (bind_stack(place, prefix, names->gate_proj, inner, cols, false, mlp, &stack, err) !=
                0)
                return -1;
            split_stack(mlp, &stack, inner, 0, inner, gates);
        }
        if (bind_stack(place, prefix, names->up_proj, inner, cols, false, mlp, &stack, err) != 0)
            return -1;
        split_stack(mlp, &stack, inner, 0, inner, ups);
    }
    if (bind_stack(place, prefix, names->down_proj, cols, inner, false, mlp, &stack, err) != 0)
        return -1;
    split_stack(mlp, &stack, cols, 0, cols, offsetof(struct mlp, down_proj));
    return 0;
}

/* All as the first one is: what another one has beside is a tensor too many. */
static int bind_experts(const struct blocks_mlp *place, const char *prefix,
                        const struct branch_config *branch, struct mlp *mlp, struct error *err)
{
    const struct block_names *names = place->names;
    char name[WEIGHT_NAME_SIZE], stacks[WEIGHT_NAME_SIZE];
    mlp->experts =
        arena_alloc(place->weights->arena, (size_t)mlp->num_experts, sizeof *mlp->experts, err);
    if (!mlp->experts)
        return -1;
    below(stacks, prefix, names->experts);
    if (!*names->experts ||
        weights_has_stack(place->weights, below(name, stacks, names->down_proj)))
        return bind_stacks(place, stacks, branch, mlp, err);
    const struct shape shape = {is_gated(place, expert_name(name, names, prefix, 0)),
                                branch->mlp_size, input_of(place, branch), names->experts_biased};
    for (int i = 0; i < mlp->num_experts; i++)
        if (bind_matrices(place, expert_name(name, names, prefix, i), &shape, &mlp->experts[i],
                          err) != 0)
            return -1;
    return 0;
}

static int bind_score_bias(const struct blocks_mlp *place, const char *prefix, struct mlp *mlp,
                           struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t experts = mlp->num_experts;
    return weights_floats(place->weights, below(name, prefix, place->names->score_bias), 1,
                          &experts, &mlp->score_bias, err);
}

/* A matrix of one row, which GGUF files have as a vector. */
static void make_row(const struct blocks_mlp *place, const char *prefix, const char *name)
{
    char full[WEIGHT_NAME_SIZE];
    weights_name(full, "%s.%s.weight", prefix, name);
    struct tensor *tensor = tensors_find(place->weights->file, full);
    if (!tensor || tensor->rank != 1)
        return;
    tensor->shape[1] = tensor->shape[0];
    tensor->shape[0] = 1;
    tensor->rank = 2;
}

/* What is added to each row's experts. */
static int bind_shared(const struct blocks_mlp *place, const char *prefix,
                       const struct branch_config *branch, struct mlp *mlp, struct error *err)
{
    const int64_t hidden = place->config->hidden_size;
    char name[WEIGHT_NAME_SIZE];
    mlp->shared = arena_alloc(place->weights->arena, 1, sizeof *mlp->shared, err);
    if (!mlp->shared)
        return -1;
    mlp->shared->act = branch->act;
    mlp->shared->gate_scale = 1;
    below(name, place->layer, branch->shared);
    const struct shape shape = {is_gated(place, name), branch->shared_size, hidden,
                                place->names->biased};
    if (bind_matrices(place, name, &shape, mlp->shared, err) != 0)
        return -1;
    if (!place->names->shared_gate)
        return 0;
    make_row(place, prefix, place->names->shared_gate);
    return bind_linear(place, prefix, place->names->shared_gate, 1, hidden, WEIGHT_NO_BIAS,
                       &mlp->shared_gate, err);
}

/* The norm of the router's x, and what its weights are multiplied with. */
static int bind_router_scales(const struct blocks_mlp *place, const char *prefix, struct mlp *mlp,
                              struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t hidden = place->config->hidden_size, experts = mlp->num_experts;
    const float *scale;
    float *weight = arena_alloc(place->weights->arena, (size_t)hidden, sizeof *weight, err);
    if (!weight || weights_floats(place->weights, below(name, prefix, place->names->router_scale),
                                  1, &hidden, &scale, err) != 0)
        return -1;
    for (int64_t i = 0; i < hidden; i++)
        weight[i] = (float)((double)scale[i] / sqrt((double)hidden));
    mlp->router_norm =
        (struct norm){.kind = NORM_RMSNORM, .eps = place->config->norm_eps, .weight = weight};
    return weights_floats(place->weights, below(name, prefix, place->names->expert_scale), 1,
                          &experts, &mlp->expert_scale, err);
}

static int bind_mixture(const struct blocks_mlp *place, const char *prefix,
                        const struct branch_config *branch, struct mlp *mlp, struct error *err)
{
    const struct block_names *names = place->names;
    const int64_t hidden = place->config->hidden_size, latent = branch->latent_size;
    if (bind_linear(place, prefix, names->router, mlp->num_experts, hidden, names->experts_biased,
                    &mlp->router, err) != 0 ||
        (branch->score_bias && bind_score_bias(place, prefix, mlp, err) != 0) ||
        (names->router_scale && bind_router_scales(place, prefix, mlp, err) != 0) ||
        bind_experts(place, prefix, branch, mlp, err) != 0)
        return -1;
    if (latent > 0 && (bind_linear(place, prefix, names->latent_in, latent, hidden, names->biased,
                                   &mlp->latent_in, err) != 0 ||
                       bind_linear(place, prefix, names->latent_out, hidden, latent, names->biased,
                                   &mlp->latent_out, err) != 0))
        return -1;
    return branch->shared_size > 0 ? bind_shared(place, prefix, branch, mlp, err) : 0;
}

/* W of the layer's input. */
static int bind_layer_input(const struct blocks_mlp *place, const char *prefix, struct mlp *mlp,
                            struct error *err)
{
    const int64_t hidden = place->config->hidden_size, size = place->config->layer_size;
    return bind_linear(place, prefix, place->names->layer_gate, size, hidden, WEIGHT_NO_BIAS,
                       &mlp->up_proj, err) == 0
               ? bind_linear(place, prefix, place->names->layer_out, hidden, size, WEIGHT_NO_BIAS,
                             &mlp->down_proj, err)
               : -1;
}

int blocks_mlp_bind(const struct blocks_mlp *place, const struct branch_config *branch,
                    struct mlp *mlp, struct error *err)
{
    char prefix[WEIGHT_NAME_SIZE];
    below(prefix, place->layer, branch->name);
    mlp->act = branch->act;
    mlp->gate_scale = branch->gate_scale;
    mlp->glu_limit = branch->glu_limit;
    mlp->num_experts = branch->num_experts;
    mlp->experts_per_token = branch->experts_per_token;
    mlp->rule = branch->rule;
    mlp->layer_input = branch->layer_input;
    if (mlp->layer_input)
        return bind_layer_input(place, prefix, mlp, err);
    const struct shape shape = {is_gated(place, prefix), branch->mlp_size,
                                place->config->hidden_size, place->names->biased};
    return mlp->num_experts > 0 ? bind_mixture(place, prefix, branch, mlp, err)
                                : bind_matrices(place, prefix, &shape, mlp, err);
}

/* ---- presets ---- */

static bool random_gated(const struct random_list *list, const struct block_names *names)
{
    return names->mlp == BLOCK_MLP_GATED || (names->mlp == BLOCK_MLP_EITHER && list->shapes->glu);
}

static void random_mlp(struct random_list *list, const struct block_names *names,
                       const char *prefix, int64_t inner)
{
    const int64_t hidden = list->config->hidden_size;
    if (random_gated(list, names))
        random_list_linear(list, prefix, names->gate_proj, inner, hidden, 0);
    random_list_linear(list, prefix, names->up_proj, inner, hidden, 0);
    random_list_output(list, prefix, names->down_proj, hidden, inner);
}

static void random_stacks(struct random_list *list, const struct block_names *names,
                          const char *prefix, const struct branch_config *branch)
{
    const int64_t hidden = list->config->hidden_size, inner = branch->mlp_size;
    const double output = 1 / sqrt(2 * (double)list->config->num_layers * (double)inner);
    random_list_stack(list, prefix, both_name(names), branch->num_experts, 2 * inner, hidden,
                      1 / sqrt((double)hidden));
    random_list_stack(list, prefix, names->down_proj, branch->num_experts, hidden, inner, output);
}

void blocks_mlp_random(struct random_list *list, const struct block_names *names, const char *layer,
                       const struct branch_config *branch)
{
    const int64_t hidden = list->config->hidden_size;
    char prefix[WEIGHT_NAME_SIZE], name[WEIGHT_NAME_SIZE];
    below(prefix, layer, branch->name);
    if (branch->layer_input) {
        random_list_linear(list, prefix, names->layer_gate, list->config->layer_size, hidden, 0);
        random_list_output(list, prefix, names->layer_out, hidden, list->config->layer_size);
        return;
    }
    if (branch->num_experts == 0) {
        random_mlp(list, names, prefix, branch->mlp_size);
        return;
    }
    random_list_linear(list, prefix, names->router, branch->num_experts, hidden, 0);
    if (branch->score_bias)
        random_list_vector(list, prefix, names->score_bias, branch->num_experts, 0, 0.02);
    for (int i = 0; i < branch->num_experts && *names->experts; i++)
        random_mlp(list, names, expert_name(name, names, prefix, i), branch->mlp_size);
    if (!*names->experts)
        random_stacks(list, names, prefix, branch);
    if (branch->shared_size == 0)
        return;
    random_mlp(list, names, below(name, layer, branch->shared), branch->shared_size);
    if (names->shared_gate)
        random_list_linear(list, prefix, names->shared_gate, 1, hidden, 0);
}
