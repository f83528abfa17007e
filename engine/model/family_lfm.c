/* SPDX-License-Identifier: Apache-2.0 */
/* LFM 2 and 3, as `transformers` saves Lfm2ForCausalLM, Lfm2MoeForCausalLM and Lfm3ForCausalLM:
 * gated convolutions and softmax attention. LFM 2 may have experts; LFM 3 has norms behind the
 * branches, windows, and gates of heads. */
#include "engine/model/blocks.h"
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/family.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"
#include "engine/model/rope.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum kind { KIND_FULL, KIND_SLIDING, KIND_CONV, NUM_KINDS };
static const char *const kind_names[NUM_KINDS] = {"full_attention", "sliding_attention", "conv"};

/* What a class says of absent keys, and what its tensors are called. */
struct lfm_class {
    int64_t num_kv_heads, head_dim, width; /* head_dim 0: hidden_size / num_attention_heads */
    int kinds[NUM_KINDS];                  /* that it has */
    const char *o_proj, *q_norm, *k_norm;
};

static const struct lfm_class lfm2 = {.num_kv_heads = 8,
                                      .width = 3,
                                      .kinds = {1, 0, 1},
                                      .o_proj = "out_proj",
                                      .q_norm = "q_layernorm",
                                      .k_norm = "k_layernorm"};
static const struct lfm_class lfm3 = {.num_kv_heads = 4,
                                      .head_dim = 128,
                                      .width = 7,
                                      .kinds = {1, 1, 1},
                                      .o_proj = "o_proj",
                                      .q_norm = "q_norm",
                                      .k_norm = "k_norm"};

/* What the configuration says beside struct config. */
struct lfm {
    const struct lfm_class *class;
    struct mixer mixers[NUM_KINDS];
    int64_t window; /* of the kind that slides */
    enum weight_bias conv_bias, attention_bias;
    bool post_norms;
    struct branch_config experts; /* of layers from first_experts on, if it has any */
    int64_t first_experts;
};

