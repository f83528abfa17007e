/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/packing.h"

#include "engine/model/model.h"
#include "engine/model/quantized.h"
#include "lib/base/file.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

int packing_check(const struct matrix *parts, int num_parts, int heads, int64_t *rows, bool *biased,
                  struct error *err)
{
    *rows = 0;
    *biased = false;
    for (int i = 0; i < num_parts; i++) {
        if (parts[i].rows < 1 || parts[i].cols < 1 || parts[i].cols != parts[0].cols ||
            parts[i].rows > INT32_MAX || parts[i].cols > INT32_MAX)
            return error_set(err, ERROR_INTERNAL, "a matrix of %lld x %lld cannot be packed",
                             (long long)parts[i].rows, (long long)parts[i].cols);
        *rows += parts[i].rows;
        *biased = *biased || parts[i].bias != NULL;
    }
    if (*rows % heads != 0)
        return error_set(err, ERROR_INTERNAL, "%lld rows are no %d heads", (long long)*rows, heads);
    return 0;
}

enum weight_format packing_dtype_format(enum dtype dtype)
{
    static const enum weight_format formats[NUM_DTYPES] = {
        [DTYPE_F32] = WEIGHTS_F32, [DTYPE_F16] = WEIGHTS_F16, [DTYPE_BF16] = WEIGHTS_BF16,
        [DTYPE_Q4_0] = WEIGHTS_Q4, [DTYPE_Q4_1] = WEIGHTS_Q4, [DTYPE_Q5_0] = WEIGHTS_Q6,
        [DTYPE_Q8_0] = WEIGHTS_Q8, [DTYPE_Q4_K] = WEIGHTS_Q4, [DTYPE_Q6_K] = WEIGHTS_Q6,
        [DTYPE_MXFP4] = WEIGHTS_Q6};
    return formats[dtype] == WEIGHTS_AUTO ? WEIGHTS_F16 : formats[dtype];
}

enum weight_format packing_format(const struct matrix *parts, int num_parts)
{
    const enum weight_format format = packing_dtype_format(parts[0].dtype);
    bool same = true, blocks = true;
    for (int i = 0; i < num_parts; i++) {
        same = same && packing_dtype_format(parts[i].dtype) == format;
        blocks = blocks && dtype_block(parts[i].dtype) > 1;
    }
    return same ? format : blocks ? WEIGHTS_F16 : WEIGHTS_F32;
}

void packing_biases(const struct matrix *parts, int num_parts, float *out)
{
    for (int i = 0; i < num_parts; out += parts[i].rows, i++) {
        size_t bytes = (size_t)parts[i].rows * sizeof(float);
        if (parts[i].bias != NULL)
            memcpy(out, parts[i].bias, bytes);
        else
            memset(out, 0, bytes);
    }
}

int packing_too_large(const struct matrix *parts, int64_t rows, enum weight_format format,
                      struct error *err)
{
    return error_set(err, ERROR_INVALID,
                     "weights: a number of a matrix of %lld x %lld is too large for %s",
                     (long long)rows, (long long)parts[0].cols, weight_format_name(format));
}

void packing_numbers(const struct matrix *matrix, int64_t first, int64_t n, float *out)
{
    quantized_numbers(matrix->dtype, matrix->data, first, n, out);
}

/* n numbers of a row from the model's column k on: pieces that a file has beside each other. */
static void row_numbers(const struct matrix *matrix, int64_t row, int64_t k, int64_t n, float *out)
{
    const int64_t first = model_matrix_row(matrix, row) * matrix->cols;
    const struct tensor_order *columns = &matrix->columns;
    if (columns->a == 0) {
        packing_numbers(matrix, first + k, n, out);
        return;
    }
    for (int64_t done = 0, piece; done < n; done += piece) {
        piece = columns->inner - (k + done) % columns->inner;
        piece = piece < n - done ? piece : n - done;
        packing_numbers(matrix, first + tensor_order_row(columns, k + done), piece, out + done);
    }
}

