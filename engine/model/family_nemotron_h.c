/* SPDX-License-Identifier: Apache-2.0 */
/* Nemotron-H, as `transformers` 4 and 5 save NemotronHForCausalLM: each layer is one mixer of
 * Mamba-2, one of attention without positions, one MLP, or a mixture of experts. */
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"
#include "engine/model/gguf_mamba.h"
#include "engine/model/mamba2.h"

#include <string.h>

/* transformers has no biases in attention, whatever attention_bias says. */
static const struct dense_class attention = {.num_kv_heads = 8,
                                             .head_dim = 128,
                                             .longest = 4096,
                                             .norm_eps = 1e-5,
                                             .act_key = "mlp_hidden_act",
                                             .eps_key = "layer_norm_epsilon",
                                             .act = ACT_RELU2,
                                             .windows = true,
                                             .mlp_bias = true};

static const struct mamba2_class mixers = {.heads = "mamba_num_heads",
                                           .head_dim = "mamba_head_dim",
                                           .state = "ssm_state_size",
                                           .groups = "n_groups",
                                           .width = "conv_kernel",
                                           .usual_heads = 128,
                                           .usual_head_dim = 64,
                                           .usual_state = 128,
                                           .usual_groups = 8,
                                           .act = "mamba_hidden_act",
                                           .conv_bias = "use_conv_bias",
                                           .in_bias = "use_bias",
                                           .out_bias = "use_bias"};

static const struct layer_names layer_names = {"norm", "mixer", "norm", "mixer"};

/* Names that transformers 4 had for keys, which transformers 5 reads in their place. */
static int refuse_old_names(const struct fields *root, struct error *err)
{
    static const struct config_refusal refusals[] = {
        {"mamba_n_groups", ""}, {"mamba_d_conv", ""},   {"mamba_conv_bias", ""},
        {"mamba_dt_limit", ""}, {"sliding_window", ""}, {"num_nextn_predict_layers", "0"},
    };
    return config_library_refuse(root, refusals, sizeof refusals / sizeof *refusals, err);
}

/* hybrid_override_pattern: a letter for each layer. */
static int parse_pattern(int **kind_of, struct config *config, const struct fields *root,
                         struct error *err)
{
    static const char key[] = "hybrid_override_pattern", letters[] = "*M-E";
    const char *pattern = NULL;
    if (fields_string(root, key, FIELD_REQUIRED, &pattern, err) != 0)
        return -1;
    config->num_layers = (int64_t)strnlen(pattern, CONFIG_MAX_LAYERS + 1);
    if (config->num_layers < 1 || config->num_layers > CONFIG_MAX_LAYERS)
        return error_set(err, ERROR_INVALID, "%s: %s: expected 1 to %d letters, got %lld",
                         root->place, key, CONFIG_MAX_LAYERS, (long long)config->num_layers);
    *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    for (int64_t i = 0; *kind_of && i < config->num_layers; i++) {
        const char *letter = strchr(letters, pattern[i]);
        if (!letter)
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s: %s: expected M, *, - or E, got '%c' at place %lld", root->place,
                             key, pattern[i], (long long)i);
        (*kind_of)[i] = (int)(letter - letters);
    }
    return *kind_of ? 0 : -1;
}

/* The layers, whatever num_hidden_layers says: a list under either name, else the pattern. */
static int parse_kinds(int **kind_of, struct config *config, const struct fields *root,
                       struct error *err)
{
    if (mamba2_kinds(kind_of, config, root, "layers_block_type", true, err) != 0 ||
        (!*kind_of && mamba2_kinds(kind_of, config, root, "layer_types", true, err) != 0))
        return -1;
    return *kind_of ? 0 : parse_pattern(kind_of, config, root, err);
}

/* One shared expert, whatever n_shared_experts says. */
static const struct experts_class experts = {.also_count = "num_local_experts",
                                             .count = {"n_routed_experts", 8},
                                             .chosen = {"num_experts_per_tok", 2},
                                             .size = {"moe_intermediate_size", 7688},
                                             .renormalize = {"norm_topk_prob", true},
                                             .score = ROUTE_SIGMOID,
                                             .least = 1e-20,
                                             .groups = {"n_group", 1},
                                             .top_groups = {"topk_group", 1},
                                             .factor = "routed_scaling_factor"};

