/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_gemma4.h"

#include "engine/model/config.h"
#include "engine/model/conversion.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct gguf_key keys[] = {
    {"attention.head_count_kv", NULL, FIELD_REQUIRED},
    {"attention.key_length", NULL, FIELD_REQUIRED},
    {"feed_forward_length", NULL, FIELD_REQUIRED},
    {"attention.key_length_swa", NULL, FIELD_REQUIRED},
    {"attention.value_length_swa", NULL, FIELD_OPTIONAL},
    {"attention.sliding_window", NULL, FIELD_REQUIRED},
    {"attention.sliding_window_pattern", NULL, FIELD_REQUIRED},
    {"attention.shared_kv_layers", "num_kv_shared_layers", FIELD_OPTIONAL},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", FIELD_REQUIRED},
    {"final_logit_softcapping", "final_logit_softcapping", FIELD_OPTIONAL},
    {"rope.dimension_count_swa", NULL, FIELD_OPTIONAL},
    {"rope.freq_base_swa", NULL, FIELD_OPTIONAL},
    {"expert_count", "num_experts", FIELD_OPTIONAL},
    {"expert_used_count", "top_k_experts", FIELD_OPTIONAL},
    {"expert_feed_forward_length", "moe_intermediate_size", FIELD_OPTIONAL},
};

#define LAYER "model.layers.*."
static const struct gguf_name tensors[] = {
    {"blk.*.attn_norm", LAYER "input_layernorm", GGUF_SAME},
    {"blk.*.post_attention_norm", LAYER "post_attention_layernorm", GGUF_SAME},
    {"blk.*.ffn_norm", LAYER "pre_feedforward_layernorm", GGUF_SAME},
    {"blk.*.post_ffw_norm", LAYER "post_feedforward_layernorm", GGUF_SAME},
    {"blk.*.post_ffw_norm_1", LAYER "post_feedforward_layernorm_1", GGUF_SAME},
    {"blk.*.pre_ffw_norm_2", LAYER "pre_feedforward_layernorm_2", GGUF_SAME},
    {"blk.*.post_ffw_norm_2", LAYER "post_feedforward_layernorm_2", GGUF_SAME},
    {"blk.*.layer_output_scale.weight", LAYER "layer_scalar", GGUF_FLAT},
    {"blk.*.ffn_gate_inp", LAYER "router.proj", GGUF_SAME},
    {"blk.*.ffn_gate_inp.scale", LAYER "router.scale", GGUF_FLAT},
    {"blk.*.ffn_down_exps.scale", LAYER "router.per_expert_scale", GGUF_FLAT},
    {"blk.*.ffn_gate_up_exps", LAYER "experts.gate_up_proj", GGUF_SAME},
    GGUF_EXPERTS_NAMES(LAYER "experts.", "gate_proj", "up_proj", "down_proj"),
    {"blk.*.inp_gate", LAYER "per_layer_input_gate", GGUF_SAME},
    {"blk.*.proj", LAYER "per_layer_projection", GGUF_SAME},
    {"blk.*.post_norm", LAYER "post_per_layer_input_norm", GGUF_SAME},
    {"per_layer_token_embd", "model.embed_tokens_per_layer", GGUF_SAME},
    {"per_layer_model_proj", "model.per_layer_model_projection", GGUF_SAME},
    {"per_layer_proj_norm", "model.per_layer_projection_norm", GGUF_SAME},
};

/* Widths of MLPs: all the same, or twice the first one's in layers that share keys and values. */
static int complete_widths(json_t *config, const struct gguf_source *source, struct error *err)
{
    static const char key[] = "feed_forward_length";
    const struct gguf_entry *list;
    char full[GGUF_KEY_SIZE];
    if (gguf_config_list(source, key, &list, err) != 0)
        return -1;
    const int64_t first = gguf_config_at(list, 0), last = gguf_config_at(list, source->layers - 1);
    const int64_t shared = json_integer_value(json_object_get(config, "num_kv_shared_layers"));
    for (int64_t i = 0; i < source->layers; i++) {
        const int64_t width = gguf_config_at(list, i);
        const bool wide = last != first && i >= source->layers - shared;
        if (wide ? width % 2 != 0 || width / 2 != first : width != first)
            return gguf_bad(source->gguf, gguf_config_key(full, source, key), err,
                            "expected %s%lld for layer %lld, got %lld", wide ? "twice " : "",
                            (long long)first, (long long)i, (long long)width);
    }
    return gguf_config_set(config, "intermediate_size", json_integer(first), err) == 0
               ? gguf_config_set(config, "use_double_wide_mlp", json_boolean(last != first), err)
               : -1;
}

static bool has_tensor(const struct gguf_source *source, int64_t layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%lld.%s.weight", (long long)layer, name);
    return tensors_find(source->tensors, full) != NULL;
}

/* Heads of keys in each layer, and the size of full layers' heads, as transformers has them. Values
 * are keys where a full layer has a matrix for these alone. */
