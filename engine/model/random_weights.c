/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/random_weights.h"

#include "engine/base/half.h"
#include "engine/base/philox.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SEED = 20260, MAX_RANK = 3, HEADER_ALIGNMENT = 64, GLA_RANK = 16, T5_BUCKETS = 32 };

/* A tensor to be made. BF16, F32: mean + deviation * normal; I32: a permutation. */
struct spec {
    char name[WEIGHT_NAME_SIZE];
    enum tensor_dtype dtype;
    int rank;
    int64_t shape[MAX_RANK];
    double mean, deviation;
};

struct list {
    const struct config *config;
    const struct random_shapes *shapes;
    struct spec *specs;
    size_t count, capacity;
    bool failed; /* out of memory: nothing is added any more */
};

/* The list of tensors. */

static void add(struct list *list, const struct spec *spec)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        struct spec *grown = reallocarray(list->specs, capacity, sizeof *grown);
        list->failed |= !grown;
        if (!grown)
            return;
        list->specs = grown;
        list->capacity = capacity;
    }
    list->specs[list->count++] = *spec;
}

/* "prefix.name", F32 */
static void add_vector(struct list *list, const char *prefix, const char *name, int64_t size,
                       double mean, double deviation)
{
    struct spec spec = {
        .dtype = TENSOR_F32, .rank = 1, .shape = {size}, .mean = mean, .deviation = deviation};
    weights_name(spec.name, "%s.%s", prefix, name);
    add(list, &spec);
}

/* shape [rank], F32 */
static void add_array(struct list *list, const char *prefix, const char *name, int rank,
                      const int64_t *shape, double deviation)
{
    struct spec spec = {.dtype = TENSOR_F32, .rank = rank, .deviation = deviation};
    memcpy(spec.shape, shape, (size_t)rank * sizeof *shape);
    weights_name(spec.name, "%s.%s", prefix, name);
    add(list, &spec);
}

static void add_matrix(struct list *list, const char *name, int64_t rows, int64_t cols,
                       double deviation)
{
    struct spec spec = {
        .dtype = TENSOR_BF16, .rank = 2, .shape = {rows, cols}, .deviation = deviation};
    weights_name(spec.name, "%s.weight", name);
    add(list, &spec);
}

/* A linear layer "prefix.name"; the mean of its bias. */
static void add_linear(struct list *list, const char *prefix, const char *name, int64_t rows,
                       int64_t cols, double bias)
{
    char full[WEIGHT_NAME_SIZE];
    weights_name(full, "%s.%s", prefix, name);
    add_matrix(list, full, rows, cols, 1 / sqrt((double)cols));
    if (list->shapes->bias)
        add_vector(list, full, "bias", rows, bias, 0.02);
}

/* One whose output is added to the residual stream, as are 2 * num_layers of them. */
static void add_output(struct list *list, const char *prefix, const char *name, int64_t rows,
                       int64_t cols)
{
    size_t first = list->count;
    add_linear(list, prefix, name, rows, cols, 0);
    if (first < list->count)
        list->specs[first].deviation /= sqrt(2 * (double)list->config->num_layers);
}

static void add_norm(struct list *list, const char *prefix, const char *name, enum norm_kind kind,
                     int64_t size)
{
    char full[WEIGHT_NAME_SIZE];
    if (kind == NORM_NONE || kind == NORM_SIMPLE_RMSNORM)
        return;
    weights_name(full, "%s.%s", prefix, name);
    add_vector(list, full, "weight", size, 1, 0);
    if (kind == NORM_LAYERNORM && list->shapes->bias)
        add_vector(list, full, "bias", size, 0, 0.02);
}

/* The mixers of the native family. */

/* m, as family_regla.c finds it from the tensors. */
static int64_t features_of(const struct mixer *mixer, const struct random_shapes *shapes)
{
    if (mixer->kind == MIXER_SOFTMAX)
        return shapes->head_dim;
    switch (mixer->feature_map) {
    case FEATURE_FAVOR:
        return shapes->features;
    case FEATURE_COS_SIN:
        return shapes->features / 2 * 2;
    case FEATURE_HEDGEHOG:
        return 2 * shapes->head_dim;
    case FEATURE_DPFP:
        return 2 * shapes->head_dim * mixer->dpfp_nu;
    default:
        return shapes->head_dim;
    }
}

static void add_features(struct list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t heads = list->config->num_heads, d = list->shapes->head_dim;
    const int64_t m = features_of(mixer, list->shapes);
    if (mixer->feature_map == FEATURE_FAVOR)
        add_array(list, prefix, "features.weight", 3, (int64_t[]){heads, m, d}, 1);
    if (mixer->feature_map == FEATURE_COS_SIN)
        add_array(list, prefix, "features.weight", 3, (int64_t[]){heads, m / 2, d}, 1);
    if (mixer->feature_map == FEATURE_HEDGEHOG) {
        const int64_t shape[3] = {heads, d, d};
        add_array(list, prefix, "feature_q.weight", 3, shape, 1 / sqrt((double)d));
        add_array(list, prefix, "feature_k.weight", 3, shape, 1 / sqrt((double)d));
    }
}