static int parse_sizes(struct lfm *lfm, struct config *config, const struct fields *root,
                       struct error *err)
{
    int64_t kv_heads = lfm->class->num_kv_heads, head = lfm->class->head_dim, width;
    if (config_sizes(config, root, "num_attention_heads", err) != 0 ||
        fields_int(root, "intermediate_size",
                   fields_has(root, "block_ff_dim") ? FIELD_NOT_NULL : FIELD_REQUIRED, 1,
                   CONFIG_MAX_INTERMEDIATE, &config->intermediate_size, err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_NOT_NULL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0 ||
        fields_int(root, "num_key_value_heads", FIELD_NOT_NULL, 1, CONFIG_MAX_HEADS, &kv_heads,
                   err) != 0)
        return -1;
    if (config->num_heads % kv_heads != 0)
        return error_set(
            err, ERROR_INVALID,
            "%s: num_key_value_heads: expected a divisor of num_attention_heads (%lld), got %lld",
            root->place, (long long)config->num_heads, (long long)kv_heads);
    head = head > 0 ? head : config->hidden_size / config->num_heads;
    width = lfm->class->width;
    if (fields_int(root, "head_dim", FIELD_NOT_NULL, 1, CONFIG_MAX_HIDDEN, &head, err) != 0 ||
        fields_int(root, "conv_L_cache", FIELD_NOT_NULL, CONVOLUTION_MIN_WIDTH,
                   CONVOLUTION_MAX_WIDTH, &width, err) != 0)
        return -1;
    if (head % 2 != 0 || head == 0) /* rotary embeddings turn pairs of all of it */
        return error_set(err, ERROR_INVALID, "%s: head_dim: expected an even number, got %lld",
                         root->place, (long long)head);
    for (int i = 0; i < NUM_KINDS; i++) {
        lfm->mixers[i] = (struct mixer){0};
        if (i == KIND_CONV) {
            mixer_make_conv(&lfm->mixers[i], (int)width);
            continue;
        }
        mixer_make_softmax(&lfm->mixers[i]);
        lfm->mixers[i].num_kv_heads = (int)kv_heads;
        lfm->mixers[i].head_dim = (int)head;
    }
    return 0;
}

static int parse_flags(struct lfm *lfm, struct config *config, const struct fields *root,
                       struct error *err)
{
    bool conv_bias = false;
    double eps = 1e-5;
    config->tied = true;
    if (config_library_keys(config, root, err) != 0 ||
        config_library_attention(root, true, err) != 0 ||
        fields_bool(root, "conv_bias", FIELD_NOT_NULL, &conv_bias, err) != 0 ||
        fields_double(root, "norm_eps", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_NOT_NULL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->hidden_act = ACT_SILU;
    config->norm_kind = NORM_RMSNORM;
    config->norm_eps = (float)eps;
    lfm->conv_bias = conv_bias ? WEIGHT_HAS_BIAS : WEIGHT_NO_BIAS;
    for (int i = KIND_FULL; i <= KIND_SLIDING; i++)
        lfm->mixers[i].q_norm = lfm->mixers[i].k_norm =
            (struct norm){.kind = NORM_RMSNORM, .eps = (float)eps};
    return 0;
}

/* A list of kinds, or what `usual` says of each layer. */
static int parse_kinds(int **kind_of, const struct lfm *lfm, struct config *config,
                       const struct fields *root,
                       enum kind (*usual)(const struct fields *root, int64_t layer),
                       struct error *err)
{
    struct config_layer_name names[NUM_KINDS];
    int count = 0;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        if (lfm->class->kinds[kind])
            names[count++] = (struct config_layer_name){kind_names[kind], kind};
    if (config_library_layers(kind_of, config, "layer_types", names, count, count, root, err) != 0)
        return -1;
    if (*kind_of)
        return 0;
    *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    for (int64_t i = 0; *kind_of && i < config->num_layers; i++)
        (*kind_of)[i] = (int)usual(root, i);
    return *kind_of ? 0 : -1;
}

static struct layer_config layer_of(const struct lfm *lfm, const struct config *config,
                                    enum kind kind)
{
    const struct layer_names names = {"operator_norm", kind == KIND_CONV ? "conv" : "self_attn",
                                      "ffn_norm", "feed_forward"};
    struct layer_config layer = config_plain_layer(config, &names, 0);
    if (lfm->post_norms) {
        layer.blocks[0].post = (struct norm_config){NORM_RMSNORM, "post_operator_norm"};
        layer.blocks[1].post = (struct norm_config){NORM_RMSNORM, "post_ffn_norm"};
    }
    return layer;
}

/* A kind of layer without experts; behind those come the same with them. */
static struct dense_kind kind_of_layer(const struct lfm *lfm, const struct rope *const *ropes,
                                       int kind, const struct layer_config *layer)
{
    return (struct dense_kind){.name = kind_names[kind],
                               .window = kind == KIND_SLIDING ? lfm->window : 0,
                               .rope = ropes[kind],
                               .mixer = &lfm->mixers[kind],
                               .layer = layer};
}

/* ropes [NUM_KINDS]: NULL of convolutions. kind_of becomes that of all kinds. */
static int make_layers(const struct lfm *lfm, struct config *config,
                       const struct rope *const *ropes, int *kind_of, const struct fields *root,
                       struct error *err)
{
    const struct dense none = {0};
    struct layer_config layers[2 * NUM_KINDS];
    struct dense_kind kinds[2 * NUM_KINDS];
    const bool mixes = lfm->experts.num_experts > 0;
    for (int i = 0; i < 2 * NUM_KINDS; i++) {
        layers[i] = layer_of(lfm, config, (enum kind)(i % NUM_KINDS));
        if (i >= NUM_KINDS)
            layers[i].blocks[1].branches[0] = lfm->experts;
        kinds[i] = kind_of_layer(lfm, ropes, i % NUM_KINDS, &layers[i]);
    }
    for (int64_t i = mixes ? lfm->first_experts : config->num_layers; i < config->num_layers; i++)
        kind_of[i] += NUM_KINDS;
    return dense_layers(&none, config, kinds, mixes ? 2 * NUM_KINDS : NUM_KINDS, kind_of, root,
                        err);
}

/* ---- LFM 2 ---- */

static enum kind listed(const struct fields *root, int64_t layer)
{
    const json_t *indices = json_object_get(root->object, "full_attn_idxs");
    for (size_t i = 0; i < json_array_size(indices); i++)
        if (json_integer_value(json_array_get(indices, i)) == layer)
            return KIND_FULL;
    return json_is_array(indices) ? KIND_CONV : KIND_FULL;
}

static int check_indices(const struct fields *root, struct error *err)
{
    const json_t *indices;
    if (fields_list(root, "full_attn_idxs", FIELD_OPTIONAL, &indices, err) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(indices); i++)
        if (!json_is_integer(json_array_get(indices, i)))
            return error_set(err, ERROR_INVALID,
                             "%s: full_attn_idxs[%zu]: expected an integer, got %s", root->place, i,
                             fields_kind(json_array_get(indices, i)));
    return 0;
}

/* The width of MLPs, which the file gives before it is adjusted. */
static int adjust_width(struct config *config, const struct fields *root, struct error *err)
{
    bool adjusts = true;
    int64_t multiple = 256;
    double multiplier = 1;
    if (fields_int(root, "block_ff_dim", FIELD_NOT_NULL, 1, CONFIG_MAX_INTERMEDIATE,
                   &config->intermediate_size, err) != 0 ||
        fields_bool(root, "block_auto_adjust_ff_dim", FIELD_NOT_NULL, &adjusts, err) != 0 ||
        fields_int(root, "block_multiple_of", FIELD_NOT_NULL, 1, CONFIG_MAX_INTERMEDIATE, &multiple,
                   err) != 0 ||
        fields_double(root, "block_ffn_dim_multiplier", FIELD_OPTIONAL, 1e-6, 1e3, &multiplier,
                      err) != 0)
        return -1;
    if (!adjusts)
        return 0;
    int64_t size = (int64_t)(2 * (double)config->intermediate_size / 3);
    const json_t *value = json_object_get(root->object, "block_ffn_dim_multiplier");
    if (!value || !json_is_null(value)) {
        size = (int64_t)(multiplier * (double)size);
        size = (size + multiple - 1) / multiple * multiple;
    }
    if (size < 1 || size > CONFIG_MAX_INTERMEDIATE)
        return error_set(err, ERROR_INVALID,
                         "%s: intermediate_size: expected 1 to %d once it is adjusted, got %lld",
                         root->place, CONFIG_MAX_INTERMEDIATE, (long long)size);
    config->intermediate_size = size;
    return 0;
}

static int new_lfm(struct lfm **out, struct config *config, const struct lfm_class *class,
                   const struct fields *root, struct error *err)
{
    struct lfm *lfm = arena_alloc(config->arena, 1, sizeof *lfm, err);
    if (!lfm)
        return -1;
    *out = lfm;
    lfm->class = class;
    config->own = lfm;
    return parse_sizes(lfm, config, root, err) == 0 ? parse_flags(lfm, config, root, err) : -1;
}

/* What both classes of LFM 2 have once `lfm` knows its MLPs. */
static int finish_lfm2(struct lfm *lfm, struct config *config, const struct fields *root,
                       struct error *err)
{
    const struct rope_keys keys = {.base = "rope_theta",
                                   .part = "partial_rotary_factor",
                                   .usual_base = 1e6,
                                   .usual_part = 1,
                                   .longest = 128000};
    struct rope rope;
    int *kind_of;
    if (fields_bool(root, "tie_embedding", FIELD_NOT_NULL, &config->tied, err) != 0 ||
        parse_kinds(&kind_of, lfm, config, root, listed, err) != 0 ||
        rope_parse(&rope, root, &keys, &config->warnings, err) != 0)
        return -1;
    return make_layers(lfm, config, (const struct rope *[NUM_KINDS]){&rope}, kind_of, root, err);
}

static int parse_lfm2(struct config *config, const struct fields *root, struct error *err)
{
    struct lfm *lfm;
    if (new_lfm(&lfm, config, &lfm2, root, err) != 0 || adjust_width(config, root, err) != 0 ||
        check_indices(root, err) != 0)
        return -1;
    return finish_lfm2(lfm, config, root, err);
}

/* MLPs are as wide as intermediate_size says. */
static int parse_lfm2_moe(struct config *config, const struct fields *root, struct error *err)
{
    static const struct experts_class experts = {.also_count = "num_local_experts",
                                                 .count = {"num_experts", 32},
                                                 .chosen = {"num_experts_per_tok", 4},
                                                 .size = {"moe_intermediate_size", 1792},
                                                 .renormalize = {"norm_topk_prob", true},
                                                 .score = ROUTE_SIGMOID,
                                                 .least = 1e-6,
                                                 .factor = "routed_scaling_factor"};
    struct lfm *lfm;
    if (new_lfm(&lfm, config, &lfm2, root, err) != 0)
        return -1;
    lfm->experts = layer_of(lfm, config, KIND_FULL).blocks[1].branches[0];
    lfm->experts.score_bias = true;
    lfm->first_experts = 2;
    if (fields_bool(root, "use_expert_bias", FIELD_NOT_NULL, &lfm->experts.score_bias, err) != 0 ||
        fields_int(root, "num_dense_layers", FIELD_NOT_NULL, 0, CONFIG_MAX_LAYERS,
                   &lfm->first_experts, err) != 0 ||
        config_experts(&lfm->experts, root, &experts, err) != 0)
        return -1;
    return finish_lfm2(lfm, config, root, err);
}

/* ---- LFM 3 ---- */

static enum kind every_fourth(const struct fields *root, int64_t layer)
{
    (void)root;
    if (layer % 4 == 2)
        return KIND_FULL;
    return layer % 4 == 0 && layer > 0 ? KIND_SLIDING : KIND_CONV;
}

/* Released files call the type of full_attention default, and mean proportional: the part of the
 * pairs that turns stands still in transformers' default. */
static void settle_part(struct rope *rope, struct config *config, const char *place)
{
    if (rope->type != ROPE_DEFAULT || rope->part == 1)
        return;
    rope->type = ROPE_PROPORTIONAL;
    rope->factor = 1;
    warnings_add(&config->warnings,
                 "%s: rope_parameters: the type default has a partial_rotary_factor of %g: it is "
                 "read as proportional, as LFM 3 was trained",
                 place, rope->part);
}

static int parse_ropes(struct rope ropes[2], struct config *config, const struct fields *root,
                       struct error *err)
{
    const struct rope_keys keys = {.part = "partial_rotary_factor",
                                   .usual_base = 1e6,
                                   .usual_part = 1,
                                   .longest = 128000,
                                   .partial = true,
                                   .by_kind = true};
    const struct rope_keys by_kind[2] = {keys, keys};
    if (!fields_has(root, "rope_parameters") && !fields_has(root, "rope_scaling")) {
        ropes[0] = (struct rope){.type = ROPE_PROPORTIONAL, .base = 1e6, .part = 0.5, .factor = 1};
        ropes[1] = (struct rope){.base = 10000, .part = 1};
        return 0;
    }
    if (rope_parse_kinds(ropes, root, by_kind, &config->warnings, err) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        settle_part(&ropes[i], config, root->place);
    return 0;
}

static int parse_lfm3(struct config *config, const struct fields *root, struct error *err)
{
    struct lfm *lfm;
    struct rope ropes[2];
    int *kind_of;
    int64_t window = 256;
    bool gate = true, bias = false;
    if (new_lfm(&lfm, config, &lfm3, root, err) != 0 ||
        fields_int(root, "sliding_window", FIELD_NOT_NULL, 1, CONFIG_MAX_WINDOW, &window, err) !=
            0 ||
        fields_bool(root, "use_attention_gate", FIELD_NOT_NULL, &gate, err) != 0 ||
        fields_bool(root, "attention_bias", FIELD_NOT_NULL, &bias, err) != 0)
        return -1;
    lfm->post_norms = true;
    lfm->attention_bias = bias ? WEIGHT_HAS_BIAS : WEIGHT_NO_BIAS;
    for (int i = KIND_FULL; i <= KIND_SLIDING; i++) {
        struct mixer *mixer = &lfm->mixers[i];
        mixer->output_gate = gate ? OUTPUT_GATE_SIGMOID : OUTPUT_GATE_NONE;
        mixer->gate_per_head = gate;
    }
    lfm->window = window;
    if (fields_bool(root, "use_sandwich_norm", FIELD_NOT_NULL, &lfm->post_norms, err) != 0 ||
        parse_kinds(&kind_of, lfm, config, root, every_fourth, err) != 0 ||
        parse_ropes(ropes, config, root, err) != 0)
        return -1;
    return make_layers(lfm, config, (const struct rope *[NUM_KINDS]){&ropes[0], &ropes[1]}, kind_of,
                       root, err);
}

/* ---- tensors ---- */

static int bind_conv(const struct block_mixer *block, struct error *err)
{
    const struct lfm *lfm = block->config->own;
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    char name[WEIGHT_NAME_SIZE];
    const struct block_matrix matrices[] = {
        {"in_proj", 3 * hidden, hidden, lfm->conv_bias, &mixer->in_proj},
        {"out_proj", hidden, hidden, lfm->conv_bias, &mixer->o_proj},
    };
    const struct conv_part part = {weights_name(name, "%s.conv", block->prefix), hidden, 0, hidden,
                                   1};
    mixer->value_dim = (int)hidden;
    if (blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0)
        return -1;
    return weights_conv(block->weights, &part, 1, lfm->conv_bias, &mixer->conv, err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    const struct lfm *lfm = block->config->own;
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    char name[WEIGHT_NAME_SIZE];
    if (!mixer_has(mixer, HAS_HEADS))
        return bind_conv(block, err);
    const struct block_matrix matrices[] = {
        {"q_proj", queries, hidden, lfm->attention_bias, &mixer->q_proj},
        {"k_proj", keys, hidden, lfm->attention_bias, &mixer->k_proj},
        {"v_proj", keys, hidden, lfm->attention_bias, &mixer->v_proj},
        {lfm->class->o_proj, hidden, queries, lfm->attention_bias, &mixer->o_proj},
        {"gate_proj", mixer->num_heads, hidden, WEIGHT_NO_BIAS, &mixer->out_gate_proj},
    };
    if (blocks_bind_matrices(block, matrices, COUNT(matrices) - !mixer->gate_per_head, err) != 0)
        return -1;
    mixer->value_dim = mixer->features = mixer->features_positioned = mixer->head_dim;
    if (weights_norm(block->weights, weights_name(name, "%s.%s", block->prefix, lfm->class->q_norm),
                     mixer->head_dim, &mixer->q_norm, err) != 0)
        return -1;
    return weights_norm(block->weights,
                        weights_name(name, "%s.%s", block->prefix, lfm->class->k_norm),
                        mixer->head_dim, &mixer->k_norm, err);
}

static const struct block_names names = {.root = "model",
                                         .embeddings = "embed_tokens",
                                         .final_norm = "embedding_norm",
                                         .gate_proj = "w1",
                                         .up_proj = "w3",
                                         .down_proj = "w2",
                                         .router = "gate",
                                         .score_bias = "expert_bias",
                                         .experts = "experts",
                                         .lm_head = "lm_head",
                                         .mlp = BLOCK_MLP_GATED};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return blocks_bind(model, config, weights, &names, bind_mixer, err);
}

static void list_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const struct lfm *lfm = list->config->own;
    const int64_t hidden = list->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    if (!mixer_has(mixer, HAS_HEADS)) {
        const int64_t shape[3] = {hidden, 1, mixer->conv.width};
        random_list_linear(list, prefix, "in_proj", 3 * hidden, hidden, 0);
        random_list_array(list, prefix, "conv.weight", 3, shape, 1);
        random_list_output(list, prefix, "out_proj", hidden, hidden);
        return;
    }
    random_list_linear(list, prefix, "q_proj", queries, hidden, 0);
    random_list_linear(list, prefix, "k_proj", keys, hidden, 0);
    random_list_linear(list, prefix, "v_proj", keys, hidden, 0);
    random_list_output(list, prefix, lfm->class->o_proj, hidden, queries);
    if (mixer->gate_per_head)
        random_list_linear(list, prefix, "gate_proj", mixer->num_heads, hidden, 0);
    random_list_norm(list, prefix, lfm->class->q_norm, NORM_RMSNORM, mixer->head_dim);
    random_list_norm(list, prefix, lfm->class->k_norm, NORM_RMSNORM, mixer->head_dim);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, list_mixer);
}

/* ---- GGUF files of LFM 2 ---- */

static const struct gguf_key gguf_keys[] = {
    {"attention.head_count_kv", NULL, FIELD_OPTIONAL},
    {"attention.layer_norm_rms_epsilon", "norm_eps", FIELD_REQUIRED},
    {"shortconv.l_cache", "conv_L_cache", FIELD_REQUIRED},
};

#define IN_LAYER(gguf, name)                              \
    {                                                     \
        "blk.*." gguf, "model.layers.*." name, GGUF_SAME, \
    }

static const struct gguf_name gguf_names[] = {
    {"token_embd_norm", "model.embedding_norm", GGUF_SAME},
    IN_LAYER("attn_norm", "operator_norm"),
    IN_LAYER("attn_q_norm", "self_attn.q_layernorm"),
    IN_LAYER("attn_k_norm", "self_attn.k_layernorm"),
    IN_LAYER("attn_output", "self_attn.out_proj"),
    IN_LAYER("shortconv.in_proj", "conv.in_proj"),
    IN_LAYER("shortconv.conv", "conv.conv"),
    IN_LAYER("shortconv.out_proj", "conv.out_proj"),
    IN_LAYER("ffn_norm", "ffn_norm"),
    IN_LAYER("ffn_gate", "feed_forward.w1"),
    IN_LAYER("ffn_up", "feed_forward.w3"),
    IN_LAYER("ffn_down", "feed_forward.w2"),
};

/* Heads of k and v of each layer: 0 of a convolution. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    static const char name[] = "attention.head_count_kv";
    char key[GGUF_KEY_SIZE];
    const struct gguf_entry *heads;
    json_t *kinds = json_array();
    int64_t most = 0;
    if (gguf_config_set(config, "layer_types", kinds, err) != 0 ||
        gguf_config_set(config, "block_auto_adjust_ff_dim", json_false(), err) != 0 ||
        gguf_config_list(source, name, &heads, err) != 0)
        return -1;
    gguf_config_key(key, source, name);
    if (!heads)
        return gguf_bad(source->gguf, key, err, "expected a list of integers, got nothing");
    for (int64_t i = 0; i < source->layers; i++) {
        const int64_t count = gguf_config_at(heads, i);
        if (count < 0 || (count > 0 && most > 0 && count != most))
            return gguf_bad(source->gguf, key, err,
                            "expected 0 and one number of heads, got %lld and %lld",
                            (long long)most, (long long)count);
        most = count > 0 ? count : most;
        if (json_array_append_new(kinds,
                                  json_string(kind_names[count > 0 ? KIND_FULL : KIND_CONV])) != 0)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", key);
    }
    return gguf_config_set(config, "num_key_value_heads", json_integer(most > 0 ? most : 1), err);
}

static const struct gguf_names gguf = {.architecture = "lfm2",
                                       .base = &gguf_dense,
                                       .keys = gguf_keys,
                                       .num_keys = COUNT(gguf_keys),
                                       .names = gguf_names,
                                       .num_names = COUNT(gguf_names),
                                       .complete = complete_gguf};

static const struct gguf_key moe_keys[] = {
    GGUF_EXPERTS_KEYS,
    {"expert_feed_forward_length", "moe_intermediate_size", FIELD_REQUIRED},
    {"expert_weights_scale", "routed_scaling_factor", FIELD_OPTIONAL},
    {"leading_dense_block_count", "num_dense_layers", FIELD_REQUIRED},
};

static const struct gguf_name moe_names[] = {
    IN_LAYER("ffn_gate_inp", "feed_forward.gate"),
    {"blk.*.exp_probs_b.bias", "model.layers.*.feed_forward.expert_bias", GGUF_FLAT},
    GGUF_EXPERTS_NAMES("model.layers.*.feed_forward.experts.", "w1", "w3", "w2"),
};

static int complete_moe(json_t *config, const struct gguf_source *source, struct error *err)
{
    const bool biased = gguf_dense_any_layer(config, source, "exp_probs_b.bias");
    const struct gguf_routing routing = {.gating = GGUF_GATING_SIGMOID, .factor = true};
    return gguf_config_set(config, "use_expert_bias", json_boolean(biased), err) == 0
               ? gguf_experts_check(source, &routing, err)
               : -1;
}

static const struct gguf_names moe_gguf = {.architecture = "lfm2moe",
                                           .base = &gguf,
                                           .keys = moe_keys,
                                           .num_keys = COUNT(moe_keys),
                                           .names = moe_names,
                                           .num_names = COUNT(moe_names),
                                           .complete = complete_moe};

const struct family family_lfm2_moe = {.name = "lfm2_moe",
                                       .parse = parse_lfm2_moe,
                                       .bind = bind,
                                       .random = list_random,
                                       .gguf = &moe_gguf};
const struct family family_lfm2 = {
    .name = "lfm2", .parse = parse_lfm2, .bind = bind, .random = list_random, .gguf = &gguf};
const struct family family_lfm3 = {
    .name = "lfm3", .parse = parse_lfm3, .bind = bind, .random = list_random};
