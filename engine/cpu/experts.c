/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the router's choice, products with chosen matrices, and the weighted sum.
 *
 * A routed product takes the step's pairs of a row and one of its experts in the order of experts,
 * in blocks of rows of one expert, so that each chosen matrix is read once. All threads arrange
 * blocks, then all multiply panels of blocks: of one expert with many rows as of many with one row.
 * A row's sums do not depend on the rows beside it, so no bit depends on who else chose the expert.
 */
#include "engine/cpu/device.h"
#include "engine/cpu/tasks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Rows of one expert that meet its panels together. */
struct block {
    int expert, first, rows; /* pairs [first, first + rows) */
    int first_task;          /* of the product's tasks; each has `group` panels */
    int64_t group;
};

/* Scratch of one product. */
struct routing {
    int32_t *pairs;       /* [max_rows * max_chosen]: row * chosen + i, in the order of experts */
    int32_t *starts;      /* [max_experts + 1]: where each expert's begin */
    struct block *blocks; /* [pairs]: at most */
    float *arranged;      /* of all pairs, as kernels->arrange has x */
    float *rows;          /* [threads][BLOCK_ROWS, max_routed]: x of a block's rows, or their y */
    size_t num_pairs, row_floats, arranged_floats;
    uint64_t experts_read; /* so far */
};