static int parse_experts(struct branch_config *mlp, const struct fields *root, struct error *err)
{
    mlp->shared = "mixer.shared_experts";
    mlp->shared_size = 7688;
    mlp->score_bias = true;
    if (fields_int(root, "moe_shared_expert_intermediate_size", FIELD_NOT_NULL, 1,
                   CONFIG_MAX_INTERMEDIATE, &mlp->shared_size, err) != 0 ||
        fields_int(root, "moe_latent_size", FIELD_OPTIONAL, 1, CONFIG_MAX_HIDDEN, &mlp->latent_size,
                   err) != 0)
        return -1;
    return config_experts(mlp, root, &experts, err);
}

enum { ATTENTION, MAMBA, MLP, EXPERTS, KINDS };

static int make_layers(struct config *config, const struct layer_config *usual,
                       const struct fields *root, const int *kind_of, struct error *err)
{
    bool mixes = false;
    for (int64_t i = 0; i < config->num_layers; i++)
        mixes |= kind_of[i] == EXPERTS;
    for (int i = 0; i < KINDS; i++) {
        struct layer_config *layer = &config->kinds[i];
        layer->name = i < MLP ? config->mixers[i].mixer.name : i == MLP ? "mlp" : "moe";
        layer->num_blocks = 1;
        layer->blocks[0] = usual->blocks[i >= MLP];
        layer->blocks[0].branches[0].mixer = i < MLP ? i : -1;
    }
    memcpy(config->layer_kinds, kind_of, (size_t)config->num_layers * sizeof *kind_of);
    return mixes ? parse_experts(&config->kinds[EXPERTS].blocks[0].branches[0], root, err) : 0;
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct mixer_config mamba;
    int *kind_of;
    if (refuse_old_names(root, err) != 0 || parse_kinds(&kind_of, config, root, err) != 0 ||
        dense_parse(&dense, config, root, &attention, &layer_names, err) != 0 ||
        mamba2_parse(&mamba, NULL, config, root, &mixers, err) != 0 ||
        config_layers(config, KINDS, 2, err) != 0)
        return -1;
    config->mixers[ATTENTION] = dense.mixer;
    config->mixers[MAMBA] = mamba;
    config->mixers[ATTENTION].mixer.name = "full_attention";
    config->mixers[MAMBA].mixer.name = "linear_attention";
    return make_layers(config, &dense.layer, root, kind_of, err);
}

static const struct block_names names = {.root = "backbone",
                                         .embeddings = "embeddings",
                                         .final_norm = "norm_f",
                                         .up_proj = "up_proj",
                                         .down_proj = "down_proj",
                                         .router = "gate",
                                         .score_bias = "gate.e_score_correction_bias",
                                         .experts = "experts",
                                         .latent_in = "fc1_latent_proj",
                                         .latent_out = "fc2_latent_proj",
                                         .lm_head = "lm_head"};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return mamba2_bind(model, config, weights, &names, err);
}

static const struct gguf_key gguf_keys[] = {
    GGUF_MAMBA_KEYS,
    {"embedding_length", "hidden_size", FIELD_REQUIRED},
    {"block_count", "num_hidden_layers", FIELD_REQUIRED},
    {"context_length", "max_position_embeddings", FIELD_OPTIONAL},
    {"vocab_size", "vocab_size", FIELD_OPTIONAL},
    {"attention.head_count", "num_attention_heads", FIELD_REQUIRED},
    {"attention.head_count_kv", NULL, FIELD_REQUIRED},
    {"attention.key_length", "head_dim", FIELD_REQUIRED},
    {"attention.value_length", NULL, FIELD_REQUIRED},
    {"feed_forward_length", NULL, FIELD_REQUIRED},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", FIELD_OPTIONAL},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", FIELD_OPTIONAL},
    /* of rotary embeddings, which llama.cpp has none of here */
    {"rope.dimension_count", NULL, FIELD_OPTIONAL},
    {"rope.freq_base", NULL, FIELD_OPTIONAL},
    {"rope.scaling.finetuned", NULL, FIELD_OPTIONAL},
};

#define MIXER "backbone.layers.*.mixer."
static const struct gguf_name gguf_names[] = {
    GGUF_MAMBA_NAMES(MIXER),
    {"token_embd", "backbone.embeddings", GGUF_SAME},
    {"output_norm", "backbone.norm_f", GGUF_SAME},
    {"output", "lm_head", GGUF_SAME},
    {"blk.*.attn_norm", "backbone.layers.*.norm", GGUF_SAME},
    {"blk.*.attn_q", MIXER "q_proj", GGUF_PAIRED},
    {"blk.*.attn_k", MIXER "k_proj", GGUF_PAIRED},
    {"blk.*.attn_v", MIXER "v_proj", GGUF_SAME},
    {"blk.*.attn_output", MIXER "o_proj", GGUF_SAME},
    {"blk.*.ffn_up", MIXER "up_proj", GGUF_SAME},
    {"blk.*.ffn_down", MIXER "down_proj", GGUF_SAME},
};

