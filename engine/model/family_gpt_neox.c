/* SPDX-License-Identifier: Apache-2.0 */
/* Pythia / GPT-NeoX, as `transformers` 4 and 5 save GPTNeoXForCausalLM. */
#include "engine/model/blocks.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"

#include <math.h>
#include <string.h>

/* What the configuration says beside struct config. */
struct gpt_neox_config {
    bool attention_bias;
    double base, factor; /* of the rotary embedding: theta, and its part of a head's dimensions */
};

static const struct {
    const char *name;
    enum hidden_act act;
} activations[] = {
    {"gelu", ACT_GELU},
    {"gelu_new", ACT_GELU_NEW},
    {"relu", ACT_RELU},
    {"silu", ACT_SILU},
    {"gelu_pytorch_tanh", ACT_GELU_NEW},
    {"gelu_fast", ACT_GELU_NEW},
    {"swish", ACT_SILU},
    {"gelu_python", ACT_GELU},
    {"gelu_python_tanh", ACT_GELU_NEW},
    {"gelu_accurate", ACT_GELU_NEW},
};
enum { NUM_ACTIVATIONS = sizeof activations / sizeof *activations };

/* Keys that transformers would compute something else with. */
static int refuse_options(const struct fields *root, struct error *err)
{
    static const struct config_refusal refusals[] = {
        {"attention_chunk_size", ""},
        {"kv_sharing_modes", ""},
        {"layer_types", ""},
        {"sliding_window", ""},
    };
    bool causal = true;
    if (config_library_refuse(root, refusals, sizeof refusals / sizeof *refusals, err) != 0 ||
        fields_bool(root, "is_causal", FIELD_NOT_NULL, &causal, err) != 0)
        return -1;
    if (!causal)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: is_causal: expected true, got false (not supported)", root->place);
    return 0;
}

/* rope_scaling, if it has anything, else rope_parameters: *rope of theirs, or without an object. */
static int find_rope(const struct fields *root, struct fields *rope, struct error *err)
{
    if (fields_object(root, "rope_scaling", FIELD_OPTIONAL, rope, err) != 0)
        return -1;
    if (rope->object && json_object_size(rope->object) > 0)
        return 0;
    return fields_object(root, "rope_parameters", FIELD_OPTIONAL, rope, err);
}

/* Only type "default", and whatever stands beside it without effect, as transformers does. */
static int parse_rope_type(struct config *config, const struct fields *rope, struct error *err)
{
    static const char *const known[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    const char *type = "default";
    const char *key = json_object_get(rope->object, "rope_type") ? "rope_type" : "type";
    if (fields_string(rope, key, FIELD_NOT_NULL, &type, err) != 0)
        return -1;
    if (strcmp(type, "default") != 0)
        return error_set(
            err, ERROR_UNSUPPORTED,
            "%s: scaled rotary embeddings are not supported: expected \"default\", got "
            "\"%.40s\"",
            rope->place, type);
    json_t *value;
    json_object_foreach((json_t *)rope->object, key, value)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            warnings_add(&config->warnings, "%s.%.60s: without effect, since the type is default",
                         rope->place, key);
    }
    return 0;
}

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
static int parse_rope(struct config *config, struct gpt_neox_config *own, const struct fields *root,
                      struct error *err)
{
    struct fields rope;
    own->factor = 0.25;
    own->base = 10000;
    if (find_rope(root, &rope, err) != 0 ||
        (rope.object && parse_rope_type(config, &rope, err) != 0))
        return -1;
    const bool has_base = rope.object && json_object_get(rope.object, "rope_theta");
    const bool has_factor = rope.object && json_object_get(rope.object, "partial_rotary_factor");
    if (fields_double(has_base ? &rope : root, has_base ? "rope_theta" : "rotary_emb_base",
                      FIELD_NOT_NULL, 1, 1e12, &own->base, err) != 0 ||
        fields_double(has_factor ? &rope : root,
                      has_factor ? "partial_rotary_factor" : "rotary_pct", FIELD_NOT_NULL, 0, 1,
                      &own->factor, err) != 0)
        return -1;
    warn_unused(config, root, "rope_theta", own->base);
    warn_unused(config, root, "partial_rotary_factor", own->factor);
    return 0;
}

