/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/backend.h"

#include "engine/cpu/device.h"
#include "engine/cpu/tasks.h"
#include "engine/cpu/weights.h"
#include "engine/ops/sampler.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Fewest elements (or multiply-adds) of an operation worth a second thread: some 10 microseconds of
 * work, as much as waking a thread can cost. */
enum { SHARE_ELEMENTS = 1 << 17 };

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

static bool cpu_populate(struct backend *backend, void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)memory / page * page, end = (uintptr_t)memory + bytes;
    (void)backend;
    return madvise((void *)from, end - from, MADV_POPULATE_WRITE) == 0;
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

static uint64_t cpu_save(struct backend *backend, const struct ops_save *save)
{
    char *to = save->to;
    cpu_copy(backend, to, save->head, save->head_bytes);
    to += save->head_bytes;
    for (int64_t i = 0; i < save->num_pages; i++, to += save->page_bytes)
        memcpy(to, save->pages[i], save->page_bytes);
    if (save->there != NULL)
        save->there(save);
    return 0;
}

static int cpu_save_wait(struct backend *backend, uint64_t number, struct error *err)
{
    (void)backend;
    (void)number;
    (void)err;
    return 0;
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
                             enum weight_format format, struct error *err)
{
    if (weights_create(out, backend->residence, backend->threads, parts, num_parts, heads, format,
                       backend->activations, err) != 0)
        return -1;
    /* What was asked for is for the model's format. For a matrix that the file has in two bytes
     * beside others the processor may have no products, and a set's bits may not depend on that. */
    if (weight_format_block((*out)->format) == 1 && backend->weights != (*out)->format)
        (*out)->activations = ACTIVATIONS_F32;
    if (backend->observer != NULL && heads == 1)
        backend->observer->packed(backend->observer->context, *out, parts, num_parts);
    return 0;
}

static void cpu_weight_free(struct backend *backend, struct weight *weight)
{
    weights_free(weight, backend->residence);
}

int cpu_weights_settle(struct backend *backend, const unsigned char *owner, struct error *err)
{
    return backend->residence->kind->settle(backend->residence, owner, err);
}

