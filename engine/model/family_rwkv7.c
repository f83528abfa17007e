/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV-7, as `flash-linear-attention` 0.6 saves RWKV7ForCausalLM (fla/models/rwkv7), under
 * the names of BlinkDL's releases, and as llama.cpp's converter makes a GGUF file of it. */
#include "engine/model/blocks.h"
#include "engine/model/config_fla.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct layer_names layer_names = {"attn_norm", "attn", "ffn_norm", "ffn"};
static const struct block_names names = {
    .root = "model",
    .embeddings = "embeddings",
    .embedding_norm = "layers.0.pre_norm",
    .final_norm = "norm",
    .up_proj = "key",
    .down_proj = "value",
    .lm_head = "lm_head",
    .mlp = BLOCK_MLP_PLAIN,
};

/* Options that would change what is computed, and that we do not compute. */
static const struct config_refusal refusals[] = {
    {"attn", ""},
    {"attnres_block_size", ""},
    {"hidden_act", "\"sqrelu\""},
};

/* The matrices of low rank, by what they make. */
enum { LOW_DECAY, LOW_RATE, LOW_VALUE, LOW_GATE, LOW_COUNT };

struct own { /* config->own */
    int64_t ranks[LOW_COUNT];
    bool norm_bias; /* of the stream's norms; false: those of a file are not used */
};

/* All six shares in one tensor, which GGUF files have. */
#define FUSED_SHARES "x_x"

/* The mixers of the configuration, in this order: the first layer's has no v_lora. */
enum { FIRST_LAYER, LATER_LAYERS, MIXERS };

static int parse_heads(struct config *config, const struct fields *root, int64_t *head_dim,
                       struct error *err)
{
    int64_t heads = 0;
    *head_dim = json_is_null(json_object_get(root->object, "head_dim")) ? 0 : 64;
    if (fields_int(root, "hidden_size", FIELD_REQUIRED, 1, CONFIG_MAX_HIDDEN, &config->hidden_size,
                   err) != 0 ||
        fields_int(root, "num_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &heads, err) != 0 ||
        fields_int(root, "head_dim", FIELD_OPTIONAL, 1, CONFIG_MAX_HIDDEN, head_dim, err) != 0)
        return -1;
    if (*head_dim == 0 && heads > 0) /* the class takes num_heads only then */
        *head_dim = config->hidden_size / heads;
    if (*head_dim == 0 || config->hidden_size % *head_dim != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: head_dim: expected a number that divides hidden_size (%lld), got "
                         "%lld",
                         root->place, (long long)config->hidden_size, (long long)*head_dim);
    config->num_heads = config->hidden_size / *head_dim;
    return config_fla_heads(config, root, err);
}

/* Ranks; those that are null are as the layer's class says. And whether norms have biases. */
static int parse_own(struct config *config, const struct fields *root, int64_t head_dim,
                     struct error *err)
{
    static const struct {
        const char *key;
        int64_t usual; /* where the key is absent */
        double factor; /* of sqrt(D), and of head_dim / 64 but for the gate */
    } ranks[LOW_COUNT] = {[LOW_DECAY] = {"decay_low_rank_dim", 64, 2.5},
                          [LOW_RATE] = {"a_low_rank_dim", 64, 2.5},
                          [LOW_VALUE] = {"v_low_rank_dim", 16, 1.7},
                          [LOW_GATE] = {"gate_low_rank_dim", 128, 5}};
    struct own *own = arena_alloc(config->arena, 1, sizeof *own, err);
    if (!own)
        return -1;
    config->own = own;
    own->norm_bias = true;
    for (int i = 0; i < LOW_COUNT; i++) {
        const double scale = i == LOW_GATE ? 1 : (double)head_dim / 64;
        const double made = ranks[i].factor * sqrt((double)config->hidden_size) * scale / 32;
        own->ranks[i] = ranks[i].usual;
        if (json_is_null(json_object_get(root->object, ranks[i].key)))
            own->ranks[i] = (int64_t)fmax(32, nearbyint(made) * 32);
        if (fields_int(root, ranks[i].key, FIELD_OPTIONAL, 1, CONFIG_MAX_HIDDEN, &own->ranks[i],
                       err) != 0)
            return -1;
    }
    return config_fla_flag(root, "norm_bias", &own->norm_bias, err);
}

/* One size, or a list of one for each layer. The class takes others than hidden_size, and fails. */
static int check_values(const struct config *config, const struct fields *root, struct error *err)
{
    const json_t *value = json_object_get(root->object, "value_dim");
    const bool list = json_is_array(value);
    const size_t count = list ? json_array_size(value) : 1;
    if (!value || json_is_null(value))
        return 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *size = list ? json_array_get(value, i) : value;
        if (!json_is_integer(size) || json_integer_value(size) != config->hidden_size)
            return error_set(
                err, ERROR_UNSUPPORTED,
                "%s: value_dim: expected hidden_size (%lld) for each layer (others are "
                "not supported)",
                root->place, (long long)config->hidden_size);
    }
    return 0;
}

