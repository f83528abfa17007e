/* SPDX-License-Identifier: Apache-2.0 */
/* Pythia / GPT-NeoX, as `transformers` 4 and 5 save GPTNeoXForCausalLM. */
#include "engine/model/blocks.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"

#include <string.h>

/* What the configuration says beside struct config. */
struct gpt_neox_config {
    bool attention_bias;
};

/* Without effect in transformers 5 too; version 4 wrote both with the values that are used. */
static void warn_unused(struct config *config, const struct fields *root, const char *key,
                        double used)
{
    const json_t *value = json_object_get(root->object, key);
    if (value && !json_is_null(value) && json_number_value(value) != used)
        warnings_add(&config->warnings,
                     "%s: %s: without effect in this family, as in transformers: %g is used",
                     root->place, key, used);
}

/* Version 5 writes rope_parameters {rope_theta, partial_rotary_factor}, version 4 rotary_emb_base
 * and rotary_pct; the former win, as they do there. */
static int parse_position(struct config *config, const struct fields *root,
                          struct position *position, struct error *err)
{
    static const struct rope_keys keys = {.base = "rotary_emb_base",
                                          .part = "rotary_pct",
                                          .usual_base = 10000,
                                          .usual_part = 0.25,
                                          .longest = 2048,
                                          .partial = true};
    struct rope rope;
    const int64_t head = config->hidden_size / config->num_heads;
    int64_t given = head;
    if (rope_parse(&rope, root, &keys, &config->warnings, err) != 0 ||
        fields_int(root, "head_dim", FIELD_OPTIONAL, head, head, &given, err) != 0)
        return -1;
    warn_unused(config, root, "rope_theta", rope.base);
    warn_unused(config, root, "partial_rotary_factor", rope.part);
    return rope_position(&rope, head, root->place, config->arena, position, err);
}

static int parse_sizes(struct config *config, const struct fields *root, struct error *err)
{
    if (config_sizes(config, root, "num_attention_heads", err) != 0 ||
        fields_int(root, "intermediate_size", FIELD_REQUIRED, 1, CONFIG_MAX_INTERMEDIATE,
                   &config->intermediate_size, err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_NOT_NULL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0)
        return -1;
    return config_check_heads(config, root, err);
}

static const struct layer_names layer_names = {"input_layernorm", "attention",
                                               "post_attention_layernorm", "mlp"};

/* Defaults are those of transformers' GPTNeoXConfig, for keys its files may leave out. */
static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct gpt_neox_config *own = arena_alloc(config->arena, 1, sizeof *own, err);
    if (!own)
        return -1;
    config->own = own;
    struct mixer_config mixer = {0};
    double eps = 1e-5;
    mixer_make_softmax(&mixer.mixer);
    config->hidden_act = ACT_GELU;
    config->parallel_residual = own->attention_bias = true;
    if (config_library_keys(config, root, err) != 0 ||
        config_library_attention(root, false, err) != 0 || parse_sizes(config, root, err) != 0 ||
        parse_position(config, root, &mixer.mixer.position, err) != 0 ||
        config_library_act(root, "hidden_act", &config->hidden_act, err) != 0 ||
        fields_double(root, "layer_norm_eps", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "use_parallel_residual", FIELD_NOT_NULL, &config->parallel_residual,
                    err) != 0 ||
        fields_bool(root, "attention_bias", FIELD_NOT_NULL, &own->attention_bias, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_NOT_NULL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->norm_kind = NORM_LAYERNORM;
    config->norm_eps = (float)eps;
    return config_single_mixer(config, "softmax", &mixer, &layer_names, err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    const struct gpt_neox_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    int64_t hidden = block->config->hidden_size;
    struct matrix fused = {0};
    struct matrix *const parts[3] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj};
    const enum weight_bias biased = own->attention_bias ? WEIGHT_MAY_BIAS : WEIGHT_NO_BIAS;
    const struct block_matrix matrices[] = {
        {"query_key_value", 3 * hidden, hidden, biased, &fused},
        {"dense", hidden, hidden, biased, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, 2, err) != 0 ||
        blocks_split_heads(block, &fused, parts, 3, err) != 0)
        return -1;
    mixer->head_dim = mixer->value_dim = (int)(hidden / mixer->num_heads);
    mixer->features = mixer->features_positioned = mixer->head_dim;
    return 0;
}

static void list_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t hidden = list->config->hidden_size;
    (void)mixer;
    random_list_linear(list, prefix, "query_key_value", 3 * hidden, hidden, 0);
    random_list_output(list, prefix, "dense", hidden, hidden);
}

static const struct block_names names = {.root = "gpt_neox",
                                         .embeddings = "embed_in",
                                         .final_norm = "final_layer_norm",
                                         .up_proj = "dense_h_to_4h",
                                         .down_proj = "dense_4h_to_h",
                                         .lm_head = "embed_out",
                                         .biased = WEIGHT_MAY_BIAS};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    /* Causal masks and frequencies, which old versions saved beside the weights. */
    static const char *const buffers[] = {".attention.bias", ".masked_bias",
                                          ".rotary_emb.inv_freq"};
    struct block_names found = names;
    weights_ignore(weights, buffers, sizeof buffers / sizeof *buffers);
    if (weights_has(weights, "lm_head.weight")) /* version 5 writes either name */
        found.lm_head = "lm_head";
    return blocks_bind(model, config, weights, &found, bind_mixer, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, list_mixer);
}

