#include "engine/cpu/weights.h"

#include "engine/base/half.h"
#include "engine/cpu/kernels.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void weights_read(const struct matrix *matrix, int64_t first, int64_t n, float *out)
{
    if (matrix->dtype == DTYPE_F32) {
        memcpy(out, (const char *)matrix->data + first * 4, (size_t)n * sizeof(float));
        return;
    }
    const char *at = (const char *)matrix->data + first * 2;
    if (matrix->dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = bf16_to_f32(read_u16(at + i * 2));
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = f16_to_f32(read_u16(at + i * 2));
}

static size_t panel_bytes(enum weight_format format, int64_t in)
{
    if (format == WEIGHTS_Q8)
        return (size_t)(in + 31) / 32 * sizeof(struct q8_block);
    return (size_t)in * PANEL * (format == WEIGHTS_F32 ? sizeof(float) : sizeof(uint16_t));
}

size_t weights_packed_bytes(enum weight_format format, int64_t in, int64_t out, int heads)
{
    size_t panels = (size_t)(out + PANEL - 1) / PANEL * (size_t)heads, bytes;
    return __builtin_mul_overflow(panel_bytes(format, in), panels, &bytes) ? SIZE_MAX : bytes;
}

/* The narrowest format that holds all the parts as they are. */
static enum weight_format format_of(const struct matrix *parts, int num_parts)
{
    static const enum weight_format formats[] = {
        [DTYPE_F32] = WEIGHTS_F32, [DTYPE_F16] = WEIGHTS_F16, [DTYPE_BF16] = WEIGHTS_BF16};
    for (int i = 1; i < num_parts; i++)
        if (parts[i].dtype != parts[0].dtype)
            return WEIGHTS_F32;
    return formats[parts[0].dtype];
}

struct packing {
    struct weight *weight;
    const struct matrix *parts;
    atomic_bool too_large; /* a number for the format */
};

/* numbers: 32 outputs, n inputs of each from input k on, the others zero. */
typedef float numbers[PANEL][32];

static bool pack_halves(const struct weight *weight, unsigned char *panel, int64_t k, int64_t n,
                        numbers from)
{
    bool bf16 = weight->format == WEIGHTS_BF16, fits = true;
    uint16_t *row = (uint16_t *)(void *)panel + k * PANEL;
    for (int64_t i = 0; i < n; i++, row += PANEL)
        for (int j = 0; j < PANEL; j++) {
            float value = from[j][i];
            uint16_t bits = bf16 ? f32_to_bf16(value) : f32_to_f16(value);
            fits =
                fits && (isfinite(bf16 ? bf16_to_f32(bits) : f16_to_f32(bits)) || !isfinite(value));
            row[bf16 ? j % 16 * 2 + j / 16 : j] = bits;
        }
    return fits;
}

/* The scale of 32 weights, in f16 before they are divided by it: what a weight is multiplied with
 * is what it was divided by. Up where the nearest (of f16's subnormals) would cut the largest. */
static uint16_t scale_of(const float *from)
{
    uint32_t top = 0; /* of the bits: NaN is the largest */
    for (int i = 0; i < 32; i++) {
        uint32_t bits = bits_of_float(from[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    float largest = float_of_bits(top);
    uint16_t scale = f32_to_f16(largest / 127.0f);
    return largest > 127.5f * f16_to_f32(scale) ? (uint16_t)(scale + 1) : scale;
}

static bool pack_q8(unsigned char *panel, int64_t k, numbers from)
{
    struct q8_block *block = (struct q8_block *)(void *)panel + k / 32;
    bool fits = true;
    for (int j = 0; j < PANEL; j++) {
        block->scales[j] = scale_of(from[j]);
        float scale = f16_to_f32(block->scales[j]);
        fits = fits && isfinite(scale);
        for (int i = 0; i < 32; i++) {
            float quant = scale > 0.0f && isfinite(scale) ? rintf(from[j][i] / scale) : 0.0f;
            quant = quant > 127.0f ? 127.0f : quant < -127.0f ? -127.0f : quant;
            block->quants[i / 4][j][i % 4] = (uint8_t)(128 + (int)quant);
        }
    }
    return fits;
}

/* n inputs from k on of the 32 outputs from `row` of the stacked parts on, of which `rows` exist.
 */
static void read_numbers(const struct packing *packing, int64_t row, int64_t rows, int64_t k,
                         int64_t n, numbers out)
{
    const struct matrix *part = packing->parts;
    for (; row >= part->rows; part++)
        row -= part->rows;
    for (int64_t j = 0; j < rows; j++, row++) {
        if (row == part->rows) {
            part++;
            row = 0;
        }
        weights_read(part, row * part->cols + k, n, out[j]);
    }
}

static void pack_panel(void *context, int task, int thread)
{
    (void)thread;
    struct packing *packing = context;
    struct weight *weight = packing->weight;
    unsigned char *panel = weight->data + (size_t)task * weight->panel_bytes;
    int64_t head = task / weight->panels, first = task % weight->panels * PANEL;
    int64_t rows = weight->out - first < PANEL ? weight->out - first : PANEL;
    numbers from = {{0}};
    bool fits = true;
    for (int64_t k = 0; k < weight->in; k += 32) {
        int64_t n = weight->in - k < 32 ? weight->in - k : 32;
        if (n < 32)
            memset(from, 0, sizeof from);
        read_numbers(packing, head * weight->out + first, rows, k, n, from);
        if (weight->format == WEIGHTS_Q8)
            fits = pack_q8(panel, k, from) && fits;
        else if (weight->format != WEIGHTS_F32)
            fits = pack_halves(weight, panel, k, n, from) && fits;
        else
            for (int64_t i = 0; i < n; i++)
                for (int j = 0; j < PANEL; j++)
                    ((float *)(void *)panel)[(k + i) * PANEL + j] = from[j][i];
    }
    if (!fits)
        atomic_store_explicit(&packing->too_large, true, memory_order_relaxed);
}

static void copy_biases(struct weight *weight, const struct matrix *parts, int num_parts)
{
    float *bias = weight->bias;
    for (int i = 0; i < num_parts; bias += parts[i].rows, i++)
        if (parts[i].bias != NULL)
            memcpy(bias, parts[i].bias, (size_t)parts[i].rows * sizeof(float));
}

static int check_parts(const struct matrix *parts, int num_parts, int heads, int64_t *rows,
                       bool *biased, struct error *err)
{
    *rows = 0;
    *biased = false;
    for (int i = 0; i < num_parts; i++) {
        if (parts[i].rows < 1 || parts[i].cols < 1 || parts[i].cols != parts[0].cols ||
            parts[i].rows % heads != 0 || parts[i].rows > INT32_MAX || parts[i].cols > INT32_MAX)
            return error_set(err, ERROR_INTERNAL, "a matrix of %lld x %lld cannot be packed",
                             (long long)parts[i].rows, (long long)parts[i].cols);
        *rows += parts[i].rows;
        *biased = *biased || parts[i].bias != NULL;
    }
    return 0;
}

/* Memory of matrices beside each other: a huge page holds parts of several. */
struct weight_chunk {
    char *data;
    size_t size, used;
    int weights; /* that lie in it */
};

static const size_t huge_page = (size_t)2 << 20, chunk_size = (size_t)64 << 20;

static struct weight_chunk *create_chunk(size_t bytes)
{
    struct weight_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL || bytes > SIZE_MAX / 2)
        return free(chunk), NULL;
    chunk->size = bytes < chunk_size ? chunk_size : (bytes + huge_page - 1) / huge_page * huge_page;
    chunk->data = aligned_alloc(huge_page, chunk->size); /* costs memory where it is written */
    if (chunk->data == NULL)
        return free(chunk), NULL;
    madvise(chunk->data, chunk->size, MADV_HUGEPAGE);
    return chunk;
}

/* On huge pages where the kernel agrees: decoding reads all of the weights every token, and faster
 * so. What is small goes to malloc. */
static int allocate(struct weight *weight, struct weight_chunk **last)
{
    if (weight->bytes < 65536) {
        weight->data = aligned_alloc(64, (weight->bytes + 63) / 64 * 64);
        return weight->data == NULL ? -1 : 0;
    }
    if (*last == NULL || (*last)->size - (*last)->used < weight->bytes) {
        struct weight_chunk *chunk = create_chunk(weight->bytes);
        if (chunk == NULL)
            return -1;
        *last = chunk;
    }
    weight->chunk = *last;
    weight->data = (unsigned char *)(*last)->data + (*last)->used;
    (*last)->used += (weight->bytes + 63) / 64 * 64;
    (*last)->weights++;
    return 0;
}

int weights_create(struct weight **out, struct weight_chunk **last, struct threads *threads,
                   const struct matrix *parts, int num_parts, int heads, enum weight_format format,
                   struct error *err)
{
    int64_t rows;
    bool biased;
    if (check_parts(parts, num_parts, heads, &rows, &biased, err) != 0)
        return -1;
    struct weight *weight = calloc(1, sizeof *weight);
    if (weight == NULL)
        goto no_memory;
    weight->format = format == WEIGHTS_AUTO ? format_of(parts, num_parts) : format;
    weight->in = parts[0].cols;
    weight->heads = heads;
    weight->out = rows / heads;
    weight->panels = (weight->out + PANEL - 1) / PANEL;
    weight->panel_bytes = panel_bytes(weight->format, weight->in);
    weight->bytes = weights_packed_bytes(weight->format, weight->in, weight->out, heads);
    weight->bias = biased ? calloc((size_t)rows, sizeof(float)) : NULL;
    if (allocate(weight, last) != 0 || (biased && weight->bias == NULL))
        goto no_memory;
    if (biased)
        copy_biases(weight, parts, num_parts);
    struct packing packing = {.weight = weight, .parts = parts};
    threads_run(threads, pack_panel, &packing, (int)(weight->panels * heads));
    if (atomic_load(&packing.too_large)) {
        weights_free(weight, last);
        return error_set(err, ERROR_INVALID,
                         "weights: a number of a matrix of %lld x %lld is too large for %s",
                         (long long)rows, (long long)parts[0].cols, weight_format_name(format));
    }
    *out = weight;
    return 0;
no_memory:
    weights_free(weight, last);
    return error_set(err, ERROR_NO_MEMORY, "weights: no memory for %lld x %lld", (long long)rows,
                     (long long)parts[0].cols);
}

void weights_free(struct weight *weight, struct weight_chunk **last)
{
    if (weight == NULL)
        return;
    struct weight_chunk *chunk = weight->chunk;
    if (chunk == NULL) {
        free(weight->data);
    } else if (--chunk->weights == 0) {
        if (chunk == *last)
            *last = NULL;
        free(chunk->data);
        free(chunk);
    }
    free(weight->bias);
    free(weight);
}
