/* SPDX-License-Identifier: Apache-2.0 */
#include "loadtest/kernels/job.h"

#include <time.h>

/* The copies: longer than it takes to queue TIMED_CALLS, and much more than the L2 cache holds. */
enum { TIMED_CALLS = 40, TRIES = 7, COPIES = 2, COPIED_BYTES = 512 << 20 };

struct texts {
    struct batch_span *spans;
    int32_t *tokens;
    int64_t *positions;
    char *slots, *memory, **pages; /* slots and pages on the device */
    size_t slots_bytes, memory_bytes;
};

static void open_texts(struct job_run *run, struct texts *texts)
{
    const struct job *job = run->job;
    int count = job->texts, rows = count * job->rows;
    int64_t pages = job->page_bytes > 0 ? (job->position + job->rows + OPS_TILE - 1) / OPS_TILE : 0;
    *texts = (struct texts){.slots_bytes = (size_t)count * job->slot_bytes * (size_t)job->copies,
                            .memory_bytes = (size_t)(count * pages) * job->page_bytes};
    texts->spans = calloc((size_t)count, sizeof *texts->spans);
    texts->tokens = calloc((size_t)rows, sizeof *texts->tokens);
    texts->positions = calloc((size_t)rows, sizeof *texts->positions);
    texts->pages = calloc((size_t)(count * pages) + 1, sizeof *texts->pages);
    texts->slots = bench_memory(run->device, texts->slots_bytes + 64, NULL);
    texts->memory = bench_memory(run->device, texts->memory_bytes + 64, NULL);
    run->device->ops->fill(run->device->backend, texts->slots, 0.0f, texts->slots_bytes / 4);
    run->device->ops->fill(run->device->backend, texts->memory, 0.5f, texts->memory_bytes / 4);
    for (int64_t i = 0; i < count * pages; i++)
        texts->pages[i] = texts->memory + (size_t)i * job->page_bytes;
    for (int i = 0; i < count; i++) {
        texts->spans[i] = (struct batch_span){.first_row = i * job->rows,
                                              .num_rows = job->rows,
                                              .position = job->position,
                                              .slot = texts->slots + (size_t)i * job->slot_bytes *
                                                                         (size_t)job->copies,
                                              .pages = texts->pages + i * pages,
                                              .num_pages = pages};
        for (int j = 0; j < job->rows; j++)
            texts->positions[i * job->rows + j] = job->position + j;
    }
    /* without logits, so that the device does not take it for a step that it has a graph of */
    run->batch = (struct batch){.num_rows = rows,
                                .num_spans = count,
                                .tokens = texts->tokens,
                                .positions = texts->positions,
                                .spans = texts->spans};
}

static void close_texts(const struct job_run *run, struct texts *texts)
{
    bench_free(run->device, texts->slots, texts->slots_bytes + 64);
    bench_free(run->device, texts->memory, texts->memory_bytes + 64);
    free(texts->spans);
    free(texts->tokens);
    free(texts->positions);
    free(texts->pages);
}

static size_t array_bytes(const struct job_array *array)
{
    return (array->count + 4) * sizeof(float); /* some that stay NaN */
}

static void make_unit(float *vectors, size_t count, int size)
{
    for (size_t i = 0; size > 0 && i + (size_t)size <= count; i += (size_t)size) {
        double square = 0;
        for (int j = 0; j < size; j++)
            square += (double)vectors[i + (size_t)j] * (double)vectors[i + (size_t)j];
        for (int j = 0; j < size; j++)
            vectors[i + (size_t)j] = (float)((double)vectors[i + (size_t)j] / sqrt(square));
    }
}

static void open_run(struct job_run *run, struct texts *texts, const struct job *job,
                     const struct bench_device *device)
{
    *run = (struct job_run){.device = device, .job = job};
    for (int i = 0; i < JOB_ARRAYS; i++) {
        const struct job_array *array = &job->arrays[i];
        if (array->count == 0)
            continue;
        run->arrays[i] = bench_memory(device, array_bytes(array), NULL);
        if (array->out)
            continue;
        float *host = bench_floats(array->count, array->low, array->high, (uint32_t)i + 7);
        make_unit(host, array->count, array->unit);
        device->ops->copy_in(device->backend, run->arrays[i], host, array->count * sizeof(float));
        free(host);
    }
    open_texts(run, texts);
    if (job->open != NULL)
        job->open(run);
}

