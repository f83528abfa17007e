/* SPDX-License-Identifier: Apache-2.0 */
/* The text models of Gemma 4, as Google released them and `transformers` 5 saves Gemma4ForCausalLM
 * and Gemma4ForConditionalGeneration, of which only the language model counts here. Full layers
 * have heads of another size than those with a window; the last layers may attend to keys and
 * values of others; layers may have inputs of their own, and experts beside their MLPs. */
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/gguf_gemma4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct dense_class gemma4 = {.num_kv_heads = 4,
                                          .head_dim = 256,
                                          .longest = 131072,
                                          .rope_theta = 10000,
                                          .act_key = "hidden_activation",
                                          .act = ACT_GELU_NEW,
                                          .tied = true,
                                          .windows = true,
                                          .attention_bias = true,
                                          .qk_norm = NORM_RMSNORM,
                                          .qk_norm_scope = NORM_SCOPE_HEAD};

static const struct experts_class experts = {.count = {"num_experts", 0},
                                             .chosen = {"top_k_experts", 0},
                                             .size = {"moe_intermediate_size", 0},
                                             .renormalize = {NULL, true}};

/* What kind_of says of a layer. */
enum layer_trait { SLIDES = 1, SHARES = 2, NUM_KINDS = 4 };

/* What is in no struct config yet. */
struct gemma4 {
    struct dense dense;
    struct rope ropes[2]; /* full, sliding */
    int64_t window, num_shared;
    int64_t full_head, full_kv_heads; /* of full layers */
    bool keys_are_values, has_experts, wide;
    int *kind_of; /* [num_layers] */
};

/* ---- layers ---- */

static bool slides_but_each_sixth(int64_t layer, const void *context)
{
    (void)context;
    return (layer + 1) % 6 != 0;
}

/* The last layer is full, as in transformers. */
static int find_kinds(struct gemma4 *own, struct config *config, const struct fields *root,
                      struct error *err)
{
    const int64_t last = config->num_layers - 1;
    own->window = 512;
    if (dense_window(&own->window, root, err) != 0 ||
        fields_int(root, "num_kv_shared_layers", FIELD_NOT_NULL, 0, config->num_layers - 1,
                   &own->num_shared, err) != 0 ||
        dense_sliding(&own->kind_of, config, own->window, slides_but_each_sixth, NULL,
                      "a sliding_window", root, err) != 0)
        return -1;
    if (own->kind_of[last] == SLIDES)
        warnings_add(&config->warnings,
                     "%s: layer_types[%lld]: the last layer is of full_attention, as in "
                     "transformers",
                     root->place, (long long)last);
    own->kind_of[last] = 0;
    for (int64_t i = config->num_layers - own->num_shared; i < config->num_layers; i++)
        own->kind_of[i] |= SHARES;
    return 0;
}

/* The layer whose keys and values those of the kind share: the last one of its own that is before
 * them. -1: there is none. */
static int64_t find_source(const struct gemma4 *own, const struct config *config, int kind)
{
    int64_t i = config->num_layers - own->num_shared - 1;
    while (i >= 0 && own->kind_of[i] != (kind & SLIDES))
        i--;
    return i;
}

static bool has_layers(const struct gemma4 *own, const struct config *config, int kind)
{
    for (int64_t i = 0; i < config->num_layers; i++)
        if (own->kind_of[i] == kind)
            return true;
    return false;
}

static int make_mixer(const struct gemma4 *own, const struct config *config, int kind,
                      const struct fields *root, struct mixer *mixer, struct error *err)
{
    const bool full = (kind & SLIDES) == 0;
    *mixer = own->dense.mixer.mixer;
    if (full) {
        mixer->head_dim = (int)own->full_head;
        mixer->num_kv_heads = (int)own->full_kv_heads;
    }
    mixer->keys_are_values = full && own->keys_are_values;
    if ((kind & SHARES) == 0 || !has_layers(own, config, kind))
        return 0;
    const int64_t source = find_source(own, config, kind);
    if (source < 0)
        return error_set(err, ERROR_INVALID,
                         "%s: num_kv_shared_layers: expected a layer of %s before the last %lld, "
                         "got none",
                         root->place, full ? "full_attention" : "sliding_attention",
                         (long long)own->num_shared);
    mixer->keys_of = (int)source + 1;
    mixer->keys_are_values = false;
    mixer->k_norm.kind = mixer->v_norm.kind = NORM_NONE;
    return 0;
}

