/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/backend.h"
#include "engine/cpu/device.h"
#include "lib/base/clock.h"

#include <math.h>

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
    enum unit unit;
    int64_t rounds; /* of it */
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
    volatile float used = job->kernels->units[job->unit].measure(job->rounds);
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
    const enum unit unit = instruction_set_unit(kernels, backend->weights, backend->activations);
    const bool tiles = unit == UNIT_TILES_OF_PAIRS || unit == UNIT_TILES_OF_BYTES;
    struct measure_job job = {kernels, memory, unit, tiles ? TILE_ROUNDS : ROUNDS};
    int pieces = (int)(bytes / PIECE_BYTES), threads = threads_count(backend->threads);
    *read_bytes = (double)pieces * PIECE_BYTES / fastest(backend, &job, read_task, pieces);
    *operations = (double)threads * (double)job.rounds * kernels->units[unit].operations /
                  fastest(backend, &job, multiply_task, threads);
}
