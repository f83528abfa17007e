/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/clock.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/device.h"

#include <math.h>
#include <string.h>

enum {
    PIECE_BYTES = 1 << 18, /* of a task */
    ROUNDS = 2000000,      /* of multiply-adds: some milliseconds, as reading takes */
    TILE_ROUNDS = 30000,
    MOST_TRIES = 5
};

/* Enough for all tries on a machine that is not very slow. */
static const double ENOUGH_SECONDS = 0.1;

struct measure_job {
    const struct kernels *kernels;
    const char *memory;
    bool bytes; /* tiles of them */
};

static void read_task(void *context, int task, int thread)
{
    const struct measure_job *job = context;
    const void *piece = job->memory + (size_t)task * PIECE_BYTES;
    volatile float used = job->kernels->measure_read(piece, PIECE_BYTES / sizeof(float));
    (void)used;
    (void)thread;
}

static void multiply_task(void *context, int task, int thread)
{
    const struct measure_job *job = context;
    volatile float used = job->kernels->measure_multiply(0.5f, ROUNDS);
    (void)used;
    (void)task;
    (void)thread;
}

static void tiles_task(void *context, int task, int thread)
{
    const struct measure_job *job = context;
    volatile float used = job->kernels->measure_tiles(job->bytes, TILE_ROUNDS);
    (void)used;
    (void)task;
    (void)thread;
}

/* Seconds of the fastest of some runs, two or more. */
static double fastest(struct backend *backend, struct measure_job *job, threads_task *task,
                      int tasks)
{
    double best = INFINITY, spent = 0;
    for (int i = 0; i < MOST_TRIES && (i < 2 || spent < ENOUGH_SECONDS); i++) {
        double start = clock_seconds();
        threads_run(backend->threads, task, job, tasks);
        double seconds = clock_seconds() - start;
        best = seconds < best ? seconds : best;
        spent += seconds;
    }
    return best;
}

void cpu_measure(struct backend *backend, const void *memory, size_t bytes, double *read_bytes,
                 double *operations)
{
    const struct kernels *kernels = backend->kernels;
    struct measure_job job = {kernels, memory, fixes_inputs(kernels, backend->weights)};
    int pieces = (int)(bytes / PIECE_BYTES), threads = threads_count(backend->threads);
    *read_bytes = (double)pieces * PIECE_BYTES / fastest(backend, &job, read_task, pieces);
    if (strcmp(cpu_ops.measured_unit(backend, backend->weights), UNIT_F32) == 0)
        *operations = (double)threads * ROUNDS * (double)kernels->measure_round_operations /
                      fastest(backend, &job, multiply_task, threads);
    else
        *operations = (double)threads * TILE_ROUNDS * (double)kernels->measure_tiles_operations *
                      (job.bytes ? 2 : 1) / fastest(backend, &job, tiles_task, threads);
}
