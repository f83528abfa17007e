/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/mamba2.h"

#include "engine/model/config_library.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MOST_STATE = 4096 };

/* The parts of in_proj's rows, in the file's order. */
enum part { PART_Z, PART_U, PART_B, PART_C, PART_DT, PARTS };

static int64_t inner_of(const struct mixer *mixer)
{
    return (int64_t)mixer->num_heads * mixer->value_dim;
}

/* Rows of B, and of C. */
static int64_t state_of(const struct mixer *mixer)
{
    return (int64_t)mixer->num_qk_heads * mixer->head_dim;
}

static void part_rows(const struct mixer *mixer, int64_t rows[PARTS])
{
    rows[PART_Z] = rows[PART_U] = inner_of(mixer);
    rows[PART_B] = rows[PART_C] = state_of(mixer);
    rows[PART_DT] = mixer->num_heads;
}

static struct mamba2_config *make_own(struct config *config, struct error *err)
{
    struct mamba2_config *own = arena_alloc(config->arena, 1, sizeof *own, err);
    if (!own)
        return NULL;
    *own = (struct mamba2_config){.in_scale = 1, .scales = {1, 1, 1, 1, 1}, .attention_scale = 1};
    if (config->own)
        own->dense = *(const struct dense_config *)config->own;
    config->own = own;
    return own;
}

/* Sizes of heads: their number times their size is the inner width. */
static int parse_sizes(struct mixer *mixer, const struct config *config, const struct fields *root,
                       const struct mamba2_class *class, struct error *err)
{
    int64_t heads = class->usual_heads, size = class->usual_head_dim, expand = 2;
    int64_t state = class->usual_state, groups = class->usual_groups, width = 4;
    int64_t inner = class->usual_inner;
    const char *text = json_string_value(json_object_get(root->object, class->head_dim));
    const bool automatic = text && strcmp(text, "auto") == 0 && class->usual_head_dim == 0;
    if (fields_int(root, class->heads, FIELD_NOT_NULL, 1, CONFIG_MAX_HEADS, &heads, err) != 0 ||
        (!automatic && fields_int(root, class->head_dim, FIELD_NOT_NULL, 1, CONFIG_MAX_HIDDEN,
                                  &size, err) != 0) ||
        fields_int(root, class->state, FIELD_NOT_NULL, 1, MOST_STATE, &state, err) != 0 ||
        fields_int(root, class->groups, FIELD_NOT_NULL, 1, CONFIG_MAX_HEADS, &groups, err) != 0 ||
        fields_int(root, class->width, FIELD_NOT_NULL, CONVOLUTION_MIN_WIDTH, CONVOLUTION_MAX_WIDTH,
                   &width, err) != 0 ||
        (class->expand &&
         fields_int(root, class->expand, FIELD_NOT_NULL, 1, 64, &expand, err) != 0))
        return -1;
    if (class->inner && json_is_null(json_object_get(root->object, class->inner)))
        inner = 0;
    if (class->inner && fields_int(root, class->inner, FIELD_OPTIONAL, 1, CONFIG_MAX_INTERMEDIATE,
                                   &inner, err) != 0)
        return -1;
    if (inner == 0)
        inner = class->expand ? expand * config->hidden_size : heads * size;
    if (size == 0)
        size = inner / heads;
    if (heads * size != inner) {
        const bool given = class->inner && fields_has(root, class->inner);
        const char *factor = class->expand ? class->expand : "";
        return error_set(err, ERROR_INVALID,
                         "%s: %s times %s: expected %lld (%s%s), got %lld * %lld", root->place,
                         class->heads, class->head_dim, (long long)inner,
                         given ? "" : "hidden_size times ", given ? class->inner : factor,
                         (long long)heads, (long long)size);
    }
    if (heads % groups != 0)
        return error_set(err, ERROR_INVALID, "%s: %s: expected a divisor of %s (%lld), got %lld",
                         root->place, class->groups, class->heads, (long long)heads,
                         (long long)groups);
    mixer->num_heads = mixer->num_kv_heads = (int)heads;
    mixer->num_qk_heads = (int)groups;
    mixer->value_dim = (int)size;
    mixer->head_dim = mixer->features = mixer->features_positioned = (int)state;
    mixer->conv.width = (int)width;
    return 0;
}

