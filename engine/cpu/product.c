/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"

#include <assert.h>

/* Panels of one task. Few rows read a panel at the speed of memory, and the thread that ends first
 * waits for the other's last task: so tasks are small, but not so small that their beginnings
 * count. Many rows compute on a panel much longer. On many cores each gets some tasks first. */
enum { MANY_ROWS = 16, MANY_ROWS_PANELS = 4, TASK_BYTES = 200 * 1024, TASKS_OF_THREAD = 2 };

/* Fewest that a thread arranges. */
enum { ARRANGED_INPUTS = 64 };

int64_t product_task_panels(enum weight_format format, int64_t panels, int64_t panel_bytes,
                            int num_rows, int threads)
{
    int64_t task = num_rows >= MANY_ROWS ? MANY_ROWS_PANELS : TASK_BYTES / panel_bytes;
    int64_t share = panels / (TASKS_OF_THREAD * threads);
    task = task < share ? task : share;
    int64_t together = panels_together(format);
    task = task / together * together;
    return task > together ? task : together;
}

static int64_t panels_of_task(const struct backend *backend, const struct weight *weight, int heads,
                              int num_rows)
{
    return product_task_panels(weight->format, weight->panels * heads, (int64_t)weight->panel_bytes,
                               num_rows, threads_count(backend->threads));
}

/* Tells each thread where its share of the next product begins, as threads_run will cut it. */
static void look_ahead(struct backend *backend, const struct weight *next, int num_rows)
{
    int64_t group = panels_of_task(backend, next, next->heads, num_rows);
    int64_t groups = (next->panels + group - 1) / group, count = threads_count(backend->threads);
    for (int64_t i = 0; i < count; i++) {
        int64_t task = groups * next->heads * i / count;
        int64_t panel = task / groups * next->panels + task % groups * group;
        threads_ahead(backend->threads, (int)i, panel_at(next, panel));
    }
}

struct product_job {
    const struct kernels *kernels;
    const struct ops_matmul *arguments;
    int heads;             /* of the weight: part i of x and y meets matrix i */
    int64_t group, groups; /* panels of a task; groups of a head */
    int blocks;            /* of BLOCK_ROWS rows, a task each */
    bool activate_after;   /* the product, not each panel */
    float *arranged;       /* [heads, num_rows, arranged_stride], or NULL: one row as it is */
    int64_t arranged_stride;
    int arranged_rows;      /* that one thread arranges together: of whole tiles */
    int64_t arranged_count; /* inputs of them: of whole blocks */
    int arranged_parts;     /* of the inputs */
};

static void product_task(void *context, int task, int thread)
{
    (void)thread;
    const struct product_job *job = context;
    const struct ops_matmul *a = job->arguments;
    const struct weight *weight = a->weight;
    int first_row = task % job->blocks * BLOCK_ROWS, rows = a->num_rows - first_row;
    task /= job->blocks;
    int part = (int)(task / job->groups);
    int64_t first = task % job->groups * job->group;
    int64_t count = weight->panels - first < job->group ? weight->panels - first : job->group;
    struct product product = {.weight = weight,
                              .head = part,
                              .first = first,
                              .count = count,
                              .num_rows = rows < BLOCK_ROWS ? rows : BLOCK_ROWS,
                              .x = a->x.data + part * weight->in,
                              .x_stride = job->arranged_stride,
                              .y = a->y.data + first_row * a->y.stride + part * weight->out,
                              .y_stride = a->y.stride,
                              .activation = job->activate_after ? FORMULA_IDENTITY : a->activation,
                              .accumulate = a->accumulate};
    if (job->arranged != NULL)
        product.x = job->arranged + (part * a->num_rows + first_row) * job->arranged_stride;
    job->kernels->product(&product);
}

/* Parts [first, end) of the inputs of job->arranged_rows rows of every head: of each such group of
 * rows in turn. */
