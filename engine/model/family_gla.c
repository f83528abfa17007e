/* SPDX-License-Identifier: Apache-2.0 */
/* Gated Linear Attention and RetNet, as `flash-linear-attention` saves GLAForCausalLM and
 * RetNetForCausalLM. */
#include "engine/model/blocks.h"
#include "engine/model/config_fla.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"

#include <math.h>

/* What the configuration says beside struct config. */
struct gla_config {
    int64_t num_kv_heads, key_dim, value_dim;
    bool elementwise_affine;
    bool fused; /* fla fuses the norm after the recurrence with the gate: it has another name */
};

/* Options that would change what is computed, and that we do not compute. fla has
 * gate_logit_normalizer only as an argument of its layer: a file's value has no effect there. */
static const struct config_refusal gla_refusals[] = {
    {"attn", ""},
    {"attnres_block_size", ""},
    {"clamp_min", ""},
    {"gate_logit_normalizer", "16"},
};
static const struct config_refusal retnet_refusals[] = {{"attn", ""}, {"attnres_block_size", ""}};

/* How the two models differ. Defaults are those of fla's classes, for keys files may leave out. */
struct kind {
    enum gate_kind gate;
    const struct config_refusal *refusals;
    size_t num_refusals;
    double expand_k, expand_v, hidden_ratio;
};
#define COUNT(array) (sizeof(array) / sizeof *(array))
static const struct kind gla_kind = {GATE_GLA, gla_refusals, COUNT(gla_refusals), 0.5, 1, 4};
static const struct kind retnet_kind = {GATE_FIXED, retnet_refusals, COUNT(retnet_refusals), 1, 2,
                                        2};

static int check_heads(const struct config *config, const struct gla_config *own,
                       const struct fields *root, struct error *err)
{
    const struct {
        const char *what;
        int64_t value, divisor;
    } rules[] = {
        {"hidden_size * expand_k, a multiple of num_heads", own->key_dim, config->num_heads},
        {"hidden_size * expand_v, a multiple of num_heads", own->value_dim, config->num_heads},
        {"num_heads, a multiple of num_kv_heads", config->num_heads, own->num_kv_heads},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].value % rules[i].divisor != 0)
            return error_set(err, ERROR_INVALID, "%s: expected %s (%lld), got %lld", root->place,
                             rules[i].what, (long long)rules[i].divisor, (long long)rules[i].value);
    return 0;
}

