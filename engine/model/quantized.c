/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/quantized.h"

#include "lib/base/half.h"

#include <math.h>
#include <string.h>

enum { GROUP = 32 }; /* numbers that are decoded together: a block, or a part of one */

/* The bit i of the 32 at `bits`, as 16 or 0. */
static int fifth_bit(const unsigned char *bits, int i)
{
    return (bits[i / 8] >> i % 8 & 1) << 4;
}

/* 16 bytes: number i is in the lower half of byte i, number 16 + i in the upper half. */
static int nibble(const unsigned char *bytes, int i)
{
    return i < GROUP / 2 ? bytes[i] & 15 : bytes[i - GROUP / 2] >> 4;
}

static void q8_0(const unsigned char *block, int group, float *out)
{
    const float d = f16_to_f32(read_u16(block));
    (void)group;
    for (int i = 0; i < GROUP; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}

static void q4_0(const unsigned char *block, int group, float *out)
{
    const float d = f16_to_f32(read_u16(block));
    (void)group;
    for (int i = 0; i < GROUP; i++)
        out[i] = d * (float)(nibble(block + 2, i) - 8);
}

static void q4_1(const unsigned char *block, int group, float *out)
{
    const float d = f16_to_f32(read_u16(block)), m = f16_to_f32(read_u16(block + 2));
    (void)group;
    for (int i = 0; i < GROUP; i++)
        out[i] = d * (float)nibble(block + 4, i) + m;
}

static void q5_0(const unsigned char *block, int group, float *out)
{
    const float d = f16_to_f32(read_u16(block));
    (void)group;
    for (int i = 0; i < GROUP; i++)
        out[i] = d * (float)((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16);
}

static void q5_1(const unsigned char *block, int group, float *out)
{
    const float d = f16_to_f32(read_u16(block)), m = f16_to_f32(read_u16(block + 2));
    (void)group;
    for (int i = 0; i < GROUP; i++)
        out[i] = d * (float)(nibble(block + 8, i) | fifth_bit(block + 4, i)) + m;
}

/* What 32 numbers of Q4_K and Q5_K have: 6 bits of s and of t, in 12 bytes for 8 groups. The last
 * four groups have their upper two bits beside the first four's. */
static void scales_of(const unsigned char *block, int group, float *scale, float *least)
{
    const unsigned char *packed = block + 4, *low = packed + group % 4,
                        *high = packed + 8 + group % 4;
    const int s = group < 4 ? low[0] & 63 : (high[0] & 15) | low[0] >> 6 << 4;
    const int t = group < 4 ? low[4] & 63 : high[0] >> 4 | low[4] >> 6 << 4;
    *scale = f16_to_f32(read_u16(block)) * (float)s;
    *least = f16_to_f32(read_u16(block + 2)) * (float)t;
}

/* 32 bytes hold two groups: the even one in the lower halves, the odd one in the upper. */
static void q4_k(const unsigned char *block, int group, float *out)
{
    const unsigned char *bytes = block + 16 + group / 2 * GROUP;
    float scale, least;
    scales_of(block, group, &scale, &least);
    for (int i = 0; i < GROUP; i++)
        out[i] = scale * (float)(bytes[i] >> group % 2 * 4 & 15) - least;
}

/* Bit g of byte i of the 32 before them is the fifth bit of number i of group g. */
static void q5_k(const unsigned char *block, int group, float *out)
{
    const unsigned char *fifth = block + 16, *bytes = block + 48 + group / 2 * GROUP;
    float scale, least;
    scales_of(block, group, &scale, &least);
    for (int i = 0; i < GROUP; i++) {
        const int q = (bytes[i] >> group % 2 * 4 & 15) | (fifth[i] >> group & 1) << 4;
        out[i] = scale * (float)q - least;
    }
}

/* Each half of the block has four groups: 64 bytes with the lower four bits, of which the first 32
 * hold groups 0 and 2, and 32 bytes with the upper two bits of all four. */
static int quant_of_q6_k(const unsigned char *block, int group, int i)
{
    const int half = group / 4, g = group % 4;
    const unsigned char *low = block + half * 64 + g % 2 * GROUP,
                        *high = block + 128 + half * GROUP;
    return ((low[i] >> g / 2 * 4 & 15) | (high[i] >> g * 2 & 3) << 4) - 32;
}

static void q6_k(const unsigned char *block, int group, float *out)
{
    const float d = f16_to_f32(read_u16(block + 208));
    for (int i = 0; i < GROUP; i++) {
        const float scale = d * (float)(int8_t)block[192 + group * 2 + i / 16];
        out[i] = scale * (float)quant_of_q6_k(block, group, i);
    }
}

/* Twice the numbers of e2m1. */
static int8_t quant_of_mxfp4(const unsigned char *block, int i)
{
    static const int8_t quants[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return quants[nibble(block + 1, i)];
}

static void mxfp4(const unsigned char *block, int group, float *out)
{
    /* Of a block that quantized_finite refuses no number is finite: inf * 0 is NaN. */
    const float scale = block[0] > 252 ? INFINITY : ldexpf(1, block[0] - 128);
    (void)group;
    for (int i = 0; i < GROUP; i++)
        out[i] = scale * (float)quant_of_mxfp4(block, i);
}

typedef void decode_group(const unsigned char *block, int group, float *out);

/* How 32 numbers are decoded, and where the block's f16 numbers lie. */
static const struct {
    decode_group *decode;
    int scales_at, num_scales;
} blocks[NUM_DTYPES] = {
    [DTYPE_Q4_0] = {q4_0, 0, 1}, [DTYPE_Q4_1] = {q4_1, 0, 2},   [DTYPE_Q5_0] = {q5_0, 0, 1},
    [DTYPE_Q5_1] = {q5_1, 0, 2}, [DTYPE_Q8_0] = {q8_0, 0, 1},   [DTYPE_Q4_K] = {q4_k, 0, 2},
    [DTYPE_Q5_K] = {q5_k, 0, 2}, [DTYPE_Q6_K] = {q6_k, 208, 1}, [DTYPE_MXFP4] = {mxfp4, 0, 0},
};

static void decode(enum dtype dtype, const unsigned char *data, int64_t first, int64_t n,
                   float *out)
{
    const int64_t size = (int64_t)dtype_block(dtype);
    while (n > 0) {
        const unsigned char *block = data + dtype_size(dtype, (size_t)(first / size * size));
        const int group = (int)(first % size / GROUP), skip = (int)(first % GROUP);
        const int64_t here = GROUP - skip < n ? GROUP - skip : n;
        float numbers[GROUP];
        blocks[dtype].decode(block, group, here == GROUP ? out : numbers);
        if (here < GROUP)
            memcpy(out, numbers + skip, (size_t)here * sizeof *out);
        first += here;
        n -= here;
        out += here;
    }
}

void quantized_numbers(enum dtype dtype, const void *data, int64_t first, int64_t n, float *out)
{
    const unsigned char *at = data;
    if (dtype_block(dtype) > 1) {
        decode(dtype, at, first, n, out);
        return;
    }
    at += dtype_size(dtype, (size_t)first);
    if (dtype == DTYPE_F32)
        memcpy(out, at, (size_t)n * sizeof *out);
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = bf16_to_f32(read_u16(at + i * 2));
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = f16_to_f32(read_u16(at + i * 2));
}

bool quantized_finite(enum dtype dtype, const void *data, int64_t first, int64_t n)
{
    const int64_t size = (int64_t)dtype_block(dtype);
    const size_t bytes = dtype_size(dtype, (size_t)size);
    const unsigned char *block = (const unsigned char *)data + (size_t)(first / size) * bytes;
    bool finite = true;
    for (int64_t at = first / size * size; dtype == DTYPE_MXFP4 && at < first + n; at += size)
        finite &= block[at / size * (int64_t)bytes - first / size * (int64_t)bytes] <= 252;
    for (int64_t at = first / size * size; at < first + n; at += size, block += bytes)
        for (int i = 0; i < blocks[dtype].num_scales; i++)
            finite &= (read_u16(block + blocks[dtype].scales_at + 2 * i) & 0x7c00) != 0x7c00;
    return finite;
}

/* Sets a scale and a minimum that f16 may have to round. False: too large for it. */
static bool set_ends(struct quantized_integers *out, float scale, float minimum)
{
    out->scale = f32_to_f16(scale);
    out->minimum = f32_to_f16(minimum);
    return (out->scale & 0x7c00) != 0x7c00 && (out->minimum & 0x7c00) != 0x7c00;
}

/* A block of 32 numbers. */
static bool short_block(enum dtype dtype, const unsigned char *block,
                        struct quantized_integers *out)
{
    const float d = f16_to_f32(read_u16(block));
    for (int i = 0; i < GROUP; i++)
        out->quants[i] =
            dtype == DTYPE_Q8_0   ? (int8_t)block[2 + i]
            : dtype == DTYPE_Q4_0 ? (int8_t)nibble(block + 2, i)
            : dtype == DTYPE_Q4_1
                ? (int8_t)nibble(block + 4, i)
                : (int8_t)((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16); /* Q5_0 */
    if (dtype == DTYPE_Q5_0)
        out->factors[0] = out->factors[1] = 1;
    if (dtype == DTYPE_Q4_0)
        return set_ends(out, d, -8.0f * d);
    out->scale = read_u16(block);
    if (dtype == DTYPE_Q4_1)
        out->minimum = read_u16(block + 2);
    return true;
}

static bool group_of_q4_k(const unsigned char *block, int group, struct quantized_integers *out)
{
    const unsigned char *bytes = block + 16 + group / 2 * GROUP;
    float scale, least;
    scales_of(block, group, &scale, &least);
    for (int i = 0; i < GROUP; i++)
        out->quants[i] = (int8_t)(bytes[i] >> group % 2 * 4 & 15);
    return set_ends(out, scale, -least);
}

static bool group_of_q6_k(const unsigned char *block, int group, struct quantized_integers *out)
{
    for (int i = 0; i < GROUP; i++)
        out->quants[i] = (int8_t)quant_of_q6_k(block, group, i);
    out->scale = read_u16(block + 208);
    memcpy(out->factors, block + 192 + group * 2, sizeof out->factors);
    return true;
}

/* Scales are powers of two, which f16 has from 2^-24 to 2^15. */
static bool block_of_mxfp4(const unsigned char *block, struct quantized_integers *out)
{
    const int exponent = block[0] - 128;
    for (int i = 0; i < GROUP; i++)
        out->quants[i] = quant_of_mxfp4(block, i);
    out->factors[0] = out->factors[1] = 1;
    out->scale = f32_to_f16(ldexpf(1, exponent));
    return exponent >= -24 && exponent <= 15;
}

bool quantized_integers(enum dtype dtype, const void *data, int64_t first,
                        struct quantized_integers *out)
{
    const int64_t size = (int64_t)dtype_block(dtype);
    const unsigned char *block =
        (const unsigned char *)data + dtype_size(dtype, (size_t)(first / size * size));
    const int group = (int)(first % size / GROUP);
    *out = (struct quantized_integers){0};
    switch (dtype) {
    case DTYPE_Q8_0:
    case DTYPE_Q5_0:
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
        return short_block(dtype, block, out);
    case DTYPE_Q4_K:
        return group_of_q4_k(block, group, out);
    case DTYPE_Q6_K:
        return group_of_q6_k(block, group, out);
    case DTYPE_MXFP4:
        return block_of_mxfp4(block, out);
    default:
        return false;
    }
}

void quantized_write_mxfp4(unsigned char exponent, const unsigned char bytes[16],
                           unsigned char *out)
{
    out[0] = exponent;
    for (int i = 0; i < GROUP / 2; i++) {
        const int low = bytes[i / 2] >> i % 2 * 4 & 15;
        const int high = bytes[8 + i / 2] >> i % 2 * 4 & 15;
        out[1 + i] = (unsigned char)(low | high << 4);
    }
}

void quantized_write_q4_1(const struct quantized_integers *block, unsigned char *out)
{
    memcpy(out, &block->scale, sizeof block->scale);
    memcpy(out + 2, &block->minimum, sizeof block->minimum);
    for (int i = 0; i < GROUP / 2; i++)
        out[4 + i] = (unsigned char)(block->quants[i] | block->quants[GROUP / 2 + i] << 4);
}