/* A bias of 4 lets a state live for dozens of tokens, as training does. */
static void add_gate(struct list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t heads = list->config->num_heads, hidden = list->config->hidden_size;
    const int64_t values = heads * list->shapes->value_dim;
    const int64_t features = heads * features_of(mixer, list->shapes);
    switch (mixer->gate) {
    case GATE_SCALAR:
        add_linear(list, prefix, "g_proj", heads, hidden, 4);
        break;
    case GATE_FAST_DECAY:
        add_linear(list, prefix, "z_proj", values, hidden, 4);
        add_linear(list, prefix, "f_proj", features, hidden, 4);
        break;
    case GATE_REFINED:
        add_linear(list, prefix, "g_proj", values, hidden, 4);
        add_linear(list, prefix, "r_proj", values, hidden, 0);
        break;
    case GATE_GLA: {
        char name[WEIGHT_NAME_SIZE];
        add_matrix(list, weights_name(name, "%s.gk_proj.0", prefix), GLA_RANK, hidden,
                   1 / sqrt((double)hidden));
        add_linear(list, prefix, "gk_proj.1", features, GLA_RANK, 0);
        break;
    }
    case GATE_DELTA:
        add_linear(list, prefix, "b_proj", heads, hidden, 0);
        break;
    case GATE_NONE:
        break;
    }
}

static void add_lrpe(struct list *list, const char *prefix, const struct mixer *mixer)
{
    const struct position *position = &mixer->position;
    const int64_t m = features_of(mixer, list->shapes);
    const int64_t longest = list->config->max_position_embeddings;
    if (position->basis == BASIS_HOUSEHOLDER)
        add_vector(list, prefix, "householder", m, 0, 1);
    /* cosFormer; what is LRPE by itself keeps the default angles */
    if (position->kind == POSITION_LRPE_UNITARY && mixer->feature_map == FEATURE_RELU &&
        longest > 0)
        add_vector(list, prefix, "theta", m, M_PI / (2 * (double)longest), 0);
    if (position->kind == POSITION_LRPE_PERMUTATION) {
        struct spec spec = {.dtype = TENSOR_I32, .rank = 1, .shape = {m}};
        weights_name(spec.name, "%s.permutation", prefix);
        add(list, &spec);
    }
}

static void add_position(struct list *list, const char *attention, const struct mixer *mixer)
{
    char prefix[WEIGHT_NAME_SIZE], name[8];
    const int64_t heads = list->config->num_heads;
    int parameters = 0;
    weights_name(prefix, "%s.position", attention);
    switch (mixer->position.kind) {
    case POSITION_LRPE_UNITARY:
    case POSITION_LRPE_ORTHOGONAL:
    case POSITION_LRPE_PERMUTATION:
        add_lrpe(list, prefix, mixer);
        break;
    case POSITION_KERPLE_LOG:
    case POSITION_KERPLE_POWER:
        parameters = 2;
        break;
    case POSITION_KERPLE_3PARA_LOG:
        parameters = 3;
        break;
    case POSITION_KERPLE_BIAS_WHT:
        parameters = 4;
        break;
    case POSITION_T5:
        add_array(list, prefix, "bucket_bias", 2, (int64_t[]){T5_BUCKETS, heads}, 0.5);
        break;
    default:
        break;
    }
    for (int r = 1; r <= parameters; r++) { /* positive: 3.5 deviations is the most there is */
        snprintf(name, sizeof name, "r%d", r);
        add_vector(list, prefix, name, heads, 0.5, 0.125);
    }
}

static void add_mixer(struct list *list, const char *prefix, const struct mixer *mixer)
{
    const struct random_shapes *shapes = list->shapes;
    const int64_t heads = list->config->num_heads, hidden = list->config->hidden_size;
    const int64_t values = heads * shapes->value_dim;
    add_linear(list, prefix, "q_proj", heads * shapes->head_dim, hidden, 0);
    add_linear(list, prefix, "k_proj", heads * shapes->head_dim, hidden, 0);
    add_linear(list, prefix, "v_proj", values, hidden, 0);
    add_output(list, prefix, "o_proj", hidden, values);
    if (mixer->kind == MIXER_LINEAR) {
        add_features(list, prefix, mixer);
        add_gate(list, prefix, mixer);
    }
    add_position(list, prefix, mixer);
    add_norm(list, prefix, "out_norm", mixer->output_norm.kind,
             mixer->output_norm_scope == NORM_SCOPE_HEAD ? shapes->value_dim : values);
    if (mixer->output_gate != OUTPUT_GATE_NONE)
        add_linear(list, prefix, "out_gate_proj", values, hidden, 0);
}

