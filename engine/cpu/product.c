#include "engine/cpu/device.h"

struct product_job {
    const struct kernels *kernels;
    const struct ops_matmul *arguments;
    int64_t groups; /* of panels, of a head */
};

static void product_task(void *context, int task, int thread)
{
    (void)thread;
    const struct product_job *job = context;
    const struct ops_matmul *a = job->arguments;
    const struct weight *weight = a->weight;
    int head = (int)(task / job->groups);
    int64_t first = task % job->groups * PANEL_GROUP;
    int64_t count = weight->panels - first < PANEL_GROUP ? weight->panels - first : PANEL_GROUP;
    job->kernels->product(&(struct product){.weight = weight,
                                            .head = head,
                                            .first = first,
                                            .count = count,
                                            .num_rows = a->num_rows,
                                            .x = a->x.data + head * weight->in,
                                            .x_stride = a->x.stride,
                                            .y = a->y.data + head * weight->out,
                                            .y_stride = a->y.stride,
                                            .activation = a->activation,
                                            .accumulate = a->accumulate});
}

void cpu_matmul(struct backend *backend, const struct ops_matmul *a)
{
    int64_t groups = (a->weight->panels + PANEL_GROUP - 1) / PANEL_GROUP;
    struct product_job job = {backend->kernels, a, groups};
    int tasks = (int)(groups * a->weight->heads);
    if (a->weight->out * a->weight->heads * a->weight->in * a->num_rows < backend->share_elements)
        for (int i = 0; i < tasks; i++)
            product_task(&job, i, 0);
    else
        threads_run(backend->threads, product_task, &job, tasks);
}
