/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba-2, as `transformers` saves Mamba2ForCausalLM: layers of one mixer, without MLPs. */
#include "engine/model/config_library.h"
#include "engine/model/gguf_mamba.h"
#include "engine/model/mamba2.h"

static const struct mamba2_class class = {.heads = "num_heads",
                                          .head_dim = "head_dim",
                                          .state = "state_size",
                                          .groups = "n_groups",
                                          .width = "conv_kernel",
                                          .expand = "expand",
                                          .usual_heads = 128,
                                          .usual_head_dim = 64,
                                          .usual_state = 128,
                                          .usual_groups = 8,
                                          .act = "hidden_act",
                                          .conv_bias = "use_conv_bias",
                                          .in_bias = "use_bias",
                                          .out_bias = "use_bias"};

static const struct layer_names layer_names = {.attn_norm = "norm", .mixer = "mixer"};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct mixer_config mamba;
    double eps = 1e-5;
    config->norm_kind = NORM_RMSNORM;
    if (config_library_keys(config, root, err) != 0 ||
        config_sizes(config, root, class.heads, err) != 0 ||
        fields_double(root, "layer_norm_epsilon", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_NOT_NULL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->norm_eps = (float)eps;
    if (mamba2_parse(&mamba, NULL, config, root, &class, err) != 0)
        return -1;
    return config_single_mixer(config, "mamba2", &mamba, &layer_names, err);
}

static const struct block_names names = {
    .root = "backbone", .embeddings = "embeddings", .final_norm = "norm_f", .lm_head = "lm_head"};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return blocks_bind(model, config, weights, &names, mamba2_bind_mixer, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, mamba2_random_mixer);
}

static const struct gguf_key gguf_keys[] = {
    GGUF_MAMBA_KEYS,
    {"embedding_length", "hidden_size", FIELD_REQUIRED},
    {"block_count", "num_hidden_layers", FIELD_REQUIRED},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", FIELD_REQUIRED},
    {"vocab_size", "vocab_size", FIELD_OPTIONAL},
    /* which llama.cpp wants of every model */
    {"context_length", NULL, FIELD_OPTIONAL},
    {"feed_forward_length", NULL, FIELD_OPTIONAL},
    {"attention.head_count", NULL, FIELD_OPTIONAL},
};

static const struct gguf_name gguf_names[] = {
    GGUF_MAMBA_NAMES("backbone.layers.*.mixer."),
    {"token_embd", "backbone.embeddings", GGUF_SAME},
    {"output_norm", "backbone.norm_f", GGUF_SAME},
    {"output", "lm_head", GGUF_SAME},
    {"blk.*.attn_norm", "backbone.layers.*.norm", GGUF_SAME},
};

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    return gguf_mamba_complete(config, source, &class, err);
}

static const struct gguf_names gguf = {.architecture = "mamba2",
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_names,
                                       .num_names = sizeof gguf_names / sizeof *gguf_names,
                                       .complete = complete_gguf};

const struct family family_mamba2 = {
    .name = "mamba2", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