static int complete_usual(json_t *config, const struct gguf_source *source, const char *mlps,
                          struct error *err)
{
    int64_t head = json_integer_value(json_object_get(config, "head_dim"));
    if (gguf_config_int(source, "attention.value_length", FIELD_REQUIRED, head, head, &head, err) !=
        0)
        return -1;
    if ((gguf_dense_any_layer(config, source, "ffn_up.bias") ||
         gguf_dense_any_layer(config, source, "ffn_up_shexp.bias")) &&
        gguf_config_set(config, "mlp_bias", json_true(), err) != 0)
        return -1;
    if (!json_object_get(config, "layer_norm_epsilon"))
        return error_set(err, ERROR_INVALID,
                         "%s: nemotron_h.attention.layer_norm_rms_epsilon: expected a value, got "
                         "nothing",
                         source->gguf->file);
    if (gguf_mamba_complete(config, source, &mixers, err) != 0)
        return -1;
    if (gguf_mamba_layers(config, "layers_block_type", mlps, source, err) != 0)
        return -1;
    return json_object_get(config, "num_key_value_heads") /* absent without attention */
               ? 0
               : gguf_config_set(config, "num_key_value_heads", json_integer(1), err);
}

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    return complete_usual(config, source, "mlp", err);
}

/* Of an architecture of its own, whose layers of `feed_forward_length` are mixtures. */
static const struct gguf_key moe_keys[] = {
    GGUF_EXPERTS_KEYS,
    {"expert_count", "n_routed_experts", FIELD_REQUIRED},
    {"expert_feed_forward_length", "moe_intermediate_size", FIELD_REQUIRED},
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", FIELD_REQUIRED},
    {"expert_shared_count", NULL, FIELD_OPTIONAL},
    {"expert_weights_scale", "routed_scaling_factor", FIELD_OPTIONAL},
    {"moe_latent_size", "moe_latent_size", FIELD_OPTIONAL},
};

static const struct gguf_name moe_names[] = {
    {"blk.*.ffn_gate_inp", MIXER "gate", GGUF_SAME},
    {"blk.*.exp_probs_b.bias", MIXER "gate.e_score_correction_bias", GGUF_FLAT},
    {"blk.*.ffn_up_exps", MIXER "experts.up_proj", GGUF_SAME},
    {"blk.*.ffn_down_exps", MIXER "experts.down_proj", GGUF_SAME},
    {"blk.*.ffn_up_shexp", MIXER "shared_experts.up_proj", GGUF_SAME},
    {"blk.*.ffn_down_shexp", MIXER "shared_experts.down_proj", GGUF_SAME},
    {"blk.*.ffn_latent_down", MIXER "fc1_latent_proj", GGUF_SAME},
    {"blk.*.ffn_latent_up", MIXER "fc2_latent_proj", GGUF_SAME},
};

static int complete_moe(json_t *config, const struct gguf_source *source, struct error *err)
{
    const struct gguf_routing routing = {.gating = GGUF_GATING_SIGMOID, .factor = true};
    if (gguf_experts_check(source, &routing, err) != 0 ||
        (!json_object_get(config, "norm_topk_prob") &&
         gguf_config_set(config, "norm_topk_prob", json_false(), err) != 0) ||
        complete_usual(config, source, "moe", err) != 0)
        return -1;
    return gguf_config_copy(config, "intermediate_size", source, "expert_feed_forward_length",
                            FIELD_REQUIRED, err);
}

#define USUAL                                                                                 \
    .keys = gguf_keys, .num_keys = sizeof gguf_keys / sizeof *gguf_keys, .names = gguf_names, \
    .num_names = sizeof gguf_names / sizeof *gguf_names
static const struct gguf_names usual_gguf = {USUAL};
static const struct gguf_names moe_gguf = {.architecture = "nemotron_h_moe",
                                           .base = &usual_gguf,
                                           .keys = moe_keys,
                                           .num_keys = sizeof moe_keys / sizeof *moe_keys,
                                           .names = moe_names,
                                           .num_names = sizeof moe_names / sizeof *moe_names,
                                           .complete = complete_moe};
static const struct gguf_names gguf = {
    .architecture = "nemotron_h", USUAL, .complete = complete_gguf, .also = &moe_gguf};

const struct family family_nemotron_h = {
    .name = "nemotron_h", .parse = parse, .bind = bind, .gguf = &gguf};
