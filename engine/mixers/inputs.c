/* SPDX-License-Identifier: Apache-2.0 */
/* q, k and v of a mixer. Mostly they are columns of the projection as it is. FLASH's gated
 * attention unit (Hua et al. 2022, section 3) makes q and k from one projection z, silu(z) times a
 * factor plus an offset for each, and applies silu to v. Qwen3 and others norm q and k. Others take
 * them through a short convolution first. */
#include "engine/mixers/mixer.h"

/* The norm of q or k, in its place. */
static void emit_norm(const struct mixer_build *mixer, const struct norm *norm, int heads,
                      struct rows x)
{
    const struct mixer *config = mixer->config;
    const bool by_head = config->qk_norm_scope == NORM_SCOPE_HEAD;
    const int size = by_head ? config->head_dim : heads * config->head_dim;
    if (norm->kind == NORM_NONE)
        return;
    const struct mixer_scale scale =
        mixer_scale_upload(mixer->emitter, norm->weight, norm->bias, (size_t)size);
    emitter_norm(mixer->emitter, &(struct ops_norm){
                                     .kind = norm->kind,
                                     .eps = norm->eps,
                                     .weight = scale.weight,
                                     .bias = scale.bias,
                                     .groups = by_head ? heads : 1,
                                     .size = size,
                                     .x = x,
                                     .y = x,
                                 });
}

/* The norm of values, of what v_proj or, where they are the keys, k_proj has made: before k's own
 * norm. */
static void emit_values(const struct mixer_build *mixer, struct mixer_inputs *inputs)
{
    const struct mixer *config = mixer->config;
    const struct rows from = config->keys_are_values ? inputs->k : inputs->v;
    if (config->keys_are_values)
        inputs->v = emitter_rows(mixer->emitter, (int64_t)config->num_kv_heads * config->value_dim);
    if (config->v_norm.kind == NORM_NONE && !config->keys_are_values)
        return;
    emitter_norm(mixer->emitter, &(struct ops_norm){.kind = config->v_norm.kind,
                                                    .eps = config->v_norm.eps,
                                                    .groups = config->num_kv_heads,
                                                    .size = config->value_dim,
                                                    .x = from,
                                                    .y = inputs->v});
}

/* q and k of what qk_proj has made: silu of it, times a factor plus an offset for each. */
static void emit_shared(const struct mixer_build *mixer, struct mixer_inputs *inputs)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const int width = config->num_qk_heads * config->head_dim;
    const struct rows both = emitter_rows(emitter, 2 * (int64_t)width);
    const struct offset_scale *const own[2] = {&config->q_scale, &config->k_scale};
    const struct rows outputs[2] = {both, rows_from(both, width)};
    for (int i = 0; i < 2; i++) {
        const struct mixer_scale scale =
            mixer_scale_upload(emitter, own[i]->weight, own[i]->bias, (size_t)width);
        emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SILU,
                                               .num_cols = width,
                                               .out = outputs[i],
                                               .u = inputs->q,
                                               .weight = scale.weight,
                                               .bias = scale.bias});
    }
    inputs->q = outputs[0];
    inputs->k = outputs[1];
}

struct mixer_inputs mixer_inputs_emit(const struct mixer_build *mixer)
{
    const struct mixer *config = mixer->config;
    struct mixer_inputs inputs = {
        .q = mixer_project(mixer, config->shared_qk ? mixer->at.qk_proj : mixer->at.q_proj),
    };
    if (config->keys_of > 0) {
        emit_norm(mixer, &config->q_norm, config->num_qk_heads, inputs.q);
        return inputs;
    }
    inputs.k = mixer_project(mixer, mixer->at.k_proj);
    if (!config->values_in_keys && !config->keys_are_values)
        inputs.v = mixer_project(mixer, mixer->at.v_proj);
    if (config->conv.width > 0)
        mixer_conv_emit(mixer, inputs.q);
    if (config->value_activation == VALUE_ACTIVATION_SILU)
        emitter_map(mixer->emitter,
                    &(struct ops_map){.formula = FORMULA_SILU,
                                      .num_cols = config->num_kv_heads * config->value_dim,
                                      .u = inputs.v,
                                      .out = inputs.v});
    if (config->shared_qk) {
        emit_shared(mixer, &inputs);
        return inputs;
    }
    emit_values(mixer, &inputs);
    emit_norm(mixer, &config->q_norm, config->num_qk_heads, inputs.q);
    emit_norm(mixer, &config->k_norm, mixer_key_heads(config), inputs.k);
    return inputs;
}
