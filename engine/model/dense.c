/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/dense.h"

#include "engine/model/config_library.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct layer_names usual_names = {"input_layernorm", "self_attn",
                                               "post_attention_layernorm", "mlp"};

static int parse_sizes(struct config *config, const struct fields *root,
                       const struct dense_class *class, struct mixer *mixer, struct error *err)
{
    static const char key[] = "num_key_value_heads";
    if (config_sizes(config, root, "num_attention_heads", err) != 0 ||
        fields_int(root, class->inner_key ? class->inner_key : "intermediate_size", FIELD_REQUIRED,
                   1, CONFIG_MAX_INTERMEDIATE, &config->intermediate_size, err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_OPTIONAL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0)
        return -1;
    const bool null = json_is_null(json_object_get(root->object, key));
    int64_t kv_heads = null || class->num_kv_heads == 0 ? config->num_heads : class->num_kv_heads;
    int64_t head = class->head_dim > 0 ? class->head_dim : config->hidden_size / config->num_heads;
    if (fields_int(root, key, FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &kv_heads, err) != 0 ||
        fields_int(root, "head_dim", class->head_dim_null ? FIELD_OPTIONAL : FIELD_NOT_NULL, 1,
                   CONFIG_MAX_HIDDEN, &head, err) != 0)
        return -1;
    if (config->num_heads % kv_heads != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: %s: expected a divisor of num_attention_heads (%lld), got %lld",
                         root->place, key, (long long)config->num_heads, (long long)kv_heads);
    if (head == 0)
        return error_set(err, ERROR_INVALID,
                         "%s: hidden_size: expected at least num_attention_heads (%lld), got %lld",
                         root->place, (long long)config->num_heads, (long long)config->hidden_size);
    if (head % 2 != 0) /* rotary embeddings turn pairs of all of it */
        return error_set(err, ERROR_INVALID, "%s: head_dim: expected an even number, got %lld",
                         root->place, (long long)head);
    mixer->num_kv_heads = (int)kv_heads;
    mixer->head_dim = (int)head;
    return 0;
}

static int parse_biases(struct config *config, const struct fields *root,
                        const struct dense_class *class, struct error *err)
{
    struct dense_config *own = arena_alloc(config->arena, 1, sizeof *own, err);
    if (!own)
        return -1;
    bool attention = false, mlp = false;
    config->own = own;
    if ((class->attention_bias &&
         fields_bool(root, "attention_bias", FIELD_NOT_NULL, &attention, err) != 0) ||
        (class->mlp_bias && fields_bool(root, "mlp_bias", FIELD_NOT_NULL, &mlp, err) != 0))
        return -1;
    own->qkv_bias = attention || class->qkv_bias ? WEIGHT_HAS_BIAS : WEIGHT_NO_BIAS;
    own->o_bias = attention ? WEIGHT_HAS_BIAS : WEIGHT_NO_BIAS;
    own->mlp_bias = mlp ? WEIGHT_HAS_BIAS : WEIGHT_NO_BIAS;
    return 0;
}

int dense_parse(struct dense *dense, struct config *config, const struct fields *root,
                const struct dense_class *class, const struct layer_names *names, struct error *err)
{
    struct mixer *mixer = &dense->mixer.mixer;
    double eps = class->norm_eps > 0 ? class->norm_eps : 1e-6;
    *dense = (struct dense){0};
    mixer_make_softmax(mixer);
    config->hidden_act = class->act;
    config->tied = class->tied;
    if (config_library_keys(config, root, err) != 0 ||
        config_library_attention(root, class->windows, err) != 0 ||
        parse_sizes(config, root, class, mixer, err) != 0 ||
        parse_biases(config, root, class, err) != 0 ||
        config_library_act(root, class->act_key ? class->act_key : "hidden_act",
                           &config->hidden_act, err) != 0 ||
        fields_double(root, class->eps_key ? class->eps_key : "rms_norm_eps", FIELD_NOT_NULL, 0, 1,
                      &eps, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_NOT_NULL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->norm_kind = NORM_RMSNORM;
    config->norm_eps = (float)eps;
    mixer->q_norm = mixer->k_norm = (struct norm){.kind = class->qk_norm, .eps = (float)eps};
    mixer->qk_norm_scope = class->qk_norm_scope;
    dense->layer = config_plain_layer(config, names ? names : &usual_names, 0);
    return 0;
}

int dense_rope(struct rope *rope, struct config *config, const struct fields *root,
               const struct dense_class *class, struct error *err)
{
    const struct rope_keys keys = {.base = "rope_theta",
                                   .part = "partial_rotary_factor",
                                   .usual_base = class->rope_theta,
                                   .usual_part = 1,
                                   .longest = class->longest};
    return rope_parse(rope, root, &keys, &config->warnings, err);
}

int dense_window(int64_t *window, const struct fields *root, struct error *err)
{
    static const char key[] = "sliding_window";
    if (json_is_null(json_object_get(root->object, key)))
        *window = 0;
    return fields_int(root, key, FIELD_OPTIONAL, 1, CONFIG_MAX_WINDOW, window, err);
}

int dense_layer_types(int **kinds, struct config *config, const char *other,
                      const struct fields *root, struct error *err)
{
    /* "attention" is what transformers called it before. */
    const struct config_layer_name names[] = {{"full_attention", 0}, {other, 1}, {"attention", 0}};
    return config_library_layers(kinds, config, "layer_types", names, 2, COUNT(names), root, err);
}

int dense_sliding(int **kind_of, struct config *config, int64_t window,
                  bool (*slides)(int64_t layer, const void *context), const void *context,
                  const char *needs, const struct fields *root, struct error *err)
{
    if (dense_layer_types(kind_of, config, "sliding_attention", root, err) != 0)
        return -1;
    const bool listed = *kind_of != NULL;
    if (!listed)
        *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    if (!*kind_of)
        return -1;
    for (int64_t i = 0; i < config->num_layers; i++) {
        if (!listed)
            (*kind_of)[i] = slides(i, context);
        if ((*kind_of)[i] == 1 && window == 0)
            return error_set(err, ERROR_INVALID,
                             "%s: layer %lld is of sliding_attention, which needs %s", root->place,
                             (long long)i, needs);
    }
    return 0;
}

static int make_kind(const struct dense *dense, struct config *config,
                     const struct dense_kind *kind, int number, const char *place,
                     struct error *err)
{
    struct mixer_config *out = &config->mixers[number];
    struct layer_config *layer = &config->kinds[number];
    *out = dense->mixer;
    if (kind->mixer)
        out->mixer = *kind->mixer;
    *layer = kind->layer ? *kind->layer : dense->layer;
    out->mixer.name = layer->name = kind->name;
    out->mixer.window = kind->window > 0 ? WINDOW_SLIDING : WINDOW_FULL;
    out->mixer.window_size = (int)kind->window;
    for (int i = 0; i < layer->num_blocks; i++)
        for (int b = 0; b < layer->blocks[i].num_branches; b++)
            if (layer->blocks[i].branches[b].mixer >= 0)
                layer->blocks[i].branches[b].mixer = number;
    if (!kind->rope)
        return 0;
    return rope_position(kind->rope, out->mixer.head_dim, place, config->arena,
                         &out->mixer.position, err);
}

int dense_layers(const struct dense *dense, struct config *config, const struct dense_kind *kinds,
                 int count, const int *kind_of, const struct fields *root, struct error *err)
{
    int used = 0;
    if (config_layers(config, count, count, err) != 0)
        return -1;
    for (int kind = 0; kind < count; kind++) {
        bool has_layers = false;
        for (int64_t i = 0; i < config->num_layers; i++)
            if ((kind_of ? kind_of[i] : 0) == kind) {
                config->layer_kinds[i] = used;
                has_layers = true;
            }
        if (has_layers && make_kind(dense, config, &kinds[kind], used++, root->place, err) != 0)
            return -1;
    }
    config->num_kinds = config->num_mixers = used;
    return 0;
}

static int two_kinds(const struct dense *dense, struct config *config, int64_t window,
                     const int *kind_of, const struct rope *const ropes[2],
                     const struct fields *root, struct error *err)
{
    const struct dense_kind kinds[] = {
        {.name = "full_attention", .rope = ropes[0]},
        {.name = "sliding_attention", .window = window, .rope = ropes[1]}};
    return dense_layers(dense, config, kinds, COUNT(kinds), kind_of, root, err);
}

static bool slides_from(int64_t layer, const void *first)
{
    return layer >= *(const int64_t *)first;
}

static bool slides_but_each(int64_t layer, const void *pattern)
{
    return (layer + 1) % *(const int64_t *)pattern != 0;
}

int dense_windowed_layers(const struct dense *dense, struct config *config, const struct rope *rope,
                          const struct fields *root, struct error *err)
{
    int64_t window = 4096, first = 28;
    bool use = false;
    int *kind_of;
    if (fields_bool(root, "use_sliding_window", FIELD_NOT_NULL, &use, err) != 0 ||
        dense_window(&window, root, err) != 0 ||
        fields_int(root, "max_window_layers", FIELD_NOT_NULL, INT32_MIN, INT32_MAX, &first, err) !=
            0)
        return -1;
    if (!use)
        window = 0;
    if (window == 0)
        first = config->num_layers;
    if (dense_sliding(&kind_of, config, window, slides_from, &first,
                      "use_sliding_window and a sliding_window", root, err) != 0)
        return -1;
    return two_kinds(dense, config, window, kind_of, (const struct rope *[]){rope, rope}, root,
                     err);
}

int dense_pattern_layers(const struct dense *dense, struct config *config,
                         const struct rope *const ropes[2], int64_t pattern,
                         const struct fields *root, struct error *err)
{
    int64_t window = 4096;
    int *kind_of;
    if (dense_window(&window, root, err) != 0 ||
        dense_sliding(&kind_of, config, window, slides_but_each, &pattern, "a sliding_window", root,
                      err) != 0)
        return -1;
    return two_kinds(dense, config, window, kind_of, ropes, root, err);
}

void dense_post_norms(struct dense *dense)
{
    static const char *const ends[] = {"post_attention_layernorm", "post_feedforward_layernorm"};
    for (int i = 0; i < dense->layer.num_blocks; i++)
        dense->layer.blocks[i].post = (struct norm_config){NORM_RMSNORM, ends[i]};
}

/* The output gate's matrix is in q_proj, whose rows of a head are those of q, then of the gate. */
static int64_t query_rows(const struct mixer *mixer)
{
    const int64_t rows = (int64_t)mixer->num_heads * mixer->head_dim;
    return mixer->output_gate == OUTPUT_GATE_NONE ? rows : 2 * rows;
}

int dense_bind_attention(const struct block_mixer *block, struct error *err)
{
    const struct dense_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    struct matrix *const halves[] = {&mixer->q_proj, &mixer->out_gate_proj};
    struct matrix fused = {0};
    const struct block_matrix matrices[] = {
        {"q_proj", query_rows(mixer), hidden, own->qkv_bias, &fused},
        {"k_proj", keys, hidden, own->qkv_bias, &mixer->k_proj},
        {"v_proj", keys, hidden, own->qkv_bias, &mixer->v_proj},
        {"o_proj", hidden, queries, own->o_bias, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0 ||
        blocks_split_heads(block, &fused, halves, mixer->output_gate == OUTPUT_GATE_NONE ? 1 : 2,
                           err) != 0)
        return -1;
    mixer->value_dim = mixer->features = mixer->features_positioned = mixer->head_dim;
    return blocks_bind_qk_norms(block, err);
}

static const struct block_names names = {DENSE_NAMES};

int dense_bind_named(struct model *model, const struct config *config, struct weights *weights,
                     const struct block_names *named, dense_bind_layer *bind_mixer,
                     struct error *err)
{
    static const char *const buffers[] = {".rotary_emb.inv_freq"}; /* of old versions */
    const struct dense_config *own = config->own;
    struct block_names found = *named;
    weights_ignore(weights, buffers, COUNT(buffers));
    found.biased = own->mlp_bias;
    return blocks_bind(model, config, weights, &found, bind_mixer, err);
}

int dense_bind_layers(struct model *model, const struct config *config, struct weights *weights,
                      const char *root, dense_bind_layer *bind_mixer, struct error *err)
{
    struct block_names found = names;
    found.root = root;
    return dense_bind_named(model, config, weights, &found, bind_mixer, err);
}

int dense_bind(struct model *model, const struct config *config, struct weights *weights,
               struct error *err)
{
    return dense_bind_layers(model, config, weights, names.root, dense_bind_attention, err);
}

void dense_random_attention(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t hidden = list->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    random_list_linear(list, prefix, "q_proj", query_rows(mixer), hidden, 0);
    random_list_linear(list, prefix, "k_proj", keys, hidden, 0);
    random_list_linear(list, prefix, "v_proj", keys, hidden, 0);
    random_list_output(list, prefix, "o_proj", hidden, queries);
    blocks_random_qk_norms(list, prefix, mixer, mixer->head_dim);
}

void dense_random_layers(struct random_list *list, dense_random_layer *list_mixer)
{
    blocks_random(list, &names, list_mixer);
}

void dense_random(struct random_list *list)
{
    dense_random_layers(list, dense_random_attention);
}