static int parse_sizes(struct config *config, const struct kind *kind, struct gla_config *own,
                       const struct fields *root, struct error *err)
{
    if (config_sizes(config, root, "num_heads", err) != 0 ||
        config_fla_expansion(root, "hidden_size", config->hidden_size, "expand_k", kind->expand_k,
                             &own->key_dim, err) != 0 ||
        config_fla_expansion(root, "hidden_size", config->hidden_size, "expand_v", kind->expand_v,
                             &own->value_dim, err) != 0)
        return -1;
    own->num_kv_heads = config->num_heads;
    if (fields_int(root, "num_kv_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &own->num_kv_heads,
                   err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_OPTIONAL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0 ||
        config_fla_intermediate(config, root, kind->hidden_ratio, err) != 0)
        return -1;
    return check_heads(config, own, root, err);
}

/* The layers of fla/layers/gla.py and multiscale_retention.py in our terms: identity or relu
 * features, which RetNet turns, the gate, q scaled by 1/sqrt(d) inside the kernel, a norm per head,
 * then swish(g_proj x). */
static int parse_mixer(const struct fields *root, const struct kind *kind, int64_t head_dim,
                       struct mixer_config *out, struct error *err)
{
    static const char *const maps[] = {"identity", "relu"};
    struct mixer *mixer = &out->mixer;
    int map = FEATURE_IDENTITY;
    bool output_gate = true;
    if (fields_choice(root, "feature_map", FIELD_OPTIONAL, maps, 2, &map, err) != 0 ||
        config_fla_flag(root, "use_output_gate", &output_gate, err) != 0 ||
        (kind->gate == GATE_GLA && /* fla does not tell RetNet's layer of one */
         config_fla_conv(root, VALUE_ACTIVATION_SILU, &mixer->conv, err) != 0))
        return -1;
    mixer_make_linear(mixer, kind->gate);
    mixer->feature_map = map;
    mixer->gate_logit_normalizer = 16;
    mixer->query_scale = QUERY_SCALE_SQRT_DIM;
    mixer->dpfp_nu = 1;
    mixer->position.base = 10000;
    if (kind->gate == GATE_FIXED) {
        if (head_dim % 2 != 0)
            return error_set(err, ERROR_INVALID,
                             "%s: expected an even hidden_size * expand_k / num_heads, got %lld",
                             root->place, (long long)head_dim);
        mixer->position.kind = POSITION_ROPE;
        mixer->position.stage = ROPE_STAGE_AFTER;
        mixer->position.rotary_dims = (int)head_dim;
    }
    mixer->output_norm.kind = NORM_RMSNORM;
    mixer->output_gate = output_gate ? OUTPUT_GATE_SWISH : OUTPUT_GATE_NONE;
    return 0;
}

static const struct layer_names layer_names = BLOCK_FLA_LAYER;

static int parse(struct config *config, const struct fields *root, const struct kind *kind,
                 struct error *err)
{
    static const char *const activations[] = {"swish", "silu"};
    struct gla_config *own = arena_alloc(config->arena, 1, sizeof *own, err);
    if (!own)
        return -1;
    config->own = own;
    struct mixer_config mixer = {0};
    double eps = 1e-6;
    int activation = 0;
    own->elementwise_affine = own->fused = true;
    if (config_library_keys(config, root, err) != 0 ||
        config_library_refuse(root, kind->refusals, kind->num_refusals, err) != 0 ||
        parse_sizes(config, kind, own, root, err) != 0 ||
        parse_mixer(root, kind, own->key_dim / config->num_heads, &mixer, err) != 0 ||
        fields_choice(root, "hidden_act", FIELD_NOT_NULL, activations, 2, &activation, err) != 0 ||
        fields_double(root, "norm_eps", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        config_fla_flag(root, "elementwise_affine", &own->elementwise_affine, err) != 0 ||
        config_fla_flag(root, "fuse_norm", &own->fused, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_OPTIONAL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    own->fused &= activation == 0 && mixer.mixer.output_gate == OUTPUT_GATE_SWISH;
    config->hidden_act = ACT_SILU;
    config->norm_kind = NORM_RMSNORM;
    config->norm_eps = (float)eps;
    mixer.mixer.output_norm.eps = config->norm_eps;
    return config_single_mixer(config, config->family->name, &mixer, &layer_names, err);
}

static int parse_gla(struct config *config, const struct fields *root, struct error *err)
{
    return parse(config, root, &gla_kind, err);
}

static int parse_retnet(struct config *config, const struct fields *root, struct error *err)
{
    return parse(config, root, &retnet_kind, err);
}

/* The norm after the recurrence, whose name depends on whether fla fuses it with the gate. Without
 * elementwise_affine it has no parameters: a weight of ones. */
static int bind_output_norm(const struct block_mixer *block, struct error *err)
{
    const struct gla_config *own = block->config->own;
    struct weights *weights = block->weights;
    struct mixer *mixer = block->mixer;
    char name[WEIGHT_NAME_SIZE];
    if (own->elementwise_affine) {
        const char *norm = own->fused ? "g_norm_swish_gate" : "g_norm";
        return weights_norm(weights, weights_name(name, "%s.%s", block->prefix, norm),
                            mixer->value_dim, &mixer->output_norm, err);
    }
    float *ones = arena_alloc(weights->arena, (size_t)mixer->value_dim, sizeof *ones, err);
    if (!ones)
        return -1;
    for (int j = 0; j < mixer->value_dim; j++)
        ones[j] = 1;
    mixer->output_norm.weight = ones;
    return 0;
}

/* What RetNet's state keeps of itself (Sun et al. 2023, eq. 8): 1 - 2^(-5 - h). */
static int make_decay(const struct block_mixer *block, struct error *err)
{
    const int heads = block->mixer->num_heads;
    float *decay = arena_alloc(block->weights->arena, (size_t)heads, sizeof *decay, err);
    for (int h = 0; decay && h < heads; h++)
        decay[h] = (float)(1 - exp2(-5 - h));
    block->mixer->decay = decay;
    return decay ? 0 : -1;
}

/* gla's, of low rank. */
static int bind_gate(const struct block_mixer *block, int64_t keys, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const struct block_matrix first = {"gk_proj.0", WEIGHT_ANY, block->config->hidden_size,
                                       WEIGHT_NO_BIAS, &mixer->gk_proj_0};
    if (blocks_bind_matrices(block, &first, 1, err) != 0)
        return -1;
    const struct block_matrix second = {"gk_proj.1", keys, mixer->gk_proj_0.rows, WEIGHT_MAY_BIAS,
                                        &mixer->gk_proj_1};
    return blocks_bind_matrices(block, &second, 1, err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    static const char *const convolved[] = {"q", "k", "v"};
    const struct config *config = block->config;
    const struct gla_config *own = config->own;
    struct mixer *mixer = block->mixer;
    int64_t hidden = config->hidden_size, groups = config->num_heads / own->num_kv_heads;
    int64_t keys = own->key_dim / groups, values = own->value_dim / groups;
    const struct block_matrix projections[] = {
        {"q_proj", own->key_dim, hidden, WEIGHT_NO_BIAS, &mixer->q_proj},
        {"k_proj", keys, hidden, WEIGHT_NO_BIAS, &mixer->k_proj},
        {"v_proj", values, hidden, WEIGHT_NO_BIAS, &mixer->v_proj},
        {"o_proj", hidden, own->value_dim, WEIGHT_NO_BIAS, &mixer->o_proj},
        {"g_proj", own->value_dim, hidden, WEIGHT_NO_BIAS, &mixer->out_gate_proj},
    };
    const size_t count = COUNT(projections) - (mixer->output_gate == OUTPUT_GATE_NONE);
    if (blocks_bind_matrices(block, projections, count, err) != 0 ||
        (mixer->gate == GATE_FIXED ? make_decay(block, err) : bind_gate(block, keys, err)) != 0)
        return -1;
    mixer->num_kv_heads = (int)own->num_kv_heads;
    mixer->head_dim = (int)(own->key_dim / config->num_heads);
    mixer->value_dim = (int)(own->value_dim / config->num_heads);
    mixer->features = mixer->features_positioned = mixer->head_dim;
    return blocks_bind_convs(block, convolved, err) == 0 ? bind_output_norm(block, err) : -1;
}

static const struct block_names names = {BLOCK_FLA_NAMES, .mlp = BLOCK_MLP_GATED};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return blocks_bind(model, config, weights, &names, bind_mixer, err);
}

const struct family family_gla = {.name = "gla", .parse = parse_gla, .bind = bind};
const struct family family_retnet = {.name = "retnet", .parse = parse_retnet, .bind = bind};