/* The families. */

static void list_regla(struct list *list)
{
    const struct config *config = list->config;
    const int64_t hidden = config->hidden_size, inner = config->intermediate_size;
    const enum norm_kind norm = config->norm_kind;
    add_matrix(list, "model.embeddings", config->vocab_size, hidden, 1);
    if (config->position_embedding == POSITION_EMBEDDING_LEARNED)
        add_matrix(list, "model.position_embeddings", config->max_position_embeddings, hidden, 1);
    if (config->embedding_norm)
        add_norm(list, "model", "embedding_norm", norm, hidden);
    for (int i = 0; i < (int)config->num_layers; i++) {
        char layer[64], attention[64];
        snprintf(layer, sizeof layer, "model.layers.%d", i);
        snprintf(attention, sizeof attention, "model.layers.%d.attn", i);
        add_norm(list, layer, "attn_norm", norm, hidden);
        add_mixer(list, attention, &config->mixers[config->layer_mixers[i]].mixer);
        add_norm(list, layer, "mlp_norm", norm, hidden);
        if (list->shapes->glu)
            add_linear(list, layer, "mlp.gate_proj", inner, hidden, 0);
        add_linear(list, layer, "mlp.up_proj", inner, hidden, 0);
        add_output(list, layer, "mlp.down_proj", hidden, inner);
    }
    add_norm(list, "model", "norm", norm, hidden);
    if (!config->tied)
        add_matrix(list, "lm_head", config->vocab_size, hidden, 1 / sqrt((double)hidden));
}

static void list_gpt_neox(struct list *list)
{
    const struct config *config = list->config;
    const int64_t hidden = config->hidden_size, inner = config->intermediate_size;
    add_matrix(list, "gpt_neox.embed_in", config->vocab_size, hidden, 1);
    for (int i = 0; i < (int)config->num_layers; i++) {
        char layer[64];
        snprintf(layer, sizeof layer, "gpt_neox.layers.%d", i);
        add_norm(list, layer, "input_layernorm", NORM_LAYERNORM, hidden);
        add_linear(list, layer, "attention.query_key_value", 3 * hidden, hidden, 0);
        add_output(list, layer, "attention.dense", hidden, hidden);
        add_norm(list, layer, "post_attention_layernorm", NORM_LAYERNORM, hidden);
        add_linear(list, layer, "mlp.dense_h_to_4h", inner, hidden, 0);
        add_output(list, layer, "mlp.dense_4h_to_h", hidden, inner);
    }
    add_norm(list, "gpt_neox", "final_layer_norm", NORM_LAYERNORM, hidden);
    if (!config->tied)
        add_matrix(list, "embed_out", config->vocab_size, hidden, 1 / sqrt((double)hidden));
}

/* The numbers. */

static int64_t elements_of(const struct spec *spec)
{
    int64_t elements = 1;
    for (int i = 0; i < spec->rank; i++)
        elements *= spec->shape[i];
    return elements;
}

/* The random words of the elements [first, first + 4 LANES) of a tensor: element e has word e % 4
 * of counter e / 4. */
enum { LANES = 64, DRAWN = 4 * LANES };

static void draw(size_t tensor, uint64_t first, uint32_t words[4][LANES])
{
    for (int i = 0; i < LANES; i++) {
        const uint64_t counter = first / 4 + (uint64_t)i;
        words[0][i] = (uint32_t)counter;
        words[1][i] = (uint32_t)(counter >> 32);
        words[2][i] = (uint32_t)tensor;
        words[3][i] = 0;
    }
    philox4x32_10_lanes(words[0], words[1], words[2], words[3], LANES, SEED, 0);
}

enum { MOST_SUM = 4 * 255 };

static uint32_t sum_of_bytes(uint32_t word)
{
    word = (word & 0x00ff00ff) + (word >> 8 & 0x00ff00ff);
    return (word & 0xffff) + (word >> 16);
}

/* values[s]: what a word whose bytes have the sum s becomes. */
static void make_values(const struct spec *spec, float values[MOST_SUM + 1])
{
    const double deviation = sqrt(4 * (256 * 256 - 1) / 12.0);
    for (int sum = 0; sum <= MOST_SUM; sum++)
        values[sum] = (float)(spec->mean + spec->deviation * (sum - MOST_SUM / 2) / deviation);
}

