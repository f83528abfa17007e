/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in every format: a weight streamed once past few rows, tiles for many. */
#include "engine/model/model.h"
#include "engine/ops/perform.h"
#include "loadtest/kernels/job.h"

struct job_case {
    enum weight_format format;
    bool rounded; /* ACTIVATIONS_16BIT */
    int in, out;
};

enum { X, Y };

static void open_weights(struct job_run *run)
{
    const struct job *job = run->job;
    const struct job_case *c = job->parameters;
    const struct ops *ops = run->device->ops;
    struct error err = ERROR_INIT;
    run->weights = calloc((size_t)job->copies, sizeof(struct weight *));
    float *data = bench_floats((size_t)c->in * (size_t)c->out, -1, 1, 3);
    float *bias = bench_floats((size_t)c->out, -1, 1, 4);
    const struct matrix matrix = {
        .rows = c->out, .cols = c->in, .dtype = DTYPE_F32, .data = data, .bias = bias};
    for (int i = 0; i < job->copies; i++)
        if (ops->weight_create(run->device->backend, &run->weights[i], &matrix, 1, 1, c->format,
                               &err) != 0)
            bench_fatal("weight", &err);
    free(data);
    free(bias);
}

static void close_weights(struct job_run *run)
{
    for (int i = 0; i < run->job->copies; i++)
        run->device->ops->weight_free(run->device->backend, run->weights[i]);
    free(run->weights);
}

static void queue(const struct job_run *run, int call)
{
    const struct job_case *c = run->job->parameters;
    perform_matmul(run->device->ops, run->device->backend,
                   &(struct ops_matmul){.weight = run->weights[call % run->job->copies],
                                        .num_rows = run->batch.num_rows,
                                        .x = job_rows(run, X, c->in),
                                        .y = job_rows(run, Y, c->out),
                                        .activation = FORMULA_GELU});
}

static void use_case(const struct job_case *c, int texts, int rows, int copies, job_use *use,
                     void *context)
{
    size_t n = (size_t)texts * (size_t)rows;
    double bytes = (double)weight_format_bytes(c->format) / weight_format_block(c->format);
    struct job job = {.parameters = c,
                      .texts = texts,
                      .rows = rows,
                      .copies = copies,
                      .open = open_weights,
                      .queue = queue,
                      .close = close_weights};
    job.arrays[X] = (struct job_array){n * (size_t)c->in, -1, 1, false, 0};
    job.arrays[Y] = (struct job_array){n * (size_t)c->out, 0, 0, true, 0};
    /* x comes within 2^-17 or 2^-9, sums in another order */
    job.activations = c->rounded ? ACTIVATIONS_16BIT : ACTIVATIONS_F32;
    job.tolerance = c->rounded ? 2e-3 : 1e-5;
    job.bytes = bytes * c->in * c->out + 4.0 * (double)n * (c->in + c->out);
    job.operations = 2.0 * (double)n * c->in * c->out;
    snprintf(job.name, sizeof job.name, "product %s, %d x %d, %zu rows%s",
             weight_format_name(c->format), c->in, c->out, n, c->rounded ? ", rounded" : "");
    use(&job, context);
}

void product_jobs(int rows, job_use *use, void *context)
{
    static const struct job_case checked[] = {
        {WEIGHTS_F32, false, 97, 131},  {WEIGHTS_BF16, false, 97, 131},
        {WEIGHTS_F16, false, 97, 131},  {WEIGHTS_Q8, false, 97, 131},
        {WEIGHTS_F32, false, 768, 33},  {WEIGHTS_BF16, false, 768, 33},
        {WEIGHTS_F16, false, 1000, 33}, {WEIGHTS_Q8, false, 768, 33},
        {WEIGHTS_BF16, true, 97, 131},  {WEIGHTS_Q8, true, 768, 33}};
    static const struct job_case timed[] = {
        {WEIGHTS_F32, false, 4096, 4096}, {WEIGHTS_BF16, false, 4096, 4096},
        {WEIGHTS_F16, false, 4096, 4096}, {WEIGHTS_Q8, false, 4096, 4096},
        {WEIGHTS_BF16, false, 768, 3072}, {WEIGHTS_BF16, false, 3072, 768},
        {WEIGHTS_BF16, true, 4096, 4096}, {WEIGHTS_Q8, true, 4096, 4096},
        {WEIGHTS_BF16, true, 768, 3072},  {WEIGHTS_BF16, true, 3072, 768}};
    static const int batches[] = {1, 8, 64, 256};
    for (size_t i = 0; i < sizeof checked / sizeof *checked && rows > 0; i++)
        use_case(&checked[i], 1, rows, 1, use, context);
    for (size_t i = 0; i < sizeof timed / sizeof *timed && rows == 0; i++) {
        for (int b = 0; b < 4; b++)
            use_case(&timed[i], batches[b], 1, timed[i].in < 4096 ? 64 : 8, use, context);
        use_case(&timed[i], 1, 2048, 8, use, context);
    }
}