/* x += norm(attention(norm(x))); x += norm(mlp(norm(x))), and with inputs of layers one block more.
 * Experts are beside the MLP, each with norms of its own before and behind it. */
static int make_layer(const struct gemma4 *own, const struct config *config, int kind,
                      const struct fields *root, struct layer_config *layer, struct error *err)
{
    struct block_config *block = &layer->blocks[1];
    *layer = own->dense.layer;
    if (own->wide && (kind & SHARES))
        block->branches[0].mlp_size *= 2;
    if (own->has_experts) {
        struct branch_config *branch = &block->branches[1];
        *branch = block->branches[0];
        branch->name = "";
        branch->pre.name = "pre_feedforward_layernorm_2";
        branch->post = (struct norm_config){NORM_RMSNORM, "post_feedforward_layernorm_2"};
        block->branches[0].post =
            (struct norm_config){NORM_RMSNORM, "post_feedforward_layernorm_1"};
        block->num_branches = 2;
        if (config_experts(branch, root, &experts, err) != 0)
            return -1;
    }
    if (config->layer_size == 0)
        return 0;
    struct block_config *last = &layer->blocks[layer->num_blocks++];
    *last = own->dense.layer.blocks[1];
    last->branches[0].pre = (struct norm_config){.kind = NORM_NONE};
    last->branches[0].name = "";
    last->branches[0].layer_input = true;
    last->post = (struct norm_config){NORM_RMSNORM, "post_per_layer_input_norm"};
    return 0;
}

static int make_layers(const struct gemma4 *own, struct config *config, const struct fields *root,
                       struct error *err)
{
    struct mixer mixers[NUM_KINDS];
    struct layer_config layers[NUM_KINDS];
    struct dense_kind kinds[NUM_KINDS];
    for (int i = 0; i < NUM_KINDS; i++) {
        const bool slides = (i & SLIDES) != 0;
        if (make_mixer(own, config, i, root, &mixers[i], err) != 0 ||
            make_layer(own, config, i, root, &layers[i], err) != 0)
            return -1;
        kinds[i] = (struct dense_kind){.name = slides ? "sliding_attention" : "full_attention",
                                       .window = slides ? own->window : 0,
                                       .rope = &own->ropes[slides],
                                       .mixer = &mixers[i],
                                       .layer = &layers[i]};
    }
    return dense_layers(&own->dense, config, kinds, NUM_KINDS, own->kind_of, root, err);
}

/* ---- the configuration ---- */

/* Sizes of full layers, under two keys of released files. */
static int parse_released(struct gemma4 *own, const struct fields *root, struct error *err)
{
    static const char heads[] = "num_global_key_value_heads";
    own->full_head = 512;
    if (fields_int(root, "global_head_dim", FIELD_NOT_NULL, 1, CONFIG_MAX_HIDDEN, &own->full_head,
                   err) != 0)
        return -1;
    return own->keys_are_values ? fields_int(root, heads, FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS,
                                             &own->full_kv_heads, err)
                                : 0;
}

/* Likewise, as transformers saves them: for each full layer an object, all the same. */
static int parse_by_layer(struct gemma4 *own, const struct config *config,
                          const struct fields *layers, struct error *err)
{
    static const char *const known[] = {"head_dim", "num_key_value_heads"};
    const json_t *first = NULL;
    for (int64_t i = 0; i < config->num_layers; i++) {
        char name[24];
        struct fields layer;
        snprintf(name, sizeof name, "%lld", (long long)i);
        if (fields_object(layers, name, FIELD_OPTIONAL, &layer, err) != 0)
            return -1;
        const bool full = (own->kind_of[i] & SLIDES) == 0;
        if (!layer.object && (!full || !first))
            continue;
        if (!layer.object || !full || (first && !json_equal(first, layer.object)))
            return error_set(
                err, ERROR_UNSUPPORTED,
                "%s.%s: expected the same for all layers of full_attention and nothing "
                "for others (not supported)",
                layers->place, name);
        first = layer.object;
        if (fields_only(&layer, known, COUNT(known), err) != 0 ||
            fields_int(&layer, known[0], FIELD_NOT_NULL, 1, CONFIG_MAX_HIDDEN, &own->full_head,
                       err) != 0 ||
            fields_int(&layer, known[1], FIELD_NOT_NULL, 1, CONFIG_MAX_HEADS, &own->full_kv_heads,
                       err) != 0)
            return -1;
    }
    return 0;
}