static void fill_bf16(const struct spec *spec, size_t tensor, uint16_t *out)
{
    float values[MOST_SUM + 1];
    uint16_t halves[MOST_SUM + 1];
    make_values(spec, values);
    for (int sum = 0; sum <= MOST_SUM; sum++)
        halves[sum] = f32_to_bf16(values[sum]);
    const uint64_t elements = (uint64_t)elements_of(spec);
    for (uint64_t first = 0; first < elements; first += DRAWN) {
        uint32_t words[4][LANES];
        const uint64_t left = elements - first;
        draw(tensor, first, words);
        for (uint64_t i = 0; i < (left < DRAWN ? left : DRAWN); i++)
            out[first + i] = halves[sum_of_bytes(words[i % 4][i / 4])];
    }
}

/* Numbers of four bytes may follow an odd number of two-byte ones: out is at any alignment. */
static void fill_f32(const struct spec *spec, size_t tensor, unsigned char *out)
{
    float values[MOST_SUM + 1];
    uint32_t words[4][LANES];
    make_values(spec, values);
    for (uint64_t i = 0; i < (uint64_t)elements_of(spec); i++) {
        if (i % DRAWN == 0)
            draw(tensor, i, words);
        memcpy(out + 4 * i, &values[sum_of_bytes(words[i % 4][i % DRAWN / 4])], 4);
    }
}

/* Fisher and Yates; out as above. */
static void fill_permutation(const struct spec *spec, size_t tensor, unsigned char *out)
{
    uint32_t words[4][LANES];
    for (int32_t i = 0; i < spec->shape[0]; i++) {
        if (i % DRAWN == 0)
            draw(tensor, (uint64_t)i, words);
        const uint32_t at = words[i % 4][i % DRAWN / 4] % (uint32_t)(i + 1);
        memmove(out + 4 * (int64_t)i, out + 4 * (uint64_t)at, 4);
        memcpy(out + 4 * (uint64_t)at, &i, 4);
    }
}

static void fill(const struct spec *spec, size_t tensor, unsigned char *out)
{
    if (spec->dtype == TENSOR_BF16)
        fill_bf16(spec, tensor, (uint16_t *)out);
    else if (spec->dtype == TENSOR_F32)
        fill_f32(spec, tensor, out);
    else
        fill_permutation(spec, tensor, out);
}

/* The file. */

static size_t bytes_of(const struct spec *spec)
{
    return (size_t)elements_of(spec) * tensor_dtype_bytes(spec->dtype);
}

/* The header's JSON, malloc'd; *size bytes of data follow it. */
static char *make_header(const struct list *list, size_t *size)
{
    json_t *header = json_object();
    *size = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct spec *spec = &list->specs[i];
        json_t *shape = json_array();
        for (int d = 0; d < spec->rank; d++)
            json_array_append_new(shape, json_integer(spec->shape[d]));
        json_t *entry =
            json_pack("{ss so s[II]}", "dtype", tensor_dtype_name(spec->dtype), "shape", shape,
                      "data_offsets", (json_int_t)*size, (json_int_t)(*size + bytes_of(spec)));
        json_object_set_new(header, spec->name, entry);
        *size += bytes_of(spec);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static int write_image(struct file_map *image, const struct list *list, struct error *err)
{
    size_t data_bytes;
    char *header = make_header(list, &data_bytes);
    if (!header)
        return error_set(err, ERROR_NO_MEMORY, "random weights: out of memory");
    const size_t length = strlen(header);
    const size_t start = (8 + length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    unsigned char *bytes =
        mmap(NULL, start + data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        free(header);
        return error_set(err, ERROR_NO_MEMORY, "random weights: cannot map %zu bytes: %s",
                         start + data_bytes, strerror(errno));
    }
    const uint64_t padded = start - 8;
    memcpy(bytes, &padded, sizeof padded);
    memset(bytes + 8, ' ', padded);
    memcpy(bytes + 8, header, length);
    free(header);
    unsigned char *at = bytes + start;
    for (size_t i = 0; i < list->count; i++) {
        fill(&list->specs[i], i, at);
        at += bytes_of(&list->specs[i]);
    }
    *image = (struct file_map){.bytes = bytes, .size = start + data_bytes};
    return 0;
}

int random_weights_create(struct file_map *image, const struct config *config,
                          const struct random_shapes *shapes, struct error *err)
{
    struct list list = {.config = config, .shapes = shapes};
    if (strcmp(config->family, "gpt_neox") == 0)
        list_gpt_neox(&list);
    else if (strcmp(config->family, "regla") == 0)
        list_regla(&list);
    else
        return error_set(err, ERROR_UNSUPPORTED,
                         "model_type: expected regla or gpt_neox for random weights, got %s",
                         config->family);
    int result = list.failed ? error_set(err, ERROR_NO_MEMORY, "random weights: out of memory")
                             : write_image(image, &list, err);
    free(list.specs);
    return result;
}
