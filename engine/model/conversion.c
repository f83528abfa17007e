/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/conversion.h"

#include "engine/model/quantized.h"
#include "lib/base/bytes.h"
#include "lib/base/half.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool conversion_is_number(enum tensor_dtype dtype)
{
    return tensor_dtype_of_matrices(dtype) || dtype == TENSOR_F64 || dtype == TENSOR_F8_E4M3;
}

float conversion_value(const struct tensor *tensor, size_t i)
{
    double wide;
    uint64_t bits;
    float value;
    if (tensor_dtype_of_matrices(tensor->dtype)) {
        quantized_numbers((enum dtype)tensor->dtype, tensor->data, (int64_t)i, 1, &value);
        return value;
    }
    switch (tensor->dtype) {
    case TENSOR_F8_E4M3:
        return e4m3_to_f32(tensor->data[i]);
    case TENSOR_F64:
        bits = read_u64(tensor->data + 8 * i);
        memcpy(&wide, &bits, sizeof wide);
        return fabs(wide) > FLT_MAX ? (float)copysign(INFINITY, wide) : (float)wide;
    default:
        return float_of_bits(read_u32(tensor->data + 4 * i));
    }
}

enum dtype conversion_dtype(const struct fp8_config *fp8, const struct tensor *tensor)
{
    if (tensor_dtype_of_matrices(tensor->dtype))
        return (enum dtype)tensor->dtype;
    if (tensor->dtype == TENSOR_F8_E4M3)
        return fp8 ? fp8->dtype : DTYPE_BF16;
    return DTYPE_F32;
}

/* The scales of a matrix: one for each block of rows x cols numbers. */
struct scales {
    const struct tensor *tensor; /* NULL: none */
    int64_t rows, cols;          /* of a block */
    int64_t across;              /* blocks side by side */
};

/* The exponent alone: DeepSeek's ue8m0, also as U8. */
static bool is_exponent(const struct tensor *tensor)
{
    return tensor->dtype == TENSOR_F8_E8M0 || tensor->dtype == TENSOR_U8;
}

static float scale_at(const struct scales *scales, int64_t row, int64_t col)
{
    size_t i = (size_t)(row / scales->rows * scales->across + col / scales->cols);
    if (!is_exponent(scales->tensor))
        return conversion_value(scales->tensor, i);
    int byte = scales->tensor->data[i];
    return byte == 255 ? NAN : ldexpf(1, byte - 127);
}

/* The tensor whose name is `tensor`'s, without `cut` characters at its end and with `end`. */
static struct tensor *find_beside(struct tensors *file, const struct tensor *tensor, size_t cut,
                                  const char *end)
{
    char name[256];
    int length = (int)(strlen(tensor->name) - cut);
    snprintf(name, sizeof name, "%.*s%s", length, tensor->name, end);
    return tensors_find(file, name);
}

/* NAME.weight has NAME.weight_scale_inv or NAME.weight_scale, and maybe scales of activations,
 * which are not quantized here. */
static struct tensor *find_scale(struct tensors *file, const struct tensor *tensor)
{
    static const char weight[] = ".weight";
    static const char *const ignored[] = {".activation_scale", ".input_scale"};
    size_t length = strlen(tensor->name), cut = sizeof weight - 1;
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        struct tensor *found = length > cut && strcmp(tensor->name + length - cut, weight) == 0
                                   ? find_beside(file, tensor, cut, ignored[i])
                                   : NULL;
        if (found)
            tensor_ignore(found);
    }
    struct tensor *inverse = find_beside(file, tensor, 0, "_scale_inv");
    return inverse ? inverse : find_beside(file, tensor, 0, "_scale");
}

static int64_t blocks_in(int64_t size, int64_t block)
{
    return (size + block - 1) / block;
}

