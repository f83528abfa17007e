#include "engine/cpu/weights.h"

#include "engine/cpu/kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31)
        return formula_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) /* fraction * 2^-24, exact in f32 */
        return (sign != 0 ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return formula_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

void weights_read(const struct matrix *matrix, int64_t first, int64_t n, float *out)
{
    if (matrix->dtype == DTYPE_F32) {
        memcpy(out, (const char *)matrix->data + first * 4, (size_t)n * sizeof(float));
        return;
    }
    const char *at = (const char *)matrix->data + first * 2;
    for (int64_t i = 0; i < n; i++) {
        uint16_t value;
        memcpy(&value, at + i * 2, sizeof value);
        out[i] = matrix->dtype == DTYPE_BF16 ? formula_from_bits((uint32_t)value << 16)
                                             : from_half(value);
    }
}

/* Row `row` of the stacked parts into its place: column row % 32 of its panel. */
static void pack_row(struct weight *weight, int64_t row, const struct matrix *part, int64_t source,
                     float *line)
{
    int64_t head = row / weight->out, column = row % weight->out;
    float *panel = weight->data + (head * weight->panels + column / PANEL) * weight->in * PANEL;
    weights_read(part, source * weight->in, weight->in, line);
    for (int64_t k = 0; k < weight->in; k++)
        panel[k * PANEL + column % PANEL] = line[k];
    if (weight->bias != NULL)
        weight->bias[row] = part->bias == NULL ? 0.0f : part->bias[source];
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

/* Large matrices on huge pages where the kernel agrees: decoding reads all of them every token. */
static void *allocate(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    if (bytes < 2 * huge)
        return aligned_alloc(64, bytes);
    void *memory = aligned_alloc(huge, (bytes + huge - 1) / huge * huge);
    if (memory != NULL)
        madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

int weights_create(struct weight **out, const struct matrix *parts, int num_parts, int heads,
                   struct error *err)
{
    int64_t rows;
    bool biased;
    if (check_parts(parts, num_parts, heads, &rows, &biased, err) != 0)
        return -1;
    struct weight *weight = calloc(1, sizeof *weight);
    float *line = malloc((size_t)parts[0].cols * sizeof(float));
    if (weight == NULL || line == NULL)
        goto fail;
    weight->in = parts[0].cols;
    weight->heads = heads;
    weight->out = rows / heads;
    weight->panels = (weight->out + PANEL - 1) / PANEL;
    size_t panel_bytes = (size_t)weight->in * PANEL * sizeof(float);
    if (__builtin_mul_overflow(panel_bytes, (size_t)(weight->panels * heads), &weight->bytes))
        goto fail;
    weight->data = allocate(weight->bytes);
    weight->bias = biased ? calloc((size_t)rows, sizeof(float)) : NULL;
    if (weight->data == NULL || (biased && weight->bias == NULL))
        goto fail;
    if (weight->out % PANEL != 0)
        memset(weight->data, 0, weight->bytes);
    for (int64_t row = 0, part = 0, source = 0; row < rows; row++, source++) {
        if (source == parts[part].rows) {
            part++;
            source = 0;
        }
        pack_row(weight, row, &parts[part], source, line);
    }
    free(line);
    *out = weight;
    return 0;
fail:
    free(line);
    weights_free(weight);
    return error_set(err, ERROR_NO_MEMORY, "weights: no memory for %lld x %lld", (long long)rows,
                     (long long)parts[0].cols);
}

void weights_free(struct weight *weight)
{
    if (weight == NULL)
        return;
    free(weight->data);
    free(weight->bias);
    free(weight);
}
