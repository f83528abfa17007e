/* SPDX-License-Identifier: Apache-2.0 */
/* The native family (model-format.md): names, shapes and sizes per head of its tensors. What its
 * config.json says is read by config_regla.c. */
#include "engine/model/blocks.h"
#include "engine/model/config_regla.h"
#include "engine/model/family.h"
#include "engine/model/mamba2.h"
#include "engine/model/position_tables.h"

#include <math.h>
#include <stdio.h>

enum { MAX_FEATURES = 1 << 20, GLA_RANK = 16 };

/* Rows of a matrix of x: one a head, one for each of a head's values, or of its features. */
enum gate_rows { ROWS_HEADS, ROWS_VALUES, ROWS_FEATURES };

/* The matrices of gates, all of x [hidden_size]; those of gla are of low rank, and not here. bias:
 * the mean of a preset's. One of 4 lets a state live for dozens of tokens, as training does. */
static const struct gate_matrix {
    enum gate_kind gate;
    const char *name;
    size_t matrix; /* its place in struct mixer */
    enum gate_rows rows;
    double bias;
} gate_matrices[] = {
    {GATE_SCALAR, "g_proj", offsetof(struct mixer, g_proj), ROWS_HEADS, 4},
    {GATE_FAST_DECAY, "z_proj", offsetof(struct mixer, z_proj), ROWS_VALUES, 4},
    {GATE_FAST_DECAY, "f_proj", offsetof(struct mixer, f_proj), ROWS_FEATURES, 4},
    {GATE_REFINED, "g_proj", offsetof(struct mixer, g_proj), ROWS_VALUES, 4},
    {GATE_REFINED, "r_proj", offsetof(struct mixer, r_proj), ROWS_VALUES, 0},
    {GATE_DELTA, "b_proj", offsetof(struct mixer, b_proj), ROWS_HEADS, 0},
    {GATE_GATED_DELTA, "b_proj", offsetof(struct mixer, b_proj), ROWS_HEADS, 0},
    {GATE_GATED_DELTA, "a_proj", offsetof(struct mixer, a_proj), ROWS_HEADS, -4},
    {GATE_MAMBA2, "dt_proj", offsetof(struct mixer, dt_proj), ROWS_HEADS, MAMBA2_DT_BIAS},
    {GATE_KDA, "b_proj", offsetof(struct mixer, b_proj), ROWS_HEADS, 0},
    {GATE_RWKV7, "f_proj", offsetof(struct mixer, f_proj), ROWS_FEATURES, -4},
    {GATE_RWKV7, "erase_proj", offsetof(struct mixer, erase_proj), ROWS_FEATURES, 0},
    {GATE_RWKV7, "write_proj", offsetof(struct mixer, write_proj), ROWS_FEATURES, 0},
};
enum { NUM_GATE_MATRICES = sizeof gate_matrices / sizeof *gate_matrices };

static int64_t gate_rows(enum gate_rows rows, int64_t heads, int64_t value_dim, int64_t features)
{
    return heads * (rows == ROWS_HEADS ? 1 : rows == ROWS_VALUES ? value_dim : features);
}

static int bind_linear(const struct block_mixer *b, const char *name, int64_t rows,
                       struct matrix *matrix, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_linear(b->weights, weights_name(full, "%s.%s", b->prefix, name), rows,
                          b->config->hidden_size, true, matrix, err);
}

/* name.weight has the rows of all its heads: *size becomes one head's. */
static int split_heads(const struct block_mixer *b, const char *name, int64_t rows, int heads,
                       int *size, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    if (rows % heads != 0 || rows > INT32_MAX)
        return weights_bad(b->weights, weights_name(full, "%s.%s.weight", b->prefix, name), err,
                           "expected a height that %d heads divide, got %lld", heads,
                           (long long)rows);
    *size = (int)(rows / heads);
    return 0;
}

static int bind_scale(const struct block_mixer *b, const char *name, struct offset_scale *scale,
                      struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    struct norm norm = {.kind = NORM_LAYERNORM}; /* a weight, and perhaps a bias */
    weights_name(full, "%s.%s", b->prefix, name);
    const int64_t size = (int64_t)b->mixer->num_heads * b->mixer->head_dim;
    if (weights_norm(b->weights, full, size, &norm, err) != 0)
        return -1;
    *scale = (struct offset_scale){norm.weight, norm.bias};
    return 0;
}