static int complete_heads(json_t *config, const struct gguf_source *source, int64_t head,
                          struct error *err)
{
    const json_t *types = json_object_get(config, "layer_types");
    const struct gguf_entry *list;
    json_t *by_layer = json_object();
    bool same = false;
    if (gguf_config_set(config, "per_layer_config", by_layer, err) != 0 ||
        gguf_config_list(source, "attention.head_count_kv", &list, err) != 0)
        return -1;
    for (int64_t i = 0; i < source->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        const json_int_t heads = gguf_config_at(list, i);
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        const bool full = type && strcmp(type, "full_attention") == 0;
        same |= full && has_tensor(source, i, "attn_k") && !has_tensor(source, i, "attn_v");
        json_t *own =
            json_pack("{sI sI}", "head_dim", (json_int_t)head, "num_key_value_heads", heads);
        if (full ? gguf_config_set(by_layer, name, own, err) != 0
                 : (json_decref(own),
                    gguf_config_set(config, "num_key_value_heads", json_integer(heads), err) != 0))
            return -1;
    }
    return gguf_config_set(config, "attention_k_eq_v", json_boolean(same), err);
}

/* Of the frequencies of full layers the first ones are divided by 1, and the others by as much as
 * makes them stand still. */
static int complete_turning(json_t *config, const struct gguf_source *source, int64_t head,
                            struct error *err)
{
    json_t *full = json_object_get(json_object_get(config, "rope_parameters"), "full_attention");
    struct tensor *divisors = tensors_find(source->tensors, "rope_freqs.weight");
    int64_t turned = 0;
    if (!divisors || divisors->rank != 1 || divisors->dtype != TENSOR_F32 ||
        divisors->shape[0] != head / 2)
        return error_set(err, ERROR_INVALID,
                         "%s: tensor \"rope_freqs.weight\": expected %lld numbers of F32, got %s",
                         source->gguf->file, (long long)head / 2,
                         divisors ? "another shape or type" : "nothing");
    while (turned < head / 2 && conversion_value(divisors, (size_t)turned) == 1)
        turned++;
    for (int64_t i = turned; i < head / 2; i++) {
        const float divisor = conversion_value(divisors, (size_t)i);
        if (!(divisor >= 1e30F))
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"rope_freqs.weight\": expected ones, then numbers from "
                             "1e30 on, got %g at element %lld",
                             source->gguf->file, (double)divisor, (long long)i);
    }
    tensor_ignore(divisors);
    /* a little more, as the part is cut to whole pairs */
    const double part = turned == head / 2 ? 1 : ((double)turned + 0.5) / ((double)head / 2);
    return gguf_config_set(full, "rope_type", json_string("proportional"), err) == 0
               ? gguf_config_set(full, "partial_rotary_factor", json_real(part), err)
               : -1;
}

/* Sizes of heads: gguf_dense has taken those of full layers for all. */
static int find_heads(json_t *config, const struct gguf_source *source, int64_t *full,
                      struct error *err)
{
    int64_t sliding = 2;
    if (gguf_config_int(source, "attention.key_length", FIELD_REQUIRED, 2, CONFIG_MAX_HIDDEN, full,
                        err) != 0 ||
        gguf_config_int(source, "attention.key_length_swa", FIELD_REQUIRED, 2, CONFIG_MAX_HIDDEN,
                        &sliding, err) != 0)
        return -1;
    int64_t same = sliding;
    if (gguf_config_int(source, "attention.value_length_swa", FIELD_OPTIONAL, sliding, sliding,
                        &same, err) != 0 ||
        gguf_config_int(source, "rope.dimension_count_swa", FIELD_OPTIONAL, sliding, sliding, &same,
                        err) != 0)
        return -1;
    return gguf_config_set(config, "head_dim", json_integer(sliding), err);
}

static int complete(json_t *config, const struct gguf_source *source, struct error *err)
{
    const struct tensor *table = tensors_find(source->tensors, "per_layer_token_embd.weight");
    const json_t *cap = json_object_get(config, "final_logit_softcapping");
    const bool has_experts = json_integer_value(json_object_get(config, "num_experts")) > 0;
    int64_t head = 0;
    if (json_is_number(cap) && json_number_value(cap) == 0) /* none */
        json_object_del(config, "final_logit_softcapping");
    if (source->layers < 1) /* the family refuses it */
        return 0;
    if (find_heads(config, source, &head, err) != 0 ||
        gguf_config_set(config, "enable_moe_block", json_boolean(has_experts), err) != 0 ||
        (table && gguf_config_set(config, "vocab_size_per_layer_input",
                                  json_integer(table->shape[0]), err) != 0) ||
        complete_widths(config, source, err) != 0 ||
        gguf_dense_windows(config, source, 6, 512, err) != 0 ||
        complete_heads(config, source, head, err) != 0 ||
        gguf_dense_rope_by_kind(config, source, 10000, err) != 0)
        return -1;
    return complete_turning(config, source, head, err);
}

const struct gguf_names gguf_gemma4 = {.architecture = "gemma4",
                                       .base = &gguf_dense,
                                       .keys = keys,
                                       .num_keys = COUNT(keys),
                                       .names = tensors,
                                       .num_names = COUNT(tensors),
                                       .complete = complete};
