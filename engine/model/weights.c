/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/weights.h"

#include "engine/model/conversion.h"
#include "engine/model/four_bits.h"
#include "engine/model/quantized.h"
#include "lib/base/bytes.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *weights_name(char name[WEIGHT_NAME_SIZE], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(name, WEIGHT_NAME_SIZE, format, args);
    va_end(args);
    return name;
}

bool weights_has(const struct weights *weights, const char *name)
{
    return tensors_find(weights->file, name) != NULL;
}

int weights_bad(const struct weights *weights, const char *name, struct error *err,
                const char *format, ...)
{
    char text[320];
    const struct tensor *tensor = tensors_find(weights->file, name);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, ERROR_INVALID, "%s: tensor \"%s\": %s",
                     tensor ? tensor->file : tensors_name(weights->file), name, text);
}

static const char *expected_shape(const int64_t *shape, int rank, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += shape[i] == WEIGHT_ANY
                    ? (size_t)snprintf(text + used, size - used, "%sany", i > 0 ? ", " : "")
                    : (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "",
                                       shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}

/* Finds a tensor not taken yet, checks its shape (filling in WEIGHT_ANY), and takes it. */
static struct tensor *take(struct weights *weights, const char *name, int rank, int64_t *shape,
                           struct error *err)
{
    char expected[160], got[160];
    struct tensor *tensor = tensors_find(weights->file, name);
    if (!tensor) {
        weights_bad(weights, name, err, "expected shape %s, got nothing: the tensor is missing",
                    expected_shape(shape, rank, expected, sizeof expected));
        return NULL;
    }
    bool fits = tensor->rank == rank;
    for (int i = 0; fits && i < rank; i++)
        fits = shape[i] == WEIGHT_ANY ? tensor->shape[i] >= 1 : tensor->shape[i] == shape[i];
    if (!fits) {
        weights_bad(weights, name, err, "expected shape %s, got %s",
                    expected_shape(shape, rank, expected, sizeof expected),
                    tensor_shape_text(tensor->shape, tensor->rank, got, sizeof got));
        return NULL;
    }
    memcpy(shape, tensor->shape, (size_t)rank * sizeof *shape);
    tensor->used = true;
    return tensor;
}

static int check_number(const struct weights *weights, const struct tensor *tensor,
                        struct error *err)
{
    if (conversion_is_number(tensor->dtype))
        return 0;
    return weights_bad(weights, tensor->name, err,
                       "expected dtype F32, F16, BF16, F64 or F8_E4M3, got %s",
                       tensor_dtype_name(tensor->dtype));
}

/* rows of all: what the first dimensions make. */
static int make_matrix(struct weights *weights, struct tensor *tensor, int64_t rows,
                       struct matrix *matrix, struct error *err)
{
    if (check_number(weights, tensor, err) != 0)
        return -1;
    *matrix = (struct matrix){.rows = rows,
                              .cols = tensor->shape[tensor->rank - 1],
                              .dtype = conversion_dtype(weights->fp8, tensor),
                              .data = tensor->data,
                              .order = tensor->order};
    if (!tensor_dtype_of_matrices(tensor->dtype))
        return conversion_matrix(weights->file, weights->arena, weights->fp8, tensor, matrix, err);
    matrix->mapped = tensors_num_maps(weights->file) > 0;
    return four_bits_take(weights->beside, tensor, matrix, err);
}

/* Where a stack has row r of the model: with `turns` those of two halves in turns. */
static int64_t stack_row(int64_t r, int64_t rows, bool turns)
{
    const int64_t half = rows / 2;
    return turns ? r % half * 2 + r / half : r;
}

/* A stack of matrices of `rows` rows, of a tensor that has each with its columns below each
 * other. */
static int make_turned(struct weights *weights, struct tensor *tensor, int64_t rows, bool turns,
                       struct matrix *all, struct error *err)
{
    const int64_t cols = tensor->shape[tensor->rank - 2];
    const int64_t count = tensor->rank == 3 ? tensor->shape[0] : 1;
    struct matrix turned;
    if (make_matrix(weights, tensor, count * cols, &turned, err) != 0)
        return -1;
    if (dtype_block(turned.dtype) > 1)
        return weights_bad(weights, tensor->name, err, "expected numbers by themselves, got %s",
                           tensor_dtype_name(tensor->dtype));
    const size_t size = dtype_size(turned.dtype, 1);
    char *out = arena_alloc(weights->arena, (size_t)(count * rows * cols), size, err);
    if (!out)
        return -1;
    *all = (struct matrix){.rows = count * rows, .cols = cols, .dtype = turned.dtype, .data = out};
    for (int64_t r = 0; r < all->rows; r++)
        for (int64_t c = 0; c < cols; c++, out += size)
            memcpy(out,
                   (const char *)turned.data +
                       (size_t)((r / rows * cols + c) * rows + stack_row(r % rows, rows, turns)) *
                           size,
                   size);
    return 0;
}

int weights_matrix(struct weights *weights, const char *name, int64_t rows, int64_t cols,
                   struct matrix *matrix, struct error *err)
{
    const struct tensor *found = tensors_find(weights->file, name);
    const bool turned = found && found->turned;
    int64_t shape[2] = {turned ? cols : rows, turned ? rows : cols};
    struct tensor *tensor = take(weights, name, 2, shape, err);
    if (!tensor)
        return -1;
    return turned ? make_turned(weights, tensor, shape[1], false, matrix, err)
                  : make_matrix(weights, tensor, shape[0], matrix, err);
}

bool weights_has_weight(const struct weights *weights, const char *name)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_has(weights, weights_name(full, "%s.weight", name));
}