/* As llama.cpp's converter writes them. It knows no activation but gelu. */
static const struct gguf_key gguf_keys[] = {
    {"embedding_length", "hidden_size", FIELD_REQUIRED},
    {"block_count", "num_hidden_layers", FIELD_REQUIRED},
    {"attention.head_count", "num_attention_heads", FIELD_REQUIRED},
    {"feed_forward_length", "intermediate_size", FIELD_REQUIRED},
    {"context_length", "max_position_embeddings", FIELD_OPTIONAL},
    {"attention.layer_norm_epsilon", "layer_norm_eps", FIELD_REQUIRED},
    {"use_parallel_residual", "use_parallel_residual", FIELD_REQUIRED},
    {"rope.freq_base", "rotary_emb_base", FIELD_OPTIONAL},
    {"rope.dimension_count", NULL, FIELD_OPTIONAL},
    {"vocab_size", "vocab_size", FIELD_OPTIONAL},
};

static const struct gguf_name gguf_names[] = {
    {"token_embd", "gpt_neox.embed_in", GGUF_SAME},
    {"output_norm", "gpt_neox.final_layer_norm", GGUF_SAME},
    {"output", "embed_out", GGUF_SAME},
    {"blk.*.attn_norm", "gpt_neox.layers.*.input_layernorm", GGUF_SAME},
    {"blk.*.attn_qkv", "gpt_neox.layers.*.attention.query_key_value", GGUF_STACKED},
    {"blk.*.attn_output", "gpt_neox.layers.*.attention.dense", GGUF_SAME},
    {"blk.*.ffn_norm", "gpt_neox.layers.*.post_attention_layernorm", GGUF_SAME},
    {"blk.*.ffn_up", "gpt_neox.layers.*.mlp.dense_h_to_4h", GGUF_SAME},
    {"blk.*.ffn_down", "gpt_neox.layers.*.mlp.dense_4h_to_h", GGUF_SAME},
};

/* The number of rotated dimensions as a part of a head's: a little more than it, as the part is cut
 * to whole dimensions. Without the key all turn. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    const json_int_t heads = json_integer_value(json_object_get(config, "num_attention_heads"));
    const json_int_t hidden = json_integer_value(json_object_get(config, "hidden_size"));
    int64_t head = heads > 0 && hidden >= heads ? hidden / heads : 1, rotated = head;
    if (gguf_config_int(source, "rope.dimension_count", FIELD_OPTIONAL, 0, head, &rotated, err) !=
        0)
        return -1;
    const double part = rotated == head ? 1 : ((double)rotated + 0.5) / (double)head;
    return gguf_config_set(config, "rotary_pct", json_real(part), err);
}

static const struct gguf_names gguf = {.architecture = "gptneox",
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_names,
                                       .num_names = sizeof gguf_names / sizeof *gguf_names,
                                       .complete = complete_gguf};

const struct family family_gpt_neox = {
    .name = "gpt_neox", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
