/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gated_delta.h"

#include "engine/model/dense.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define L2_EPS 1e-6f

int gated_delta_check(const struct gated_delta_sizes *sizes, const struct fields *root,
                      struct error *err)
{
    if (sizes->num_heads % sizes->num_qk_heads != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: expected a number of value heads that the number of key heads (%lld) "
                         "divides, got %lld",
                         root->place, (long long)sizes->num_qk_heads, (long long)sizes->num_heads);
    return 0;
}

int gated_delta_size(const struct fields *root, const char *key, enum field_need need,
                     int64_t usual, int64_t *size, struct error *err)
{
    *size = usual;
    if (fields_int(root, key, need, 1, CONFIG_MAX_HEADS, size, err) != 0)
        return -1;
    if (*size >= 1)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: %s: expected an integer from 1 on, got nothing, and what follows from "
                     "other keys is %lld",
                     root->place, key, (long long)usual);
}

int gated_delta_width(const struct fields *root, const char *key, struct gated_delta_sizes *sizes,
                      struct error *err)
{
    return fields_int(root, key, FIELD_NOT_NULL, CONVOLUTION_MIN_WIDTH, CONVOLUTION_MAX_WIDTH,
                      &sizes->conv_width, err);
}

int gated_delta_check_act(const struct config *config, const struct fields *root, struct error *err)
{
    if (config->hidden_act == ACT_SILU)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "%s: hidden_act: expected silu, as it is the convolutions', too (others are "
                     "not supported)",
                     root->place);
}

int gated_delta_layers(int **kind_of, struct config *config, int64_t interval,
                       const struct fields *root, struct error *err)
{
    if (dense_layer_types(kind_of, config, "linear_attention", root, err) != 0)
        return -1;
    if (*kind_of)
        return 0;
    *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    if (!*kind_of)
        return -1;
    for (int64_t i = 0; i < config->num_layers; i++)
        (*kind_of)[i] = (i + 1) % interval != 0;
    return 0;
}

struct mixer gated_delta_mixer(const struct gated_delta_sizes *sizes, enum gate_kind gate,
                               float eps)
{
    const struct norm unit = {.kind = NORM_L2, .eps = L2_EPS};
    struct mixer mixer = {
        .num_heads = (int)sizes->num_heads,
        .num_kv_heads = (int)sizes->num_heads,
        .num_qk_heads = (int)sizes->num_qk_heads,
        .head_dim = (int)sizes->head_dim,
        .value_dim = (int)sizes->value_dim,
        .features = (int)sizes->head_dim,
        .features_positioned = (int)sizes->head_dim,
        .feature_map = FEATURE_IDENTITY,
        .query_scale = QUERY_SCALE_SQRT_DIM,
        .dpfp_nu = 1,
        .conv = {.width = (int)sizes->conv_width, .activation = VALUE_ACTIVATION_SILU},
        .q_norm = unit,
        .k_norm = unit,
        .qk_norm_scope = NORM_SCOPE_HEAD,
        .output_norm = {.kind = NORM_RMSNORM, .eps = eps},
    };
    mixer_make_linear(&mixer, gate);
    return mixer;
}

static int64_t key_rows(const struct mixer *mixer)
{
    return (int64_t)mixer->num_qk_heads * mixer->head_dim;
}

static int64_t value_rows(const struct mixer *mixer)
{
    return (int64_t)mixer->num_heads * mixer->value_dim;
}

/* Where files that llama.cpp has written have q, k and v. */
static const char usual_qkv[] = "in_proj_qkv";

/* Rows of a matrix that has those of each key head together, in `parts` [count]: so many of each.
 */
static void split_key_heads(const struct mixer *mixer, const struct matrix *fused,
                            struct matrix *const *parts, const int64_t *rows, int count)
{
    const int64_t heads = mixer->num_qk_heads, all = fused->rows / heads;
    int64_t first = 0;
    for (int i = 0; i < count; first += rows[i++]) {
        *parts[i] = *fused;
        parts[i]->rows = rows[i] * heads;
        parts[i]->part = (struct row_part){first, rows[i], all};
    }
}

/* The projections of Qwen 3 Next. */
static int bind_by_key_head(const struct block_mixer *block, const struct gated_delta_names *names,
                            struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size, d = mixer->head_dim;
    const int64_t each = mixer->num_heads / mixer->num_qk_heads, values = each * mixer->value_dim;
    struct matrix wide = {0}, narrow = {0};
    struct matrix *const inputs[] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj,
                                     &mixer->out_gate_proj};
    struct matrix *const factors[] = {&mixer->b_proj, &mixer->a_proj};
    const struct block_matrix matrices[] = {
        {names->qkv, 2 * (key_rows(mixer) + value_rows(mixer)), hidden, WEIGHT_NO_BIAS, &wide},
        {names->b, 2 * mixer->num_heads, hidden, WEIGHT_NO_BIAS, &narrow},
    };
    if (blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0)
        return -1;
    split_key_heads(mixer, &wide, inputs, (int64_t[]){d, d, values, values}, COUNT(inputs));
    split_key_heads(mixer, &narrow, factors, (int64_t[]){each, each}, COUNT(factors));
    return 0;
}