void packing_rows(const struct matrix *parts, int64_t row, int64_t rows, int64_t k, int64_t n,
                  float (*out)[PACKING_BLOCK])
{
    for (; row >= parts->rows; parts++)
        row -= parts->rows;
    for (int64_t j = 0; j < rows; j++, row++) {
        if (row == parts->rows) {
            parts++;
            row = 0;
        }
        row_numbers(parts, row, k, n, out[j]);
    }
}

/* Calls `give` with each part's memory of some rows, where a file has them beside each other. */
static void for_mapped(const struct matrix *parts, int num_parts, int64_t row, int64_t rows,
                       void (*give)(const void *, size_t))
{
    for (int i = 0; i < num_parts; row -= parts[i++].rows) {
        const struct matrix *part = &parts[i];
        const int64_t from = row > 0 ? row : 0, end = row + rows;
        const int64_t to = end < part->rows ? end : part->rows;
        const size_t row_bytes = dtype_size(part->dtype, (size_t)part->cols);
        if (!part->mapped || part->part.run > 0 || part->order.a > 0 || from >= to)
            continue;
        give((const char *)part->data + (size_t)from * row_bytes, (size_t)(to - from) * row_bytes);
    }
}

void packing_ahead(const struct matrix *parts, int num_parts, int64_t row, int64_t rows)
{
    for_mapped(parts, num_parts, row, rows, file_ahead);
}

void packing_done(const struct matrix *parts, int num_parts, int64_t row, int64_t rows)
{
    for_mapped(parts, num_parts, row, rows, file_release);
}

/* Without branches, so that compilers make vector loops. False: finite, and too large. */
static inline bool to_bf16(float value, uint16_t *bits)
{
    *bits = f32_to_bf16(value);
    return (*bits & 0x7f80) != 0x7f80 || (bits_of_float(value) & 0x7f800000) == 0x7f800000;
}

static inline bool to_f16(float value, uint16_t *bits)
{
    *bits = f32_to_f16(value);
    return (*bits & 0x7c00) != 0x7c00 || (bits_of_float(value) & 0x7f800000) == 0x7f800000;
}

bool packing_half(enum weight_format format, float value, uint16_t *bits)
{
    return weight_format_has(format, HAS_WIDE_EXPONENT) ? to_bf16(value, bits)
                                                        : to_f16(value, bits);
}

bool packing_halves(enum weight_format format, const float from[PACKING_BLOCK],
                    uint16_t bits[PACKING_BLOCK])
{
    unsigned fits = 1;
    if (weight_format_has(format, HAS_WIDE_EXPONENT))
        for (int i = 0; i < PACKING_BLOCK; i++)
            fits &= to_bf16(from[i], &bits[i]);
    else
        for (int i = 0; i < PACKING_BLOCK; i++)
            fits &= to_f16(from[i], &bits[i]);
    return fits != 0;
}

/* The scale of 32 weights, in f16 before they are divided by it: what a weight is multiplied with
 * is what it was divided by. Up where the nearest (of f16's subnormals) would cut the largest. */
static uint16_t scale_of(const float *from)
{
    int32_t top = 0; /* of the bits: NaN is the largest */
    for (int i = 0; i < PACKING_BLOCK; i++) {
        int32_t bits = (int32_t)(bits_of_float(from[i]) & 0x7fffffff);
        top = bits > top ? bits : top;
    }
    float largest = float_of_bits((uint32_t)top);
    uint16_t scale = f32_to_f16(largest / 127.0f);
    return largest > 127.5f * f16_to_f32(scale) ? (uint16_t)(scale + 1) : scale;
}

/* What is added has the last place 1, so the sum is rounded as rintf does, in a vector loop. */
#define TO_INTEGER 0x1.8p23f

