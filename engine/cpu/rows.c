/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"
#include "engine/cpu/weights.h"
#include "engine/ops/packing.h"

#include <string.h>

struct rows_job {
    struct backend *backend;
    rows_kernel *kernel;
    const void *arguments;
    int num_rows, chunk;
};

static void rows_task(void *context, int task, int thread)
{
    (void)thread;
    const struct rows_job *job = context;
    int first = task * job->chunk;
    int end = first + job->chunk < job->num_rows ? first + job->chunk : job->num_rows;
    job->kernel(job->backend, job->arguments, first, end);
}

/* width: elements of a row, for the decision whether sharing pays. */
void rows_run(struct backend *backend, rows_kernel *kernel, const void *arguments, int num_rows,
              int64_t width)
{
    struct rows_job job = {backend, kernel, arguments, num_rows, num_rows};
    int threads = threads_count(backend->threads);
    if (num_rows > 1 && (int64_t)num_rows * width >= backend->share_elements)
        job.chunk = (num_rows + 4 * threads - 1) / (4 * threads);
    threads_run(backend->threads, rows_task, &job, (num_rows + job.chunk - 1) / job.chunk);
}

static void norm_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->norm(arguments, first, end);
}

void cpu_norm(struct backend *backend, const struct ops_norm *a)
{
    rows_run(backend, norm_rows, a, a->num_rows, CROSSING_COST * a->groups * a->size);
}

static void map_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->map(arguments, first, end);
}

void cpu_map(struct backend *backend, const struct ops_map *a)
{
    rows_run(backend, map_rows, a, a->num_rows, 4 * (int64_t)a->num_cols);
}

static void angles_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->angles(arguments, backend->batch, first, end);
}

void cpu_angles(struct backend *backend, const struct ops_angles *a)
{
    rows_run(backend, angles_rows, a, backend->batch->num_rows, 16 * (int64_t)a->count);
}

static void positions_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->positions(arguments, backend->batch, first, end);
}

void cpu_positions(struct backend *backend, const struct ops_positions *a)
{
    rows_run(backend, positions_rows, a, backend->batch->num_rows,
             2 * (int64_t)(a->num_heads + a->num_kv_heads) * a->dim);
}

static void embed_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_embed *a = arguments;
    const struct batch *batch = backend->batch;
    int64_t size = a->hidden_size;
    for (int r = first; r < end; r++) {
        float *x = a->x.data + r * a->x.stride;
        packing_numbers(&a->tokens->matrix, batch->tokens[r] * size, size, x);
        for (int64_t j = 0; j < size && a->scale != 1; j++)
            x[j] *= a->scale;
        if (a->position_embedding == POSITION_EMBEDDING_LEARNED) {
            float part[64];
            for (int64_t at = 0; at < size; at += 64) {
                int64_t n = size - at < 64 ? size - at : 64;
                packing_numbers(&a->positions->matrix, batch->positions[r] * size + at, n, part);
                for (int64_t j = 0; j < n; j++)
                    x[at + j] += part[j];
            }
        } else if (a->position_embedding == POSITION_EMBEDDING_SINUSOIDAL) {
            int64_t half = size / 2;
            for (int64_t j = 0; j < half; j++) {
                float cosine, sine;
                formula_cos_sin((double)batch->positions[r] * a->frequencies[j], &cosine, &sine);
                x[j] += sine;
                x[half + j] += cosine;
            }
        }
    }
}

void cpu_embed(struct backend *backend, const struct ops_embed *a)
{
    rows_run(backend, embed_rows, a, backend->batch->num_rows, a->hidden_size);
}

static void gather_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_gather *a = arguments;
    for (int i = first; i < end; i++)
        memcpy(a->out.data + i * a->out.stride,
               a->x.data + backend->batch->logit_rows[i] * a->x.stride,
               (size_t)a->cols * sizeof(float));
}

void cpu_gather(struct backend *backend, const struct ops_gather *a)
{
    rows_run(backend, gather_rows, a, backend->batch->num_logits, a->cols);
}