/* transformers takes int(d * factor) for the number r of rotated dimensions. When that is odd it
 * rotates one more, by angles t base^(-2i/r). The same with an even number: (base^((r+1)/r))^(-2i /
 * (r+1)). */
static int make_position(const struct config *config, const struct gpt_neox_config *own,
                         const struct fields *root, struct position *position, struct error *err)
{
    int64_t head = config->hidden_size / config->num_heads, given = head;
    int rotated = (int)((double)head * own->factor);
    if (fields_int(root, "head_dim", FIELD_OPTIONAL, head, head, &given, err) != 0)
        return -1;
    *position = (struct position){.kind = POSITION_ROPE,
                                  .base = own->base,
                                  .pairing = ROPE_PAIRING_HALF,
                                  .rotary_dims = rotated + rotated % 2};
    if (position->rotary_dims > head)
        return error_set(err, ERROR_INVALID,
                         "%s: expected an even number of rotary dimensions, as a head has only "
                         "%lld, got %d",
                         root->place, (long long)head, rotated);
    if (rotated % 2 != 0)
        position->base = pow(own->base, (double)position->rotary_dims / rotated);
    return 0;
}

static int parse_sizes(struct config *config, const struct fields *root, struct error *err)
{
    if (config_sizes(config, root, "num_attention_heads", err) != 0 ||
        fields_int(root, "intermediate_size", FIELD_REQUIRED, 1, CONFIG_MAX_INTERMEDIATE,
                   &config->intermediate_size, err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_NOT_NULL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0)
        return -1;
    if (config->hidden_size % config->num_heads != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: hidden_size: expected a multiple of num_attention_heads (%lld), got "
                         "%lld",
                         root->place, (long long)config->num_heads, (long long)config->hidden_size);
    return 0;
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
    struct mixer_config mixer = {.mixer = {.kind = MIXER_SOFTMAX}};
    const char *names[NUM_ACTIVATIONS];
    double eps = 1e-5;
    int activation = 0;
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        names[i] = activations[i].name;
    config->parallel_residual = own->attention_bias = true;
    if (config_library_keys(config, root, err) != 0 || refuse_options(root, err) != 0 ||
        parse_sizes(config, root, err) != 0 || parse_rope(config, own, root, err) != 0 ||
        make_position(config, own, root, &mixer.mixer.position, err) != 0 ||
        fields_choice(root, "hidden_act", FIELD_NOT_NULL, names, NUM_ACTIVATIONS, &activation,
                      err) != 0 ||
        fields_double(root, "layer_norm_eps", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "use_parallel_residual", FIELD_NOT_NULL, &config->parallel_residual,
                    err) != 0 ||
        fields_bool(root, "attention_bias", FIELD_NOT_NULL, &own->attention_bias, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_NOT_NULL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->hidden_act = activations[activation].act;
    config->norm_kind = NORM_LAYERNORM;
    config->norm_eps = (float)eps;
    return config_single_mixer(config, "softmax", &mixer, &layer_names, err);
}

/* query_key_value is [H, 3, d] rows high, of which q, k and v are each every third d. Their biases
 * are copies in the arena. */
static int split_matrix(struct weights *weights, const struct matrix *fused, int num_heads,
                        struct matrix *const parts[3], struct error *err)
{
    const int64_t rows = fused->rows / 3, head_dim = rows / num_heads;
    for (int part = 0; part < 3; part++) {
        float *bias =
            fused->bias ? arena_alloc(weights->arena, (size_t)rows, sizeof *bias, err) : NULL;
        if (fused->bias && !bias)
            return -1;
        struct matrix *matrix = parts[part];
        *matrix = *fused;
        matrix->rows = rows;
        matrix->bias = bias;
        matrix->part = (struct row_part){part * head_dim, head_dim, 3 * head_dim};
        for (int64_t r = 0; bias && r < rows; r++)
            bias[r] = fused->bias[row_part_row(&matrix->part, r)];
    }
    return 0;
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    const struct gpt_neox_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    int64_t hidden = block->config->hidden_size;
    struct matrix fused = {0};
    struct matrix *const parts[3] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj};
    const bool biased = own->attention_bias;
    const struct block_matrix matrices[] = {
        {"query_key_value", 3 * hidden, hidden, biased, &fused},
        {"dense", hidden, hidden, biased, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, 2, err) != 0 ||
        split_matrix(block->weights, &fused, mixer->num_heads, parts, err) != 0)
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

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* Causal masks and frequencies, which old versions saved beside the weights. */
static void ignore_buffers(struct weights *weights)
{
    static const char *const ends[] = {".attention.bias", ".masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < tensors_count(weights->file); i++) {
        struct tensor *tensor = tensors_at(weights->file, i);
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
            if (ends_with(tensor->name, ends[e]))
                tensor_ignore(tensor);
    }
}

static const struct block_names names = {.root = "gpt_neox",
                                         .embeddings = "embed_in",
                                         .final_norm = "final_layer_norm",
                                         .up_proj = "dense_h_to_4h",
                                         .down_proj = "dense_4h_to_h",
                                         .lm_head = "embed_out",
                                         .biased = true};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    struct block_names found = names;
    ignore_buffers(weights);
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
    {"context_length", "max_position_embeddings", FIELD_REQUIRED},
    {"attention.layer_norm_epsilon", "layer_norm_eps", FIELD_REQUIRED},
    {"use_parallel_residual", "use_parallel_residual", FIELD_REQUIRED},
    {"rope.freq_base", "rotary_emb_base", FIELD_OPTIONAL},
    {"rope.dimension_count", NULL, FIELD_OPTIONAL},
    {"vocab_size", "vocab_size", FIELD_OPTIONAL},
};

static const struct gguf_name gguf_names[] = {
    {"token_embd", "gpt_neox.embed_in", GGUF_ROWS_SAME},
    {"output_norm", "gpt_neox.final_layer_norm", GGUF_ROWS_SAME},
    {"output", "embed_out", GGUF_ROWS_SAME},
    {"blk.*.attn_norm", "gpt_neox.layers.*.input_layernorm", GGUF_ROWS_SAME},
    {"blk.*.attn_qkv", "gpt_neox.layers.*.attention.query_key_value", GGUF_ROWS_STACKED},
    {"blk.*.attn_output", "gpt_neox.layers.*.attention.dense", GGUF_ROWS_SAME},
    {"blk.*.ffn_norm", "gpt_neox.layers.*.post_attention_layernorm", GGUF_ROWS_SAME},
    {"blk.*.ffn_up", "gpt_neox.layers.*.mlp.dense_h_to_4h", GGUF_ROWS_SAME},
    {"blk.*.ffn_down", "gpt_neox.layers.*.mlp.dense_4h_to_h", GGUF_ROWS_SAME},
};

/* The number of rotated dimensions as a part of a head's: a little more than it, as the part is cut
 * to whole dimensions. Without the key all turn. */
static int complete_gguf(json_t *config, const struct gguf *gguf, struct error *err)
{
    const json_int_t heads = json_integer_value(json_object_get(config, "num_attention_heads"));
    const json_int_t hidden = json_integer_value(json_object_get(config, "hidden_size"));
    int64_t head = heads > 0 && hidden >= heads ? hidden / heads : 1, rotated = head;
    if (gguf_int(gguf, "gptneox.rope.dimension_count", FIELD_OPTIONAL, 0, head, &rotated, err) != 0)
        return -1;
    const double part = rotated == head ? 1 : ((double)rotated + 0.5) / (double)head;
    return json_object_set_new(config, "rotary_pct", json_real(part)) == 0
               ? 0
               : error_set(err, ERROR_NO_MEMORY, "%s: out of memory", gguf->file);
}

static const struct gguf_names gguf = {.architecture = "gptneox",
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_names,
                                       .num_names = sizeof gguf_names / sizeof *gguf_names,
                                       .complete = complete_gguf};

const struct family family_gpt_neox = {
    .name = "gpt_neox", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
