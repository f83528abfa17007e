/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel of the CUDA backend: first checked against the CPU on random input, its output full
 * of NaN before, at odd sizes and lengths around the tiles; then timed, beside what a copy within
 * the device's memory and its f32 units did in the same run.
 *
 * Usage: kernels [check|time]     both without an argument. Status: 0, 1 when a check failed, 77
 * without a device. Build: make cuda; in the emulation it leaves out the longest and times nothing.
 *
 * A time is the median of 7, each of 40 calls in one step less a step of one, all queued before the
 * device begins with the first. The first line says what the smallest kernel takes so, and what one
 * takes where the device waits for the host. Weights and states take turns, so that none comes out
 * of the L2 cache where the copies of it are larger. */
#include "engine/ops/perform.h"
#include "loadtest/kernels/job.h"

#ifdef REGLA_CUDA_EMULATION
static const int lengths[] = {1, 2, 63, 64, 65};
static const bool emulated = true;
#else
static const int lengths[] = {1, 2, 63, 64, 65, 2049};
static const bool emulated = false;
#endif

enum { MOST_ROWS = 16384, MOST_DIM = 128 /* of attention */, COPY_BYTES = 1 << 30 };

struct program {
    struct bench_device cpu, cuda[ACTIVATIONS_16BIT + 1]; /* by activations */
    struct bench_count count;
    struct job_limits limits;
};

typedef void kernel_jobs(int rows, job_use *use, void *context);
static kernel_jobs *const kinds[] = {rows_jobs, product_jobs, recurrence_jobs, attention_jobs};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void check(const struct job *job, void *context)
{
    struct program *program = context;
    job_check(job, &program->cpu, &program->cuda[job->activations], &program->count);
}

static void time_job(const struct job *job, void *context)
{
    const struct program *program = context;
    job_time(job, &program->cuda[job->activations], &program->limits);
}

/* Half a gigabyte from one place to another: read and written. */
static void queue_copy(const struct job_run *run, int call)
{
    size_t half = run->job->arrays[0].count / 2;
    float *from = run->arrays[0] + (call % 2 == 0 ? 0 : half);
    float *to = run->arrays[0] + (call % 2 == 0 ? half : 0);
    run->device->ops->copy(run->device->backend, to, from, half * sizeof(float));
}

static void queue_little(const struct job_run *run, int call)
{
    (void)call;
    perform_map(run->device->ops, run->device->backend,
                &(struct ops_map){.formula = FORMULA_RELU,
                                  .num_rows = 1,
                                  .num_cols = 1,
                                  .out = job_rows(run, 0, 1),
                                  .u = job_rows(run, 0, 1)});
}

static void measure(struct program *program)
{
    const struct bench_device *cuda = &program->cuda[ACTIVATIONS_F32];
    struct job job = {.name = "copy", .texts = 1, .rows = 1, .copies = 1, .queue = queue_copy};
    job.arrays[0] = (struct job_array){COPY_BYTES / sizeof(float), -1, 1, false, 0};
    double seconds = job_seconds(&job, cuda, true), read_bytes = 0;
    program->limits.copy_bytes = COPY_BYTES / seconds;
    job.arrays[0].count = 64;
    job.queue = queue_little;
    double smallest = job_seconds(&job, cuda, true), launch = job_seconds(&job, cuda, false);
    void *memory = bench_memory(cuda, COPY_BYTES, NULL);
    cuda->ops->measure(cuda->backend, memory, COPY_BYTES, &read_bytes, &program->limits.operations);
    bench_free(cuda, memory, COPY_BYTES);
    printf(
        "%s: the smallest kernel takes %.1f us, its launch %.1f us; a copy moves %.0f GB/s (read "
        "and written), a stream of reads %.0f GB/s; f32 multiply-adds %.1f TFLOP/s\n",
        cuda->ops->instruction_set(cuda->backend), 1e6 * smallest, 1e6 * launch,
        1e-9 * program->limits.copy_bytes, 1e-9 * read_bytes, 1e-12 * program->limits.operations);
    printf("%-58s %12s %13s %7s %16s %7s\n", "kernel", "time", "moved", "of copy", "computed",
           "of f32");
}

int main(int argc, char **argv)
{
    struct program program = {.count = {0, 0}};
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 2 || (what[0] != '\0' && strcmp(what, "check") != 0 && strcmp(what, "time") != 0)) {
        fprintf(stderr, "usage: kernels [check|time]\n");
        return 2;
    }
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_input = 16384;
    limits.max_linear_heads = 16;
    limits.max_key_dim = limits.max_softmax_value_dim = MOST_DIM;
    bench_open(&program.cpu, &program.cuda[ACTIVATIONS_F32], &limits);
    program.cuda[ACTIVATIONS_16BIT] = bench_open_cuda(ACTIVATIONS_16BIT, &limits);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths && strcmp(what, "time") != 0; i++)
        for (int kind = 0; kind < KINDS; kind++)
            kinds[kind](lengths[i], check, &program);
    if (strcmp(what, "time") != 0)
        printf("kernels: %d passed, %d failed\n", program.count.passed, program.count.failed);
    if (strcmp(what, "check") != 0 && !emulated) {
        measure(&program);
        for (int kind = 0; kind < KINDS; kind++)
            kinds[kind](0, time_job, &program);
    }
    program.cpu.ops->close(program.cpu.backend);
    for (int i = 0; i <= ACTIVATIONS_16BIT; i++)
        program.cuda[i].ops->close(program.cuda[i].backend);
    return program.count.failed > 0;
}
