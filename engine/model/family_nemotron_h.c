/* SPDX-License-Identifier: Apache-2.0 */
/* Nemotron-H without experts, as `transformers` 4 and 5 save NemotronHForCausalLM: each layer is
 * one mixer of Mamba-2, one of attention without positions, or one MLP. */
#include "engine/model/config_library.h"
#include "engine/model/gguf_dense.h"
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
    static const char key[] = "hybrid_override_pattern", letters[] = "*M-";
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
                             "%s: %s: expected M, * or -, got '%c' at place %lld%s", root->place,
                             key, pattern[i], (long long)i,
                             pattern[i] == 'E' ? " (mixtures of experts are not supported)" : "");
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

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    const char *const names[] = {"full_attention", "linear_attention", "mlp"};
    struct dense dense;
    struct mixer_config mamba;
    int *kind_of;
    if (refuse_old_names(root, err) != 0 || parse_kinds(&kind_of, config, root, err) != 0 ||
        dense_parse(&dense, config, root, &attention, &layer_names, err) != 0 ||
        mamba2_parse(&mamba, NULL, config, root, &mixers, err) != 0 ||
        config_layers(config, 3, 2, err) != 0)
        return -1;
    config->mixers[0] = dense.mixer;
    config->mixers[1] = mamba;
    config->mixers[0].mixer.name = names[0];
    config->mixers[1].mixer.name = names[1];
    for (int i = 0; i < 3; i++) {
        struct layer_config *layer = &config->kinds[i];
        layer->name = names[i];
        layer->num_blocks = 1;
        layer->blocks[0] = dense.layer.blocks[i == 2];
        layer->blocks[0].branches[0].mixer = i < 2 ? i : -1;
    }
    memcpy(config->layer_kinds, kind_of, (size_t)config->num_layers * sizeof *kind_of);
    return 0;
}

static const struct block_names names = {.root = "backbone",
                                         .embeddings = "embeddings",
                                         .final_norm = "norm_f",
                                         .up_proj = "up_proj",
                                         .down_proj = "down_proj",
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

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    int64_t head = json_integer_value(json_object_get(config, "head_dim"));
    if (gguf_config_int(source, "attention.value_length", FIELD_REQUIRED, head, head, &head, err) !=
        0)
        return -1;
    if (gguf_dense_any_layer(config, source, "ffn_up.bias") &&
        gguf_config_set(config, "mlp_bias", json_true(), err) != 0)
        return -1;
    if (!json_object_get(config, "layer_norm_epsilon"))
        return error_set(err, ERROR_INVALID,
                         "%s: nemotron_h.attention.layer_norm_rms_epsilon: expected a value, got "
                         "nothing",
                         source->gguf->file);
    if (gguf_mamba_complete(config, source, &mixers, err) != 0)
        return -1;
    return gguf_mamba_layers(config, "layers_block_type", true, source, err);
}

static const struct gguf_names gguf = {.architecture = "nemotron_h",
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_names,
                                       .num_names = sizeof gguf_names / sizeof *gguf_names,
                                       .complete = complete_gguf};

const struct family family_nemotron_h = {
    .name = "nemotron_h", .parse = parse, .bind = bind, .gguf = &gguf};
