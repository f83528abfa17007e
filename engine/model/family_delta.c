/* SPDX-License-Identifier: Apache-2.0 */
/* Gated DeltaNet and DeltaNet, as `flash-linear-attention` saves GatedDeltaNetForCausalLM and
 * DeltaNetForCausalLM. */
#include "engine/model/blocks.h"
#include "engine/model/config_fla.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"
#include "engine/model/gated_delta.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct layer_names layer_names = BLOCK_FLA_LAYER;
static const struct block_names block_names = {BLOCK_FLA_NAMES, .mlp = BLOCK_MLP_GATED};
static const struct gated_delta_names names = GATED_DELTA_FLA_NAMES;

/* Options that would change what is computed, and that we do not compute. */
static const struct config_refusal refusals[] = {
    {"attn", ""},          {"attnres_block_size", ""}, {"qk_activation", "\"silu\""},
    {"qk_norm", "\"l2\""}, {"use_short_conv", "true"}, {"use_beta", "true"},
};

/* What both models have. Defaults are those of fla's classes, for keys that files may leave out. */
static int parse_model(struct config *config, const struct fields *root, bool *negative,
                       struct error *err)
{
    if (config_fla_model(config, root, refusals, COUNT(refusals), err) != 0 ||
        config_sizes(config, root, "num_heads", err) != 0 ||
        config_fla_intermediate(config, root, 4, err) != 0 ||
        config_fla_flag(root, "allow_neg_eigval", negative, err) != 0)
        return -1;
    return config_token_ids(config, root, err);
}

/* gated: what use_gate is where it is absent. */
static int parse_layers(struct config *config, const struct fields *root,
                        struct gated_delta_sizes *sizes, enum gate_kind gate, bool negative,
                        struct error *err)
{
    static const char *const gates[] = {"swish", "silu", "sigmoid"};
    bool gated = gate == GATE_GATED_DELTA;
    int activation = 0;
    sizes->conv_width = 4;
    if (gated_delta_width(root, "conv_size", sizes, err) != 0 ||
        gated_delta_check(sizes, root, err) != 0 ||
        config_fla_flag(root, "use_gate", &gated, err) != 0 ||
        (gate == GATE_GATED_DELTA && fields_choice(root, "output_gate_activation", FIELD_NOT_NULL,
                                                   gates, 3, &activation, err) != 0))
        return -1;
    struct mixer_config mixer = {.mixer = gated_delta_mixer(sizes, gate, config->norm_eps)};
    mixer.mixer.beta_max = negative ? 2 : 0;
    if (gated)
        mixer.mixer.output_gate = activation == 2 ? OUTPUT_GATE_SIGMOID : OUTPUT_GATE_SWISH;
    return config_single_mixer(config, config->family->name, &mixer, &layer_names, err);
}

static int parse_gated(struct config *config, const struct fields *root, struct error *err)
{
    struct gated_delta_sizes sizes = {.head_dim = 256};
    bool negative = false;
    if (parse_model(config, root, &negative, err) != 0)
        return -1;
    sizes.num_qk_heads = config->num_heads;
    if (gated_delta_size(root, "num_v_heads", FIELD_OPTIONAL, config->num_heads, &sizes.num_heads,
                         err) != 0 ||
        fields_int(root, "head_dim", FIELD_NOT_NULL, 1, CONFIG_MAX_HIDDEN, &sizes.head_dim, err) !=
            0 ||
        config_fla_expansion(root, "head_dim", sizes.head_dim, "expand_v", 2, &sizes.value_dim,
                             err) != 0)
        return -1;
    return parse_layers(config, root, &sizes, GATE_GATED_DELTA, negative, err);
}

/* One head's part of hidden_size times the factor under `key`. */
static int parse_head(const struct config *config, const struct fields *root, const char *key,
                      int64_t *size, struct error *err)
{
    int64_t all;
    if (config_fla_expansion(root, "hidden_size", config->hidden_size, key, 1, &all, err) != 0)
        return -1;
    *size = all / config->num_heads;
    if (all % config->num_heads == 0)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: expected hidden_size * %s, a multiple of num_heads (%lld), got %lld",
                     root->place, key, (long long)config->num_heads, (long long)all);
}

static int parse_plain(struct config *config, const struct fields *root, struct error *err)
{
    struct gated_delta_sizes sizes = {0};
    bool negative = false;
    if (parse_model(config, root, &negative, err) != 0 ||
        parse_head(config, root, "expand_k", &sizes.head_dim, err) != 0 ||
        parse_head(config, root, "expand_v", &sizes.value_dim, err) != 0)
        return -1;
    sizes.num_qk_heads = sizes.num_heads = config->num_heads;
    return parse_layers(config, root, &sizes, GATE_DELTA, negative, err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    return gated_delta_bind(block, &names, err);
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return blocks_bind(model, config, weights, &block_names, bind_mixer, err);
}

const struct family family_gated_deltanet = {
    .name = "gated_deltanet", .parse = parse_gated, .bind = bind};
const struct family family_delta_net = {.name = "delta_net", .parse = parse_plain, .bind = bind};
