#include "engine/cpu/backend.h"

#include "engine/cpu/kernels.h"
#include "engine/cpu/threads.h"
#include "engine/cpu/weights.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Fewest elements (or multiply-adds) of an operation worth a second thread: some 10 microseconds of
 * work, as much as waking a thread can cost. */
enum { SHARE_ELEMENTS = 1 << 17 };

struct backend {
    const struct kernels *kernels;
    struct threads *threads;
    int64_t share_elements; /* fewest of an operation worth a second thread */
    const struct batch *batch;
    struct query_group *groups; /* [max_rows]: of the batch */
    int num_groups;
    float *scratch; /* [threads][scratch_floats] */
    size_t scratch_floats;
    unsigned saved_float; /* of the thread that called begin */
};

/* ---- memory ---- */

static int cpu_reserve(struct backend *backend, size_t bytes, void **out, struct error *err)
{
    (void)backend;
    void *memory = mmap(NULL, bytes == 0 ? 1 : bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(err, ERROR_NO_MEMORY, "no address space for %zu bytes: %s", bytes,
                         strerror(errno));
    madvise(memory, bytes, MADV_HUGEPAGE); /* fewer TLB misses where the kernel agrees */
    *out = memory;
    return 0;
}

static void cpu_release(struct backend *backend, void *memory, size_t bytes)
{
    (void)backend;
    munmap(memory, bytes == 0 ? 1 : bytes);
}

static void cpu_discard(struct backend *backend, void *memory, size_t bytes)
{
    (void)backend;
    const uintptr_t page = 4096;
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
    if (first < end)
        madvise((char *)memory + (first - (uintptr_t)memory), end - first, MADV_DONTNEED);
}

static void cpu_fill(struct backend *backend, void *memory, float value, size_t count)
{
    (void)backend;
    float *floats = memory;
    if (value == 0.0f)
        memset(memory, 0, count * sizeof(float));
    else
        for (size_t i = 0; i < count; i++)
            floats[i] = value;
}

static void cpu_copy(struct backend *backend, void *to, const void *from, size_t bytes)
{
    (void)backend;
    if (bytes > 0)
        memcpy(to, from, bytes);
}

static int cpu_upload(struct backend *backend, const void *host, size_t bytes, void **out,
                      struct error *err)
{
    (void)backend;
    void *copy = malloc(bytes == 0 ? 1 : bytes);
    if (copy == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", bytes);
    memcpy(copy, host, bytes);
    *out = copy;
    return 0;
}

static void cpu_unload(struct backend *backend, void *memory)
{
    (void)backend;
    free(memory);
}

static int cpu_weight_create(struct backend *backend, struct weight **out,
                             const struct matrix *parts, int num_parts, int heads,
                             struct error *err)
{
    (void)backend;
    return weights_create(out, parts, num_parts, heads, err);
}

static void cpu_weight_free(struct backend *backend, struct weight *weight)
{
    (void)backend;
    weights_free(weight);
}

static size_t cpu_weight_bytes(const struct weight *weight)
{
    return weight->bytes;
}

static int cpu_table_create(struct backend *backend, struct table **out,
                            const struct matrix *matrix, struct error *err)
{
    (void)backend;
    struct table *table = malloc(sizeof *table);
    if (table == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a table");
    table->matrix = *matrix;
    *out = table;
    return 0;
}

static void cpu_table_free(struct backend *backend, struct table *table)
{
    (void)backend;
    free(table);
}

/* ---- rows shared among threads ---- */

/* A kernel over rows [first, end), whatever its arguments are. */
typedef void rows_kernel(struct backend *backend, const void *arguments, int first, int end);

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
static void run_rows(struct backend *backend, rows_kernel *kernel, const void *arguments,
                     int num_rows, int64_t width)
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

static void cpu_norm(struct backend *backend, const struct ops_norm *a)
{
    run_rows(backend, norm_rows, a, a->num_rows, (int64_t)a->groups * a->size);
}

static void map_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->map(arguments, first, end);
}

static void cpu_map(struct backend *backend, const struct ops_map *a)
{
    run_rows(backend, map_rows, a, a->num_rows, 4 * (int64_t)a->num_cols);
}

static void angles_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->angles(arguments, backend->batch, first, end);
}

static void cpu_angles(struct backend *backend, const struct ops_angles *a)
{
    run_rows(backend, angles_rows, a, backend->batch->num_rows, 16 * (int64_t)a->count);
}

static void positions_rows(struct backend *backend, const void *arguments, int first, int end)
{
    backend->kernels->positions(arguments, backend->batch, first, end);
}

static void cpu_positions(struct backend *backend, const struct ops_positions *a)
{
    run_rows(backend, positions_rows, a, backend->batch->num_rows,
             2 * (int64_t)a->num_heads * a->dim);
}

static void embed_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_embed *a = arguments;
    const struct batch *batch = backend->batch;
    int64_t size = a->hidden_size;
    for (int r = first; r < end; r++) {
        float *x = a->x.data + r * a->x.stride;
        weights_read(&a->tokens->matrix, batch->tokens[r] * size, size, x);
        if (a->position_embedding == POSITION_EMBEDDING_LEARNED) {
            float part[64];
            for (int64_t at = 0; at < size; at += 64) {
                int64_t n = size - at < 64 ? size - at : 64;
                weights_read(&a->positions->matrix, batch->positions[r] * size + at, n, part);
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

static void cpu_embed(struct backend *backend, const struct ops_embed *a)
{
    run_rows(backend, embed_rows, a, backend->batch->num_rows, a->hidden_size);
}

struct gather {
    struct rows x, out;
    int cols;
};

static void gather_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct gather *a = arguments;
    for (int i = first; i < end; i++)
        memcpy(a->out.data + i * a->out.stride,
               a->x.data + backend->batch->logit_rows[i] * a->x.stride,
               (size_t)a->cols * sizeof(float));
}

static void cpu_gather(struct backend *backend, struct rows x, struct rows out, int cols)
{
    const struct gather gather = {x, out, cols};
    run_rows(backend, gather_rows, &gather, backend->batch->num_logits, cols);
}

/* ---- products ---- */

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

static void cpu_matmul(struct backend *backend, const struct ops_matmul *a)
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

/* ---- per text and head ---- */

struct head_job {
    struct backend *backend;
    const void *arguments;
    int heads;
};

static void run_heads(struct backend *backend, threads_task *task, const void *arguments, int items,
                      int heads, int64_t elements)
{
    struct head_job job = {backend, arguments, heads};
    int tasks = items * heads;
    if (elements < backend->share_elements)
        for (int i = 0; i < tasks; i++)
            task(&job, i, 0);
    else
        threads_run(backend->threads, task, &job, tasks);
}

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

static void cpu_features(struct backend *backend, const struct ops_features *a)
{
    const struct batch *batch = backend->batch;
    int64_t width = (int64_t)a->num_heads * a->features;
    if (a->keys && formula_is_exponential(a->map))
        run_heads(backend, key_features_task, a, batch->num_spans, a->num_heads,
                  4 * width * batch->num_rows);
    else
        run_rows(backend, features_rows, a, batch->num_rows, 4 * width);
}

static void recurrence_task(void *context, int task, int thread)
{
    (void)thread;
    const struct head_job *job = context;
    job->backend->kernels->recurrence(
        job->arguments, &job->backend->batch->spans[task / job->heads], task % job->heads);
}

static void cpu_recurrence(struct backend *backend, const struct ops_recurrence *a)
{
    const struct batch *batch = backend->batch;
    run_heads(backend, recurrence_task, a, batch->num_spans, a->num_heads,
              (int64_t)batch->num_rows * a->num_heads * a->value_dim * a->features);
}

static void append_task(void *context, int task, int thread)
{
    (void)thread;
    const struct head_job *job = context;
    job->backend->kernels->append(job->arguments, &job->backend->batch->spans[task / job->heads],
                                  task % job->heads);
}

static float *scratch_of(struct backend *backend, int thread)
{
    return backend->scratch + (size_t)thread * backend->scratch_floats;
}

static void attention_task(void *context, int task, int thread)
{
    const struct head_job *job = context;
    const struct query_group *group = &job->backend->groups[task / job->heads];
    job->backend->kernels->attention(job->arguments, &job->backend->batch->spans[group->span],
                                     group, task % job->heads, scratch_of(job->backend, thread));
}

static void window_task(void *context, int task, int thread)
{
    const struct head_job *job = context;
    job->backend->kernels->window(job->arguments, &job->backend->batch->spans[task / job->heads],
                                  task % job->heads, scratch_of(job->backend, thread));
}

static void cpu_attention(struct backend *backend, const struct ops_attention *a)
{
    const struct batch *batch = backend->batch;
    int64_t width = (int64_t)a->num_heads * (a->key_dim + a->value_dim);
    if (a->window != WINDOW_FULL) {
        run_heads(backend, window_task, a, batch->num_spans, a->num_kv_heads,
                  width * a->window_size * batch->num_rows);
        return;
    }
    int64_t keys = 0;
    for (int i = 0; i < batch->num_spans; i++)
        keys += (batch->spans[i].position + batch->spans[i].num_rows) * batch->spans[i].num_rows;
    run_heads(backend, append_task, a, batch->num_spans, a->num_kv_heads, width * batch->num_rows);
    run_heads(backend, attention_task, a, backend->num_groups, a->num_heads, width * keys);
}

/* ---- the step ---- */

static void cpu_begin(struct backend *backend, const struct batch *batch)
{
    backend->saved_float = threads_flush_denormals();
    backend->batch = batch;
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

static const float *cpu_finish(struct backend *backend, const float *device_data, size_t count)
{
    (void)count;
    threads_restore_float(backend->saved_float);
    backend->batch = NULL;
    return device_data;
}

static int cpu_prepare(struct backend *backend, const struct ops_limits *limits, struct error *err)
{
    size_t threads = (size_t)threads_count(backend->threads);
    backend->scratch_floats = QUERY_GROUP * ops_value_stride(limits->max_value_dim);
    backend->scratch = calloc(threads * backend->scratch_floats + 1, sizeof(float));
    backend->groups = calloc((size_t)limits->max_rows, sizeof *backend->groups);
    if (backend->scratch == NULL || backend->groups == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory for scratch");
    return 0;
}

static bool runs(const struct kernels *kernels)
{
    if (kernels == NULL)
        return false;
#if defined(__x86_64__)
    if (kernels == kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (kernels == kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return true;
}

static const struct kernels *choose(const char *name, struct error *err)
{
    const struct kernels *const all[] = {kernels_avx512, kernels_avx2, kernels_generic};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (runs(all[i]) && (name == NULL || strcmp(name, all[i]->name) == 0))
            return all[i];
    error_set(err, ERROR_INVALID, "instruction_set: \"%s\" is unknown or not on this machine",
              name == NULL ? "" : name);
    return NULL;
}

static void cpu_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    threads_close(backend->threads);
    free(backend->groups);
    free(backend->scratch);
    free(backend);
}

static const char *cpu_instruction_set(const struct backend *backend)
{
    return backend->kernels->name;
}

static int cpu_threads(const struct backend *backend)
{
    return threads_count(backend->threads);
}

int cpu_open(struct backend **out, const struct cpu_options *options, struct error *err)
{
    struct backend *backend = calloc(1, sizeof *backend);
    if (backend == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory");
    backend->share_elements = options->share_always ? 0 : SHARE_ELEMENTS;
    backend->kernels = choose(options->instruction_set, err);
    if (backend->kernels == NULL || threads_open(&backend->threads, options->threads, err) != 0) {
        cpu_close(backend);
        return -1;
    }
    *out = backend;
    return 0;
}

const struct ops cpu_ops = {
    .device = "cpu",
    .close = cpu_close,
    .instruction_set = cpu_instruction_set,
    .threads = cpu_threads,
    .prepare = cpu_prepare,
    .reserve = cpu_reserve,
    .release = cpu_release,
    .discard = cpu_discard,
    .fill = cpu_fill,
    .copy = cpu_copy,
    .upload = cpu_upload,
    .unload = cpu_unload,
    .weight_create = cpu_weight_create,
    .weight_free = cpu_weight_free,
    .weight_bytes = cpu_weight_bytes,
    .table_create = cpu_table_create,
    .table_free = cpu_table_free,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .matmul = cpu_matmul,
    .map = cpu_map,
    .angles = cpu_angles,
    .positions = cpu_positions,
    .features = cpu_features,
    .recurrence = cpu_recurrence,
    .attention = cpu_attention,
    .gather = cpu_gather,
    .finish = cpu_finish,
};
