/* SPDX-License-Identifier: Apache-2.0 */
/* What treats rows one by one: norms, formulas, angles and positions. */
#include "engine/ops/perform.h"
#include "loadtest/kernels/job.h"

struct job_case {
    const char *name;
    int kind; /* enum norm_kind, formula or position_kind */
    int groups, size;
    bool gated;
    void (*queue)(const struct job_run *, int call);
    double reads, writes; /* numbers of each element of a row */
};

enum { OUT, U, W, COSINES, SINES };

static int width(const struct job_case *c)
{
    return c->groups * c->size;
}

static void queue_norm(const struct job_run *run, int call)
{
    const struct job_case *c = run->job->parameters;
    (void)call;
    perform_norm(
        run->device->ops, run->device->backend,
        &(struct ops_norm){.kind = (enum norm_kind)c->kind,
                           .eps = 1e-5f,
                           .weight = c->kind == NORM_SIMPLE_RMSNORM ? NULL : run->arrays[W],
                           .bias = c->kind == NORM_LAYERNORM || c->kind == NORM_GATED_RMSNORM
                                       ? run->arrays[W]
                                       : NULL,
                           .num_rows = run->batch.num_rows,
                           .groups = c->groups,
                           .size = c->size,
                           .x = job_rows(run, U, width(c)),
                           .y = job_rows(run, OUT, width(c)),
                           .formula = FORMULA_SILU,
                           .gate = c->gated ? job_rows(run, W, width(c)) : (struct rows){0}});
}

static void queue_map(const struct job_run *run, int call)
{
    const struct job_case *c = run->job->parameters;
    (void)call;
    perform_map(run->device->ops, run->device->backend,
                &(struct ops_map){.formula = (enum formula)c->kind,
                                  .constant = 16,
                                  .num_rows = run->batch.num_rows,
                                  .num_cols = width(c),
                                  .out = job_rows(run, OUT, width(c)),
                                  .u = job_rows(run, U, width(c)),
                                  .w = job_rows(run, W, width(c))});
}

static int outputs(const struct job_case *c)
{
    return width(c) * (c->kind == POSITION_LRPE_UNITARY ? 2 : 1);
}

static void queue_positions(const struct job_run *run, int call)
{
    const struct job_case *c = run->job->parameters;
    (void)call;
    perform_positions(run->device->ops, run->device->backend,
                      &(struct ops_positions){.kind = (enum position_kind)c->kind,
                                              .num_heads = c->groups,
                                              .dim = c->size,
                                              .rotary_dims = c->size / 2 * 2,
                                              .cosines = job_rows(run, COSINES, c->size),
                                              .sines = job_rows(run, SINES, c->size),
                                              .x = job_rows(run, U, width(c)),
                                              .out = job_rows(run, OUT, outputs(c))});
}

static void use_case(const struct job_case *c, int rows, job_use *use, void *context)
{
    size_t n = (size_t)rows, columns = (size_t)width(c);
    struct job job = {.parameters = c, .texts = 1, .rows = rows, .copies = 1, .queue = c->queue};
    bool positions = c->queue == queue_positions;
    size_t out = positions ? (size_t)outputs(c) : columns;
    job.arrays[OUT] = (struct job_array){n * out, 0, 0, true, 0};
    job.arrays[U] = (struct job_array){n * columns, -2, 2, false, 0};
    job.arrays[W] = (struct job_array){n * columns, -2, 2, false, 0};
    job.arrays[COSINES] = (struct job_array){n * (size_t)c->size, -1, 1, false, 0};
    job.arrays[SINES] = (struct job_array){n * (size_t)c->size, -1, 1, false, 0};
    job.tolerance = 2e-6; /* the same formulas; sums in another order */
    job.bytes = 4.0 * (double)n * ((double)columns * c->reads + (double)out * c->writes);
    snprintf(job.name, sizeof job.name, "%s, %d x %d, %d rows", c->name, c->groups, c->size, rows);
    use(&job, context);
}

void rows_jobs(int rows, job_use *use, void *context)
{
    static const struct job_case cases[] = {
        {"layernorm", NORM_LAYERNORM, 1, 768, false, queue_norm, 1, 1},
        {"layernorm", NORM_LAYERNORM, 1, 1001, false, queue_norm, 1, 1},
        {"rmsnorm", NORM_RMSNORM, 1, 4096, false, queue_norm, 1, 1},
        {"rmsnorm", NORM_RMSNORM, 12, 64, false, queue_norm, 1, 1},
        {"simple_rmsnorm", NORM_SIMPLE_RMSNORM, 3, 33, false, queue_norm, 1, 1},
        {"gated_rmsnorm", NORM_GATED_RMSNORM, 1, 768, false, queue_norm, 1, 1},
        {"rmsnorm, silu gate", NORM_RMSNORM, 12, 64, true, queue_norm, 2, 1},
        {"silu gate", NORM_NONE, 1, 3072, true, queue_norm, 2, 1},
        {"silu gate", NORM_NONE, 3, 33, true, queue_norm, 2, 1},
        {"gelu", FORMULA_GELU, 1, 33, false, queue_map, 1, 1},
        {"gelu_new", FORMULA_GELU_NEW, 1, 33, false, queue_map, 1, 1},
        {"refined gate", FORMULA_REFINED_GATE, 1, 768, false, queue_map, 2, 1},
        {"gla gate", FORMULA_GLA_GATE, 1, 257, false, queue_map, 1, 1},
        {"rope", POSITION_ROPE, 12, 64, false, queue_positions, 2, 1},
        {"rope", POSITION_ROPE, 3, 9, false, queue_positions, 2, 1},
        {"lrpe unitary", POSITION_LRPE_UNITARY, 5, 33, false, queue_positions, 3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (rows > 0)
            use_case(&cases[i], rows, use, context);
        else if (cases[i].size % 64 == 0)
            use_case(&cases[i], 16384, use, context);
}