static int bind_inputs(const struct block_mixer *block, const char *qkv, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size, keys = key_rows(mixer);
    const int64_t values = value_rows(mixer);
    struct matrix fused = {0};
    const struct block_matrix parts[] = {
        {"q_proj", keys, hidden, WEIGHT_NO_BIAS, &mixer->q_proj},
        {"k_proj", keys, hidden, WEIGHT_NO_BIAS, &mixer->k_proj},
        {"v_proj", values, hidden, WEIGHT_NO_BIAS, &mixer->v_proj},
    };
    const struct block_matrix whole = {qkv, mixer_conv_channels(mixer), hidden, WEIGHT_NO_BIAS,
                                       &fused};
    if (!qkv)
        return blocks_bind_matrices(block, parts, COUNT(parts), err);
    if (blocks_bind_matrices(block, &whole, 1, err) != 0)
        return -1;
    mixer->q_proj = weights_rows(&fused, 0, keys);
    mixer->k_proj = weights_rows(&fused, keys, keys);
    mixer->v_proj = weights_rows(&fused, 2 * keys, values);
    return 0;
}

/* One tensor, or three that transformers concatenates, wherever it cut them when it saved them. */
static int bind_conv(const struct block_mixer *block, bool whole, struct error *err)
{
    static const char *const names[] = {"q_conv1d", "k_conv1d", "v_conv1d"};
    struct mixer *mixer = block->mixer;
    struct conv_part parts[COUNT(names)];
    char full[COUNT(names)][WEIGHT_NAME_SIZE], tensor[WEIGHT_NAME_SIZE];
    const int64_t all = mixer_conv_channels(mixer);
    const int count = whole ? 1 : COUNT(names);
    int64_t channels = 0;
    bool missing = false;
    for (int i = 0; i < count; i++) {
        weights_name(full[i], "%s.%s", block->prefix, whole ? "conv1d" : names[i]);
        const struct tensor *found =
            tensors_find(block->weights->file, weights_name(tensor, "%s.weight", full[i]));
        const int64_t usual = whole ? all : i < 2 ? key_rows(mixer) : value_rows(mixer);
        const int64_t rows = !whole && found && found->rank > 0 ? found->shape[0] : usual;
        parts[i] = (struct conv_part){full[i], rows, 0, rows, 1};
        channels += parts[i].channels;
        missing |= !found;
    }
    if (!missing && channels != all)
        return weights_bad(block->weights, tensor, err,
                           "expected %lld channels of the convolutions of q, k and v, got %lld",
                           (long long)all, (long long)channels);
    return weights_conv(block->weights, parts, count, WEIGHT_NO_BIAS, &mixer->conv, err);
}

/* Whether a file has value heads in another order, which is then that of v_proj's rows. */
static bool is_reordered(const struct mixer *mixer)
{
    return mixer->v_proj.order.a != 0;
}

/* The columns of o_proj and the channels of v, which the file has in the same order as v_proj's
 * rows. */
static int reorder_values(const struct block_mixer *block, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const struct tensor_order *order = &mixer->v_proj.order;
    const int64_t width = mixer->conv.width, rows = value_rows(mixer), first = 2 * key_rows(mixer);
    float *weight =
        arena_alloc(block->weights->arena, (size_t)((first + rows) * width), sizeof *weight, err);
    if (!weight)
        return -1;
    mixer->o_proj.columns = *order;
    memcpy(weight, mixer->conv.weight, (size_t)(first * width) * sizeof *weight);
    for (int64_t i = 0; i < rows; i++)
        memcpy(weight + (first + i) * width,
               mixer->conv.weight + (first + tensor_order_row(order, i)) * width,
               (size_t)width * sizeof *weight);
    mixer->conv.weight = weight;
    return 0;
}

/* And dt_bias as the bias of a_proj. */
static int bind_decay(const struct block_mixer *block, struct error *err)
{
    int64_t heads = block->mixer->num_heads;
    char name[WEIGHT_NAME_SIZE];
    if (weights_floats(block->weights, weights_name(name, "%s.dt_bias", block->prefix), 1, &heads,
                       &block->mixer->a_proj.bias, err) != 0)
        return -1;
    return blocks_decay(block, err);
}