/* The blocks: those of the configuration, one, or, where it has none, equal ones. */
static int fit_blocks(const struct fp8_config *fp8, const struct matrix *matrix,
                      const struct tensor *tensor, struct scales *scales, struct error *err)
{
    const int64_t *block = fp8->block;
    const bool one = tensor->elements == 1;
    const int64_t down = one ? 1 : tensor->shape[0], across = one ? 1 : tensor->shape[1];
    *scales = (struct scales){tensor, block[0], block[1], across};
    if (!one && tensor->rank == 2 && block[0] > 0 && blocks_in(matrix->rows, block[0]) == down &&
        blocks_in(matrix->cols, block[1]) == across)
        return 0;
    if (!one && (block[0] > 0 || tensor->rank != 2 || down < 1 || across < 1 ||
                 matrix->rows % down != 0 || matrix->cols % across != 0)) {
        char got[160];
        return error_set(err, ERROR_INVALID,
                         "%s: tensor \"%.100s\": expected a scale for each block of the [%" PRId64
                         ", %" PRId64 "] numbers, got shape %s",
                         tensor->file, tensor->name, matrix->rows, matrix->cols,
                         tensor_shape_text(tensor->shape, tensor->rank, got, sizeof got));
    }
    scales->rows = matrix->rows / down;
    scales->cols = matrix->cols / across;
    return 0;
}

static int take_scales(struct tensors *file, const struct fp8_config *fp8, struct tensor *tensor,
                       const struct matrix *matrix, struct scales *scales, struct error *err)
{
    *scales = (struct scales){0};
    if (tensor->dtype != TENSOR_F8_E4M3 || !fp8 || !fp8->scaled)
        return 0;
    struct tensor *found = find_scale(file, tensor);
    if (!found)
        return error_set(
            err, ERROR_INVALID,
            "%s: tensor \"%.100s\": expected its scales beside it, as ..._scale_inv or "
            "..._scale, got neither",
            tensor->file, tensor->name);
    if (!is_exponent(found) &&
        (!conversion_is_number(found->dtype) || found->dtype == TENSOR_F8_E4M3))
        return error_set(
            err, ERROR_INVALID,
            "%s: tensor \"%.100s\": expected dtype F32, F16, BF16, F64, F8_E8M0 or U8, "
            "got %s",
            found->file, found->name, tensor_dtype_name(found->dtype));
    found->used = found->scale = true;
    if (fit_blocks(fp8, matrix, found, scales, err) != 0)
        return -1;
    tensor->block[0] = scales->rows;
    tensor->block[1] = scales->cols;
    return 0;
}

/* The number times its scale, rounded as transformers does: to f32, then to the matrix's dtype.
 * False: it is not finite. */
static bool convert(const struct tensor *tensor, size_t i, float scale, enum dtype dtype, void *out)
{
    float value = conversion_value(tensor, i) * scale;
    if (dtype == DTYPE_F32) {
        memcpy(out, &value, sizeof value);
        return isfinite(value);
    }
    uint16_t half = dtype == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
    memcpy(out, &half, sizeof half);
    return isfinite(dtype == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half));
}

/* One row. Returns the first column that is not finite, or cols. */
static int64_t convert_row(const struct tensor *tensor, const struct scales *scales,
                           const struct matrix *matrix, int64_t row, unsigned char *out)
{
    const int64_t cols = matrix->cols, run = scales->tensor ? scales->cols : cols;
    const size_t size = dtype_size(matrix->dtype, 1);
    float scale = 1;
    for (int64_t col = 0; col < cols; col++) {
        if (scales->tensor && col % run == 0)
            scale = scale_at(scales, row, col);
        if (!convert(tensor, (size_t)(row * cols + col), scale, matrix->dtype,
                     out + (size_t)col * size))
            return col;
    }
    return cols;
}

int conversion_matrix(struct tensors *file, struct arena *arena, const struct fp8_config *fp8,
                      struct tensor *tensor, struct matrix *matrix, struct error *err)
{
    struct scales scales;
    if (take_scales(file, fp8, tensor, matrix, &scales, err) != 0)
        return -1;
    size_t row_bytes = dtype_size(matrix->dtype, (size_t)matrix->cols);
    unsigned char *data = arena_alloc(arena, (size_t)matrix->rows, row_bytes, err);
    if (!data)
        return -1;
    for (int64_t row = 0; row < matrix->rows; row++) {
        int64_t col = convert_row(tensor, &scales, matrix, row, data + (size_t)row * row_bytes);
        if (col < matrix->cols)
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"%.100s\": expected finite numbers, got another at "
                             "element %" PRId64,
                             tensor->file, tensor->name, row * matrix->cols + col);
    }
    matrix->data = data;
    return 0;
}
