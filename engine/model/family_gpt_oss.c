/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss, as OpenAI released it and `transformers` 4 and 5 save GptOssForCausalLM: attention with
 * sinks, in each second layer with a window, and experts with biases, whose matrices may be in
 * MXFP4. */
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"

#include <string.h>

static const struct dense_class gpt_oss = {.num_kv_heads = 8,
                                           .head_dim = 64,
                                           .head_dim_null = true,
                                           .longest = 131072,
                                           .rope_theta = 150000,
                                           .norm_eps = 1e-5,
                                           .act = ACT_SILU,
                                           .windows = true};

static const struct experts_class experts = {.also_count = "num_experts",
                                             .count = {"num_local_experts", 0},
                                             .chosen = {"num_experts_per_tok", 4},
                                             .renormalize = {NULL, true}};

/* Where a file says nothing of positions. */
static const struct rope usual_rope = {.type = ROPE_YARN,
                                       .base = 150000,
                                       .part = 1,
                                       .factor = 32,
                                       .original = 4096,
                                       .beta_fast = 32,
                                       .beta_slow = 1};

static bool slides(int64_t layer, const void *context)
{
    (void)context;
    return layer % 2 == 0;
}

static int parse_layers(struct dense *dense, struct config *config, const struct rope *rope,
                        const struct fields *root, struct error *err)
{
    int64_t window = 128;
    int *kind_of;
    if (dense_window(&window, root, err) != 0 ||
        dense_sliding(&kind_of, config, window, slides, NULL, "a sliding_window", root, err) != 0)
        return -1;
    const struct dense_kind kinds[] = {
        {.name = "full_attention", .rope = rope},
        {.name = "sliding_attention", .window = window, .rope = rope}};
    return dense_layers(dense, config, kinds, 2, kind_of, root, err);
}

/* quantization_config says that experts are in MXFP4, which their tensors say, too. */
static int parse_quantization(struct fields *root, json_t **owned, struct error *err)
{
    const json_t *said = json_object_get(root->object, "quantization_config");
    const char *method = json_string_value(json_object_get(said, "quant_method"));
    *owned = NULL;
    if (!method || strcmp(method, "mxfp4") != 0)
        return 0;
    *owned = json_copy((json_t *)root->object);
    if (!*owned || json_object_del(*owned, "quantization_config") != 0) {
        json_decref(*owned);
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", root->place);
    }
    root->object = *owned;
    return 0;
}

static int parse_rest(struct config *config, const struct fields *root, struct error *err)
{
    static const struct config_refusal refusals[] = {{"swiglu_alpha", "1.702"},
                                                     {"attention_bias", "true"}};
    struct dense dense;
    struct rope rope = usual_rope;
    double limit = 7;
    if (config_library_refuse(root, refusals, 2, err) != 0 ||
        dense_parse(&dense, config, root, &gpt_oss, NULL, err) != 0 ||
        fields_double(root, "swiglu_limit", FIELD_NOT_NULL, 1e-6, 1e6, &limit, err) != 0)
        return -1;
    const json_t *scaling = json_object_get(root->object, "rope_scaling");
    const bool empty = json_is_object(scaling) && json_object_size(scaling) == 0;
    const bool given =
        fields_has(root, "rope_parameters") || (fields_has(root, "rope_scaling") && !empty);
    if (given ? dense_rope(&rope, config, root, &gpt_oss, err) != 0
              : fields_double(root, "rope_theta", FIELD_NOT_NULL, 1, 1e12, &rope.base, err) != 0)
        return -1;
    if (config->hidden_act != ACT_SILU)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: hidden_act: expected silu (others are not "
                         "supported)",
                         root->place);
    struct dense_config *own = (struct dense_config *)(uintptr_t)config->own;
    own->qkv_bias = own->o_bias = WEIGHT_HAS_BIAS;
    struct branch_config *mlp = &dense.layer.blocks[1].branches[0];
    mlp->glu_limit = (float)limit;
    if (config_experts(mlp, root, &experts, err) != 0)
        return -1;
    return parse_layers(&dense, config, &rope, root, err);
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct fields rest = *root;
    json_t *owned;
    if (parse_quantization(&rest, &owned, err) != 0)
        return -1;
    const int result = parse_rest(config, &rest, err);
    json_decref(owned);
    return result;
}

static const struct block_names names = {DENSE_NAMES, .router = "router", .experts = "experts",
                                         .experts_biased = WEIGHT_HAS_BIAS, .alternates = true};

static int bind_attention(const struct block_mixer *block, struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t heads = block->mixer->num_heads;
    weights_name(name, "%s.sinks", block->prefix);
    return weights_floats(block->weights, name, 1, &heads, &block->mixer->sinks, err) == 0
               ? dense_bind_attention(block, err)
               : -1;
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return dense_bind_named(model, config, weights, &names, bind_attention, err);
}

static const struct gguf_key gguf_keys[] = {
    GGUF_EXPERTS_KEYS,
    {"expert_count", "num_local_experts", FIELD_REQUIRED},
    {"expert_feed_forward_length", "intermediate_size", FIELD_REQUIRED},
    {"feed_forward_length", NULL, FIELD_OPTIONAL},
    {"attention.sliding_window", "sliding_window", FIELD_REQUIRED},
};

#define LAYER "model.layers.*."
static const struct gguf_name gguf_tensors[] = {
    {"blk.*.attn_norm", LAYER "input_layernorm", GGUF_SAME},
    {"blk.*.post_attention_norm", LAYER "post_attention_layernorm", GGUF_SAME},
    {"blk.*.attn_sinks.weight", LAYER "self_attn.sinks", GGUF_FLAT},
    {"blk.*.ffn_gate_inp", LAYER "mlp.router", GGUF_SAME},
    GGUF_EXPERTS_NAMES(LAYER "mlp.experts.", "gate_proj", "up_proj", "down_proj"),
};

/* The format has no key for the ramp's ends, which are not whole numbers. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    json_t *rope = json_object_get(config, "rope_scaling");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    json_object_del(config, "attention_bias"); /* there are always biases */
    if (type && strcmp(type, "yarn") == 0 &&
        gguf_config_set(rope, "truncate", json_false(), err) != 0)
        return -1;
    return gguf_experts_check(source, &(struct gguf_routing){.gating = GGUF_GATING_SOFTMAX}, err);
}

static const struct gguf_names gguf = {.architecture = "gpt-oss",
                                       .base = &gguf_dense,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_tensors,
                                       .num_names = sizeof gguf_tensors / sizeof *gguf_tensors,
                                       .complete = complete_gguf};

const struct family family_gpt_oss = {
    .name = "gpt_oss", .parse = parse, .bind = bind, .gguf = &gguf};