static size_t cpu_weight_bytes(const struct weight *weight, enum weight_format format)
{
    return format == WEIGHTS_AUTO
               ? weight->bytes
               : weights_packed_bytes(format, weight->in, weight->out, weight->heads);
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

/* ---- the step ---- */

static void cpu_begin(struct backend *backend, const struct batch *batch)
{
    backend->began = clock_seconds();
    backend->saved_float = threads_flush_denormals();
    backend->batch = backend->whole = batch;
    attention_groups(backend, batch);
}

static void cpu_send(struct backend *backend, const float *device_data, size_t count)
{
    (void)count;
    threads_restore_float(backend->saved_float);
    backend->batch = NULL;
    backend->sent = device_data;
    backend->busy += clock_seconds() - backend->began;
}

static const float *cpu_receive(struct backend *backend)
{
    return backend->sent;
}

static double cpu_busy_seconds(const struct backend *backend)
{
    return backend->busy;
}

struct draw_job {
    const struct backend *backend;
    const float *logits;
    int32_t vocab_size;
    struct draw *const *draws;
};

/* Small numbers count in a draw, as where its caller draws by itself. */
static void draw_task(void *context, int task, int thread)
{
    (void)thread;
    const struct draw_job *job = context;
    unsigned saved = threads_flush_denormals();
    threads_restore_float(job->backend->saved_float);
    sampler_draw(job->draws[task], job->logits + (int64_t)task * job->vocab_size);
    threads_restore_float(saved);
}

static void cpu_draw(struct backend *backend, const float *logits, int32_t vocab_size,
                     struct draw *const *draws, int num_draws)
{
    struct draw_job job = {backend, logits, vocab_size, draws};
    tasks_run(backend, draw_task, &job, num_draws, CROSSING_COST * (int64_t)vocab_size * num_draws);
}

static int cpu_prepare(struct backend *backend, const struct ops_limits *limits, struct error *err)
{
    size_t threads = (size_t)threads_count(backend->threads);
    size_t attention = attention_scratch(limits->max_key_dim, limits->max_value_dim,
                                         limits->max_value_dim_in_keys);
    size_t recurrence =
        recurrence_scratch(limits->max_value_dim, limits->max_head_dim, limits->max_features);
    backend->scratch_floats = ((attention > recurrence ? attention : recurrence) + 15) / 16 * 16;
    /* cache lines of their own: vectors that cross one cost twice */
    backend->scratch = aligned_alloc(64, (threads * backend->scratch_floats + 16) * sizeof(float));
    backend->groups = calloc((size_t)limits->max_rows, sizeof *backend->groups);
    /* max_input is padded to 32 inputs */
    backend->arranged_floats = (size_t)limits->max_rows * (size_t)limits->max_input / Q8_BLOCK *
                               arranged_most(backend->kernels);
    backend->arranged = aligned_alloc(64, (backend->arranged_floats + 15) / 16 * 64);
    if (backend->scratch == NULL || backend->groups == NULL || backend->arranged == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory for scratch");
    return routing_prepare(backend, limits, err);
}

static void cpu_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    threads_close(backend->threads);
    if (backend->residence != NULL)
        backend->residence->kind->close(backend->residence);
    routing_close(backend);
    free(backend->groups);
    free(backend->scratch);
    free(backend->arranged);
    free(backend);
}

static int cpu_status(struct backend *backend, struct error *err)
{
    (void)backend;
    (void)err;
    return 0;
}

static const char *cpu_instruction_set(const struct backend *backend)
{
    return backend->kernels->name;
}

static const char *cpu_unit(const struct backend *backend, enum weight_format weights)
{
    const struct kernels *kernels = backend->kernels;
    return instruction_set_unit_name(kernels,
                                     instruction_set_unit(kernels, weights, backend->activations));
}

static int cpu_threads(const struct backend *backend)
{
    return threads_count(backend->threads);
}

static int check_activations(const struct backend *backend, enum weight_format weights,
                             struct error *err)
{
    if (backend->activations == ACTIVATIONS_F32 ||
        instruction_set_rounds(backend->kernels, weights))
        return 0;
    const bool blocks = weight_format_block(weights) > 1;
    const bool wide = weight_format_has(weights, HAS_WIDE_EXPONENT);
#if defined(__aarch64__)
    const char *needed = weight_format_has(weights, HAS_FACTORS) ? "AVX-512 VNNI of x86-64"
                         : blocks                                ? "SDOT"
                         : wide                                  ? "BFMMLA"
                                                                 : "AMX of x86-64";
#else
    const char *needed = blocks ? "AVX-512 VNNI" : wide ? "AVX-512 BF16" : "AMX";
#endif
    return error_set(err, ERROR_UNSUPPORTED,
                     "activations: %s with weights in %s needs %s, expected f32 where there is %s "
                     "without it",
                     activation_format_name(backend->activations), weight_format_name(weights),
                     needed, backend->kernels->name);
}

static int open_residence(struct backend *backend, const struct cpu_options *options,
                          struct error *err)
{
    return options->packed_weights == NULL
               ? residence_open_memory(&backend->residence, err)
               : residence_open_file(&backend->residence, options->packed_weights,
                                     options->packed_number, err);
}

int cpu_open(struct backend **out, const struct cpu_options *options, struct error *err)
{
    struct backend *backend = calloc(1, sizeof *backend);
    if (backend == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory");
    backend->share_elements = options->share_always ? 0 : SHARE_ELEMENTS;
    backend->kernels = instruction_set_choose(options->instruction_set, err);
    backend->activations = options->activations;
    backend->weights = options->weights;
    backend->observer = options->observer;
    if (backend->kernels == NULL || check_activations(backend, options->weights, err) != 0 ||
        open_residence(backend, options, err) != 0 ||
        threads_open(&backend->threads, options->threads, err) != 0) {
        cpu_close(backend);
        return -1;
    }
    *out = backend;
    return 0;
}

const struct ops cpu_ops = {
    .device = "cpu",
    .close = cpu_close,
    .status = cpu_status,
    .instruction_set = cpu_instruction_set,
    .unit = cpu_unit,
    .threads = cpu_threads,
    .prepare = cpu_prepare,
    .state_memory = cpu_state_memory,
    .reserve = cpu_reserve,
    .release = cpu_release,
    .populate = cpu_populate,
    .fill = cpu_fill,
    .copy = cpu_copy,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .save = cpu_save,
    .save_wait = cpu_save_wait,
    .upload = cpu_upload,
    .unload = cpu_unload,
    .weight_create = cpu_weight_create,
    .weight_free = cpu_weight_free,
    .weight_bytes = cpu_weight_bytes,
    .table_create = cpu_table_create,
    .table_free = cpu_table_free,
    .begin = cpu_begin,
    .run = cpu_run,
    .perform = cpu_perform,
    .draw = cpu_draw,
    .send = cpu_send,
    .receive = cpu_receive,
    .busy_seconds = cpu_busy_seconds,
    .experts_read = cpu_experts_read,
    .measure = cpu_measure,
    .profile = cpu_profile,
};
