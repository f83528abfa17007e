/* SPDX-License-Identifier: Apache-2.0 */
/* Kimi Delta Attention, as `flash-linear-attention` 0.6 saves KDAForCausalLM (fla/models/kda). */
#include "engine/model/blocks.h"
#include "engine/model/config_fla.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"
#include "engine/model/gated_delta.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct layer_names layer_names = BLOCK_FLA_LAYER;
static const struct block_names names = {BLOCK_FLA_NAMES, .mlp = BLOCK_MLP_GATED};

/* Options that would change what is computed, and that we do not compute. */
static const struct config_refusal refusals[] = {
    {"attn", ""},
    {"attnres_block_size", ""},
    {"use_short_conv", "true"},
};

/* Decays are of value heads, so those of one key head would differ. */
static int check_heads(const struct config *config, const struct fields *root, struct error *err)
{
    int64_t values = config->num_heads;
    if (fields_int(root, "num_v_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &values, err) != 0)
        return -1;
    if (values == config->num_heads)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "%s: num_v_heads: expected num_heads (%lld), got %lld (others are not "
                     "supported)",
                     root->place, (long long)config->num_heads, (long long)values);
}

/* lower_bound counts whether or not safe_gate is there, which only needs it. */
static int parse_bound(const struct fields *root, float *bound, struct error *err)
{
    double least = 0;
    bool safe = false;
    if (config_fla_flag(root, "safe_gate", &safe, err) != 0 ||
        fields_double(root, "lower_bound", FIELD_OPTIONAL, -80, 0, &least, err) != 0)
        return -1;
    *bound = (float)least;
    if (*bound < 0 || (!safe && !json_is_number(json_object_get(root->object, "lower_bound"))))
        return 0;
    return error_set(err, ERROR_INVALID, "%s: lower_bound: expected a number under 0%s",
                     root->place, safe ? ", as safe_gate is true" : "");
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct gated_delta_sizes sizes = {.head_dim = 128, .conv_width = 4};
    bool negative = false;
    float bound;
    if (config_fla_model(config, root, refusals, COUNT(refusals), err) != 0 ||
        config_sizes(config, root, "num_heads", err) != 0 ||
        config_fla_intermediate(config, root, 4, err) != 0 || check_heads(config, root, err) != 0 ||
        fields_int(root, "head_dim", FIELD_NOT_NULL, 1, CONFIG_MAX_HIDDEN, &sizes.head_dim, err) !=
            0 ||
        config_fla_expansion(root, "head_dim", sizes.head_dim, "expand_v", 1, &sizes.value_dim,
                             err) != 0 ||
        gated_delta_width(root, "conv_size", &sizes, err) != 0 ||
        config_fla_flag(root, "allow_neg_eigval", &negative, err) != 0 ||
        parse_bound(root, &bound, err) != 0 || config_token_ids(config, root, err) != 0)
        return -1;
    sizes.num_heads = sizes.num_qk_heads = config->num_heads;
    struct mixer_config mixer = {.mixer = gated_delta_mixer(&sizes, GATE_KDA, config->norm_eps)};
    mixer.mixer.beta_max = negative ? 2 : 0;
    mixer.mixer.decay_bound = bound;
    mixer.mixer.output_gate = OUTPUT_GATE_SIGMOID;
    return config_single_mixer(config, config->family->name, &mixer, &layer_names, err);
}

/* And dt_bias, as the bias of gk_proj_1. */
static int bind_decay(const struct block_mixer *block, struct error *err)
{
    int64_t features = (int64_t)block->mixer->num_heads * block->mixer->features;
    char name[WEIGHT_NAME_SIZE];
    if (weights_floats(block->weights, weights_name(name, "%s.dt_bias", block->prefix), 1,
                       &features, &block->mixer->gk_proj_1.bias, err) != 0)
        return -1;
    return blocks_decay_by_feature(block, err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    static const char *const convolved[] = {"q", "k", "v"};
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size, rank = mixer->value_dim;
    const int64_t keys = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t values = (int64_t)mixer->num_heads * mixer->value_dim;
    char name[WEIGHT_NAME_SIZE];
    const struct block_matrix matrices[] = {
        {"q_proj", keys, hidden, WEIGHT_NO_BIAS, &mixer->q_proj},
        {"k_proj", keys, hidden, WEIGHT_NO_BIAS, &mixer->k_proj},
        {"v_proj", values, hidden, WEIGHT_NO_BIAS, &mixer->v_proj},
        {"b_proj", mixer->num_heads, hidden, WEIGHT_NO_BIAS, &mixer->b_proj},
        {"f_proj.0", rank, hidden, WEIGHT_NO_BIAS, &mixer->gk_proj_0},
        {"f_proj.1", keys, rank, WEIGHT_NO_BIAS, &mixer->gk_proj_1},
        {"g_proj.0", rank, hidden, WEIGHT_NO_BIAS, &mixer->out_gate_in},
        {"g_proj.1", values, rank, WEIGHT_HAS_BIAS, &mixer->out_gate_out},
        {"o_proj", hidden, values, WEIGHT_NO_BIAS, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0 ||
        bind_decay(block, err) != 0 || blocks_bind_convs(block, convolved, err) != 0)
        return -1;
    return weights_norm(block->weights, weights_name(name, "%s.o_norm", block->prefix),
                        mixer->value_dim, &mixer->output_norm, err);
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return blocks_bind(model, config, weights, &names, bind_mixer, err);
}

const struct family family_kda = {.name = "kda", .parse = parse, .bind = bind};