static int parse_inner(struct config *config, const struct fields *root, struct error *err)
{
    double ratio = 4;
    if (fields_double(root, "hidden_ratio", FIELD_OPTIONAL, 1.0 / 1024, 1024, &ratio, err) != 0)
        return -1;
    config->intermediate_size = ((int64_t)((double)config->hidden_size * ratio) + 31) / 32 * 32;
    return fields_int(root, "intermediate_size", FIELD_OPTIONAL, 1, CONFIG_MAX_INTERMEDIATE,
                      &config->intermediate_size, err);
}

/* The layer of fla/layers/rwkv7.py in our terms. fused: kappa's norm adds to the sum under its
 * root, in place of a least length. */
static struct mixer make_mixer(const struct config *config, int64_t head_dim, double eps,
                               bool fused)
{
    struct mixer mixer = {.num_heads = (int)config->num_heads};
    mixer_make_linear(&mixer, GATE_RWKV7);
    mixer.head_dim = mixer.value_dim = (int)head_dim;
    mixer.features = mixer.features_positioned = (int)head_dim;
    mixer.dpfp_nu = 1;
    mixer.position.base = 10000;
    mixer.k_norm = (struct norm){.kind = NORM_L2, .eps = fused ? 1e-6f : 1e-24f};
    mixer.output_norm =
        (struct norm){.kind = NORM_LAYERNORM, .eps = (float)((double)head_dim * eps)};
    mixer.output_norm_scope = NORM_SCOPE_HIDDEN;
    mixer.output_norm_parts = (int)config->num_heads;
    return mixer;
}