static int bind_separate(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    if (bind_linear(b, "q_proj", WEIGHT_ANY, &mixer->q_proj, err) != 0 ||
        split_heads(b, "q_proj", mixer->q_proj.rows, mixer->num_qk_heads, &mixer->head_dim, err) !=
            0)
        return -1;
    return bind_linear(b, "k_proj", (int64_t)mixer_key_heads(mixer) * mixer->head_dim,
                       &mixer->k_proj, err);
}

static int check_values_in_keys(const struct block_mixer *b, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    if (b->mixer->value_dim <= b->mixer->head_dim)
        return 0;
    return weights_bad(b->weights, weights_name(full, "%s.k_proj.weight", b->prefix), err,
                       "expected at least %d rows a head (values_in_keys), got %d",
                       b->mixer->value_dim, b->mixer->head_dim);
}

/* What the parts of a pair may share: a projection for q and k, and the values. */
static int bind_sources(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    if (mixer->shared_qk && (bind_linear(b, "qk_proj", WEIGHT_ANY, &mixer->qk_proj, err) != 0 ||
                             split_heads(b, "qk_proj", mixer->qk_proj.rows, mixer->num_heads,
                                         &mixer->head_dim, err) != 0))
        return -1;
    if (mixer->values_in_keys)
        return check_values_in_keys(b, err);
    if (bind_linear(b, "v_proj", WEIGHT_ANY, &mixer->v_proj, err) != 0)
        return -1;
    return split_heads(b, "v_proj", mixer->v_proj.rows, mixer->num_kv_heads, &mixer->value_dim,
                       err);
}

static bool is_fourier(enum feature_map map)
{
    return map == FEATURE_COS_SIN || map == FEATURE_UNIT_COS_SIN;
}

/* A matrix of each head, [H, rows, d], of q or k. *rows: WEIGHT_ANY becomes what it is. */
static int bind_of_heads(const struct block_mixer *b, const char *name, int64_t *rows,
                         struct matrix *matrix, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    const int64_t heads = b->mixer->num_heads, d = b->mixer->head_dim;
    int64_t shape[3] = {heads, *rows, d};
    const float *data;
    if (weights_floats(b->weights, weights_name(full, "%s.%s", b->prefix, name), 3, shape, &data,
                       err) != 0)
        return -1;
    if (shape[1] > MAX_FEATURES)
        return weights_bad(b->weights, full, err, "expected at most %d rows, got %lld",
                           MAX_FEATURES, (long long)shape[1]);
    *rows = shape[1];
    *matrix =
        (struct matrix){.rows = heads * shape[1], .cols = d, .dtype = DTYPE_F32, .data = data};
    return 0;
}

/* W of favor and the Fourier maps, for q and k. */
static int bind_random_features(const struct block_mixer *b, struct error *err)
{
    int64_t rows = WEIGHT_ANY;
    if (bind_of_heads(b, "features.weight", &rows, &b->mixer->feature_q, err) != 0)
        return -1;
    b->mixer->feature_k = b->mixer->feature_q;
    b->mixer->feature_rows = (int)rows;
    return 0;
}

static int bind_hedgehog(const struct block_mixer *b, struct error *err)
{
    int64_t rows = b->mixer->head_dim;
    if (bind_of_heads(b, "feature_q.weight", &rows, &b->mixer->feature_q, err) != 0)
        return -1;
    return bind_of_heads(b, "feature_k.weight", &rows, &b->mixer->feature_k, err);
}

/* The feature map's tensors and m, the size of what it makes. */
static int bind_features(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    int64_t features = mixer->head_dim;
    switch (mixer_has(mixer, HAS_FEATURES) ? mixer->feature_map : FEATURE_IDENTITY) {
    case FEATURE_FAVOR:
    case FEATURE_COS_SIN:
    case FEATURE_UNIT_COS_SIN:
        if (bind_random_features(b, err) != 0)
            return -1;
        features = (int64_t)mixer->feature_rows * (is_fourier(mixer->feature_map) ? 2 : 1);
        break;
    case FEATURE_HEDGEHOG:
        if (bind_hedgehog(b, err) != 0)
            return -1;
        features = 2 * features;
        break;
    case FEATURE_DPFP:
        features = 2 * features * mixer->dpfp_nu;
        break;
    default:
        break;
    }
    if (features > MAX_FEATURES)
        return error_set(err, ERROR_INVALID, "%s: expected at most %d features a head, got %lld",
                         b->prefix, MAX_FEATURES, (long long)features);
    mixer->features = (int)features;
    return 0;
}