static bool quantize_q8(const float *from, struct quantized_integers *out)
{
    out->scale = scale_of(from);
    float scale = f16_to_f32(out->scale);
    if (!(scale > 0.0f) || !isfinite(scale)) {
        memset(out->quants, 0, PACKING_BLOCK);
        return isfinite(scale);
    }
    for (int i = 0; i < PACKING_BLOCK; i++) {
        float quant = from[i] / scale + TO_INTEGER - TO_INTEGER;
        quant = quant > 127.0f ? 127.0f : quant;
        quant = quant < -127.0f ? -127.0f : quant;
        out->quants[i] = (int8_t)(int)quant;
    }
    return true;
}

/* The nearest of 0..15 to each number, with a scale above 0. */
static inline void nearest_q4(const float *from, float scale, float minimum, float *quants)
{
    const float inverse = 1.0f / scale;
    for (int i = 0; i < PACKING_BLOCK; i++) {
        float quant = (from[i] - minimum) * inverse;
        quant = quant > 15.0f ? 15.0f : quant;
        quant = quant < 0.0f ? 0.0f : quant;
        quants[i] = quant + TO_INTEGER - TO_INTEGER;
    }
}

/* Sum of a * b over a block, in lanes, so that compilers make vector loops. */
static inline float block_dot(const float *a, const float *b)
{
    float lanes[8] = {0};
    for (int i = 0; i < PACKING_BLOCK; i += 8)
        for (int j = 0; j < 8; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (int width = 4; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lanes[j] += lanes[j + width];
    return lanes[0];
}

/* A choice of scale and minimum. */
struct q4_choice {
    float scale, minimum;
};

/* The best so far, of a block's numbers. */
struct q4_search {
    const float *from;
    float sum;   /* of the numbers */
    float least; /* squared error */
    uint16_t scale, minimum;
    struct q4_choice wants; /* what its quants fit best */
};

/* Tries a choice, as f16 has it; it becomes what its quants fit best. False: they fit none, or it
 * is none. */
static bool try_q4(struct q4_search *search, struct q4_choice *choice)
{
    static const float ones[PACKING_BLOCK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint16_t scale_bits = f32_to_f16(choice->scale);
    const uint16_t minimum_bits = f32_to_f16(choice->minimum);
    const float s = f16_to_f32(scale_bits), m = f16_to_f32(minimum_bits);
    float quants[PACKING_BLOCK], errors[PACKING_BLOCK];
    if (!(s > 0.0f) || !isfinite(s) || !isfinite(m))
        return false;
    nearest_q4(search->from, s, m, quants);
    for (int i = 0; i < PACKING_BLOCK; i++)
        errors[i] = quants[i] * s + m - search->from[i];
    const float error = block_dot(errors, errors);
    const float q = block_dot(quants, ones), qq = block_dot(quants, quants);
    const float qx = block_dot(quants, search->from), spread = PACKING_BLOCK * qq - q * q;
    choice->scale = (PACKING_BLOCK * qx - q * search->sum) / spread;
    choice->minimum = (search->sum - choice->scale * q) / PACKING_BLOCK;
    if (error < search->least) {
        search->least = error;
        search->scale = scale_bits;
        search->minimum = minimum_bits;
        search->wants = *choice;
    }
    return spread > 0.0f;
}

static void descend_q4(struct q4_search *search, struct q4_choice choice, int steps)
{
    for (bool any = true; any && steps > 0; steps--)
        any = try_q4(search, &choice);
}

void packing_q4_start(int i, float lowest, float highest, float *scale, float *minimum)
{
    enum { PLACES = 3 };
    static const float widths[] = {14.25f, 15.5f, 16.75f}; /* in scales */
    const float width = i == 0 ? 15.0f : widths[(i - 1) / PLACES];
    const float place = i == 0 ? 0.0f : (float)((i - 1) % PLACES) / (PLACES - 1);
    *scale = (highest - lowest) / width;
    *minimum = lowest + *scale * (width - 15.0f) * place;
}

/* Goes from each start to what its quants want, and on from the best. */
static void search_q4(struct q4_search *search, float lowest, float highest)
{
    enum { STEPS = 2, LAST_STEPS = 3 };
    struct q4_choice choice;
    for (int i = 0; i < PACKING_Q4_STARTS && search->least > 0.0f; i++) {
        packing_q4_start(i, lowest, highest, &choice.scale, &choice.minimum);
        descend_q4(search, choice, STEPS);
    }
    descend_q4(search, search->wants, LAST_STEPS);
}

static bool quantize_q4(const float *from, struct quantized_integers *out)
{
    float lowest = from[0], highest = from[0], quants[PACKING_BLOCK];
    struct q4_search search = {.from = from, .least = INFINITY};
    for (int i = 0; i < PACKING_BLOCK; i++) {
        lowest = from[i] < lowest ? from[i] : lowest;
        highest = from[i] > highest ? from[i] : highest;
        search.sum += from[i];
    }
    *out = (struct quantized_integers){.minimum = f32_to_f16(lowest)};
    if (!isfinite(search.sum) || !isfinite(f16_to_f32(out->minimum)) ||
        highest - lowest > 15 * 65504.0f)
        return false;
    search_q4(&search, lowest, highest);
    if (search.least == INFINITY) /* all are equal, or differ less than f16 can say */
        return true;
    out->scale = search.scale;
    out->minimum = search.minimum;
    nearest_q4(from, f16_to_f32(out->scale), f16_to_f32(out->minimum), quants);
    for (int i = 0; i < PACKING_BLOCK; i++)
        out->quants[i] = (int8_t)(int)quants[i];
    return true;
}

/* The nearest of -32..31 to each of a half's numbers, and the squared error. */
static inline float nearest_q6(const float *from, float scale, float *quants)
{
    const float inverse = 1.0f / scale;
    float lanes[8] = {0};
    for (int i = 0; i < PACKING_BLOCK / 2; i++) {
        float quant = from[i] * inverse;
        quant = quant > 31.0f ? 31.0f : quant;
        quant = quant < -32.0f ? -32.0f : quant;
        quants[i] = quant + TO_INTEGER - TO_INTEGER;
        const float error = quants[i] * scale - from[i];
        lanes[i % 8] += error * error;
    }
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
           ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/* The scale for a half of a block: tries some near that which makes its outermost number -32, and
 * those that their quants want. */
static float scale_q6(const float *from)
{
    enum { RANGES = 5 };
    float outermost = 0.0f, best = 0.0f, least = INFINITY;
    for (int i = 0; i < PACKING_BLOCK / 2; i++)
        outermost = fabsf(from[i]) > fabsf(outermost) ? from[i] : outermost;
    for (int i = 0; i < RANGES; i++) {
        float scale = outermost / -(30.0f + (float)i), quants[PACKING_BLOCK / 2];
        for (int step = 0; step < 2 && fabsf(scale) >= 0x1p-100f; step++) {
            const float error = nearest_q6(from, scale, quants);
            if (error < least) {
                least = error;
                best = scale;
            }
            float qx = 0.0f, qq = 0.0f;
            for (int j = 0; j < PACKING_BLOCK / 2; j++) {
                qx += quants[j] * from[j];
                qq += quants[j] * quants[j];
            }
            scale = qq > 0.0f ? qx / qq : 0.0f;
        }
    }
    return best;
}

static bool quantize_q6(const float *from, struct quantized_integers *out)
{
    enum { MOST = 127 };
    const float most = 0x1p40f; /* past every scale, and squared errors do not overflow yet */
    float scales[2];
    bool fits = true;
    for (int i = 0; i < PACKING_BLOCK; i++)
        fits = fits && fabsf(from[i]) <= most; /* not NaN either */
    *out = (struct quantized_integers){0};
    if (!fits)
        return false;
    for (int half = 0; half < 2; half++)
        scales[half] = scale_q6(from + half * PACKING_BLOCK / 2);
    const float largest = fmaxf(fabsf(scales[0]), fabsf(scales[1]));
    out->scale = f32_to_f16(largest / MOST);
    if (largest > (MOST + 0.5f) * f16_to_f32(out->scale)) /* of f16's subnormals */
        out->scale++;
    const float unit = f16_to_f32(out->scale);
    for (int half = 0; half < 2 && unit > 0.0f && isfinite(unit); half++) {
        float factor = scales[half] / unit + TO_INTEGER - TO_INTEGER, quants[PACKING_BLOCK / 2];
        factor = factor > MOST ? MOST : factor < -MOST ? -MOST : factor;
        out->factors[half] = (int8_t)(int)factor;
        if (factor == 0.0f)
            continue;
        nearest_q6(from + half * PACKING_BLOCK / 2, factor * unit, quants);
        for (int i = 0; i < PACKING_BLOCK / 2; i++)
            out->quants[half * PACKING_BLOCK / 2 + i] = (int8_t)(int)quants[i];
    }
    return isfinite(unit);
}

float packing_quant_value(enum weight_format format, const struct quantized_integers *block, int i)
{
    const float scale = f16_to_f32(block->scale), quant = (float)block->quants[i];
    if (weight_format_has(format, HAS_FACTORS))
        return quant * ((float)block->factors[i / (PACKING_BLOCK / 2)] * scale);
    return weight_format_minimum(format) ? quant * scale + f16_to_f32(block->minimum)
                                         : quant * scale;
}

bool packing_quantize(enum weight_format format, const float from[PACKING_BLOCK], int64_t n,
                      struct quantized_integers *out)
{
#define OF_FLOATS(end) NULL
#define OF_HALVES(end) NULL
#define OF_INTEGERS(end) quantize_##end
#define QUANTIZER(value, name, end, kind, ...) [value] = OF_##kind(end),
    static bool (*const quantizers[WEIGHT_FORMAT_COUNT])(
        const float *, struct quantized_integers *) = {WEIGHT_FORMATS(QUANTIZER)};
    float numbers[PACKING_BLOCK];
    if (n == PACKING_BLOCK)
        return quantizers[format](from, out);
    for (int64_t i = 0; i < PACKING_BLOCK; i++) /* repeated, they change no range */
        numbers[i] = from[i % n];
    return quantizers[format](numbers, out);
}

/* The block of n inputs of a row from k on, as a file has it. False: not in this format. */
static bool keep_block(enum weight_format format, const struct matrix *matrix, int64_t row,
                       int64_t k, int64_t n, struct quantized_integers *out)
{
    const struct tensor_order *columns = &matrix->columns;
    const int64_t first = model_matrix_row(matrix, row) * matrix->cols;
    const bool beside = format == PACKING_FOUR_BITS && matrix->q4 != NULL;
    const enum dtype dtype = beside ? DTYPE_Q4_1 : matrix->dtype;
    const void *data = beside ? matrix->q4 : matrix->data;
    if (n < PACKING_BLOCK || dtype_block(dtype) == 1 || packing_dtype_format(dtype) != format)
        return false;
    if (columns->a == 0)
        return quantized_integers(dtype, data, first + k, out);
    return columns->inner % PACKING_BLOCK == 0 &&
           quantized_integers(dtype, data, first + tensor_order_row(columns, k), out);
}

bool packing_blocks(enum weight_format format, const struct matrix *parts, int64_t row,
                    int64_t rows, int64_t k, int64_t n, struct quantized_integers *out)
{
    bool fits = true;
    for (; row >= parts->rows; parts++)
        row -= parts->rows;
    for (int64_t j = 0; j < rows; j++, row++) {
        float numbers[PACKING_BLOCK] = {0};
        if (row == parts->rows) {
            parts++;
            row = 0;
        }
        if (keep_block(format, parts, row, k, n, &out[j]))
            continue;
        row_numbers(parts, row, k, n, numbers);
        fits = packing_quantize(format, numbers, n, &out[j]) && fits;
    }
    return fits;
}