bool weights_has_blocks(const struct weights *weights, const char *name)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_has(weights, weights_name(full, "%s_blocks", name));
}

/* "name.weight" if that is there, else the name alone. */
static const char *stack_name(const struct weights *weights, const char *name,
                              char full[WEIGHT_NAME_SIZE])
{
    return weights_name(full, weights_has_weight(weights, name) ? "%s.weight" : "%s", name);
}

bool weights_has_stack(const struct weights *weights, const char *name)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_has_blocks(weights, name) ||
           weights_has(weights, stack_name(weights, name, full));
}

/* Blocks of 16 bytes, and their exponents in another tensor. */
static int take_blocks(struct weights *weights, const char *name, const int64_t *shape,
                       const struct tensor **blocks, const struct tensor **exponents,
                       struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t own[4] = {shape[0], shape[1], shape[2] / 32, 16};
    struct tensor *taken = take(weights, weights_name(full, "%s_blocks", name), 4, own, err);
    if (!taken)
        return -1;
    if (shape[2] % 32 != 0 || taken->dtype != TENSOR_U8)
        return weights_bad(weights, full, err,
                           "expected rows of a multiple of 32 numbers, in U8, got %lld of %s",
                           (long long)shape[2], tensor_dtype_name(taken->dtype));
    struct tensor *scales = take(weights, weights_name(full, "%s_scales", name), 3, own, err);
    if (!scales)
        return -1;
    if (scales->dtype != TENSOR_U8)
        return weights_bad(weights, full, err, "expected dtype U8, got %s",
                           tensor_dtype_name(scales->dtype));
    taken->packed = scales->scale = true;
    *blocks = taken;
    *exponents = scales;
    return 0;
}

int weights_stack_mxfp4(struct weights *weights, const char *name, const int64_t *shape, bool turns,
                        struct matrix *all, struct error *err)
{
    enum { MOST_EXPONENT = 252 };
    const size_t size = dtype_size(DTYPE_MXFP4, 32);
    const struct tensor *blocks = NULL, *exponents = NULL;
    char full[WEIGHT_NAME_SIZE];
    if (take_blocks(weights, name, shape, &blocks, &exponents, err) != 0)
        return -1;
    const int64_t rows = shape[1], each = shape[2] / 32;
    unsigned char *out = arena_alloc(weights->arena, exponents->elements, size, err);
    if (!out)
        return -1;
    *all = (struct matrix){
        .rows = shape[0] * rows, .cols = shape[2], .dtype = DTYPE_MXFP4, .data = out};
    for (int64_t r = 0; r < all->rows; r++)
        for (int64_t b = 0; b < each; b++, out += size) {
            const int64_t at = (r / rows * rows + stack_row(r % rows, rows, turns)) * each + b;
            if (exponents->data[at] > MOST_EXPONENT)
                return weights_bad(weights, weights_name(full, "%s_scales", name), err,
                                   "expected exponents up to %d, got %d at element %lld",
                                   MOST_EXPONENT, exponents->data[at], (long long)at);
            quantized_write_mxfp4(exponents->data[at], blocks->data + 16 * at, out);
        }
    return 0;
}

