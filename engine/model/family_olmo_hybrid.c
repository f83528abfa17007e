/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo Hybrid, as `transformers` saves OlmoHybridForCausalLM: layers of Gated DeltaNet with norms
 * before the branches, and each fourth of OLMo 2's attention with norms behind them. */
#include "engine/model/dense.h"
#include "engine/model/gated_delta.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct dense_class olmo_hybrid = {.longest = 65536,
                                               .rope_theta = 10000,
                                               .act = ACT_SILU,
                                               .windows = true,
                                               .attention_bias = true,
                                               .qk_norm = NORM_RMSNORM,
                                               .qk_norm_scope = NORM_SCOPE_HIDDEN};

static const struct gated_delta_names names = GATED_DELTA_FLA_NAMES;

/* Behind the recurrence, whatever rms_norm_eps is. */
static const float output_norm_eps = 1e-5f;

/* Sizes that are absent or null follow from others. */
static int parse_sizes(struct gated_delta_sizes *sizes, const struct config *config,
                       const struct fields *root, struct error *err)
{
    int64_t usual = config->num_heads;
    if (gated_delta_size(root, "linear_num_key_heads", FIELD_OPTIONAL, usual, &sizes->num_qk_heads,
                         err) != 0 ||
        gated_delta_size(root, "linear_num_value_heads", FIELD_OPTIONAL, usual, &sizes->num_heads,
                         err) != 0)
        return -1;
    usual = (int64_t)(0.75 * (double)config->hidden_size / (double)sizes->num_qk_heads);
    if (gated_delta_size(root, "linear_key_head_dim", FIELD_OPTIONAL, usual, &sizes->head_dim,
                         err) != 0)
        return -1;
    return gated_delta_size(root, "linear_value_head_dim", FIELD_OPTIONAL, 2 * sizes->head_dim,
                            &sizes->value_dim, err);
}

/* A base of null means that there are no positions. */
static bool has_positions(const struct fields *root)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    const char base[] = "rope_theta";
    for (size_t i = 0; i < COUNT(keys); i++) {
        const json_t *own = json_object_get(root->object, keys[i]);
        if (json_is_object(own) && json_object_get(own, base))
            return !json_is_null(json_object_get(own, base));
    }
    return !json_is_null(json_object_get(root->object, base));
}

/* Norms behind the branches, and none before them. */
static struct layer_config attention_layer(struct dense *dense)
{
    const struct layer_config before = dense->layer;
    dense_post_norms(dense);
    for (int i = 0; i < dense->layer.num_blocks; i++)
        dense->layer.blocks[i].branches[0].pre.kind = NORM_NONE;
    const struct layer_config behind = dense->layer;
    dense->layer = before;
    return behind;
}

static int parse_layers(struct dense *dense, struct config *config, const struct rope *rope,
                        const struct fields *root, struct error *err)
{
    struct gated_delta_sizes sizes = {.conv_width = 4};
    bool negative = true;
    int *kind_of;
    if (parse_sizes(&sizes, config, root, err) != 0 ||
        gated_delta_width(root, "linear_conv_kernel_dim", &sizes, err) != 0 ||
        gated_delta_check(&sizes, root, err) != 0 ||
        fields_bool(root, "linear_allow_neg_eigval", FIELD_NOT_NULL, &negative, err) != 0 ||
        gated_delta_layers(&kind_of, config, 4, root, err) != 0)
        return -1;
    if (!fields_has(root, "layer_types") && config->num_layers < 4) /* one is of attention */
        kind_of[config->num_layers - 1] = 0;
    struct mixer linear = gated_delta_mixer(&sizes, GATE_GATED_DELTA, output_norm_eps);
    linear.output_gate = OUTPUT_GATE_SWISH;
    linear.beta_max = negative ? 2 : 0;
    dense->layer.blocks[0].branches[0].name = "linear_attn";
    struct layer_config behind = attention_layer(dense);
    behind.blocks[0].branches[0].name = "self_attn";
    const struct dense_kind kinds[] = {
        {.name = "full_attention", .rope = rope, .layer = &behind},
        {.name = "linear_attention", .mixer = &linear},
    };
    return dense_layers(dense, config, kinds, COUNT(kinds), kind_of, root, err);
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (dense_parse(&dense, config, root, &olmo_hybrid, NULL, err) != 0 ||
        gated_delta_check_act(config, root, err) != 0)
        return -1;
    const bool turns = has_positions(root);
    if (turns && dense_rope(&rope, config, root, &olmo_hybrid, err) != 0)
        return -1;
    return parse_layers(&dense, config, turns ? &rope : NULL, root, err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    return mixer_has(block->mixer, HAS_FEATURES) ? gated_delta_bind(block, &names, err)
                                                 : dense_bind_attention(block, err);
}

/* Released files have other names for the norms of linear layers, which transformers, too, takes
 * for its own in every layer. */
static int rename_norms(struct tensors *file, struct error *err)
{
    static const char *const pairs[][2] = {
        {".attention_layer_norm.", ".input_layernorm."},
        {".feedforward_layer_norm.", ".post_attention_layernorm."}};
    for (size_t i = 0; i < tensors_count(file); i++) {
        struct tensor *tensor = tensors_at(file, i);
        for (size_t p = 0; p < COUNT(pairs); p++) {
            char name[WEIGHT_NAME_SIZE];
            const char *at = strstr(tensor->name, pairs[p][0]);
            if (!at)
                continue;
            snprintf(name, sizeof name, "%.*s%s%s", (int)(at - tensor->name), tensor->name,
                     pairs[p][1], at + strlen(pairs[p][0]));
            if (tensors_rename(file, tensor, name, err) != 0)
                return -1;
        }
    }
    return tensors_sort(file, err);
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    static const char *const others[] = {"mtp"};
    weights_ignore_below(weights, others, COUNT(others));
    return rename_norms(weights->file, err) == 0
               ? dense_bind_layers(model, config, weights, "model", bind_mixer, err)
               : -1;
}

const struct family family_olmo_hybrid = {.name = "olmo_hybrid", .parse = parse, .bind = bind};