static int bind_gla_gate(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    const struct block_matrix first = {"gk_proj.0", WEIGHT_ANY, b->config->hidden_size, false,
                                       &mixer->gk_proj_0};
    if (blocks_bind_matrices(b, &first, 1, err) != 0)
        return -1;
    const struct block_matrix second = {"gk_proj.1", (int64_t)mixer->num_heads * mixer->features,
                                        mixer->gk_proj_0.rows, true, &mixer->gk_proj_1};
    return blocks_bind_matrices(b, &second, 1, err);
}

/* Numbers of the gate, one a head or one a feature, between 0 and 1. */
static int bind_shares(const struct block_mixer *b, const char *name, int64_t size,
                       struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    weights_name(full, "%s.%s", b->prefix, name);
    if (weights_floats(b->weights, full, 1, &size, &b->mixer->decay, err) != 0)
        return -1;
    for (int64_t i = 0; i < size; i++)
        if (!(b->mixer->decay[i] >= 0 && b->mixer->decay[i] <= 1))
            return weights_bad(b->weights, full, err,
                               "expected numbers from 0 to 1, got %g at element %lld",
                               (double)b->mixer->decay[i], (long long)i);
    return 0;
}

static int bind_conv(const struct block_mixer *b, struct error *err)
{
    if (b->mixer->conv.width == 0)
        return 0;
    char name[WEIGHT_NAME_SIZE];
    const int64_t channels = mixer_conv_channels(b->mixer);
    const struct conv_part part = {weights_name(name, "%s.conv", b->prefix), channels, 0, channels,
                                   1};
    return weights_conv(b->weights, &part, 1, WEIGHT_MAY_BIAS, &b->mixer->conv, err);
}

static int bind_gate(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    for (int i = 0; i < NUM_GATE_MATRICES; i++) {
        const struct gate_matrix *gate = &gate_matrices[i];
        struct matrix *matrix = (struct matrix *)(void *)((char *)mixer + gate->matrix);
        if (gate->gate == mixer->gate &&
            bind_linear(b, gate->name,
                        gate_rows(gate->rows, mixer->num_heads, mixer->value_dim, mixer->features),
                        matrix, err) != 0)
            return -1;
    }
    const int64_t heads = mixer->num_heads;
    switch (mixer->gate) {
    case GATE_GATED_DELTA:
        return blocks_decay(b, err);
    case GATE_MAMBA2:
        return mamba2_bind_heads(b, err);
    case GATE_GLA:
        return bind_gla_gate(b, err);
    case GATE_KDA:
        return bind_gla_gate(b, err) == 0 ? blocks_decay_by_feature(b, err) : -1;
    case GATE_FIXED:
        return bind_shares(b, "decay", heads, err);
    case GATE_HGRN2:
        return bind_shares(b, "least", heads * mixer->features, err);
    default:
        return 0;
    }
}

/* What a long_short window has beside q, k and v. One norm is for keys and values, as released. */
static int bind_segments(const struct block_mixer *b, const struct block_mixer *source,
                         struct error *err)
{
    struct mixer *mixer = b->mixer;
    char full[WEIGHT_NAME_SIZE], key[WEIGHT_NAME_SIZE];
    const int64_t size = (int64_t)mixer->num_heads * mixer->head_dim;
    weights_name(key, "%s.%s", mixer->shared_qk ? source->prefix : b->prefix,
                 mixer->shared_qk ? "qk_proj" : "k_proj");
    if (mixer->value_dim != mixer->head_dim)
        return weights_bad(b->weights, weights_name(full, "%s.v_proj.weight", source->prefix), err,
                           "expected the height of \"%s.weight\" (one norm serves keys and values "
                           "of a window long_short), %d, got %d",
                           key, mixer->num_heads * mixer->head_dim,
                           mixer->num_heads * mixer->value_dim);
    if (bind_linear(b, "segment_proj", (int64_t)mixer->num_heads * mixer->segment_rank,
                    &mixer->segment_proj, err) != 0)
        return -1;
    mixer->window_norm = mixer->segment_norm =
        (struct norm){.kind = NORM_LAYERNORM, .eps = b->config->norm_eps};
    if (weights_norm(b->weights, weights_name(full, "%s.window_norm", b->prefix), size,
                     &mixer->window_norm, err) != 0)
        return -1;
    return weights_norm(b->weights, weights_name(full, "%s.segment_norm", b->prefix), size,
                        &mixer->segment_norm, err);
}