int routing_prepare(struct backend *backend, const struct ops_limits *limits, struct error *err)
{
    if (limits->max_experts == 0)
        return 0;
    const size_t threads = (size_t)threads_count(backend->threads);
    struct routing *routing = backend->routing = calloc(1, sizeof *routing);
    if (routing == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory for experts");
    routing->num_pairs = (size_t)limits->max_rows * (size_t)limits->max_chosen;
    routing->row_floats = ((size_t)limits->max_routed + 15) / 16 * 16 * BLOCK_ROWS;
    routing->arranged_floats =
        routing->num_pairs * (size_t)limits->max_input / Q8_BLOCK * arranged_most(backend->kernels);
    routing->pairs = calloc(routing->num_pairs, sizeof *routing->pairs);
    routing->starts = calloc((size_t)limits->max_experts + 1, sizeof *routing->starts);
    routing->blocks = calloc(routing->num_pairs, sizeof *routing->blocks);
    routing->arranged = aligned_alloc(64, (routing->arranged_floats + 15) / 16 * 64);
    routing->rows = aligned_alloc(64, threads * routing->row_floats * sizeof *routing->rows);
    if (routing->pairs == NULL || routing->starts == NULL || routing->blocks == NULL ||
        routing->arranged == NULL || routing->rows == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory for experts");
    return 0;
}

void routing_close(struct backend *backend)
{
    struct routing *routing = backend->routing;
    if (routing == NULL)
        return;
    free(routing->pairs);
    free(routing->starts);
    free(routing->blocks);
    free(routing->arranged);
    free(routing->rows);
    free(routing);
    backend->routing = NULL;
}

static int expert_of(const struct ops_matmul *a, int pair)
{
    return (int)a->choices.data[pair / a->chosen * a->choices.stride + pair % a->chosen];
}

/* Sorts the pairs; those of an expert stay in the order of rows. */
static void sort_pairs(struct routing *routing, const struct ops_matmul *a)
{
    const int count = a->num_rows * a->chosen, experts = a->weight->heads;
    int32_t *starts = routing->starts;
    memset(starts, 0, (size_t)(experts + 1) * sizeof *starts);
    for (int p = 0; p < count; p++)
        starts[expert_of(a, p) + 1]++;
    for (int e = 0; e < experts; e++)
        starts[e + 1] += starts[e];
    for (int p = 0; p < count; p++) /* each start moves on to the next expert's */
        routing->pairs[starts[expert_of(a, p)]++] = p;
    for (int e = experts; e > 0; e--)
        starts[e] = starts[e - 1];
    starts[0] = 0;
}

struct routed_job {
    struct backend *backend;
    const struct ops_matmul *arguments;
    const struct routing *routing;
    int64_t arranged_stride;
    int num_blocks;
};

/* The blocks and their tasks, of which it returns the number. Blocks of few rows are read at the
 * speed of memory, all together as if they were one matrix. */
static int make_blocks(struct routed_job *job)
{
    const struct routing *routing = job->routing;
    const struct weight *weight = job->arguments->weight;
    const int threads = threads_count(job->backend->threads);
    int count = 0, tasks = 0;
    for (int e = 0; e < weight->heads; e++)
        for (int at = routing->starts[e]; at < routing->starts[e + 1]; at += BLOCK_ROWS) {
            const int left = routing->starts[e + 1] - at;
            routing->blocks[count++] = (struct block){
                .expert = e, .first = at, .rows = left < BLOCK_ROWS ? left : BLOCK_ROWS};
        }
    for (int i = 0; i < count; i++) {
        struct block *block = &routing->blocks[i];
        block->first_task = tasks;
        block->group = product_task_panels(weight->format, weight->panels * count,
                                           (int64_t)weight->panel_bytes, block->rows, threads);
        tasks += (int)((weight->panels + block->group - 1) / block->group);
    }
    job->num_blocks = count;
    return tasks;
}

static const float *input_of(const struct ops_matmul *a, int pair)
{
    const int64_t part = a->by_part ? pair % a->chosen : 0;
    return a->x.data + pair / a->chosen * a->x.stride + part * a->weight->in;
}

static float *output_of(const struct ops_matmul *a, int pair)
{
    return a->y.data + pair / a->chosen * a->y.stride + pair % a->chosen * a->weight->out;
}

static void arrange_task(void *context, int task, int thread)
{
    const struct routed_job *job = context;
    const struct routing *routing = job->routing;
    const struct ops_matmul *a = job->arguments;
    const struct block *block = &routing->blocks[task];
    const int together = product_arranged_rows(job->backend, a->weight);
    const int64_t in = a->weight->in;
    float *rows = routing->rows + (size_t)thread * routing->row_floats;
    for (int r = 0; r < block->rows; r += together) {
        const int32_t *pairs = routing->pairs + block->first + r;
        const int count = block->rows - r < together ? block->rows - r : together;
        for (int i = 0; i < count && count > 1; i++)
            memcpy(rows + i * in, input_of(a, pairs[i]), (size_t)in * sizeof *rows);
        job->backend->kernels->arrange(
            a->weight, count > 1 ? rows : input_of(a, pairs[0]), in, count, 0, in,
            routing->arranged + (block->first + r) * job->arranged_stride);
    }
}

static const struct block *block_of(const struct routed_job *job, int task)
{
    int low = 0, high = job->num_blocks;
    while (low + 1 < high) {
        const int middle = (low + high) / 2;
        if (job->routing->blocks[middle].first_task <= task)
            low = middle;
        else
            high = middle;
    }
    return &job->routing->blocks[low];
}

static void multiply_task(void *context, int task, int thread)
{
    const struct routed_job *job = context;
    const struct routing *routing = job->routing;
    const struct ops_matmul *a = job->arguments;
    const struct weight *weight = a->weight;
    const struct block *block = block_of(job, task);
    const int32_t *pairs = routing->pairs + block->first;
    const int64_t first = (task - block->first_task) * block->group;
    const int64_t left = weight->panels - first;
    const bool alone = block->rows == 1;
    struct product product = {.weight = weight,
                              .head = block->expert,
                              .first = first,
                              .count = left < block->group ? left : block->group,
                              .num_rows = block->rows,
                              .x = routing->arranged + block->first * job->arranged_stride,
                              .x_stride = job->arranged_stride,
                              .y = routing->rows + (size_t)thread * routing->row_floats,
                              .y_stride = weight->out,
                              .activation = a->activation};
    if (alone)
        product.y = output_of(a, pairs[0]);
    job->backend->kernels->product(&product);
    if (alone)
        return;
    const int64_t column = first * PANEL, end = column + product.count * PANEL;
    const size_t bytes = (size_t)((end < weight->out ? end : weight->out) - column) * sizeof(float);
    for (int i = 0; i < block->rows; i++)
        memcpy(output_of(a, pairs[i]) + column, product.y + i * weight->out + column, bytes);
}

void routing_multiply(struct backend *backend, const struct ops_matmul *a)
{
    struct routing *routing = backend->routing;
    const struct weight *weight = a->weight;
    struct routed_job job = {.backend = backend,
                             .arguments = a,
                             .routing = routing,
                             .arranged_stride = arranged_row(backend->kernels, weight)};
    const int64_t pairs = (int64_t)a->num_rows * a->chosen;
    assert(a->norm == NULL && a->next == NULL && !a->accumulate);
    assert((size_t)pairs <= routing->num_pairs &&
           (size_t)(pairs * job.arranged_stride) <= routing->arranged_floats &&
           (size_t)((weight->in > weight->out ? weight->in : weight->out) * BLOCK_ROWS) <=
               routing->row_floats);
    sort_pairs(routing, a);
    const int tasks = make_blocks(&job);
    tasks_run(backend, arrange_task, &job, job.num_blocks, CROSSING_COST * pairs * weight->in);
    tasks_run(backend, multiply_task, &job, tasks, pairs * weight->in * weight->out);
}

static void route_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_route *a = arguments;
    (void)backend;
    for (int r = first; r < end; r++) {
        float *choices = a->choices.data + r * a->choices.stride;
        formula_route(&a->rule, a->scores.data + r * a->scores.stride, a->bias, a->scale,
                      a->num_experts, a->chosen, choices, choices + a->chosen);
    }
}

/* Those that some row has chosen. */
static void count_experts(struct routing *routing, const struct ops_route *a)
{
    int32_t *seen = routing->starts;
    memset(seen, 0, (size_t)a->num_experts * sizeof *seen);
    for (int r = 0; r < a->num_rows; r++)
        for (int i = 0; i < a->chosen; i++)
            seen[(int)a->choices.data[r * a->choices.stride + i]] = 1;
    for (int e = 0; e < a->num_experts; e++)
        routing->experts_read += (uint64_t)seen[e];
}

void cpu_route(struct backend *backend, const struct ops_route *a)
{
    rows_run(backend, route_rows, a, a->num_rows, (int64_t)a->num_experts * (a->chosen + 16));
    count_experts(backend->routing, a);
}

uint64_t cpu_experts_read(const struct backend *backend)
{
    return backend->routing != NULL ? backend->routing->experts_read : 0;
}

static void combine_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_combine *a = arguments;
    (void)backend;
    for (int r = first; r < end; r++) {
        const float *weights = a->choices.data + r * a->choices.stride + a->chosen;
        const float *x = a->x.data + r * a->x.stride;
        float *out = a->out.data + r * a->out.stride;
        for (int j = 0; j < a->num_cols; j++) {
            const float sum = formula_combine(weights, x + j, a->num_cols, a->chosen);
            out[j] = a->accumulate ? out[j] + sum : sum;
        }
    }
}

void cpu_combine(struct backend *backend, const struct ops_combine *a)
{
    rows_run(backend, combine_rows, a, a->num_rows, (int64_t)a->num_cols * a->chosen);
}