/* A number of time_step_limit: also infinity, as JSON of transformers has it. */
static int parse_limit(const struct fields *root, const json_t *value, float *limit,
                       struct error *err)
{
    const char *word = json_string_value(json_object_get(value, "__float__"));
    const bool infinite = word && strcmp(word, "Infinity") == 0;
    if (!infinite && !json_is_number(value))
        return error_set(err, ERROR_INVALID,
                         "%s: time_step_limit: expected a number or Infinity, got %s", root->place,
                         word ? word : fields_kind(value));
    *limit = infinite ? INFINITY : (float)json_number_value(value);
    return 0;
}

static int parse_limits(struct mixer *mixer, const struct fields *root, struct error *err)
{
    const json_t *list;
    mixer->dt_most = INFINITY;
    if (fields_list(root, "time_step_limit", FIELD_OPTIONAL, &list, err) != 0)
        return -1;
    if (!list)
        return 0;
    if (json_array_size(list) != 2)
        return error_set(err, ERROR_INVALID, "%s: time_step_limit: expected 2 numbers, got %zu",
                         root->place, json_array_size(list));
    if (parse_limit(root, json_array_get(list, 0), &mixer->dt_least, err) != 0 ||
        parse_limit(root, json_array_get(list, 1), &mixer->dt_most, err) != 0)
        return -1;
    if (mixer->dt_least >= 0 && mixer->dt_least <= mixer->dt_most && mixer->dt_most > 0 &&
        !isinf(mixer->dt_least))
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: time_step_limit: expected a finite number >= 0, and one over 0 that is "
                     "not less, got %g and %g",
                     root->place, (double)mixer->dt_least, (double)mixer->dt_most);
}

static int parse_bias(const struct fields *root, const char *key, bool usual,
                      enum weight_bias *bias, struct error *err)
{
    if (key && fields_bool(root, key, FIELD_NOT_NULL, &usual, err) != 0)
        return -1;
    *bias = usual ? WEIGHT_HAS_BIAS : WEIGHT_NO_BIAS;
    return 0;
}

int mamba2_parse(struct mixer_config *out, struct mamba2_config **made, struct config *config,
                 const struct fields *root, const struct mamba2_class *class, struct error *err)
{
    struct mamba2_config *own = make_own(config, err);
    enum hidden_act act = ACT_SILU;
    *out = (struct mixer_config){0};
    struct mixer *mixer = &out->mixer;
    if (!own || parse_sizes(mixer, config, root, class, err) != 0 ||
        parse_limits(mixer, root, err) != 0 ||
        parse_bias(root, class->conv_bias, true, &own->conv_bias, err) != 0 ||
        parse_bias(root, class->in_bias, false, &own->in_bias, err) != 0 ||
        parse_bias(root, class->out_bias, false, &own->out_bias, err) != 0 ||
        config_library_act(root, class->act, &act, err) != 0)
        return -1;
    if (act != ACT_SILU)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: %s: expected \"silu\", got \"%.40s\" (not supported in Mamba-2's "
                         "mixers)",
                         root->place, class->act,
                         json_string_value(json_object_get(root->object, class->act)));
    if (made)
        *made = own;
    mixer_make_linear(mixer, GATE_MAMBA2);
    mixer->feature_map = FEATURE_IDENTITY;
    mixer->dpfp_nu = 1;
    mixer->position.base = 10000;
    mixer->conv.activation = VALUE_ACTIVATION_SILU;
    mixer->output_norm = (struct norm){.kind = NORM_RMSNORM, .eps = config->norm_eps};
    mixer->output_norm_scope = NORM_SCOPE_HIDDEN;
    mixer->output_norm_parts = mixer->num_qk_heads;
    mixer->output_gate = OUTPUT_GATE_SWISH;
    mixer->gate_first = true;
    if (inner_of(mixer) % mixer->output_norm_parts == 0)
        return 0;
    return error_set(err, ERROR_INVALID, "%s: %s: expected a divisor of %lld, got %d", root->place,
                     class->groups, (long long)inner_of(mixer), mixer->output_norm_parts);
}

int mamba2_layers(const struct dense *dense, struct config *config, const struct rope *rope,
                  const struct mixer_config *mamba, const int *kind_of, const struct fields *root,
                  struct error *err)
{
    struct layer_config layer = dense->layer;
    layer.blocks[0].branches[0].name = "mamba";
    const struct dense_kind kinds[] = {
        {.name = "full_attention", .rope = rope},
        {.name = "linear_attention", .mixer = &mamba->mixer, .layer = &layer}};
    return dense_layers(dense, config, kinds, COUNT(kinds), kind_of, root, err);
}