/* A mixer but for its output. source: where its values, and a shared projection for q and k, are.
 * If that is of another mixer, the first part of the pair, they have been bound. */
static int bind_part(const struct block_mixer *b, const struct block_mixer *source,
                     struct error *err)
{
    struct mixer *mixer = b->mixer;
    char full[WEIGHT_NAME_SIZE];
    if ((!mixer->shared_qk && bind_separate(b, err) != 0) ||
        (source->mixer == mixer && bind_sources(source, err) != 0) ||
        (mixer->shared_qk && (bind_scale(b, "q_scale", &mixer->q_scale, err) != 0 ||
                              bind_scale(b, "k_scale", &mixer->k_scale, err) != 0)) ||
        bind_conv(b, err) != 0 || blocks_bind_qk_norms(b, err) != 0 || bind_features(b, err) != 0 ||
        (mixer_has(mixer, HAS_FEATURES) && bind_gate(b, err) != 0) ||
        (window_has(mixer->window, HAS_SEGMENTS) && bind_segments(b, source, err) != 0) ||
        position_tables_bind(b->weights, mixer, b->prefix, b->rope, err) != 0)
        return -1;
    const int64_t heads = mixer->output_norm_scope == NORM_SCOPE_HEAD ? 1 : mixer->num_heads;
    return weights_norm(b->weights, weights_name(full, "%s.out_norm", b->prefix),
                        heads * mixer->value_dim, &mixer->output_norm, err);
}

/* Its tensors are under parts.0 and parts.1; what added parts share is not. */
static int bind_pair(const struct block_mixer *b, struct error *err)
{
    struct block_mixer parts[2] = {*b, *b};
    struct mixer *first = b->mixer, *second = first->second;
    for (int i = 0; i < 2; i++)
        snprintf(parts[i].prefix, sizeof parts[i].prefix, "%.60s.parts.%d", b->prefix, i);
    parts[1].mixer = second;
    parts[1].rope = b->second_rope;
    if (bind_part(&parts[0], first->concatenates ? &parts[0] : b, err) != 0)
        return -1;
    if (first->concatenates)
        return bind_part(&parts[1], &parts[1], err);
    second->head_dim = first->head_dim;
    second->value_dim = first->value_dim;
    second->value_activation = VALUE_ACTIVATION_NONE; /* the first has applied it */
    return bind_part(&parts[1], b, err);
}

/* Columns of h, the input of o_proj. */
static int64_t output_size(const struct mixer *mixer)
{
    const int64_t size = (int64_t)mixer->num_heads * mixer->value_dim;
    return size + (mixer->concatenates ? output_size(mixer->second) : 0);
}

static int bind_gated_conv(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    const int64_t hidden = b->config->hidden_size;
    if (bind_linear(b, "in_proj", WEIGHT_ANY, &mixer->in_proj, err) != 0 ||
        split_heads(b, "in_proj", mixer->in_proj.rows, 3, &mixer->value_dim, err) != 0)
        return -1;
    const struct block_matrix output = {"o_proj", hidden, mixer->value_dim, WEIGHT_MAY_BIAS,
                                        &mixer->o_proj};
    return bind_conv(b, err) == 0 ? blocks_bind_matrices(b, &output, 1, err) : -1;
}

static int bind_mixer(const struct block_mixer *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    char full[WEIGHT_NAME_SIZE];
    if (!mixer_has(mixer, HAS_HEADS))
        return bind_gated_conv(b, err);
    if ((mixer->second ? bind_pair(b, err) : bind_part(b, b, err)) != 0 ||
        weights_linear(b->weights, weights_name(full, "%s.o_proj", b->prefix),
                       b->config->hidden_size, output_size(mixer), WEIGHT_MAY_BIAS, &mixer->o_proj,
                       err) != 0)
        return -1;
    if (mixer->output_gate == OUTPUT_GATE_NONE)
        return 0;
    return bind_linear(b, "out_gate_proj",
                       mixer->gate_per_head ? mixer->num_heads : output_size(mixer),
                       &mixer->out_gate_proj, err);
}

/* ---- a preset's tensors ---- */

