#include "engine/cpu/device.h"

static void features_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->features(arguments, first, end);
}

static void key_features_task(void *context, int task, int thread)
{
    (void)thread;
    const struct head_job *job = context;
    job->backend->kernels->key_features(
        job->arguments, &job->backend->batch->spans[task / job->heads], task % job->heads);
}

void cpu_features(struct backend *backend, const struct ops_features *a)
{
    const struct batch *batch = backend->batch;
    int64_t width = (int64_t)a->num_heads * a->features;
    if (a->keys && formula_is_exponential(a->map))
        heads_run(backend, key_features_task, a, batch->num_spans, a->num_heads,
                  4 * width * batch->num_rows);
    else
        rows_run(backend, features_rows, a, batch->num_rows, 4 * width);
}

static void recurrence_task(void *context, int task, int thread)
{
    (void)thread;
    const struct head_job *job = context;
    job->backend->kernels->recurrence(
        job->arguments, &job->backend->batch->spans[task / job->heads], task % job->heads);
}

void cpu_recurrence(struct backend *backend, const struct ops_recurrence *a)
{
    const struct batch *batch = backend->batch;
    heads_run(backend, recurrence_task, a, batch->num_spans, a->num_heads,
              (int64_t)batch->num_rows * a->num_heads * a->value_dim * a->features);
}