/* Each in a matrix of its own. */
static int bind_apart(const struct block_mixer *block, const struct gated_delta_names *names,
                      struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    const struct block_matrix matrices[] = {
        {names->b, mixer->num_heads, hidden, WEIGHT_NO_BIAS, &mixer->b_proj},
        {names->z, value_rows(mixer), hidden, WEIGHT_NO_BIAS, &mixer->out_gate_proj},
        {names->a, mixer->num_heads, hidden, WEIGHT_NO_BIAS, &mixer->a_proj},
    };
    const bool gated = mixer->output_gate != OUTPUT_GATE_NONE;
    if (bind_inputs(block, names->qkv, err) != 0 ||
        blocks_bind_matrices(block, matrices, gated ? 2 : 1, err) != 0)
        return -1;
    return mixer->gate == GATE_GATED_DELTA ? blocks_bind_matrices(block, &matrices[2], 1, err) : 0;
}

/* As bind_by_key_head, where a file has q, k and v, and z, by themselves. */
static int bind_beside(const struct block_mixer *block, const struct gated_delta_names *names,
                       struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    const int64_t each = mixer->num_heads / mixer->num_qk_heads;
    struct matrix narrow = {0};
    struct matrix *const factors[] = {&mixer->b_proj, &mixer->a_proj};
    const struct block_matrix matrices[] = {
        {names->z, value_rows(mixer), hidden, WEIGHT_NO_BIAS, &mixer->out_gate_proj},
        {names->b, 2 * mixer->num_heads, hidden, WEIGHT_NO_BIAS, &narrow},
    };
    if (bind_inputs(block, usual_qkv, err) != 0 ||
        blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0)
        return -1;
    split_key_heads(mixer, &narrow, factors, (int64_t[]){each, each}, COUNT(factors));
    return 0;
}

static int bind_projections(const struct block_mixer *block, const struct gated_delta_names *names,
                            struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    if (names->a)
        return bind_apart(block, names, err);
    weights_name(name, "%s.%s.weight", block->prefix, usual_qkv);
    return weights_has(block->weights, name) ? bind_beside(block, names, err)
                                             : bind_by_key_head(block, names, err);
}

int gated_delta_bind(const struct block_mixer *block, const struct gated_delta_names *names,
                     struct error *err)
{
    struct mixer *mixer = block->mixer;
    const struct block_matrix output = {names->output, block->config->hidden_size,
                                        value_rows(mixer), WEIGHT_NO_BIAS, &mixer->o_proj};
    const bool decays = mixer->gate == GATE_GATED_DELTA;
    char name[WEIGHT_NAME_SIZE];
    if (bind_projections(block, names, err) != 0 ||
        blocks_bind_matrices(block, &output, 1, err) != 0 ||
        (decays && bind_decay(block, err) != 0) || bind_conv(block, names->qkv != NULL, err) != 0 ||
        (is_reordered(mixer) && reorder_values(block, err) != 0))
        return -1;
    return weights_norm(block->weights, weights_name(name, "%s.%s", block->prefix, names->norm),
                        mixer->value_dim, &mixer->output_norm, err);
}

void gated_delta_random(struct random_list *list, const char *prefix,
                        const struct gated_delta_names *names, const struct mixer *mixer)
{
    static const char *const convolutions[] = {"q_conv1d.weight", "k_conv1d.weight",
                                               "v_conv1d.weight"};
    const int64_t hidden = list->config->hidden_size, keys = key_rows(mixer);
    const int64_t values = value_rows(mixer), width = mixer->conv.width;
    const int64_t rows[] = {keys, keys, values};
    const double deviation = 1 / sqrt((double)width);
    if (names->qkv)
        random_list_linear(list, prefix, names->qkv, mixer_conv_channels(mixer), hidden, 0);
    for (int i = 0; !names->qkv && i < 3; i++) {
        static const char *const projections[] = {"q_proj", "k_proj", "v_proj"};
        random_list_linear(list, prefix, projections[i], rows[i], hidden, 0);
        random_list_array(list, prefix, convolutions[i], 3, (int64_t[]){rows[i], 1, width},
                          deviation);
    }
    if (names->qkv)
        random_list_array(list, prefix, "conv1d.weight", 3,
                          (int64_t[]){mixer_conv_channels(mixer), 1, width}, deviation);
    random_list_linear(list, prefix, names->b, mixer->num_heads, hidden, 0);
    random_list_output(list, prefix, names->output, hidden, values);
    if (mixer->output_gate != OUTPUT_GATE_NONE)
        random_list_linear(list, prefix, names->z, values, hidden, 0);
    if (mixer->gate == GATE_GATED_DELTA) {
        random_list_linear(list, prefix, names->a, mixer->num_heads, hidden, 0);
        /* a state lives for dozens of tokens */
        random_list_vector(list, prefix, "dt_bias", mixer->num_heads, -4, 1);
        random_list_vector(list, prefix, "A_log", mixer->num_heads, 0, 1);
    }
    random_list_norm(list, prefix, names->norm, mixer->output_norm.kind, mixer->value_dim);
}