/* m of a preset, as bind_features finds it from the tensors. */
static int64_t features_of(const struct mixer *mixer, const struct random_shapes *shapes)
{
    if (!mixer_has(mixer, HAS_FEATURES))
        return shapes->head_dim;
    switch (mixer->feature_map) {
    case FEATURE_FAVOR:
        return shapes->features;
    case FEATURE_COS_SIN:
    case FEATURE_UNIT_COS_SIN:
        return shapes->features / 2 * 2;
    case FEATURE_HEDGEHOG:
        return 2 * shapes->head_dim;
    case FEATURE_DPFP:
        return 2 * shapes->head_dim * mixer->dpfp_nu;
    default:
        return shapes->head_dim;
    }
}

static void list_features(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t heads = mixer->num_heads, d = list->shapes->head_dim;
    const int64_t m = features_of(mixer, list->shapes);
    if (mixer->feature_map == FEATURE_FAVOR)
        random_list_directions(list, prefix, "features.weight", heads, m, d);
    if (is_fourier(mixer->feature_map))
        random_list_array(list, prefix, "features.weight", 3, (int64_t[]){heads, m / 2, d}, 1);
    if (mixer->feature_map == FEATURE_HEDGEHOG) {
        const int64_t shape[3] = {heads, d, d};
        random_list_array(list, prefix, "feature_q.weight", 3, shape, 1 / sqrt((double)d));
        random_list_array(list, prefix, "feature_k.weight", 3, shape, 1 / sqrt((double)d));
    }
}

/* LRPE's permutation with a scalar gate is PermuteFormer. */
static bool is_permuteformer(const struct mixer *mixer)
{
    return mixer->gate == GATE_SCALAR && mixer->position.kind == POSITION_LRPE_PERMUTATION;
}

/* Its decay is that of a head, sigma(2 + 3h/H), whatever x is. */
static void list_permuteformer_decay(struct random_list *list, const char *prefix,
                                     const struct mixer *mixer)
{
    const int64_t heads = mixer->num_heads;
    char name[WEIGHT_NAME_SIZE];
    random_list_matrix(list, weights_name(name, "%s.g_proj", prefix), heads,
                       list->config->hidden_size, 0);
    random_list_vector(list, name, "bias", heads, 2, 0);
    if (!list->failed)
        list->tensors[list->count - 1].step = 3 / (double)heads;
}

/* From a state of four tokens to one that keeps nearly all, by heads. */
static void list_fixed_decay(struct random_list *list, const char *prefix, int64_t heads)
{
    random_list_vector(list, prefix, "decay", heads, 0.75, 0);
    if (!list->failed)
        list->tensors[list->count - 1].step = 0.249 / (double)heads;
}

static void list_gate(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t heads = mixer->num_heads, hidden = list->config->hidden_size;
    const int64_t features = features_of(mixer, list->shapes);
    if (is_permuteformer(mixer)) {
        list_permuteformer_decay(list, prefix, mixer);
        return;
    }
    for (int i = 0; i < NUM_GATE_MATRICES; i++) {
        const struct gate_matrix *gate = &gate_matrices[i];
        if (gate->gate == mixer->gate)
            random_list_linear(list, prefix, gate->name,
                               gate_rows(gate->rows, heads, list->shapes->value_dim, features),
                               hidden, gate->bias);
    }
    if (mixer->gate == GATE_GATED_DELTA || mixer->gate == GATE_KDA)
        random_list_vector(list, prefix, "A_log", heads, 0, 1);
    if (mixer->gate == GATE_MAMBA2)
        mamba2_random_heads(list, prefix, heads);
    if (mixer->gate == GATE_FIXED)
        list_fixed_decay(list, prefix, heads);
    if (mixer->gate == GATE_HGRN2)
        random_list_vector(list, prefix, "least", heads * features, 0.5, 0);
    if (mixer->gate != GATE_GLA && mixer->gate != GATE_KDA)
        return;
    char name[WEIGHT_NAME_SIZE];
    random_list_matrix(list, weights_name(name, "%s.gk_proj.0", prefix), GLA_RANK, hidden,
                       1 / sqrt((double)hidden));
    random_list_linear(list, prefix, "gk_proj.1", heads * features, GLA_RANK, 0);
}

static void list_conv(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    struct mixer sized = *mixer;
    sized.head_dim = (int)list->shapes->head_dim;
    sized.value_dim = (int)list->shapes->value_dim;
    const int64_t shape[2] = {mixer_conv_channels(&sized), mixer->conv.width};
    random_list_array(list, prefix, "conv.weight", 2, shape, 1 / sqrt((double)mixer->conv.width));
    if (list->shapes->bias)
        random_list_vector(list, prefix, "conv.bias", shape[0], 0, 0.1);
}