int weights_stack(struct weights *weights, const char *name, const int64_t *shape,
                  struct matrix *all, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t own[3] = {shape[0], shape[1], shape[2]};
    struct tensor *tensor = take(weights, stack_name(weights, name, full), 3, own, err);
    return tensor ? make_matrix(weights, tensor, shape[0] * shape[1], all, err) : -1;
}

int weights_stack_turned(struct weights *weights, const char *name, const int64_t *shape,
                         bool turns, struct matrix *all, struct error *err)
{
    int64_t own[3] = {shape[0], shape[2], shape[1]};
    struct tensor *tensor = take(weights, name, 3, own, err);
    return tensor ? make_turned(weights, tensor, shape[1], turns, all, err) : -1;
}

int weights_linear(struct weights *weights, const char *name, int64_t rows, int64_t cols,
                   enum weight_bias bias, struct matrix *matrix, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    if (weights_matrix(weights, weights_name(full, "%s.weight", name), rows, cols, matrix, err) !=
        0)
        return -1;
    weights_name(full, "%s.bias", name);
    if (bias == WEIGHT_NO_BIAS || (bias == WEIGHT_MAY_BIAS && !weights_has(weights, full)))
        return 0;
    return weights_floats(weights, full, 1, &matrix->rows, &matrix->bias, err);
}

struct matrix weights_rows(const struct matrix *from, int64_t first, int64_t rows)
{
    struct matrix matrix = *from;
    matrix.rows = rows;
    matrix.data = (const char *)from->data + dtype_size(from->dtype, (size_t)(first * from->cols));
    if (from->q4 != NULL)
        matrix.q4 = (const char *)from->q4 + dtype_size(DTYPE_Q4_1, (size_t)(first * from->cols));
    matrix.bias = from->bias ? from->bias + first : NULL;
    if (first + rows < from->rows)
        matrix.order = (struct tensor_order){0};
    return matrix;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

void weights_ignore(struct weights *weights, const char *const *ends, size_t count)
{
    for (size_t i = 0; i < tensors_count(weights->file); i++) {
        struct tensor *tensor = tensors_at(weights->file, i);
        for (size_t e = 0; e < count; e++)
            if (ends_with(tensor->name, ends[e]))
                tensor_ignore(tensor);
    }
}

void weights_ignore_below(struct weights *weights, const char *const *begins, size_t count)
{
    for (size_t i = 0; i < tensors_count(weights->file); i++) {
        struct tensor *tensor = tensors_at(weights->file, i);
        for (size_t b = 0; b < count; b++)
            if (strncmp(tensor->name, begins[b], strlen(begins[b])) == 0)
                tensor_ignore(tensor);
    }
}

/* Whether n numbers from element `first` on are finite: the exponents of those that a file mostly
 * has are not all ones. */
static bool are_finite(const struct tensor *tensor, size_t first, size_t n)
{
    if (tensor_dtype_of_matrices(tensor->dtype) && dtype_block((enum dtype)tensor->dtype) > 1)
        return quantized_finite((enum dtype)tensor->dtype, tensor->data, (int64_t)first,
                                (int64_t)n);
    const unsigned char *at = NULL;
    if (tensor_dtype_of_matrices(tensor->dtype))
        at = tensor->data + dtype_size((enum dtype)tensor->dtype, first);
    uint16_t half = tensor->dtype == TENSOR_BF16 ? 0x7f80 : 0x7c00, halves = 0;
    uint32_t whole = 0x7f800000, wholes = 0;
    if (!at)
        for (size_t i = first; i < first + n; i++)
            wholes |= !isfinite(conversion_value(tensor, i));
    else if (tensor->dtype == TENSOR_F32)
        for (size_t i = 0; i < n; i++)
            wholes |= (read_u32(at + 4 * i) & whole) == whole;
    else
        for (size_t i = 0; i < n; i++)
            halves |= (read_u16(at + 2 * i) & half) == half;
    return !wholes && !halves;
}

int weights_check_finite_part(const struct tensor *tensor, size_t first, size_t n,
                              struct error *err)
{
    enum { BLOCK = 4096 };
    for (const size_t end = first + n; first < end; first += BLOCK) {
        size_t left = end - first, here = left < BLOCK ? left : BLOCK, i = first;
        if (are_finite(tensor, first, here))
            continue;
        while (i + 1 < first + here && isfinite(conversion_value(tensor, i)))
            i++;
        return error_set(err, ERROR_INVALID,
                         "%s: tensor \"%s\": expected finite numbers, got %f at element %zu",
                         tensor->file, tensor->name, (double)conversion_value(tensor, i), i);
    }
    return 0;
}

int weights_check_finite(const struct tensor *tensor, struct error *err)
{
    return weights_check_finite_part(tensor, 0, tensor->elements, err);
}

/* As take, of finite numbers. */
static const struct tensor *take_numbers(struct weights *weights, const char *name, int rank,
                                         int64_t *shape, struct error *err)
{
    const struct tensor *tensor = take(weights, name, rank, shape, err);
    if (!tensor || check_number(weights, tensor, err) != 0 ||
        weights_check_finite(tensor, err) != 0)
        return NULL;
    return tensor;
}

/* Numbers [first, first + n) times `scale`. */
static void convert(const struct tensor *tensor, int64_t first, int64_t n, double scale, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)tensor_row(tensor, first + i);
        out[i] = (float)((double)conversion_value(tensor, at) * scale);
    }
}