/* by_layer: the object per_layer_config, or none. */
static int parse_full(struct gemma4 *own, const struct config *config, const struct fields *root,
                      const struct fields *by_layer, struct error *err)
{
    const struct mixer *mixer = &own->dense.mixer.mixer;
    own->full_head = mixer->head_dim;
    own->full_kv_heads = mixer->num_kv_heads;
    if (by_layer->object ? parse_by_layer(own, config, by_layer, err) != 0
                         : parse_released(own, root, err) != 0)
        return -1;
    if (own->full_head % 2 != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: heads of full_attention: expected an even size, got %lld",
                         root->place, (long long)own->full_head);
    if (config->num_heads % own->full_kv_heads == 0)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: heads of keys of full_attention: expected a divisor of "
                     "num_attention_heads (%lld), got %lld",
                     root->place, (long long)config->num_heads, (long long)own->full_kv_heads);
}

static int parse_ropes(struct gemma4 *own, struct config *config, const struct fields *root,
                       struct error *err)
{
    const struct rope_keys full = {.part = "partial_rotary_factor",
                                   .usual_base = 1e6,
                                   .usual_part = 1,
                                   .longest = gemma4.longest,
                                   .by_kind = true};
    struct rope_keys keys[2] = {full, full};
    keys[1].usual_base = gemma4.rope_theta;
    if (fields_has(root, "rope_parameters") || fields_has(root, "rope_scaling"))
        return rope_parse_kinds(own->ropes, root, keys, &config->warnings, err);
    own->ropes[0] =
        (struct rope){.type = ROPE_PROPORTIONAL, .base = 1e6, .part = 0.25, .factor = 1};
    own->ropes[1] = (struct rope){.type = ROPE_DEFAULT, .base = gemma4.rope_theta, .part = 1};
    return 0;
}

/* Inputs of layers: their table has a row for each token. */
static int parse_layer_inputs(struct config *config, const struct fields *root, struct error *err)
{
    config->layer_size = 256;
    config->layer_vocab = 262144;
    return fields_int(root, "hidden_size_per_layer_input", FIELD_NOT_NULL, 0, CONFIG_MAX_HIDDEN,
                      &config->layer_size, err) == 0 &&
                   (config->layer_size == 0 ||
                    fields_int(root, "vocab_size_per_layer_input", FIELD_NOT_NULL,
                               config->vocab_size, CONFIG_MAX_VOCAB, &config->layer_vocab,
                               err) == 0)
               ? 0
               : -1;
}

/* Images alone are seen from both sides with "vision". */
static int check_direction(const struct fields *root, struct error *err)
{
    static const char *const known[] = {"vision"};
    int direction;
    return fields_choice(root, "use_bidirectional_attention", FIELD_OPTIONAL, known, 1, &direction,
                         err);
}