/* sources: the prefix of bind_part's source, or NULL. alone: not of a pair. */
static void list_part(struct random_list *list, const char *prefix, const char *sources, bool alone,
                      const struct mixer *mixer)
{
    static const char *const scales[] = {"q_scale.weight", "q_scale.bias", "k_scale.weight",
                                         "k_scale.bias"};
    const struct random_shapes *shapes = list->shapes;
    const int64_t heads = mixer->num_heads, kv_heads = mixer->num_kv_heads;
    const int64_t queries = heads * shapes->head_dim, values = heads * shapes->value_dim;
    const int64_t hidden = list->config->hidden_size;
    if (mixer->shared_qk && sources)
        random_list_linear(list, sources, "qk_proj", queries, hidden, 0);
    for (int i = 0; mixer->shared_qk && i < 4; i++)
        random_list_vector(list, prefix, scales[i], queries, 0, 1);
    if (!mixer->shared_qk) {
        random_list_linear(list, prefix, "q_proj", mixer->num_qk_heads * shapes->head_dim, hidden,
                           0);
        random_list_linear(list, prefix, "k_proj", mixer_key_heads(mixer) * shapes->head_dim,
                           hidden, 0);
    }
    if (sources && !mixer->values_in_keys)
        random_list_linear(list, sources, "v_proj", kv_heads * shapes->value_dim, hidden, 0);
    if (alone) /* before the rest: a tensor's numbers depend on its place */
        random_list_output(list, prefix, "o_proj", hidden, values);
    if (mixer->conv.width > 0)
        list_conv(list, prefix, mixer);
    if (mixer_has(mixer, HAS_FEATURES)) {
        list_features(list, prefix, mixer);
        list_gate(list, prefix, mixer);
    }
    if (window_has(mixer->window, HAS_SEGMENTS)) {
        random_list_linear(list, prefix, "segment_proj", heads * mixer->segment_rank, hidden, 0);
        random_list_norm(list, prefix, "window_norm", NORM_LAYERNORM, heads * shapes->head_dim);
        random_list_norm(list, prefix, "segment_norm", NORM_LAYERNORM, heads * shapes->head_dim);
    }
    position_tables_random(list, prefix, mixer, features_of(mixer, shapes));
    blocks_random_qk_norms(list, prefix, mixer, shapes->head_dim);
    random_list_norm(list, prefix, "out_norm", mixer->output_norm.kind,
                     mixer->output_norm_scope == NORM_SCOPE_HEAD ? shapes->value_dim : values);
}

static void list_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t hidden = list->config->hidden_size, width = list->shapes->value_dim;
    int64_t values = mixer->num_heads * width;
    const struct mixer *second = mixer->second;
    if (!mixer_has(mixer, HAS_HEADS)) {
        random_list_linear(list, prefix, "in_proj", 3 * width, hidden, 0);
        list_conv(list, prefix, mixer);
        random_list_output(list, prefix, "o_proj", hidden, width);
        return;
    }
    if (second) {
        char parts[2][WEIGHT_NAME_SIZE];
        for (int i = 0; i < 2; i++)
            weights_name(parts[i], "%s.parts.%d", prefix, i);
        list_part(list, parts[0], mixer->concatenates ? parts[0] : prefix, false, mixer);
        list_part(list, parts[1], mixer->concatenates ? parts[1] : NULL, false, second);
        values += mixer->concatenates ? second->num_heads * width : 0;
        random_list_output(list, prefix, "o_proj", hidden, values);
    } else {
        list_part(list, prefix, prefix, true, mixer);
    }
    if (mixer->output_gate != OUTPUT_GATE_NONE)
        random_list_linear(list, prefix, "out_gate_proj",
                           mixer->gate_per_head ? mixer->num_heads : values, hidden, 0);
}

static const struct block_names names = {BLOCK_FLA_NAMES,
                                         .position_embeddings = "position_embeddings",
                                         .embedding_norm = "embedding_norm",
                                         .router = "router",
                                         .experts = "experts",
                                         .mlp = BLOCK_MLP_EITHER,
                                         .biased = WEIGHT_MAY_BIAS,
                                         .experts_biased = WEIGHT_MAY_BIAS,
                                         .head_biased = WEIGHT_MAY_BIAS};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return blocks_bind(model, config, weights, &names, bind_mixer, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, list_mixer);
}

const struct family family_regla = {
    .name = "regla", .parse = config_regla_parse, .bind = bind, .random = list_random};