int mamba2_kinds(int **kind_of, struct config *config, const struct fields *root, const char *key,
                 bool mlps, struct error *err)
{
    static const struct config_layer_name names[] = {
        {"full_attention", 0}, {"linear_attention", 1}, {"mlp", 2}, {"moe", 3}, {"attention", 0},
        {"mamba", 1}};
    static const struct config_layer_name without[] = {
        {"full_attention", 0}, {"linear_attention", 1}, {"attention", 0}, {"mamba", 1}};
    return mlps
               ? config_library_layers(kind_of, config, key, names, 4, COUNT(names), root, err)
               : config_library_layers(kind_of, config, key, without, 2, COUNT(without), root, err);
}

/* ---- tensors ---- */

static void add_factors(struct mixer *mixer, const double *factors, int count)
{
    memcpy(mixer->factors + mixer->num_factors, factors, (size_t)count * sizeof *factors);
    mixer->num_factors += count;
}

/* The numbers times `scale`, in the arena. */
static int scaled(const struct block_mixer *block, const float *values, int64_t count, double scale,
                  const float **out, struct error *err)
{
    *out = values;
    if (scale == 1 || !values)
        return 0;
    float *products = arena_alloc(block->weights->arena, (size_t)count, sizeof *products, err);
    if (!products)
        return -1;
    for (int64_t i = 0; i < count; i++)
        products[i] = (float)((double)values[i] * scale);
    *out = products;
    return 0;
}

/* in_proj, split. What is multiplied with x's factor later is divided by it here. */
static int bind_in_proj(const struct block_mixer *block, const struct mamba2_config *own,
                        struct matrix parts[PARTS], struct error *err)
{
    int64_t rows[PARTS], all = 0;
    struct matrix fused = {0};
    part_rows(block->mixer, rows);
    for (int i = 0; i < PARTS; i++)
        all += rows[i];
    const struct block_matrix matrix = {"in_proj", all, block->config->hidden_size, own->in_bias,
                                        &fused};
    if (blocks_bind_matrices(block, &matrix, 1, err) != 0 ||
        scaled(block, fused.bias, all, 1 / own->in_scale, &fused.bias, err) != 0)
        return -1;
    for (int64_t i = 0, first = 0; i < PARTS; first += rows[i++])
        parts[i] = weights_rows(&fused, first, rows[i]);
    return 0;
}

/* The convolution's channels in the order of q, k and v: C, B, u. Their factors go into its
 * weights, which are f32 and not in the file's order anyway. */
static int bind_conv(const struct block_mixer *block, const struct mamba2_config *own,
                     struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    struct convolution *conv = &block->mixer->conv;
    const int64_t inner = inner_of(block->mixer), state = state_of(block->mixer);
    const int64_t all = inner + 2 * state;
    weights_name(name, "%s.conv1d", block->prefix);
    const double in = own->in_scale, *scales = own->scales;
    const struct conv_part parts[] = {{name, all, inner + state, state, scales[PART_C] * in},
                                      {name, all, inner, state, scales[PART_B] * in},
                                      {name, all, 0, inner, scales[PART_U] * in}};
    return weights_conv(block->weights, parts, COUNT(parts), own->conv_bias, conv, err);
}

static int bind_vector(const struct block_mixer *block, const char *name, const float **out,
                       struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t size = block->mixer->num_heads;
    return weights_floats(block->weights, weights_name(full, "%s.%s", block->prefix, name), 1,
                          &size, out, err);
}

int mamba2_bind_heads(const struct block_mixer *block, struct error *err)
{
    return blocks_decay(block, err) == 0 ? bind_vector(block, "D", &block->mixer->skip, err) : -1;
}

/* dt's bias comes after its factor: with the product, or where z or dt have a factor after it. */
static int bind_gate_scale(const struct block_mixer *block, const struct mamba2_config *own,
                           struct error *err)
{
    struct mixer *mixer = block->mixer;
    const double of_dt = own->scales[PART_DT] * own->in_scale;
    const double of_z = own->scales[PART_Z] * own->in_scale;
    const bool plain = of_dt == 1 && of_z == 1;
    const int64_t heads = mixer->num_heads, all = plain ? heads : heads + inner_of(mixer);
    const float *bias;
    float *sums = arena_alloc(block->weights->arena, (size_t)all, sizeof *sums, err);
    if (!sums || bind_vector(block, "dt_bias", &bias, err) != 0)
        return -1;
    for (int64_t i = 0; i < all; i++) {
        sums[i] = i < heads ? bias[i] : 0;
        if (plain && mixer->dt_proj.bias)
            sums[i] += mixer->dt_proj.bias[i];
    }
    if (plain) {
        mixer->dt_proj.bias = sums;
        return 0;
    }
    float *weight = arena_alloc(block->weights->arena, (size_t)all, sizeof *weight, err);
    if (!weight)
        return -1;
    for (int64_t i = 0; i < all; i++)
        weight[i] = (float)(i < heads ? of_dt : of_z);
    mixer->gate_scale = (struct offset_scale){weight, sums};
    return 0;
}

