/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3.5 and those that have its form, as `transformers` saves Qwen3_5ForCausalLM,
 * Qwen3_5MoeForCausalLM and their ...ForConditionalGeneration, of which only the language model
 * counts here, and Qwen3NextForCausalLM: layers of Gated DeltaNet, and each fourth of softmax
 * attention whose output has a gate; one MLP, or a mixture of experts with a shared one. */
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/gated_delta.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"

#include <stdlib.h>
#include <string.h>

#define QWEN3_5                                                                                  \
    .head_dim = 256, .longest = 32768, .act = ACT_SILU, .windows = true, .attention_bias = true, \
    .qk_norm = NORM_RMSNORM, .qk_norm_scope = NORM_SCOPE_HEAD

/* What a class says of its layers. Those with experts have a shared one. */
struct qwen_class {
    struct dense_class dense;
    const struct experts_class *experts; /* NULL: it has none */
    bool mixes;                          /* layers with one MLP and layers with experts */
};

static const struct experts_class many_experts = {.also_count = "num_local_experts",
                                                  .count = {"num_experts", 256},
                                                  .chosen = {"num_experts_per_tok", 8},
                                                  .size = {"moe_intermediate_size", 512},
                                                  .renormalize = {NULL, true}};
static const struct experts_class next_experts = {.also_count = "num_local_experts",
                                                  .count = {"num_experts", 512},
                                                  .chosen = {"num_experts_per_tok", 10},
                                                  .size = {"moe_intermediate_size", 512},
                                                  .renormalize = {"norm_topk_prob", true}};
static const struct qwen_class qwen3_5 = {.dense = {QWEN3_5, .num_kv_heads = 4}};
static const struct qwen_class qwen3_5_moe = {
    .dense = {QWEN3_5, .num_kv_heads = 2, .inner_key = "moe_intermediate_size"},
    .experts = &many_experts};
static const struct qwen_class qwen3_next = {
    .dense = {QWEN3_5, .num_kv_heads = 2}, .experts = &next_experts, .mixes = true};

static const struct gated_delta_names names = {"in_proj_qkv", "in_proj_z", "in_proj_b",
                                               "in_proj_a",   "norm",      "out_proj"};
/* Of Qwen 3 Next, whose files by llama.cpp have the rows of z by themselves. */
static const struct gated_delta_names next_names = {"in_proj_qkvz", "in_proj_z", "in_proj_ba",
                                                    NULL,           "norm",      "out_proj"};

static int parse_sizes(struct gated_delta_sizes *sizes, const struct fields *root,
                       struct error *err)
{
    if (gated_delta_size(root, "linear_num_key_heads", FIELD_NOT_NULL, 16, &sizes->num_qk_heads,
                         err) != 0 ||
        gated_delta_size(root, "linear_num_value_heads", FIELD_NOT_NULL, 32, &sizes->num_heads,
                         err) != 0 ||
        gated_delta_size(root, "linear_key_head_dim", FIELD_NOT_NULL, 128, &sizes->head_dim, err) !=
            0 ||
        gated_delta_size(root, "linear_value_head_dim", FIELD_NOT_NULL, 128, &sizes->value_dim,
                         err) != 0 ||
        gated_delta_width(root, "linear_conv_kernel_dim", sizes, err) != 0)
        return -1;
    return gated_delta_check(sizes, root, err);
}

/* Four kinds of layers: of attention and linear ones, which kind_of says, then the same with one
 * MLP. The norms of attention and of the MLP have the same names in all. */
static int make_layers(const struct dense *dense, struct config *config,
                       const struct gated_delta_sizes *sizes, const struct layer_config *plain,
                       const struct rope *rope, const int *kind_of, const struct fields *root,
                       struct error *err)
{
    struct mixer linear = gated_delta_mixer(sizes, GATE_GATED_DELTA, config->norm_eps);
    struct layer_config layers[] = {dense->layer, dense->layer, *plain, *plain};
    linear.output_gate = OUTPUT_GATE_SWISH;
    layers[1].blocks[0].branches[0].name = layers[3].blocks[0].branches[0].name = "linear_attn";
    struct dense_kind kinds[4];
    for (int i = 0; i < 4; i++)
        kinds[i] = i % 2 == 0 ? (struct dense_kind){.name = "full_attention", .rope = rope}
                              : (struct dense_kind){.name = "linear_attention", .mixer = &linear};
    for (int i = 0; i < 4; i++)
        kinds[i].layer = &layers[i];
    return dense_layers(dense, config, kinds, 4, kind_of, root, err);
}

