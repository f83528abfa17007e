/* SPDX-License-Identifier: Apache-2.0 */
/* Products with f32 matrices: register tiles of rows against k-major columns.
 *
 * Each output is one running sum over the input, in order: acc = fma(x[k], w[k][j], acc). The
 * tile's shape changes only which sums run beside each other. */
#ifndef ENGINE_CPU_KERNELS_TILE_H
#define ENGINE_CPU_KERNELS_TILE_H

#include "engine/cpu/vector.h"

#include <stdbool.h>
#include <stdint.h>

/* out [m, nv * LANES] (+)= x [m, n] * w [n, nv * LANES]. m and nv are constants at each call. */
static inline __attribute__((always_inline)) void tile(const int m, const int nv, const float *x,
                                                       int64_t x_stride, int64_t n, const float *w,
                                                       int64_t w_stride, float *out,
                                                       int64_t out_stride, bool add)
{
    vec sum[TILE_ROWS][4];
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            sum[i][v] = add ? vec_load(out + i * out_stride + v * LANES) : vec_set(0.0f);
    for (int64_t k = 0; k < n; k++) {
        vec weights[4];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            weights[v] = vec_load(w + k * w_stride + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < m; i++) {
            vec input = vec_set(x[i * x_stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                sum[i][v] = vec_fma(input, weights[v], sum[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            vec_store(out + i * out_stride + v * LANES, sum[i][v]);
}

/* The same for 1 to TILE_ROWS rows and any multiple of 16 columns. Few rows take more columns at a
 * time, so that as many sums are under way. */
static void tile_rows(int m, const float *x, int64_t x_stride, int64_t n, const float *w,
                      int64_t w_stride, int64_t columns, float *out, int64_t out_stride, bool add)
{
    int64_t c = 0;
#define TILE(vectors) tile(M, vectors, x, x_stride, n, w + c, w_stride, out + c, out_stride, add)
    if (m <= TILE_ROWS / 2)
        for (; c + 4 * LANES <= columns; c += 4 * LANES)
            FOR_ROWS(m, 1, TILE_ROWS / 2, TILE(4))
    for (; c + 2 * LANES <= columns; c += 2 * LANES)
        FOR_ROWS(m, 1, TILE_ROWS, TILE(2))
    for (; c < columns; c += LANES)
        FOR_ROWS(m, 1, TILE_ROWS, TILE(1))
#undef TILE
}

/* Any number of rows. */
static void tile_matrix(int rows, const float *x, int64_t x_stride, int64_t n, const float *w,
                        int64_t w_stride, int64_t columns, float *out, int64_t out_stride, bool add)
{
    for (int r = 0; r < rows; r += TILE_ROWS) {
        int m = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
        tile_rows(m, x + r * x_stride, x_stride, n, w, w_stride, columns, out + r * out_stride,
                  out_stride, add);
    }
}

#endif