static void arrange_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct product_job *job = arguments;
    const struct ops_matmul *a = job->arguments;
    (void)backend;
    for (int part = first; part < end; part++) {
        int r = part / job->arranged_parts * job->arranged_rows;
        int64_t k = part % job->arranged_parts * job->arranged_count, in = a->weight->in;
        int64_t stop = in - k < job->arranged_count ? in : k + job->arranged_count;
        int rows = a->num_rows - r < job->arranged_rows ? a->num_rows - r : job->arranged_rows;
        for (int head = 0; head < job->heads; head++)
            job->kernels->arrange(
                a->weight, a->x.data + r * a->x.stride + head * in, a->x.stride, rows, k, stop,
                job->arranged + ((int64_t)head * a->num_rows + r) * job->arranged_stride);
    }
}

int product_arranged_rows(const struct backend *backend, const struct weight *weight)
{
    const struct kernels *kernels = backend->kernels;
    return fixes_inputs(kernels, weight->format) && kernels->tiles == 0 ? FIXED_ROWS : BLOCK_ROWS;
}

/* x in the order in which the kernels take it, by all threads, each some of the inputs: those that
 * it wrote itself if x came from a product. */
static void arrange(struct backend *backend, struct product_job *job)
{
    const struct ops_matmul *a = job->arguments;
    const struct weight *weight = a->weight;
    job->arranged = backend->arranged;
    job->arranged_stride = arranged_row(job->kernels, weight);
    job->arranged_rows = product_arranged_rows(backend, weight);
    assert((size_t)(a->num_rows * job->arranged_stride * job->heads) <= backend->arranged_floats);
    int groups = (a->num_rows + job->arranged_rows - 1) / job->arranged_rows;
    int64_t blocks = (weight->in + ARRANGED_INPUTS - 1) / ARRANGED_INPUTS;
    int64_t parts = threads_count(backend->threads);
    parts = parts < blocks ? parts : blocks;
    job->arranged_count = (blocks + parts - 1) / parts * ARRANGED_INPUTS;
    job->arranged_parts = (int)((weight->in + job->arranged_count - 1) / job->arranged_count);
    rows_run(backend, arrange_rows, job, groups * job->arranged_parts,
             CROSSING_COST * a->num_rows * weight->in * job->heads /
                 (groups * job->arranged_parts));
}

/* One row's outputs, after all of them: between its panels an activation holds up their stream, for
 * many times as long as it takes by itself. */
static void activate(struct backend *backend, const struct ops_matmul *a, int heads)
{
    backend->kernels->map(&(struct ops_map){.formula = a->activation,
                                            .u = a->y,
                                            .out = a->y,
                                            .num_rows = 1,
                                            .num_cols = (int)(a->weight->out * heads)},
                          0, 1);
}

void product_multiply(struct backend *backend, const struct ops_matmul *a)
{
    const struct weight *weight = a->weight;
    const int heads = weight->heads;
    int64_t group = panels_of_task(backend, weight, heads, a->num_rows);
    struct product_job job = {.kernels = backend->kernels,
                              .arguments = a,
                              .heads = heads,
                              .group = group,
                              .groups = (weight->panels + group - 1) / group,
                              .blocks = (a->num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS,
                              .activate_after = a->num_rows == 1 && !a->accumulate &&
                                                a->activation != FORMULA_IDENTITY};
    if (a->num_rows > 1 || weight_format_block(weight->format) > 1 ||
        weight->activations != ACTIVATIONS_F32 || parts_inputs(backend->kernels, weight->format))
        arrange(backend, &job);
    int tasks = (int)(job.groups * job.blocks * heads);
    if (a->next != NULL && a->num_rows < MANY_ROWS)
        look_ahead(backend, a->next[0], a->num_rows);
    if (weight->out * heads * weight->in * a->num_rows < backend->share_elements)
        for (int i = 0; i < tasks; i++)
            product_task(&job, i, 0);
    else
        threads_run(backend->threads, product_task, &job, tasks);
    if (job.activate_after)
        activate(backend, a, heads);
}