static int parse_layers(struct dense *dense, struct config *config, const struct qwen_class *class,
                        const struct rope *rope, const struct fields *root, struct error *err)
{
    struct gated_delta_sizes sizes = {.conv_width = 4};
    const struct layer_config plain = dense->layer;
    struct branch_config *mlp = &dense->layer.blocks[1].branches[0];
    int64_t interval = 4;
    int *kind_of, *plain_of = NULL;
    if (parse_sizes(&sizes, root, err) != 0 ||
        fields_int(root, "full_attention_interval", FIELD_NOT_NULL, 1, CONFIG_MAX_LAYERS, &interval,
                   err) != 0 ||
        gated_delta_layers(&kind_of, config, interval, root, err) != 0)
        return -1;
    mlp->shared = "mlp.shared_expert";
    mlp->shared_size = 512;
    if (class->experts &&
        (config_experts(mlp, root, class->experts, err) != 0 ||
         fields_int(root, "shared_expert_intermediate_size", FIELD_NOT_NULL, 1,
                    CONFIG_MAX_INTERMEDIATE, &mlp->shared_size, err) != 0 ||
         (class->mixes && config_experts_layers(&plain_of, config, root, err) != 0)))
        return -1;
    for (int64_t i = 0; plain_of && i < config->num_layers; i++)
        kind_of[i] += 2 * plain_of[i];
    return make_layers(dense, config, &sizes, &plain, rope, kind_of, root, err);
}

static int parse_class(struct config *config, const struct fields *root,
                       const struct qwen_class *class, struct error *err)
{
    static const struct rope_keys keys = {.base = "rope_theta",
                                          .part = "partial_rotary_factor",
                                          .usual_base = 10000,
                                          .usual_part = 0.25,
                                          .longest = 32768,
                                          .partial = true,
                                          .mrope = true};
    static const struct config_refusal refusal = {"attn_output_gate", "true"};
    struct dense dense;
    struct rope rope;
    if (config_library_refuse(root, &refusal, 1, err) != 0 ||
        dense_parse(&dense, config, root, &class->dense, NULL, err) != 0 ||
        gated_delta_check_act(config, root, err) != 0 ||
        rope_parse(&rope, root, &keys, &config->warnings, err) != 0)
        return -1;
    struct mixer *mixer = &dense.mixer.mixer;
    mixer->q_norm.plus_one = mixer->k_norm.plus_one = config->norm_plus_one = true;
    mixer->output_gate = OUTPUT_GATE_SIGMOID;
    return parse_layers(&dense, config, class, &rope, root, err);
}

static int parse_text(struct config *config, const struct fields *root, struct error *err)
{
    return parse_class(config, root, &qwen3_5, err);
}

static int parse_moe_text(struct config *config, const struct fields *root, struct error *err)
{
    return parse_class(config, root, &qwen3_5_moe, err);
}

static int parse_next(struct config *config, const struct fields *root, struct error *err)
{
    return parse_class(config, root, &qwen3_next, err);
}

/* All but the language model's configuration. */
static int parse_outer(struct config *config, const struct fields *outer, bool *tied,
                       struct error *err)
{
    return config_library_keys(config, outer, err) == 0
               ? fields_bool(outer, "tie_word_embeddings", FIELD_NOT_NULL, tied, err)
               : -1;
}

static int parse_nested(struct config *config, const struct fields *root, const char *text_type,
                        const struct qwen_class *class, struct error *err)
{
    const char *const types[] = {text_type};
    struct fields text, outer = *root;
    bool tied = false;
    int type = 0;
    if (fields_object(root, "text_config", FIELD_REQUIRED, &text, err) != 0 ||
        fields_choice(&text, "model_type", FIELD_OPTIONAL, types, 1, &type, err) != 0)
        return -1;
    json_t *rest = json_copy((json_t *)root->object);
    if (!rest || json_object_del(rest, "text_config") != 0) {
        json_decref(rest);
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", root->place);
    }
    outer.object = rest;
    int result = parse_outer(config, &outer, &tied, err);
    if (result == 0)
        result = parse_class(config, &text, class, err);
    if (result == 0)
        result = config_token_ids(config, &outer, err);
    json_decref(rest);
    config->tied = tied; /* the text's own says nothing, as in transformers */
    return result;
}

static int parse_outer_dense(struct config *config, const struct fields *root, struct error *err)
{
    return parse_nested(config, root, "qwen3_5_text", &qwen3_5, err);
}

static int parse_outer_moe(struct config *config, const struct fields *root, struct error *err)
{
    return parse_nested(config, root, "qwen3_5_moe_text", &qwen3_5_moe, err);
}