static int bind_mamba(const struct block_mixer *block, struct error *err)
{
    const struct mamba2_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    struct matrix parts[PARTS];
    char name[WEIGHT_NAME_SIZE];
    add_factors(mixer, &own->in_scale, 1);
    add_factors(mixer, own->scales, PARTS);
    const struct block_matrix out = {"out_proj", block->config->hidden_size, inner_of(mixer),
                                     own->out_bias, &mixer->o_proj};
    if (bind_in_proj(block, own, parts, err) != 0 || bind_conv(block, own, err) != 0 ||
        mamba2_bind_heads(block, err) != 0)
        return -1;
    mixer->q_proj = parts[PART_C];
    mixer->k_proj = parts[PART_B];
    mixer->v_proj = parts[PART_U];
    mixer->dt_proj = parts[PART_DT];
    mixer->out_gate_proj = parts[PART_Z];
    if (bind_gate_scale(block, own, err) != 0 ||
        weights_norm(block->weights, weights_name(name, "%s.norm", block->prefix), inner_of(mixer),
                     &mixer->output_norm, err) != 0)
        return -1;
    return blocks_bind_matrices(block, &out, 1, err);
}

/* What is multiplied with x's factor later is divided by it here. */
static int bind_attention(const struct block_mixer *block, struct error *err)
{
    const struct mamba2_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    struct matrix *const matrices[] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj,
                                       &mixer->o_proj};
    add_factors(mixer, &own->attention_scale, 1);
    if (dense_bind_attention(block, err) != 0)
        return -1;
    for (size_t i = 0; i < COUNT(matrices); i++)
        if (scaled(block, matrices[i]->bias, matrices[i]->rows, 1 / own->attention_scale,
                   &matrices[i]->bias, err) != 0)
            return -1;
    return 0;
}

int mamba2_bind_mixer(const struct block_mixer *block, struct error *err)
{
    return mixer_has(block->mixer, HAS_FEATURES) ? bind_mamba(block, err)
                                                 : bind_attention(block, err);
}

int mamba2_bind(struct model *model, const struct config *config, struct weights *weights,
                const struct block_names *names, struct error *err)
{
    const struct mamba2_config *own = config->own;
    struct block_names found = *names;
    found.biased = own->dense.mlp_bias;
    return blocks_bind(model, config, weights, &found, mamba2_bind_mixer, err);
}

void mamba2_random_heads(struct random_list *list, const char *prefix, int64_t heads)
{
    random_list_vector(list, prefix, "A_log", heads, 1.5, 0.8);
    random_list_vector(list, prefix, "D", heads, 1, 0.1);
}

/* Numbers as a new model has them: dt from 0.001 to 0.1, decays that differ among heads. */
void mamba2_random_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const struct mamba2_config *own = list->config->own;
    char conv[WEIGHT_NAME_SIZE];
    int64_t rows[PARTS], all = 0;
    if (!mixer_has(mixer, HAS_FEATURES)) {
        dense_random_attention(list, prefix, mixer);
        return;
    }
    part_rows(mixer, rows);
    for (int i = 0; i < PARTS; i++)
        all += rows[i];
    const int64_t channels = rows[PART_U] + rows[PART_B] + rows[PART_C];
    const int64_t shape[] = {channels, 1, mixer->conv.width};
    weights_name(conv, "%s.conv1d", prefix);
    random_list_linear(list, prefix, "in_proj", all, list->config->hidden_size, 0);
    random_list_array(list, conv, "weight", 3, shape, 0.5);
    if (own->conv_bias == WEIGHT_HAS_BIAS)
        random_list_vector(list, conv, "bias", channels, 0, 0.1);
    random_list_vector(list, prefix, "dt_bias", mixer->num_heads, MAMBA2_DT_BIAS, 1);
    mamba2_random_heads(list, prefix, mixer->num_heads);
    random_list_norm(list, prefix, "norm", mixer->output_norm.kind, inner_of(mixer));
    random_list_output(list, prefix, "out_proj", list->config->hidden_size, inner_of(mixer));
}