static int make_layers(struct config *config, const struct mixer *mixer, struct error *err)
{
    static const char *const kinds[MIXERS] = {"rwkv7_first", "rwkv7"};
    if (config_layers(config, MIXERS, MIXERS, err) != 0)
        return -1;
    for (int i = 0; i < MIXERS; i++) {
        config->mixers[i].mixer = *mixer;
        config->mixers[i].mixer.mixes_values = i == LATER_LAYERS;
        config->mixers[i].mixer.name = kinds[i];
        config->kinds[i] = config_plain_layer(config, &layer_names, i);
        config->kinds[i].name = kinds[i];
        config->kinds[i].blocks[1].branches[0].shift = "ffn.x_k";
    }
    for (int64_t i = 0; i < config->num_layers; i++)
        config->layer_kinds[i] = i == 0 ? FIRST_LAYER : LATER_LAYERS;
    return 0;
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    int64_t head_dim;
    double eps = 1e-5;
    bool fused = true;
    config->embedding_norm = true;
    if (config_library_keys(config, root, err) != 0 ||
        config_library_refuse(root, refusals, COUNT(refusals), err) != 0 ||
        parse_heads(config, root, &head_dim, err) != 0 ||
        config_sizes(config, root, "num_heads", err) != 0 || check_values(config, root, err) != 0 ||
        parse_own(config, root, head_dim, err) != 0 || parse_inner(config, root, err) != 0 ||
        fields_double(root, "norm_eps", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "norm_first", FIELD_NOT_NULL, &config->embedding_norm, err) != 0 ||
        config_fla_flag(root, "fuse_norm", &fused, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_OPTIONAL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->hidden_act = ACT_RELU2;
    config->norm_kind = NORM_LAYERNORM;
    config->norm_eps = (float)eps;
    const struct mixer mixer = make_mixer(config, head_dim, eps, fused);
    return make_layers(config, &mixer, err);
}

/* ---- tensors ---- */

/* Numbers of a shape [rank], or of as many in one dimension, which GGUF files have. */
static int bind_numbers(const struct block_mixer *block, const char *name, int rank,
                        const int64_t *shape, const float **values, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t expected[TENSOR_MAX_RANK], count = 1;
    weights_name(full, "%s.%s", block->prefix, name);
    const struct tensor *tensor = tensors_find(block->weights->file, full);
    for (int i = 0; i < rank; i++)
        count *= expected[i] = shape[i];
    if (tensor && tensor->rank == 1) {
        expected[0] = count;
        rank = 1;
    }
    return weights_floats(block->weights, full, rank, expected, values, err);
}

/* "x_r" .. "x_g", or all of them in one, and what makes change. */
static int bind_mixes(const struct block_mixer *block, struct token_mixes *mixes, struct error *err)
{
    static const char *const shares[MIX_COUNT] = {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"};
    const int64_t hidden = block->config->hidden_size;
    const int64_t one[] = {1, 1, hidden}, fused[] = {MIX_COUNT, 1, 1, hidden};
    const float *all = NULL;
    char name[WEIGHT_NAME_SIZE];
    if (weights_has(block->weights, weights_name(name, "%s." FUSED_SHARES, block->prefix)) &&
        bind_numbers(block, FUSED_SHARES, COUNT(fused), fused, &all, err) != 0)
        return -1;
    for (int i = 0; i < MIX_COUNT; i++) {
        if (all)
            mixes->shares[i] = all + i * hidden;
        else if (bind_numbers(block, shares[i], COUNT(one), one, &mixes->shares[i], err) != 0)
            return -1;
    }
    float *change = arena_alloc(block->weights->arena, (size_t)hidden, 2 * sizeof *change, err);
    if (!change)
        return -1;
    for (int64_t i = 0; i < hidden; i++) {
        change[2 * i] = 1;
        change[2 * i + 1] = -1;
    }
    mixes->change = (struct convolution){.width = 2, .weight = change};
    return 0;
}

/* k_k and k_a, [H*m], and r_k, [H, m]. */
static int bind_scales(const struct block_mixer *block, struct token_mixes *mixes,
                       struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t keys = block->config->hidden_size, heads[] = {mixer->num_heads, mixer->head_dim};
    const float *bonus;
    if (bind_numbers(block, "k_k", 1, &keys, &mixes->erase_scale, err) != 0 ||
        bind_numbers(block, "k_a", 1, &keys, &mixes->rate_scale, err) != 0 ||
        bind_numbers(block, "r_k", COUNT(heads), heads, &bonus, err) != 0)
        return -1;
    mixer->bonus = (struct matrix){
        .rows = mixer->num_heads, .cols = mixer->head_dim, .dtype = DTYPE_F32, .data = bonus};
    float *rest = arena_alloc(block->weights->arena, (size_t)keys, sizeof *rest, err);
    for (int64_t i = 0; rest && i < keys; i++)
        rest[i] = 1 - mixes->rate_scale[i];
    mixes->rate_rest = rest;
    return rest ? 0 : -1;
}

/* A pair of matrices of low rank, "NAME.lora.0" and "NAME.lora.2". */
static int bind_pair(const struct block_mixer *block, const char *name, int which,
                     enum weight_bias biased, struct matrix *low, struct matrix *high,
                     struct error *err)
{
    const int64_t hidden = block->config->hidden_size;
    const int64_t *ranks = ((const struct own *)block->config->own)->ranks;
    char first[32], second[32];
    snprintf(first, sizeof first, "%s.lora.0", name);
    snprintf(second, sizeof second, "%s.lora.2", name);
    const struct block_matrix pair[] = {{first, ranks[which], hidden, WEIGHT_NO_BIAS, low},
                                        {second, hidden, ranks[which], biased, high}};
    return blocks_bind_matrices(block, pair, COUNT(pair), err);
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    struct token_mixes *mixes = arena_alloc(block->weights->arena, 1, sizeof *mixes, err);
    char name[WEIGHT_NAME_SIZE];
    mixer->mixes = mixes;
    const struct block_matrix matrices[] = {
        {"r_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->q_proj},
        {"k_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->k_proj},
        {"v_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->v_proj},
        {"o_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->o_proj},
    };
    if (!mixes || bind_mixes(block, mixes, err) != 0 || bind_scales(block, mixes, err) != 0 ||
        blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0 ||
        bind_pair(block, "w_lora", LOW_DECAY, WEIGHT_HAS_BIAS, &mixer->f_low, &mixer->f_proj,
                  err) != 0 ||
        bind_pair(block, "a_lora", LOW_RATE, WEIGHT_HAS_BIAS, &mixer->write_low, &mixer->write_proj,
                  err) != 0 ||
        bind_pair(block, "g_lora", LOW_GATE, WEIGHT_NO_BIAS, &mixer->out_gate_low,
                  &mixer->out_gate_proj, err) != 0 ||
        (mixer->mixes_values && bind_pair(block, "v_lora", LOW_VALUE, WEIGHT_HAS_BIAS,
                                          &mixer->v_low, &mixer->v_share, err) != 0))
        return -1;
    return weights_norm(block->weights, weights_name(name, "%s.g_norm", block->prefix), hidden,
                        &mixer->output_norm, err);
}

/* ---- the names of BlinkDL's releases ---- */

/* The tensor, or where the name ends with a period those below it. In the second table below
 * "blocks.LAYER." and "model.layers.LAYER.". */
struct released_name {
    const char *released, *name;
    enum { AS_IT_IS, FLAT, TURNED } how;
};

static const struct released_name outer_names[] = {
    {"emb.weight", "model.embeddings.weight", AS_IT_IS},
    {"ln_out.", "model.norm.", AS_IT_IS},
    {"head.weight", "lm_head.weight", AS_IT_IS},
};

#define RELEASED_PAIR(letter)                                              \
    {"att." letter "0", "attn." letter "_lora.lora.2.bias", FLAT},         \
        {"att." letter "1", "attn." letter "_lora.lora.0.weight", TURNED}, \
    {                                                                      \
        "att." letter "2", "attn." letter "_lora.lora.2.weight", TURNED    \
    }
static const struct released_name inner_names[] = {
    {"ln0.", "pre_norm.", AS_IT_IS},
    {"ln1.", "attn_norm.", AS_IT_IS},
    {"ln2.", "ffn_norm.", AS_IT_IS},
    {"att.receptance.weight", "attn.r_proj.weight", AS_IT_IS},
    {"att.key.weight", "attn.k_proj.weight", AS_IT_IS},
    {"att.value.weight", "attn.v_proj.weight", AS_IT_IS},
    {"att.output.weight", "attn.o_proj.weight", AS_IT_IS},
    {"att.ln_x.", "attn.g_norm.", AS_IT_IS},
    {"att.x_r", "attn.x_r", FLAT},
    {"att.x_w", "attn.x_w", FLAT},
    {"att.x_k", "attn.x_k", FLAT},
    {"att.x_v", "attn.x_v", FLAT},
    {"att.x_a", "attn.x_a", FLAT},
    {"att.x_g", "attn.x_g", FLAT},
    {"att.k_k", "attn.k_k", FLAT},
    {"att.k_a", "attn.k_a", FLAT},
    {"att.r_k", "attn.r_k", AS_IT_IS},
    RELEASED_PAIR("w"),
    RELEASED_PAIR("a"),
    RELEASED_PAIR("v"),
    RELEASED_PAIR("g"), /* without a bias */
    {"ffn.x_k", "ffn.x_k", FLAT},
    {"ffn.key.weight", "ffn.key.weight", AS_IT_IS},
    {"ffn.value.weight", "ffn.value.weight", AS_IT_IS},
};

/* Vectors are [1, 1, D]. A shape that is another stays, and the binder tells of it. */
static void set_how(struct tensor *tensor, int how)
{
    if (how == FLAT && tensor->rank == 3 && tensor->shape[0] == 1 && tensor->shape[1] == 1) {
        tensor->rank = 1;
        tensor->shape[0] = tensor->shape[2];
    }
    tensor->turned = how == TURNED;
}

static int rename_one(struct tensors *file, struct tensor *tensor, struct error *err)
{
    char layer[32] = "", full[WEIGHT_NAME_SIZE];
    int used = 0;
    long long number;
    const bool inner = sscanf(tensor->name, "blocks.%lld.%n", &number, &used) == 1 && used > 0;
    const struct released_name *all = inner ? inner_names : outer_names;
    const size_t count = inner ? COUNT(inner_names) : COUNT(outer_names);
    if (inner)
        snprintf(layer, sizeof layer, "model.layers.%lld.", number);
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(all[i].released);
        const char *rest = tensor->name + used;
        if (strncmp(rest, all[i].released, length) != 0 ||
            (all[i].released[length - 1] != '.' && rest[length]))
            continue;
        set_how(tensor, all[i].how);
        return tensors_rename(
            file, tensor, weights_name(full, "%s%s%.40s", layer, all[i].name, rest + length), err);
    }
    return 0;
}

/* Gives the tensors FLA's names, if they have those of the releases. */
static int rename_released(struct weights *weights, struct error *err)
{
    if (!weights_has(weights, "emb.weight"))
        return 0;
    for (size_t i = 0; i < tensors_count(weights->file); i++)
        if (rename_one(weights->file, tensors_at(weights->file, i), err) != 0)
            return -1;
    return tensors_sort(weights->file, err);
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    /* GGUF files and releases have them in the first layer, too, where nobody uses them. */
    static const char *const unused[] = {"layers.0.attn.v_lora.lora.0.weight",
                                         "layers.0.attn.v_lora.lora.2.weight",
                                         "layers.0.attn.v_lora.lora.2.bias"};
    static const char *const biases[] = {".pre_norm.bias", ".attn_norm.bias", ".ffn_norm.bias",
                                         "model.norm.bias"};
    if (rename_released(weights, err) != 0)
        return -1;
    weights_ignore(weights, unused, COUNT(unused));
    if (!((const struct own *)config->own)->norm_bias) {
        struct tensor *bare = tensors_find(weights->file, "norm.bias"); /* below the head */
        weights_ignore(weights, biases, COUNT(biases));
        if (bare)
            tensor_ignore(bare);
    }
    return blocks_bind(model, config, weights, &names, bind_mixer, err);
}

/* ---- presets ---- */

static void random_pair(struct random_list *list, const char *prefix, const char *name, int which,
                        bool biased, double bias)
{
    const int64_t hidden = list->config->hidden_size;
    const int64_t rank = ((const struct own *)list->config->own)->ranks[which];
    char full[WEIGHT_NAME_SIZE];
    random_list_matrix(list, weights_name(full, "%s.%s.lora.0", prefix, name), rank, hidden,
                       1 / sqrt((double)hidden));
    random_list_matrix(list, weights_name(full, "%s.%s.lora.2", prefix, name), hidden, rank,
                       1 / sqrt((double)rank));
    if (biased)
        random_list_vector(list, prefix, weights_name(full, "%s.lora.2.bias", name), hidden, bias,
                           0.5);
}

static void random_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    static const char *const shares[] = {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"};
    const int64_t hidden = list->config->hidden_size;
    const int64_t heads[] = {mixer->num_heads, mixer->head_dim};
    for (size_t i = 0; i < COUNT(shares); i++)
        random_list_array(list, prefix, shares[i], 3, (int64_t[]){1, 1, hidden}, 0.3);
    random_list_vector(list, prefix, "k_k", hidden, 0.7, 0.1);
    random_list_vector(list, prefix, "k_a", hidden, 1, 0.1);
    random_list_array(list, prefix, "r_k", 2, heads, 0.1);
    random_list_linear(list, prefix, "r_proj", hidden, hidden, 0);
    random_list_linear(list, prefix, "k_proj", hidden, hidden, 0);
    random_list_linear(list, prefix, "v_proj", hidden, hidden, 0);
    random_list_output(list, prefix, "o_proj", hidden, hidden);
    random_pair(list, prefix, "w_lora", LOW_DECAY, true, -2);
    random_pair(list, prefix, "a_lora", LOW_RATE, true, 0);
    random_pair(list, prefix, "g_lora", LOW_GATE, false, 0);
    if (mixer->mixes_values)
        random_pair(list, prefix, "v_lora", LOW_VALUE, true, 0);
    random_list_norm(list, prefix, "g_norm", NORM_LAYERNORM, hidden);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, random_mixer);
}

/* ---- GGUF ---- */

static const struct gguf_key gguf_keys[] = {
    {"embedding_length", "hidden_size", FIELD_REQUIRED},
    {"block_count", "num_hidden_layers", FIELD_REQUIRED},
    {"feed_forward_length", "intermediate_size", FIELD_REQUIRED},
    {"attention.layer_norm_epsilon", "norm_eps", FIELD_REQUIRED},
    {"wkv.head_size", "head_dim", FIELD_REQUIRED},
    {"attention.decay_lora_rank", "decay_low_rank_dim", FIELD_REQUIRED},
    {"attention.iclr_lora_rank", "a_low_rank_dim", FIELD_REQUIRED},
    {"attention.value_residual_mix_lora_rank", "v_low_rank_dim", FIELD_REQUIRED},
    {"attention.gate_lora_rank", "gate_low_rank_dim", FIELD_REQUIRED},
    {"vocab_size", "vocab_size", FIELD_OPTIONAL},
    /* which llama.cpp wants of every model */
    {"context_length", NULL, FIELD_OPTIONAL},
    {"attention.head_count", NULL, FIELD_OPTIONAL},
};

#define LAYER "model.layers.*."
/* Both matrices of a pair, and the bias. */
#define PAIR(letter)                                                                             \
    {"blk.*.time_mix_" letter "1", LAYER "attn." letter "_lora.lora.0", GGUF_SAME},              \
        {"blk.*.time_mix_" letter "2", LAYER "attn." letter "_lora.lora.2", GGUF_SAME},          \
    {                                                                                            \
        "blk.*.time_mix_" letter "0.weight", LAYER "attn." letter "_lora.lora.2.bias", GGUF_FLAT \
    }
static const struct gguf_name gguf_names[] = {
    {"token_embd", "model.embeddings", GGUF_SAME},
    {"token_embd_norm", "model.layers.0.pre_norm", GGUF_SAME},
    {"output_norm", "model.norm", GGUF_SAME},
    {"output", "lm_head", GGUF_SAME},
    {"blk.*.attn_norm", LAYER "attn_norm", GGUF_SAME},
    {"blk.*.attn_norm_2", LAYER "ffn_norm", GGUF_SAME},
    {"blk.*.time_mix_receptance", LAYER "attn.r_proj", GGUF_SAME},
    {"blk.*.time_mix_key", LAYER "attn.k_proj", GGUF_SAME},
    {"blk.*.time_mix_value", LAYER "attn.v_proj", GGUF_SAME},
    {"blk.*.time_mix_output", LAYER "attn.o_proj", GGUF_SAME},
    {"blk.*.time_mix_ln", LAYER "attn.g_norm", GGUF_SAME},
    PAIR("w"),
    PAIR("a"),
    PAIR("v"),
    PAIR("g"), /* without a bias */
    {"blk.*.time_mix_lerp_fused.weight", LAYER "attn." FUSED_SHARES, GGUF_FLAT},
    {"blk.*.time_mix_k_k.weight", LAYER "attn.k_k", GGUF_FLAT},
    {"blk.*.time_mix_k_a.weight", LAYER "attn.k_a", GGUF_FLAT},
    {"blk.*.time_mix_r_k.weight", LAYER "attn.r_k", GGUF_FLAT},
    {"blk.*.channel_mix_lerp_k.weight", LAYER "ffn.x_k", GGUF_FLAT},
    {"blk.*.channel_mix_key", LAYER "ffn.key", GGUF_SAME},
    {"blk.*.channel_mix_value", LAYER "ffn.value", GGUF_SAME},
};

/* llama.cpp bounds kappa's length from below; it adds nothing to the sum. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    (void)source;
    return gguf_config_set(config, "fuse_norm", json_false(), err);
}

static const struct gguf_names gguf = {.architecture = "rwkv7",
                                       .keys = gguf_keys,
                                       .num_keys = COUNT(gguf_keys),
                                       .names = gguf_names,
                                       .num_names = COUNT(gguf_names),
                                       .complete = complete_gguf};

const struct family family_rwkv7 = {
    .name = "rwkv7", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
