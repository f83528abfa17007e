/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"
#include "engine/cpu/tasks.h"

#include <string.h>

/* Of an element of S, in multiply-adds of a product: it comes from memory and goes back there. */
static const int64_t ELEMENT_COST = 4;

/* One head of one text may be cut into pieces, each some blocks of 16 rows of S. */
struct recurrence_job {
    const struct ops_recurrence *arguments;
    int blocks, per_piece, pieces; /* of a head */
};

/* Pieces recompute the head's features, so only few texts and heads are cut: to some 4 tasks for
 * each thread. A normalizer's row is needed by all rows of its head. */
static struct recurrence_job cut(const struct backend *backend, const struct ops_recurrence *a)
{
    int rows = a->value_dim + (a->sum_norm ? 1 : 0);
    int blocks = (rows + OPS_ROW_BLOCK - 1) / OPS_ROW_BLOCK;
    int tasks = backend->batch->num_spans * a->num_heads;
    int wanted = a->sum_norm ? 1 : (4 * threads_count(backend->threads) + tasks - 1) / tasks;
    int per_piece = wanted < blocks ? (blocks + wanted - 1) / wanted : 1;
    return (struct recurrence_job){a, blocks, per_piece, (blocks + per_piece - 1) / per_piece};
}

static void recurrence_task(void *context, int task, int thread)
{
    const struct head_job *job = context;
    struct backend *backend = job->backend;
    const struct recurrence_job *piece = job->arguments;
    int head = task % job->heads / piece->pieces;
    int first = task % piece->pieces * piece->per_piece;
    int end = first + piece->per_piece < piece->blocks ? first + piece->per_piece : piece->blocks;
    backend->kernels->recurrence(piece->arguments, &backend->batch->spans[task / job->heads], head,
                                 first, end,
                                 backend->scratch + (size_t)thread * backend->scratch_floats);
}

/* The pieces of a head and the heads that share a key all begin with the maximum that one of them
 * will overwrite: they read a copy. */
static void copy_maxima(const struct batch *batch, const struct ops_recurrence *a)
{
    size_t bytes = (size_t)ops_recurrence_key_heads(a) * sizeof(float);
    for (int i = 0; i < batch->num_spans; i++)
        memcpy(a->phi.maxima.data + batch->spans[i].first_row * a->phi.maxima.stride,
               batch->spans[i].slot + a->phi.maxima_offset, bytes);
}

void cpu_recurrence(struct backend *backend, const struct ops_recurrence *a)
{
    const struct batch *batch = backend->batch;
    const struct recurrence_job job = cut(backend, a);
    if (formula_is_exponential(a->phi.map))
        copy_maxima(batch, a);
    heads_run(backend, recurrence_task, &job, batch->num_spans, a->num_heads * job.pieces,
              ELEMENT_COST * batch->num_rows * a->num_heads * a->value_dim * a->features);
}
