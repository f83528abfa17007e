/* SPDX-License-Identifier: Apache-2.0 */
/* q, k and v of a mixer. Mostly they are columns of the projection as it is. FLASH's gated
 * attention unit (Hua et al. 2022, section 3) makes q and k from one projection z, silu(z) times a
 * factor plus an offset for each, and applies silu to v. Qwen3 and others norm q and k. Others take
 * them through a short convolution first. */
#include "engine/mixers/mixer.h"

static int64_t width_of(const struct mixer *config)
{
    return (int64_t)config->num_qk_heads * config->head_dim;
}

static int upload_norm(struct mixer_layer *layer, struct mixer_context *context,
                       const struct norm *norm, int heads, struct mixer_scale *out,
                       struct error *err)
{
    const struct mixer *config = layer->config;
    const size_t groups = config->qk_norm_scope == NORM_SCOPE_HEAD ? 1 : (size_t)heads;
    return mixer_scale_upload(context, norm->weight, norm->bias, groups * (size_t)config->head_dim,
                              out, err);
}

/* The norm of q or k, in its place. */
static void run_norm(const struct mixer_layer *layer, const struct ops *ops,
                     struct backend *backend, const struct norm *norm,
                     const struct mixer_scale *scale, int heads, struct rows x, int num_rows)
{
    const struct mixer *config = layer->config;
    const bool by_head = config->qk_norm_scope == NORM_SCOPE_HEAD;
    if (norm->kind == NORM_NONE)
        return;
    ops->norm(backend, &(struct ops_norm){
                           .kind = norm->kind,
                           .eps = norm->eps,
                           .weight = scale->weight,
                           .bias = scale->bias,
                           .num_rows = num_rows,
                           .groups = by_head ? heads : 1,
                           .size = by_head ? config->head_dim : heads * config->head_dim,
                           .x = x,
                           .y = x,
                       });
}

int mixer_inputs_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    if (upload_norm(layer, context, &config->q_norm, config->num_qk_heads, &layer->q_norm, err) !=
            0 ||
        upload_norm(layer, context, &config->k_norm, mixer_key_heads(config), &layer->k_norm,
                    err) != 0)
        return -1;
    if (config->conv.width > 0 && mixer_conv_create(layer, context, err) != 0)
        return -1;
    if (!config->shared_qk)
        return 0;
    const struct offset_scale *q = &config->q_scale, *k = &config->k_scale;
    const size_t size = (size_t)width_of(config);
    mixer_widen(&context->widths.shared, 2 * width_of(config));
    if (mixer_scale_upload(context, q->weight, q->bias, size, &layer->q_scale, err) != 0)
        return -1;
    return mixer_scale_upload(context, k->weight, k->bias, size, &layer->k_scale, err);
}

void mixer_inputs_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend)
{
    mixer_scale_unload(&layer->q_scale, ops, backend);
    mixer_scale_unload(&layer->k_scale, ops, backend);
    mixer_scale_unload(&layer->q_norm, ops, backend);
    mixer_scale_unload(&layer->k_norm, ops, backend);
}

struct mixer_inputs mixer_inputs_run(const struct mixer_layer *layer, const struct ops *ops,
                                     struct backend *backend, struct mixer_workspace *workspace,
                                     int num_rows)
{
    const struct mixer *config = layer->config;
    struct mixer_inputs inputs = {
        .q = mixer_columns(workspace->project,
                           config->shared_qk ? layer->at.qk_proj : layer->at.q_proj),
        .k = mixer_columns(workspace->project, layer->at.k_proj),
        .v = mixer_columns(workspace->project, layer->at.v_proj),
    };
    struct ops_map map = {.formula = FORMULA_SILU, .num_rows = num_rows};
    if (config->conv.width > 0)
        mixer_conv_run(layer, ops, backend, inputs.q);
    if (config->value_activation == VALUE_ACTIVATION_SILU) {
        map.num_cols = config->num_kv_heads * config->value_dim;
        map.u = map.out = inputs.v;
        ops->map(backend, &map);
    }
    if (!config->shared_qk) {
        run_norm(layer, ops, backend, &config->q_norm, &layer->q_norm, config->num_qk_heads,
                 inputs.q, num_rows);
        run_norm(layer, ops, backend, &config->k_norm, &layer->k_norm, mixer_key_heads(config),
                 inputs.k, num_rows);
        return inputs;
    }
    map.num_cols = (int)width_of(config);
    map.u = inputs.q;
    inputs.q = workspace->shared;
    inputs.k = mixer_columns(workspace->shared, map.num_cols);
    const struct mixer_scale *scales[2] = {&layer->q_scale, &layer->k_scale};
    const struct rows outputs[2] = {inputs.q, inputs.k};
    for (int i = 0; i < 2; i++) {
        map.weight = scales[i]->weight;
        map.bias = scales[i]->bias;
        map.out = outputs[i];
        ops->map(backend, &map);
    }
    return inputs;
}
