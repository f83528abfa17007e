/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"
#include "engine/cpu/tasks.h"

/* Of a number of a key or value, in multiply-adds of a product: it becomes f32, has its part in
 * softmax. */
enum { KEY_COST = 4 };

/* Heads with a kv head each that a task has at most: of as many the kernels read tiles together. */
enum { MOST_TOGETHER = 6 };

void attention_groups(struct backend *backend, const struct batch *batch)
{
    backend->num_groups = 0;
    for (int i = 0; i < batch->num_spans; i++) {
        const struct batch_span *span = &batch->spans[i];
        for (int t = 0; t < span->num_rows;) {
            int64_t position = span->position + t;
            int n = QUERY_GROUP - (int)(position % QUERY_GROUP);
            n = n < span->num_rows - t ? n : span->num_rows - t;
            backend->groups[backend->num_groups++] = (struct query_group){
                .span = i, .first_row = span->first_row + t, .num_rows = n, .position = position};
            t += n;
        }
    }
}

static float *scratch_of(struct backend *backend, int thread)
{
    return backend->scratch + (size_t)thread * backend->scratch_floats;
}

/* A text's or group's heads are `parts` tasks: a kv head each, whose heads read a tile together;
 * some, where each head has its own and their tiles are read in turns; or fewer heads, as many as
 * it takes to give each thread some. A head of a text is never divided. */
struct attention_job {
    struct backend *backend;
    const struct ops_attention *arguments;
    int parts;
    bool appends; /* a text's only row brings its key with it */
};

static bool appends_itself(const struct attention_job *job, const struct batch_span *span)
{
    return job->appends && span->num_rows == 1;
}

static void append_task(void *context, int task, int thread)
{
    (void)thread;
    const struct attention_job *job = context;
    const struct ops_attention *a = job->arguments;
    const struct batch_span *span = &job->backend->batch->spans[task / a->num_kv_heads];
    if (!appends_itself(job, span))
        job->backend->kernels->append(a, span, task % a->num_kv_heads);
}

/* As how many numbers of bf16 tiles multiply queries and the weights of values: to as many bits as
 * products round their inputs (enum activation_format). */
static int attention_parts(const struct backend *backend)
{
    const bool blocks = weight_format_block(backend->weights) > 1;
    switch (backend->activations) {
    case ACTIVATIONS_16BIT:
        return blocks ? 2 : 1;
    case ACTIVATIONS_8BIT:
        return 1;
    default:
        return MOST_PARTS;
    }
}

static void attention_task(void *context, int task, int thread)
{
    const struct attention_job *job = context;
    const struct ops_attention *a = job->arguments;
    const struct query_group *group = &job->backend->groups[task / job->parts];
    int part = task % job->parts;
    const struct batch_span *span = &job->backend->batch->spans[group->span];
    if (appends_itself(job, span))
        for (int head = a->num_kv_heads * part / job->parts;
             head < a->num_kv_heads * (part + 1) / job->parts; head++)
            job->backend->kernels->append(a, span, head);
    job->backend->kernels->attention(
        a, span, group, a->num_heads * part / job->parts, a->num_heads * (part + 1) / job->parts,
        attention_parts(job->backend), scratch_of(job->backend, thread));
}

static int choose_parts(const struct backend *backend, const struct ops_attention *a)
{
    int64_t tasks = (int64_t)backend->num_groups * a->num_kv_heads;
    int threads = threads_count(backend->threads), parts = 1;
    for (int together = MOST_TOGETHER; together > 1 && a->num_heads == a->num_kv_heads; together--)
        if (a->num_heads % together == 0 &&
            (tasks / together % threads == 0 || tasks / together >= 4 * threads))
            return a->num_heads / together;
    while (parts < a->num_heads / a->num_kv_heads && tasks * parts % threads != 0 &&
           tasks * parts < 4 * threads)
        parts++;
    return a->num_kv_heads * parts;
}

static void window_task(void *context, int task, int thread)
{
    const struct head_job *job = context;
    job->backend->kernels->window(job->arguments, &job->backend->batch->spans[task / job->heads],
                                  task % job->heads, scratch_of(job->backend, thread));
}

static void segments_task(void *context, int task, int thread)
{
    (void)thread;
    const struct head_job *job = context;
    job->backend->kernels->segments(job->arguments, &job->backend->batch->spans[task / job->heads],
                                    task % job->heads);
}

void cpu_segments(struct backend *backend, const struct ops_segments *a)
{
    heads_run(backend, segments_task, a, backend->batch->num_spans, a->num_heads,
              (int64_t)backend->batch->num_rows * a->num_heads * a->rank *
                  (a->key_dim + a->value_dim));
}

/* Of all rows together. */
static int64_t vectors_seen(const struct batch *batch, const struct ops_segments *segments)
{
    int64_t seen = 0;
    for (int i = 0; segments != NULL && i < batch->num_spans; i++)
        seen += batch->spans[i].num_rows * ops_segments_before(segments, batch->spans[i].position);
    return seen;
}

void cpu_attention(struct backend *backend, const struct ops_attention *a)
{
    const struct batch *batch = backend->batch;
    int64_t width = (int64_t)a->num_heads * (a->key_dim + a->value_dim);
    if (!window_has(a->window, KEEPS_ALL_KEYS)) {
        heads_run(
            backend, window_task, a, batch->num_spans, a->num_kv_heads,
            width * ((int64_t)a->window_size * batch->num_rows + vectors_seen(batch, a->segments)));
        return;
    }
    int64_t keys = 0; /* by whole tiles: a text's first token takes as long as its 64th */
    for (int i = 0; i < batch->num_spans; i++) {
        int64_t end = batch->spans[i].position + batch->spans[i].num_rows;
        keys += (end + OPS_TILE - 1) / OPS_TILE * OPS_TILE * batch->spans[i].num_rows;
    }
    struct attention_job job = {backend, a, choose_parts(backend, a), false};
    job.appends = job.parts <= a->num_kv_heads;
    if (!job.appends || batch->num_spans < batch->num_rows)
        tasks_run(backend, append_task, &job, batch->num_spans * a->num_kv_heads,
                  width * batch->num_rows);
    tasks_run(backend, attention_task, &job, backend->num_groups * job.parts,
              KEY_COST * width * keys);
}