static const struct block_names tensor_names = {DENSE_NAMES, .router = "gate", .experts = "experts",
                                                .shared_gate = "shared_expert_gate"};

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    return mixer_has(block->mixer, HAS_FEATURES) ? gated_delta_bind(block, &names, err)
                                                 : dense_bind_attention(block, err);
}

/* A model of text alone may have been cut out of a whole one, with the names of that. */
static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    static const char *const others[] = {"model.visual.", "mtp."};
    static const char whole[] = "model.language_model";
    weights_ignore_below(weights, others, 2);
    if (!weights_has(weights, "lm_head.weight"))
        model->tied = true;
    struct block_names found = tensor_names;
    if (weights_has(weights, "model.language_model.embed_tokens.weight"))
        found.root = whole;
    return dense_bind_named(model, config, weights, &found, bind_mixer, err);
}

static int bind_next_mixer(const struct block_mixer *block, struct error *err)
{
    return mixer_has(block->mixer, HAS_FEATURES) ? gated_delta_bind(block, &next_names, err)
                                                 : dense_bind_attention(block, err);
}

static int bind_next(struct model *model, const struct config *config, struct weights *weights,
                     struct error *err)
{
    static const char *const drafts[] = {"mtp."};
    weights_ignore_below(weights, drafts, 1);
    return dense_bind_named(model, config, weights, &tensor_names, bind_next_mixer, err);
}

static void list_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    if (mixer_has(mixer, HAS_FEATURES))
        gated_delta_random(list, prefix, &names, mixer);
    else
        dense_random_attention(list, prefix, mixer);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &tensor_names, list_mixer);
}

#define LAYER "model.layers.*."
#define LINEAR LAYER "linear_attn."

/* llama.cpp has the value heads of each key head apart from each other, and 1 added to norms. */
static const struct gguf_name gguf_tensors[] = {
    {"output_norm", "model.norm", GGUF_ONE_ADDED},
    {"blk.*.attn_norm", LAYER "input_layernorm", GGUF_ONE_ADDED},
    {"blk.*.post_attention_norm", LAYER "post_attention_layernorm", GGUF_ONE_ADDED},
    {"blk.*.attn_q_norm", LAYER "self_attn.q_norm", GGUF_ONE_ADDED},
    {"blk.*.attn_k_norm", LAYER "self_attn.k_norm", GGUF_ONE_ADDED},
    {"blk.*.attn_qkv", LINEAR "in_proj_qkv", GGUF_VALUE_HEADS_LAST},
    {"blk.*.attn_gate", LINEAR "in_proj_z", GGUF_VALUE_HEADS},
    {"blk.*.ssm_beta", LINEAR "in_proj_b", GGUF_VALUE_HEADS},
    {"blk.*.ssm_alpha", LINEAR "in_proj_a", GGUF_VALUE_HEADS},
    {"blk.*.ssm_a", LINEAR "A_log", GGUF_DECAY},
    {"blk.*.ssm_dt.bias", LINEAR "dt_bias", GGUF_VALUE_HEADS_WHOLE},
    {"blk.*.ssm_conv1d", LINEAR "conv1d", GGUF_SAME},
    {"blk.*.ssm_norm", LINEAR "norm", GGUF_SAME},
    {"blk.*.ssm_out", LINEAR "out_proj", GGUF_SAME},
};

static const struct gguf_key gguf_keys[] = {
    {"ssm.conv_kernel", "linear_conv_kernel_dim", FIELD_REQUIRED},
    {"ssm.state_size", "linear_key_head_dim", FIELD_REQUIRED},
    {"ssm.group_count", "linear_num_key_heads", FIELD_REQUIRED},
    {"ssm.time_step_rank", "linear_num_value_heads", FIELD_REQUIRED},
    {"ssm.inner_size", NULL, FIELD_REQUIRED},
    {"attention.recurrent_layers", NULL, FIELD_OPTIONAL},
    {"full_attention_interval", "full_attention_interval", FIELD_OPTIONAL},
};

static int64_t number(const json_t *config, const char *name)
{
    return json_integer_value(json_object_get(config, name));
}

