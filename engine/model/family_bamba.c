/* SPDX-License-Identifier: Apache-2.0 */
/* Bamba, as `transformers` 4 and 5 save BambaForCausalLM: layers of Mamba-2 and some of attention,
 * whose heads turn by half. */
#include "engine/model/config_library.h"
#include "engine/model/mamba2.h"

static const struct dense_class attention = {.num_kv_heads = 8,
                                             .head_dim_null = true,
                                             .longest = 262144,
                                             .rope_theta = 10000,
                                             .norm_eps = 1e-5,
                                             .act = ACT_SILU,
                                             .windows = true,
                                             .attention_bias = true,
                                             .mlp_bias = true};

static const struct mamba2_class mixers = {MAMBA2_KEYS, .out_bias = "mamba_proj_bias"};

static const struct layer_names layer_names = {"input_layernorm", "self_attn", "pre_ff_layernorm",
                                               "feed_forward"};

/* attn_layer_indices: those of attention, in any order; none where it is absent. */
static int parse_indices(int **kind_of, struct config *config, const struct fields *root,
                         struct error *err)
{
    static const char key[] = "attn_layer_indices";
    const json_t *list;
    *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    if (!*kind_of || fields_list(root, key, FIELD_OPTIONAL, &list, err) != 0)
        return -1;
    for (int64_t i = 0; i < config->num_layers; i++)
        (*kind_of)[i] = 1;
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t layer = json_integer_value(value);
        if (!json_is_integer(value))
            return error_set(err, ERROR_INVALID, "%s: %s[%zu]: expected an integer, got %s",
                             root->place, key, i, fields_kind(value));
        if (layer < 0 || layer >= config->num_layers)
            return error_set(err, ERROR_INVALID,
                             "%s: %s[%zu]: expected an integer in [0, %lld), got %lld", root->place,
                             key, i, (long long)config->num_layers, (long long)layer);
        (*kind_of)[layer] = 0;
    }
    return 0;
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    /* transformers takes one half whatever the key says that version 4 had for it */
    static const struct config_refusal refusals[] = {{"partial_rotary_factor", "0.5"},
                                                     {"sliding_window", ""}};
    const struct rope_keys rope_keys = {.base = "rope_theta",
                                        .part = "partial_rotary_factor",
                                        .usual_base = attention.rope_theta,
                                        .usual_part = 0.5,
                                        .longest = attention.longest,
                                        .partial = true};
    struct dense dense;
    struct rope rope;
    struct mixer_config mamba;
    int *kind_of;
    if (config_library_refuse(root, refusals, 2, err) != 0 ||
        dense_parse(&dense, config, root, &attention, &layer_names, err) != 0 ||
        rope_parse(&rope, root, &rope_keys, &config->warnings, err) != 0 ||
        mamba2_parse(&mamba, NULL, config, root, &mixers, err) != 0 ||
        parse_indices(&kind_of, config, root, err) != 0)
        return -1;
    return mamba2_layers(&dense, config, &rope, &mamba, kind_of, root, err);
}

static const struct block_names names = {MAMBA2_FALCON_NAMES};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return mamba2_bind(model, config, weights, &names, err);
}

const struct family family_bamba = {.name = "bamba", .parse = parse, .bind = bind};