static int parse_rest(struct config *config, const struct fields *root,
                      const struct fields *by_layer, struct error *err)
{
    static const struct layer_names names = {"input_layernorm", "self_attn",
                                             "pre_feedforward_layernorm", "mlp"};
    struct gemma4 own = {0};
    if (dense_parse(&own.dense, config, root, &gemma4, &names, err) != 0 ||
        check_direction(root, err) != 0 ||
        fields_bool(root, "attention_k_eq_v", FIELD_NOT_NULL, &own.keys_are_values, err) != 0 ||
        fields_bool(root, "enable_moe_block", FIELD_NOT_NULL, &own.has_experts, err) != 0 ||
        fields_bool(root, "use_double_wide_mlp", FIELD_NOT_NULL, &own.wide, err) != 0 ||
        config_library_softcap(root, "final_logit_softcapping", &config->logit_softcap, err) != 0 ||
        find_kinds(&own, config, root, err) != 0 ||
        parse_full(&own, config, root, by_layer, err) != 0 ||
        parse_ropes(&own, config, root, err) != 0 || parse_layer_inputs(config, root, err) != 0)
        return -1;
    struct mixer *mixer = &own.dense.mixer.mixer;
    mixer->score_scale = 1;
    mixer->v_norm = (struct norm){.kind = NORM_RMSNORM, .eps = config->norm_eps};
    config->embedding_scale = (float)sqrt((double)config->hidden_size);
    dense_post_norms(&own.dense);
    return make_layers(&own, config, root, err);
}

