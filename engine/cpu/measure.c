/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/clock.h"
#include "engine/cpu/device.h"

#include <math.h>

enum {
    PIECE_BYTES = 1 << 18, /* of a task */
    ROUNDS = 2000000,      /* of multiply-adds: some milliseconds, as reading takes */
    MOST_TRIES = 5
};

/* Enough for all tries on a machine that is not very slow. */
static const double ENOUGH_SECONDS = 0.1;

struct measure_job {
    const struct kernels *kernels;
    const char *memory;
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
    struct measure_job job = {backend->kernels, memory};
    int pieces = (int)(bytes / PIECE_BYTES), threads = threads_count(backend->threads);
    *read_bytes = (double)pieces * PIECE_BYTES / fastest(backend, &job, read_task, pieces);
    *operations = (double)threads * ROUNDS * (double)backend->kernels->measure_round_operations /
                  fastest(backend, &job, multiply_task, threads);
}
