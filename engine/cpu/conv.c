/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"
#include "engine/cpu/tasks.h"

/* Channels of a task: some rows of them and of the weights fit the first cache. Whole lines where a
 * row has a multiple of 16, so that no two tasks write one. */
enum { CHANNELS = 256 };

/* Of a channel's activation, in multiply-adds of a product. */
enum { ACTIVATION_COST = 12 };

static void conv_task(void *context, int task, int thread)
{
    (void)thread;
    const struct head_job *job = context;
    const struct ops_conv *a = job->arguments;
    const int first = task % job->heads * CHANNELS;
    const int end = first + CHANNELS < a->channels ? first + CHANNELS : a->channels;
    job->backend->kernels->conv(a, &job->backend->batch->spans[task / job->heads], first, end);
}

void cpu_conv(struct backend *backend, const struct ops_conv *a)
{
    const int cost = a->width + (a->activation == FORMULA_IDENTITY ? 0 : ACTIVATION_COST);
    heads_run(backend, conv_task, a, backend->batch->num_spans,
              (a->channels + CHANNELS - 1) / CHANNELS,
              (int64_t)backend->batch->num_rows * a->channels * cost);
}