static void close_run(struct job_run *run, struct texts *texts)
{
    bench_check_status(run->device);
    if (run->job->close != NULL)
        run->job->close(run);
    for (int i = 0; i < JOB_ARRAYS; i++)
        bench_free(run->device, run->arrays[i], array_bytes(&run->job->arrays[i]));
    close_texts(run, texts);
}

/* `calls` of them in one step; seconds of the step. Before it, unless `copied` is NULL, so much is
 * copied from one half of it to the other that the device comes to the calls after all are queued:
 * else what is shorter than a launch would take as long as one. */
static double step(const struct job_run *run, int calls, char *copied)
{
    const struct ops *ops = run->device->ops;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int i = 0; i < COPIES && copied != NULL; i++)
        ops->copy(run->device->backend, copied + COPIED_BYTES, copied, COPIED_BYTES);
    ops->begin(run->device->backend, &run->batch);
    for (int i = 0; i < calls; i++)
        run->job->queue(run, i);
    ops->send(run->device->backend, NULL, 0);
    ops->receive(run->device->backend);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
}

void job_check(const struct job *job, const struct bench_device *cpu,
               const struct bench_device *cuda, struct bench_count *count)
{
    struct job_run runs[2];
    struct texts texts[2];
    for (int i = 0; i < 2; i++) {
        open_run(&runs[i], &texts[i], job, i == 0 ? cpu : cuda);
        step(&runs[i], 1, NULL);
    }
    for (int i = 0; i < JOB_ARRAYS; i++) {
        size_t size = job->arrays[i].count;
        if (size == 0 || !job->arrays[i].out)
            continue;
        float *expected = malloc(size * sizeof(float)), *out = malloc(size * sizeof(float));
        cpu->ops->copy_out(cpu->backend, expected, runs[0].arrays[i], size * sizeof(float));
        cuda->ops->copy_out(cuda->backend, out, runs[1].arrays[i], size * sizeof(float));
        double distance = bench_distance(out, expected, size);
        bench_expect(count, distance <= job->tolerance, job->name, "far from the CPU's", distance);
        /* bench_distance compares nothing with those */
        size_t finite = 0;
        while (finite < size && isfinite(expected[finite]))
            finite++;
        bench_expect(count, finite == size, job->name, "the CPU's is not finite from here on",
                     (double)finite);
        free(expected);
        free(out);
    }
    for (int i = 0; i < 2; i++)
        close_run(&runs[i], &texts[i]);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double job_seconds(const struct job *job, const struct bench_device *cuda, bool queued_before)
{
    struct job_run run;
    struct texts texts;
    double tries[TRIES];
    open_run(&run, &texts, job, cuda);
    size_t bytes = queued_before ? 2 * (size_t)COPIED_BYTES : 0;
    char *copied = queued_before ? bench_memory(cuda, bytes, NULL) : NULL;
    step(&run, job->copies, copied);
    for (int i = 0; i < TRIES; i++) {
        /* what a step costs without its operations, and the copies, fall out */
        double one = step(&run, 1, copied);
        tries[i] = (step(&run, TIMED_CALLS + 1, copied) - one) / TIMED_CALLS;
    }
    bench_free(cuda, copied, bytes);
    close_run(&run, &texts);
    qsort(tries, TRIES, sizeof *tries, ascending);
    return tries[TRIES / 2];
}

void job_time(const struct job *job, const struct bench_device *cuda,
              const struct job_limits *limits)
{
    double seconds = job_seconds(job, cuda, true);
    double bytes = job->bytes / seconds, operations = job->operations / seconds;
    printf("%-58s %9.1f us %8.0f GB/s %5.1f %%", job->name, 1e6 * seconds, 1e-9 * bytes,
           100 * bytes / limits->copy_bytes);
    if (job->operations > 0)
        printf(" %8.2f TFLOP/s %5.1f %%", 1e-12 * operations,
               100 * operations / limits->operations);
    printf("\n");
    fflush(stdout);
}