int weights_floats(struct weights *weights, const char *name, int rank, int64_t *shape,
                   const float **values, struct error *err)
{
    const struct tensor *tensor = take_numbers(weights, name, rank, shape, err);
    if (!tensor)
        return -1;
    float *out = arena_alloc(weights->arena, tensor->elements, sizeof *out, err);
    if (!out)
        return -1;
    convert(tensor, 0, (int64_t)tensor->elements, 1, out);
    *values = out;
    return 0;
}

/* 1 + w in f32, as the library adds it. */
static int add_one(const struct weights *weights, int64_t size, struct norm *norm,
                   struct error *err)
{
    float *sums = arena_alloc(weights->arena, (size_t)size, sizeof *sums, err);
    if (!sums)
        return -1;
    for (int64_t i = 0; i < size; i++)
        sums[i] = 1 + norm->weight[i];
    norm->weight = sums;
    return 0;
}

int weights_norm(struct weights *weights, const char *name, int64_t size, struct norm *norm,
                 struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    if (norm->kind == NORM_NONE || norm->kind == NORM_SIMPLE_RMSNORM || norm->kind == NORM_L2)
        return 0;
    if (weights_floats(weights, weights_name(full, "%s.weight", name), 1, &size, &norm->weight,
                       err) != 0)
        return -1;
    if (norm->plus_one && !tensors_find(weights->file, full)->one_added &&
        add_one(weights, size, norm, err) != 0)
        return -1;
    if (norm->kind == NORM_GATED_RMSNORM)
        return weights_floats(weights, weights_name(full, "%s.gate", name), 1, &size, &norm->gate,
                              err);
    const struct tensor *bias = tensors_find(weights->file, weights_name(full, "%s.bias", name));
    if (norm->kind == NORM_LAYERNORM && bias && bias->elements > 0) /* else it is ignored */
        return weights_floats(weights, full, 1, &size, &norm->bias, err);
    return 0;
}

static bool has_bias(const struct weights *weights, const char *name)
{
    char bias[WEIGHT_NAME_SIZE];
    return weights_has(weights, weights_name(bias, "%s.bias", name));
}

/* Tensors of a convolution. */
struct conv_tensors {
    const struct tensor *weight, *bias;
};

static int take_conv(struct weights *weights, const struct conv_part *part, int width, bool biased,
                     struct conv_tensors *out, struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    const struct tensor *tensor =
        tensors_find(weights->file, weights_name(name, "%s.weight", part->name));
    const bool plain = tensor && tensor->rank == 2;
    int64_t shape[3] = {part->of, plain ? width : 1, width};
    out->weight = take_numbers(weights, name, plain ? 2 : 3, shape, err);
    if (!out->weight || !biased)
        return out->weight ? 0 : -1;
    weights_name(name, "%s.bias", part->name);
    out->bias = take_numbers(weights, name, 1, shape, err);
    return out->bias ? 0 : -1;
}