/* A copy of an object without some keys, to be freed with json_decref; or NULL. */
static json_t *without(const struct fields *from, const char *const *keys, size_t count,
                       struct fields *rest, struct error *err)
{
    json_t *copy = json_copy((json_t *)from->object);
    if (!copy) {
        error_set(err, ERROR_NO_MEMORY, "%s: out of memory", from->place);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        json_object_del(copy, keys[i]);
    *rest = *from;
    rest->object = copy;
    return copy;
}

static int parse_text(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const key[] = {"per_layer_config"};
    struct fields by_layer, rest;
    if (fields_object(root, key[0], FIELD_OPTIONAL, &by_layer, err) != 0)
        return -1;
    json_t *owned = without(root, key, 1, &rest, err);
    const int result = owned ? parse_rest(config, &rest, &by_layer, err) : -1;
    json_decref(owned);
    return result;
}

static int parse_both(struct config *config, const struct fields *outer, const struct fields *text,
                      struct error *err)
{
    bool tied = true; /* the text's own says nothing, as in transformers */
    if (config_library_keys(config, outer, err) != 0 ||
        fields_bool(outer, "tie_word_embeddings", FIELD_NOT_NULL, &tied, err) != 0 ||
        parse_text(config, text, err) != 0)
        return -1;
    config->tied = tied;
    return config_token_ids(config, outer, err);
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const types[] = {"gemma4_text"}, *const key[] = {"text_config"};
    struct fields text, outer;
    int type = 0;
    if (fields_object(root, key[0], FIELD_REQUIRED, &text, err) != 0 ||
        fields_choice(&text, "model_type", FIELD_OPTIONAL, types, 1, &type, err) != 0)
        return -1;
    json_t *owned = without(root, key, 1, &outer, err);
    const int result = owned ? parse_both(config, &outer, &text, err) : -1;
    json_decref(owned);
    return result;
}

/* ---- tensors ---- */

static const struct block_names names = {
    DENSE_NAMES,
    .gate_up_proj = "gate_up_proj",
    .router = "router.proj",
    .router_scale = "router.scale",
    .expert_scale = "router.per_expert_scale",
    .experts = "experts",
    .layer_embeddings = "embed_tokens_per_layer",
    .layer_proj = "per_layer_model_projection",
    .layer_norm = "per_layer_projection_norm",
    .layer_gate = "per_layer_input_gate",
    .layer_out = "per_layer_projection",
};

/* What files may have for layers that share keys and values, and nobody reads. */
static void ignore_keys(const struct block_mixer *block)
{
    static const char *const unread[] = {"k_proj.weight", "k_proj.bias", "v_proj.weight",
                                         "v_proj.bias", "k_norm.weight"};
    for (size_t i = 0; i < COUNT(unread); i++) {
        char name[WEIGHT_NAME_SIZE];
        struct tensor *tensor = tensors_find(block->weights->file,
                                             weights_name(name, "%s.%s", block->prefix, unread[i]));
        if (tensor)
            tensor_ignore(tensor);
    }
}

static int bind_attention(const struct block_mixer *block, struct error *err)
{
    const struct dense_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    const struct block_matrix q = {"q_proj", queries, hidden, own->qkv_bias, &mixer->q_proj},
                              k = {"k_proj", keys, hidden, own->qkv_bias, &mixer->k_proj},
                              v = {"v_proj", keys, hidden, own->qkv_bias, &mixer->v_proj},
                              o = {"o_proj", hidden, queries, own->o_bias, &mixer->o_proj};
    if (blocks_bind_matrices(block, &q, 1, err) != 0 ||
        (mixer->keys_of == 0 && blocks_bind_matrices(block, &k, 1, err) != 0) ||
        (mixer->keys_of == 0 && !mixer->keys_are_values &&
         blocks_bind_matrices(block, &v, 1, err) != 0) ||
        blocks_bind_matrices(block, &o, 1, err) != 0)
        return -1;
    if (mixer->keys_of > 0)
        ignore_keys(block);
    mixer->value_dim = mixer->features = mixer->features_positioned = mixer->head_dim;
    return blocks_bind_qk_norms(block, err);
}

/* x of a layer is multiplied by a number at its end: both terms of its last block's sum are. */
static int bind_scalars(struct model *model, struct weights *weights, const char *root,
                        struct error *err)
{
    for (int i = 0; i < model->num_layers; i++) {
        char name[WEIGHT_NAME_SIZE];
        const struct layer *layer = &model->layers[i];
        struct block *last = &layer->blocks[layer->num_blocks - 1];
        int64_t one = 1;
        const float *scalar;
        weights_name(name, "%s%slayers.%d.layer_scalar", root, *root ? "." : "", i);
        if (weights_floats(weights, name, 1, &one, &scalar, err) != 0)
            return -1;
        last->alpha = last->beta = scalar[0];
    }
    return 0;
}

/* What sees and hears, which is not computed. */
static void leave_towers(struct weights *weights)
{
    static const char *const towers[] = {"model.vision_tower.", "model.embed_vision.",
                                         "model.audio_tower.", "model.embed_audio."};
    for (size_t i = 0; i < COUNT(towers); i++)
        for (size_t j = 0; j < tensors_count(weights->file); j++) {
            const struct tensor *tensor = tensors_at(weights->file, j);
            if (strncmp(tensor->name, towers[i], strlen(towers[i])) != 0)
                continue;
            warnings_add(weights->warnings,
                         "%s: tensors \"%s*\": of images or sound, which are left aside",
                         tensor->file, towers[i]);
            weights_ignore_below(weights, &towers[i], 1);
            break;
        }
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    struct block_names found = names;
    leave_towers(weights);
    if (weights_has(weights, "model.language_model.embed_tokens.weight"))
        found.root = "model.language_model";
    if (dense_bind_named(model, config, weights, &found, bind_attention, err) != 0)
        return -1;
    const bool bare = weights_has(weights, "embed_tokens.weight");
    return bind_scalars(model, weights, bare ? "" : found.root, err);
}

/* ---- presets, without experts ---- */

static void random_attention(struct random_list *list, const char *prefix,
                             const struct mixer *mixer)
{
    const int64_t hidden = list->config->hidden_size;
    const int64_t queries = (int64_t)mixer->num_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer->num_kv_heads * mixer->head_dim;
    random_list_linear(list, prefix, "q_proj", queries, hidden, 0);
    if (mixer->keys_of == 0)
        random_list_linear(list, prefix, "k_proj", keys, hidden, 0);
    if (mixer->keys_of == 0 && !mixer->keys_are_values)
        random_list_linear(list, prefix, "v_proj", keys, hidden, 0);
    random_list_output(list, prefix, "o_proj", hidden, queries);
    blocks_random_qk_norms(list, prefix, mixer, mixer->head_dim);
}

static void list_random(struct random_list *list)
{
    char layer[WEIGHT_NAME_SIZE];
    blocks_random(list, &names, random_attention);
    for (int i = 0; i < (int)list->config->num_layers; i++)
        random_list_vector(list, weights_name(layer, "%s.layers.%d", names.root, i), "layer_scalar",
                           1, 1, 0);
}

const struct family family_gemma4 = {.name = "gemma4", .parse = parse, .bind = bind};
const struct family family_gemma4_text = {.name = "gemma4_text",
                                          .parse = parse_text,
                                          .bind = bind,
                                          .random = list_random,
                                          .gguf = &gguf_gemma4};
