/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of matrices as f32, whatever their dtype. Those in blocks are GGUF's: small integers
 * with scales. A block is a run of a row; f16 numbers d and m belong to all of it:
 *
 *   Q8_0  d q          q in -128..127
 *   Q4_0  d (q - 8)    q in 0..15           Q5_0  d (q - 16)   q in 0..31
 *   Q4_1  d q + m      q in 0..15           Q5_1  d q + m      q in 0..31
 *   Q4_K  (d s) q - m t, Q5_K likewise: s and t, in 0..63, belong to 32 of the 256 numbers
 *   Q6_K  (d s) (q - 32): s, in -128..127, belongs to 16 of the 256 numbers
 *   MXFP4 2^(e - 128) q   q in 0, 1, 2, 3, 4, 6, 8, 12 and their negatives; e in 0..252, a byte
 *
 * Each operation rounds to f32, in this order, so the numbers are those of llama.cpp and of the
 * Python package gguf, to the bit. */
#ifndef ENGINE_MODEL_QUANTIZED_H
#define ENGINE_MODEL_QUANTIZED_H

#include "engine/model/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Numbers [first, first + n) of a row-major matrix at `data`, at any alignment, into out [n]. */
void quantized_numbers(enum dtype dtype, const void *data, int64_t first, int64_t n, float *out);

/* 32 numbers of a row as integers: a number is quant * scale, + minimum, and times the factor of
 * its half where there are factors. */
struct quantized_integers {
    int8_t quants[32];
    uint16_t scale, minimum; /* f16 */
    int8_t factors[2];
};

/* The 32 numbers from element `first` on, a multiple of 32, as the file has them: of Q8_0 and Q5_0
 * with q and d, of Q6_K with q - 32, d and s, of Q4_1 with q, d and m, of Q4_0 with q, d and -8 d;
 * of Q4_K with q and f16's nearest numbers to d s and -m t, of MXFP4 with q. All but Q4_K's are the
 * same numbers.
 * False: another type, or a scale or minimum is too large for f16, or too small. */
bool quantized_integers(enum dtype dtype, const void *data, int64_t first,
                        struct quantized_integers *out);

/* A block of quants 0..15, a scale and a minimum as one of Q4_1, of 20 bytes. */
void quantized_write_q4_1(const struct quantized_integers *block, unsigned char *out);

/* A block of MXFP4 as gpt-oss's folders have it: neighbours share a byte. out: 17 bytes. */
void quantized_write_mxfp4(unsigned char exponent, const unsigned char bytes[16],
                           unsigned char *out);

/* Whether the scales of the blocks that have numbers [first, first + n) are finite: then all
 * numbers are. dtype is one in blocks. */
bool quantized_finite(enum dtype dtype, const void *data, int64_t first, int64_t n);

#endif