int weights_conv(struct weights *weights, const struct conv_part *parts, int count,
                 enum weight_bias bias, struct convolution *conv, struct error *err)
{
    int64_t channels = 0;
    for (int i = 0; i < count; i++)
        channels += parts[i].channels;
    const bool biased =
        bias == WEIGHT_HAS_BIAS || (bias == WEIGHT_MAY_BIAS && has_bias(weights, parts[0].name));
    float *weight =
        arena_alloc(weights->arena, (size_t)(channels * conv->width), sizeof *weight, err);
    float *biases = biased && weight
                        ? arena_alloc(weights->arena, (size_t)channels, sizeof *biases, err)
                        : NULL;
    if (!weight || (biased && !biases))
        return -1;
    conv->weight = weight;
    conv->bias = biases;
    struct conv_tensors from = {0};
    for (int i = 0; i < count; i++) {
        const struct conv_part *part = &parts[i];
        const int64_t numbers = part->channels * conv->width;
        if ((i == 0 || strcmp(part->name, parts[i - 1].name) != 0) &&
            take_conv(weights, part, conv->width, biased, &from, err) != 0)
            return -1;
        convert(from.weight, part->first * conv->width, numbers, part->scale, weight);
        weight += numbers;
        if (!biased)
            continue;
        convert(from.bias, part->first, part->channels, 1, biases);
        biases += part->channels;
    }
    return 0;
}

int weights_permutation(struct weights *weights, const char *name, int64_t size,
                        const int32_t **permutation, struct error *err)
{
    struct tensor *tensor = take(weights, name, 1, &size, err);
    if (!tensor)
        return -1;
    if (tensor->dtype != TENSOR_I32 && tensor->dtype != TENSOR_I64)
        return weights_bad(weights, name, err, "expected dtype I32 or I64, got %s",
                           tensor_dtype_name(tensor->dtype));
    int32_t *out = arena_alloc(weights->arena, (size_t)size, sizeof *out, err);
    bool *seen = arena_alloc(weights->arena, (size_t)size, sizeof *seen, err);
    if (!out || !seen)
        return -1;
    for (int64_t i = 0; i < size; i++) {
        int64_t image = tensor->dtype == TENSOR_I32 ? (int32_t)read_u32(tensor->data + 4 * i)
                                                    : (int64_t)read_u64(tensor->data + 8 * i);
        if (image < 0 || image >= size || seen[image])
            return weights_bad(weights, name, err,
                               "expected a permutation of 0..%" PRId64 ", got %" PRId64
                               "%s at element %" PRId64,
                               size - 1, image, image >= 0 && image < size ? " again" : "", i);
        seen[image] = true;
        out[i] = (int32_t)image;
    }
    *permutation = out;
    return 0;
}

int weights_finish(struct weights *weights, struct model *model, struct error *err)
{
    size_t bytes[NUM_DTYPES] = {0};
    model->parameters = 0;
    for (size_t i = 0; i < tensors_count(weights->file); i++) {
        const struct tensor *tensor = tensors_at(weights->file, i);
        if (!tensor->used)
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"%.100s\": the configuration has no use for it",
                             tensor->file, tensor->name);
        if (tensor->packed) { /* two to a byte */
            model->parameters += 2 * (int64_t)tensor->elements;
            bytes[DTYPE_MXFP4] += tensor->bytes;
        }
        if (tensor->elements == 0 || tensor->scale || !conversion_is_number(tensor->dtype))
            continue;
        model->parameters += (int64_t)tensor->elements;
        const enum dtype dtype = conversion_dtype(weights->fp8, tensor);
        bytes[dtype] += dtype_size(dtype, tensor->elements);
    }
    if (four_bits_finish(weights->beside, err) != 0)
        return -1;
    model->dtype = DTYPE_F32;
    for (enum dtype dtype = DTYPE_F16; dtype < NUM_DTYPES; dtype++)
        if (bytes[dtype] > bytes[model->dtype])
            model->dtype = dtype;
    model->file_bytes = tensors_file_bytes(weights->file);
    return 0;
}
