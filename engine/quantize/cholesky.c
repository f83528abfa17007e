/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize/cholesky.h"

#include <math.h>

/* Columns that are finished together, and rows of a task. */
enum { COLUMNS = 64, ROWS = 8 };

struct factoring {
    double *a;
    int64_t n, from, to; /* the columns in hand */
};

/* Four sums, so that compilers make vectors of them. */
static double dot(const double *x, const double *y, int64_t n)
{
    double sums[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] += x[i + j] * y[i + j];
    for (; i < n; i++)
        sums[0] += x[i] * y[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Of row i: the columns in hand before `end`, with those of the rows above it. */
static void solve(const struct factoring *f, int64_t i, int64_t end)
{
    double *row = f->a + i * f->n + f->from;
    for (int64_t j = f->from; j < end; j++) {
        const double *above = f->a + j * f->n + f->from;
        row[j - f->from] = (row[j - f->from] - dot(row, above, j - f->from)) / above[j - f->from];
    }
}

static bool factor_square(const struct factoring *f)
{
    for (int64_t i = f->from; i < f->to; i++) {
        double *row = f->a + i * f->n + f->from, *diagonal = row + i - f->from;
        solve(f, i, i);
        *diagonal -= dot(row, row, i - f->from);
        if (!(*diagonal > 0.0) || !isfinite(*diagonal))
            return false;
        *diagonal = sqrt(*diagonal);
    }
    return true;
}

/* Rows of a task below the square. */
static void rows_of(const struct factoring *f, int task, int64_t *first, int64_t *end)
{
    *first = f->to + (int64_t)task * ROWS;
    *end = f->n - *first < ROWS ? f->n : *first + ROWS;
}

static void solve_rows(void *context, int task, int thread)
{
    const struct factoring *f = context;
    int64_t first, end;
    (void)thread;
    rows_of(f, task, &first, &end);
    for (int64_t i = first; i < end; i++)
        solve(f, i, f->to);
}

/* Takes what the finished columns say out of the rest of the rows. */
static void subtract_rows(void *context, int task, int thread)
{
    const struct factoring *f = context;
    int64_t first, end;
    (void)thread;
    rows_of(f, task, &first, &end);
    for (int64_t j = f->to; j < end; j++)
        for (int64_t i = first > j ? first : j; i < end; i++)
            f->a[i * f->n + j] -=
                dot(f->a + i * f->n + f->from, f->a + j * f->n + f->from, f->to - f->from);
}

bool cholesky_factor(double *a, int64_t n, struct threads *threads)
{
    for (int64_t from = 0; from < n; from += COLUMNS) {
        struct factoring f = {a, n, from, n - from < COLUMNS ? n : from + COLUMNS};
        if (!factor_square(&f))
            return false;
        const int tasks = (int)((n - f.to + ROWS - 1) / ROWS);
        if (tasks > 0) {
            threads_run(threads, solve_rows, &f, tasks);
            threads_run(threads, subtract_rows, &f, tasks);
        }
    }
    return true;
}
