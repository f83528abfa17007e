/* SPDX-License-Identifier: Apache-2.0 */
/* The Cholesky factor of a symmetric matrix. */
#ifndef ENGINE_QUANTIZE_CHOLESKY_H
#define ENGINE_QUANTIZE_CHOLESKY_H

#include "lib/base/threads.h"

#include <stdbool.h>
#include <stdint.h>

/* The lower triangle of a [n, n], row-major, becomes L with a = L Lᵀ; what is above it is not read,
 * and stays. False: a is not positive definite. */
bool cholesky_factor(double *a, int64_t n, struct threads *threads);

#endif