/* Which layers are linear; without the key each fourth is not. */
static int set_layers(json_t *config, const struct gguf_source *source, struct error *err)
{
    const struct gguf_entry *list;
    if (gguf_config_list(source, "attention.recurrent_layers", &list, err) != 0)
        return -1;
    if (!list)
        return 0;
    json_t *kinds = json_array();
    if (gguf_config_set(config, "layer_types", kinds, err) != 0)
        return -1;
    for (int64_t i = 0; i < source->layers; i++)
        if (json_array_append_new(kinds, json_string(gguf_config_at(list, i) ? "linear_attention"
                                                                             : "full_attention")) !=
            0)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", source->gguf->file);
    return 0;
}

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    const int64_t heads = number(config, "linear_num_value_heads");
    int64_t inner = 0;
    if (gguf_config_int(source, "ssm.inner_size", FIELD_REQUIRED, 1, INT32_MAX, &inner, err) != 0)
        return -1;
    if (heads < 1 || inner % heads != 0)
        return gguf_bad(source->gguf, gguf_config_key(full, source, "ssm.inner_size"), err,
                        "expected a multiple of ssm.time_step_rank (%lld), got %lld",
                        (long long)heads, (long long)inner);
    return gguf_config_set(config, "linear_value_head_dim", json_integer(inner / heads), err) == 0
               ? set_layers(config, source, err)
               : -1;
}

static const struct gguf_names gguf = {.architecture = "qwen35",
                                       .base = &gguf_dense,
                                       .partial = true,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_tensors,
                                       .num_names = sizeof gguf_tensors / sizeof *gguf_tensors,
                                       .complete = complete_gguf};

const struct family family_qwen3_5_text = {.name = "qwen3_5_text",
                                           .parse = parse_text,
                                           .bind = bind,
                                           .random = list_random,
                                           .gguf = &gguf};
const struct family family_qwen3_5 = {.name = "qwen3_5", .parse = parse_outer_dense, .bind = bind};

/* ---- with experts ---- */

#define MLP LAYER "mlp."
static const struct gguf_key moe_keys[] = {
    GGUF_EXPERTS_KEYS,
    {"expert_feed_forward_length", "moe_intermediate_size", FIELD_REQUIRED},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", FIELD_REQUIRED},
    {"feed_forward_length", "intermediate_size", FIELD_OPTIONAL},
};

static const struct gguf_name moe_tensors[] = {
    {"blk.*.ffn_gate_inp", MLP "gate", GGUF_SAME},
    {"blk.*.ffn_gate_inp_shexp", MLP "shared_expert_gate", GGUF_SAME},
    {"blk.*.ffn_gate_shexp", MLP "shared_expert.gate_proj", GGUF_SAME},
    {"blk.*.ffn_up_shexp", MLP "shared_expert.up_proj", GGUF_SAME},
    {"blk.*.ffn_down_shexp", MLP "shared_expert.down_proj", GGUF_SAME},
    {"blk.*.ffn_gate_up_exps", MLP "experts.gate_up_proj", GGUF_SAME},
    GGUF_EXPERTS_NAMES(MLP "experts.", "gate_proj", "up_proj", "down_proj"),
};

static int complete_moe(json_t *config, const struct gguf_source *source, struct error *err)
{
    return gguf_experts_check(source, &(struct gguf_routing){.gating = GGUF_GATING_SOFTMAX}, err) ==
                   0
               ? gguf_experts_layers(config, source, err)
               : -1;
}

static const struct gguf_names moe_gguf = {.architecture = "qwen35moe",
                                           .base = &gguf,
                                           .partial = true,
                                           .keys = moe_keys,
                                           .num_keys = sizeof moe_keys / sizeof *moe_keys,
                                           .names = moe_tensors,
                                           .num_names = sizeof moe_tensors / sizeof *moe_tensors,
                                           .complete = complete_moe};

const struct family family_qwen3_5_moe_text = {.name = "qwen3_5_moe_text",
                                               .parse = parse_moe_text,
                                               .bind = bind,
                                               .random = list_random,
                                               .gguf = &moe_gguf};
const struct family family_qwen3_5_moe = {
    .name = "qwen3_5_moe", .parse = parse_outer_moe, .bind = bind};

/* Here llama.cpp has value heads in the folder's order. */
static const struct gguf_name next_tensors[] = {
    {"blk.*.attn_qkv", LINEAR "in_proj_qkv", GGUF_SAME},
    {"blk.*.attn_gate", LINEAR "in_proj_z", GGUF_SAME},
    {"blk.*.ssm_in", LINEAR "in_proj_qkvz", GGUF_SAME},
    {"blk.*.ssm_ba", LINEAR "in_proj_ba", GGUF_SAME},
    {"blk.*.ssm_a", LINEAR "A_log", GGUF_DECAY_AS_IT_IS},
    {"blk.*.ssm_dt.bias", LINEAR "dt_bias", GGUF_FLAT},
};

static const struct gguf_names next_gguf = {.architecture = "qwen3next",
                                            .base = &moe_gguf,
                                            .partial = true,
                                            .names = next_tensors,
                                            .num_names =
                                                sizeof next_tensors / sizeof *next_tensors};

const struct family family_qwen3_next = {
    .name = "qwen3_next", .parse = parse_next, .bind = bind_next, .gguf = &next_gguf};
