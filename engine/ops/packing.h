/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares matrices for packing: stacks them, reads them as f32, rounds them to a weight format.
 * Each device has its own layout of the result; the numbers are the same on all. */
#ifndef ENGINE_OPS_PACKING_H
#define ENGINE_OPS_PACKING_H

#include "engine/model/model.h"
#include "engine/model/quantized.h"
#include "engine/ops/ops.h"

enum { PACKING_BLOCK = 32 }; /* inputs that are packed together: whole blocks of every format */
/* The format of blocks beside a model (engine/model/four_bits.h). */
#define PACKING_FOUR_BITS WEIGHTS_Q4

/* Checks matrices that are packed as one: equal widths, whole heads. *rows: rows of all together.
 * *biased: whether one has a bias. */
int packing_check(const struct matrix *parts, int num_parts, int heads, int64_t *rows, bool *biased,
                  struct error *err);
/* The format that `auto` stands for: one that holds numbers of a file as they are, or nearly
 * (quantized_integers); f16 for those in blocks that none does. */
enum weight_format packing_dtype_format(enum dtype dtype);
/* The narrowest format that holds all the parts as they are; f16 for blocks of several types. */
enum weight_format packing_format(const struct matrix *parts, int num_parts);
/* out: [rows of all parts], zero where a part has no bias */
void packing_biases(const struct matrix *parts, int num_parts, float *out);
int packing_too_large(const struct matrix *parts, int64_t rows, enum weight_format format,
                      struct error *err);

/* Reads n numbers of a matrix, from element `first` on. */
void packing_numbers(const struct matrix *matrix, int64_t first, int64_t n, float *out);
/* n <= 32 inputs from k on of the `rows` stacked outputs from `row` on; out: [rows][32] */
void packing_rows(const struct matrix *parts, int64_t row, int64_t rows, int64_t k, int64_t n,
                  float (*out)[PACKING_BLOCK]);

/* Some of the stacked rows will be read soon, or were read for the last time. Where they lie in a
 * file they are read ahead, or their memory given back. */
void packing_ahead(const struct matrix *parts, int num_parts, int64_t row, int64_t rows);
void packing_done(const struct matrix *parts, int num_parts, int64_t row, int64_t rows);

/* The nearest number of two bytes. False: the value is finite, and too large for the format. */
bool packing_half(enum weight_format format, float value, uint16_t *bits);
bool packing_halves(enum weight_format format, const float from[PACKING_BLOCK],
                    uint16_t bits[PACKING_BLOCK]); /* of each */
/* Rounds the first n numbers of a block, in a format that has scales; the others are anything.
 *   q8: quants in -127..127; a weight errs by at most half a scale, 1/254 of the largest
 *   q6: quants in -32..31; of some scales of each half that with the least sum of squared errors,
 * nearly, as factors are integers
 *   q4: quants in 0..15; of some scales and minima those whose squared errors have the least sum
 * False: a number is too large for the scale or minimum. */
bool packing_quantize(enum weight_format format, const float from[PACKING_BLOCK], int64_t n,
                      struct quantized_integers *out);
/* Where a search for a block's scale and minimum begins: with the numbers' own range, which finds
 * what is in such steps already, and with ranges near it that lie at one of its ends or between:
 * the outermost numbers of either side may be cut. */
enum { PACKING_Q4_STARTS = 10 };
void packing_q4_start(int i, float lowest, float highest, float *scale, float *minimum);
/* The weight that quant i of a block stands for. */
float packing_quant_value(enum weight_format format, const struct quantized_integers *block, int i);
/* The same n inputs as packing_rows, in a format that has scales; out: [rows]. Blocks that a file
 * has in this format stay as they are; others are rounded. False: a number is too large. */
bool packing_blocks(enum weight_format format, const struct matrix *parts, int64_t row,
                    int64_t rows, int64_t k, int64_t n, struct quantized_integers *out);

#endif
