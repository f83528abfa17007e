/* SPDX-License-Identifier: Apache-2.0 */
/* Phi-3, Phi-3.5 and Phi-4-mini, as Microsoft released them and `transformers` 4 and 5 save
 * Phi3ForCausalLM: q, k and v in one matrix, gate and up in one, and rotary embeddings of a part of
 * a head, whose frequencies longrope divides. */
#include "engine/model/config_library.h"
#include "engine/model/conversion.h"
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct dense_class phi3 = {
    .longest = 4096, .rope_theta = 10000, .norm_eps = 1e-5, .act = ACT_SILU, .windows = true};

static int parse_rope(struct rope *rope, struct config *config, const struct fields *root,
                      struct error *err)
{
    const struct rope_keys keys = {.base = "rope_theta",
                                   .part = "partial_rotary_factor",
                                   .usual_base = phi3.rope_theta,
                                   .usual_part = 1,
                                   .longest = phi3.longest,
                                   .original = 4096,
                                   .partial = true};
    return rope_parse(rope, root, &keys, &config->warnings, err);
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    static const struct config_refusal refusal = {"layer_types", ""};
    struct dense dense;
    struct rope rope;
    int64_t window = 0;
    if (dense_parse(&dense, config, root, &phi3, NULL, err) != 0 ||
        config_library_refuse(root, &refusal, 1, err) != 0 ||
        parse_rope(&rope, config, root, err) != 0 || dense_window(&window, root, err) != 0)
        return -1;
    const int64_t longest =
        config->max_position_embeddings > 0 ? config->max_position_embeddings : phi3.longest;
    if (window >= longest) /* as in files of longrope; a ring of it would be kept for each text */
        window = 0;
    return dense_layers(&dense, config,
                        &(struct dense_kind){.name = "attention", .window = window, .rope = &rope},
                        1, NULL, root, err);
}

static int bind_attention(const struct block_mixer *block, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    struct matrix all = {0};
    const struct block_matrix matrices[] = {
        {"qkv_proj", queries + 2 * keys, hidden, WEIGHT_NO_BIAS, &all},
        {"o_proj", hidden, queries, WEIGHT_NO_BIAS, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0)
        return -1;
    mixer->q_proj = weights_rows(&all, 0, queries);
    mixer->k_proj = weights_rows(&all, queries, keys);
    mixer->v_proj = weights_rows(&all, queries + keys, keys);
    mixer->value_dim = mixer->features = mixer->features_positioned = mixer->head_dim;
    return 0;
}

static const struct block_names names = {DENSE_NAMES_BUT_MLP, .gate_up_proj = "gate_up_proj",
                                         .gate_proj = "gate_proj", .up_proj = "up_proj",
                                         .down_proj = "down_proj"};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return dense_bind_named(model, config, weights, &names, bind_attention, err);
}

static void random_attention(struct random_list *list, const char *prefix,
                             const struct mixer *mixer)
{
    const int64_t hidden = list->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    random_list_linear(list, prefix, "qkv_proj", queries + 2 * keys, hidden, 0);
    random_list_output(list, prefix, "o_proj", hidden, queries);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, random_attention);
}

static const struct gguf_key gguf_keys[] = {
    {"attention.sliding_window", "sliding_window", FIELD_OPTIONAL},
    {"rope.scaling.original_context_length", "original_max_position_embeddings", FIELD_OPTIONAL},
    {"rope.scaling.attn_factor", NULL, FIELD_OPTIONAL},
};

static const struct gguf_name gguf_tensors[] = {
    {"blk.*.attn_qkv", GGUF_DENSE_ATTENTION "qkv_proj", GGUF_SAME},
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", GGUF_SAME},
};

/* A tensor of divisors as a list of longrope's. */
static int add_divisors(json_t *rope, const char *name, struct tensor *tensor, struct error *err)
{
    json_t *list = json_array();
    if (gguf_config_set(rope, name, list, err) != 0)
        return -1;
    if (tensor->rank != 1 || tensor->dtype != TENSOR_F32 || tensor->elements > CONFIG_MAX_HIDDEN)
        return error_set(err, ERROR_INVALID,
                         "%s: tensor \"%s\": expected a list of F32, got another shape or type",
                         tensor->file, tensor->name);
    for (size_t i = 0; i < tensor->elements; i++) {
        const double value = (double)conversion_value(tensor, i);
        if (!(value >= 1e-6 && value <= 1e9))
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"%s\": expected numbers in [1e-06, 1e+09], got %g at "
                             "element %zu",
                             tensor->file, tensor->name, value, i);
        if (json_array_append_new(list, json_real(value)) != 0)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", name);
    }
    tensor_ignore(tensor);
    return 0;
}

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    static const char *const tensors[][2] = {{"rope_factors_long.weight", "long_factor"},
                                             {"rope_factors_short.weight", "short_factor"}};
    json_t *rope = json_object_get(config, "rope_scaling");
    const json_t *window = json_object_get(config, "sliding_window");
    if (json_is_integer(window) && json_integer_value(window) == 0) /* none */
        json_object_del(config, "sliding_window");
    int found = 0;
    for (size_t i = 0; i < COUNT(tensors); i++) {
        struct tensor *tensor = tensors_find(source->tensors, tensors[i][0]);
        found += tensor != NULL;
        if (tensor && add_divisors(rope, tensors[i][1], tensor, err) != 0)
            return -1;
    }
    if (found == 0)
        return 0;
    if (gguf_dense_need_length(source, err) != 0 ||
        gguf_config_set(rope, "rope_type", json_string("longrope"), err) != 0)
        return -1;
    return gguf_config_copy(rope, "attention_factor", source, "rope.scaling.attn_factor",
                            FIELD_OPTIONAL, err);
}

static const struct gguf_names gguf = {.architecture = "phi3",
                                       .base = &gguf_dense_prenorm,
                                       .partial = true,
                                       .keys = gguf_keys,
                                       .num_keys = COUNT(gguf_keys),
                                       .names = gguf_tensors,
                                       .num_names = COUNT(gguf_tensors),
                                       .complete = complete_gguf};

const struct family family_phi3 = {
    .name = "phi3", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
