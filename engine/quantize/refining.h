/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinate descent on a row in four bits, from what rounding.h made: with e = w - q and H = L Lᵀ,
 * each block's scale and minimum, then each of its numbers, becomes the one for which e H eᵀ is
 * least while all others stay. It never grows. After QuantEase (Behdin et al. 2023,
 * https://arxiv.org/abs/2309.01885). */
#ifndef ENGINE_QUANTIZE_REFINING_H
#define ENGINE_QUANTIZE_REFINING_H

#include "engine/model/quantized.h"

#include <stdint.h>

struct refining {
    int64_t n;             /* inputs: whole blocks of 32 */
    const float *factor;   /* L [n, n] */
    const float *diagonal; /* of H [n] */
};

/* weights [n] of a row and its blocks [n / 32]; scratch [4 n]. */
void refining_run(const struct refining *r, const float *weights, struct quantized_integers *blocks,
                  float *scratch);

#endif
