/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the tiles of this processor add up as its manual says. One row of x is multiplied without
 * tiles, in that order (kernels_tiles.h): with another its bits would depend on the batch. */
#include "engine/cpu/device.h"
#include "lib/base/half.h"
#include "lib/base/threads.h"

#include <stdlib.h>
#include <string.h>

enum { CHECKED_IN = 352, CHECKED_OUT = 2 * PANEL, CHECKED_ROWS = 19 };

/* Tiles of all blocks of integers add up alike: the plainest stands for them. */
static bool is_checked(enum weight_format format, enum activation_format activations)
{
    const bool rounds = activations != ACTIVATIONS_F32;
    switch (weight_format_kind(format)) {
    case WEIGHT_HALVES:
        return !rounds ||
               (activations == ACTIVATIONS_16BIT && weight_format_has(format, HAS_WIDE_EXPONENT));
    case WEIGHT_INTEGERS:
        return !rounds && !weight_format_has(format, HAS_FACTORS | HAS_MINIMUM);
    default:
        return false;
    }
}

struct check {
    _Alignas(64) unsigned char w[CHECKED_IN * CHECKED_OUT * 2];
    _Alignas(64) float x[CHECKED_ROWS * CHECKED_IN];
    _Alignas(64) float arranged[CHECKED_ROWS * CHECKED_IN * 2];
    float y[2][CHECKED_ROWS * CHECKED_OUT];
};

static uint32_t next_number(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Numbers of many sizes up to 2^15, so that sums round and cancel; some so small that their parts
 * and products count as zero. */
static float any_number(uint32_t *seed)
{
    const uint32_t sign = next_number(seed) & 1, size = next_number(seed);
    const uint32_t exponent = size % 5 == 0 ? 1 + size % 20 : 97 + size % 45;
    return float_of_bits(sign << 31 | exponent << 23 | (next_number(seed) & 0x7fffff));
}

static void fill(struct check *check, enum weight_format format)
{
    uint32_t seed = 1;
    for (int i = 0; i < CHECKED_ROWS * CHECKED_IN; i++)
        check->x[i] = any_number(&seed);
    for (size_t i = 0; i < sizeof check->w; i += 2) {
        uint16_t bits = (uint16_t)(bits_of_float(any_number(&seed)) >> 16);
        if (!weight_format_has(format, HAS_WIDE_EXPONENT))
            bits = (uint16_t)(next_number(&seed) & 0xbfff); /* under 2, some denormal */
        memcpy(check->w + i, &bits, sizeof bits);
    }
    for (size_t i = 0; weight_format_kind(format) == WEIGHT_INTEGERS && i < sizeof check->w; i++)
        check->w[i] = (unsigned char)(next_number(&seed) & 63); /* as a scale a finite number */
}

static void multiply(const struct kernels *kernels, const struct weight *weight,
                     struct check *check, float *y)
{
    const int64_t stride = arranged_row(kernels, weight);
    kernels->arrange(weight, check->x, CHECKED_IN, CHECKED_ROWS, 0, CHECKED_IN, check->arranged);
    kernels->product(&(struct product){.weight = weight,
                                       .count = weight->panels,
                                       .num_rows = CHECKED_ROWS,
                                       .x = check->arranged,
                                       .x_stride = stride,
                                       .y = y,
                                       .y_stride = CHECKED_OUT,
                                       .activation = FORMULA_IDENTITY});
}

static bool agree_on(const struct kernels *one, const struct kernels *other, struct check *check,
                     enum weight_format format, enum activation_format activations)
{
    const size_t panel_bytes = (size_t)panel_rows_of(format, CHECKED_IN) * row_bytes(format);
    const struct weight weight = {.format = format,
                                  .activations = activations,
                                  .in = CHECKED_IN,
                                  .out = CHECKED_OUT,
                                  .heads = 1,
                                  .panels = CHECKED_OUT / PANEL,
                                  .panel_bytes = panel_bytes,
                                  .data = check->w,
                                  .bytes = panel_bytes * CHECKED_OUT / PANEL};
    const unsigned saved = threads_flush_denormals();
    fill(check, format);
    multiply(one, &weight, check, check->y[0]);
    multiply(other, &weight, check, check->y[1]);
    threads_restore_float(saved);
    const void *bits = check->y[0], *expected = check->y[1];
    return memcmp(bits, expected, sizeof check->y[0]) == 0;
}

bool tiles_agree(const struct kernels *one, const struct kernels *other)
{
    struct check *check = aligned_alloc(64, (sizeof *check + 63) / 64 * 64);
    bool same = check != NULL;
    for (int format = WEIGHT_FORMAT_FIRST; same && format < WEIGHT_FORMAT_COUNT; format++)
        for (int activations = 0; same && activations < ACTIVATIONS_AUTO; activations++)
            if (is_checked((enum weight_format)format, (enum activation_format)activations))
                same = agree_on(one, other, check, (enum weight_format)format,
                                (enum activation_format)activations);
    free(check);
    return same;
}
