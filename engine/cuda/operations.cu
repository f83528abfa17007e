/* SPDX-License-Identifier: Apache-2.0 */
/* Passes an operation of a step to its launcher: with the rows to which the step is padded, with
 * a name in Nsight's time line (NVTX, if its header exists), and between two events if the step is
 * profiled. */
#include "engine/cuda/step.h"

#include "engine/cuda/common.cuh"
#include "engine/ops/profile.h"

#if !defined(REGLA_CUDA_EMULATION) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
static void nvtxRangePushA(const char *name)
{
    (void)name;
}
static void nvtxRangePop()
{
}
#endif

/* A profiled step's first operation waits until about all of them are queued, at some 10 us each:
 * else small ones would take as long as a launch. At least LEAST_OPERATIONS are expected. It waits
 * in rounds of 4 cycles. */
enum { LEAST_OPERATIONS = 200, ROUNDS_OF_AN_OPERATION = 5000 };

struct timed {
    enum profile_kind kind;
    cudaEvent_t start, end;
};

struct profiler {
    double *seconds; /* [PROFILE_SECONDS], borrowed */
    struct timed *timed;
    int count, room; /* of this step; with events */
};

/* A place for the times of one more operation; NULL when the step is not profiled. */
static struct timed *next_timed(struct backend *backend, enum profile_kind kind)
{
    struct profiler *profiler = backend->profiler;
    if (profiler == NULL)
        return NULL;
    if (profiler->count == profiler->room) {
        size_t bytes = (size_t)(profiler->room + 1) * sizeof *profiler->timed;
        struct timed *more = static_cast<struct timed *>(realloc(profiler->timed, bytes));
        if (more == NULL)
            return NULL;
        profiler->timed = more;
        struct timed *timed = &more[profiler->room];
        if (!device_check(backend, cudaEventCreateWithFlags(&timed->start, cudaEventDefault),
                          "cudaEventCreate") ||
            !device_check(backend, cudaEventCreateWithFlags(&timed->end, cudaEventDefault),
                          "cudaEventCreate"))
            return NULL;
        profiler->room++;
    }
    struct timed *timed = &profiler->timed[profiler->count++];
    timed->kind = kind;
    return timed;
}

static void record(struct backend *backend, cudaEvent_t event)
{
    device_check(backend, cudaEventRecord(event, backend->stream), "cudaEventRecord");
}

__global__ static void delay_kernel(float x, int rounds, float *used)
{
    grid_wait();
    for (int i = 0; i < rounds; i++)
        x = fmaf(x, 0.5f, 1.0f);
    if (x == 0.1f) /* never: x must be needed */
        *used = x;
}

/* Before a profiled step's first operation. */
static void delay(struct backend *backend)
{
    int room = backend->profiler->room; /* as many as a step has had */
    int rounds = ROUNDS_OF_AN_OPERATION * (room > LEAST_OPERATIONS ? room : LEAST_OPERATIONS);
    struct timed *timed = next_timed(backend, PROFILE_DELAY);
    if (timed == NULL)
        return;
    record(backend, timed->start);
    launch(backend, delay_kernel, dim3(1), dim3(1), 0, 0.0f, rounds, static_cast<float *>(NULL));
    record(backend, timed->end);
}

static struct timed *begin(struct backend *backend, enum profile_kind kind)
{
    static const char *const names[] = {PROFILE_KINDS(PROFILE_NAME)};
    if (kind != PROFILE_EMBED) /* which does it itself */
        arrival_launch(backend);
    if (backend->profiler != NULL && backend->profiler->count == 0)
        delay(backend);
    nvtxRangePushA(names[kind]);
    struct timed *timed = next_timed(backend, kind);
    if (timed != NULL)
        record(backend, timed->start);
    return timed;
}

static void end(struct backend *backend, const struct timed *timed)
{
    if (timed != NULL)
        record(backend, timed->end);
    nvtxRangePop();
}

/* Whether an operation launches nothing: its launches are in the step's graph, or the device has
 * failed. */
static bool is_idle(const struct backend *backend)
{
    return backend->replaying || backend->failure != cudaSuccess;
}

/* Rows of an operation on `rows` rows of the batch: with the padding, if there is any. */
static int padded(const struct backend *backend, int rows)
{
    return rows + backend->batch.num_rows - backend->batch_rows;
}

#define LAUNCH_OF_BATCH(name) cuda_##name(backend, &operation->name);
#define LAUNCH_OF_ROWS(name)                      \
    {                                             \
        struct ops_##name call = operation->name; \
        call.num_rows = rows;                     \
        cuda_##name(backend, &call);              \
    }
#define LAUNCH(kind, name, profile, of_rows) \
    case kind:                               \
        LAUNCH_##of_rows(name) break;
#define PROFILE_OF(kind, name, profile, rows) profile,

/* On so many rows, with the padding. */
static void launch_one(struct backend *backend, const struct operation *operation, int rows)
{
    static const enum profile_kind profiles[] = {OPERATIONS(PROFILE_OF)};
    struct timed *timed = begin(backend, profiles[operation->kind]);
    switch (operation->kind) {
        OPERATIONS(LAUNCH)
    }
    end(backend, timed);
}

/* A product, behind the norm before it where it does not do that itself. */
static void launch_product(struct backend *backend, const struct ops_matmul *a, int rows)
{
    struct operation product = {}, norm = {};
    product.kind = OPERATION_MATMUL;
    product.matmul = *a;
    product.matmul.num_rows = rows;
    norm.kind = OPERATION_NORM;
    if (a->norm != NULL && !product_norms(backend, &product.matmul)) {
        norm.norm = *a->norm;
        launch_one(backend, &norm, rows);
        product.matmul.norm = NULL;
    }
    launch_one(backend, &product, rows);
}

void operations_perform(struct backend *backend, const struct operation *operation, int num_rows)
{
    const int rows = padded(backend, num_rows);
    if (is_idle(backend))
        return;
    if (operation->kind == OPERATION_MATMUL)
        launch_product(backend, &operation->matmul, rows);
    else
        launch_one(backend, operation, rows);
}

void operations_count(struct backend *backend)
{
    struct profiler *profiler = backend->profiler;
    for (int i = 0; profiler != NULL && i < profiler->count; i++) {
        float milliseconds = 0;
        device_check(
            backend,
            cudaEventElapsedTime(&milliseconds, profiler->timed[i].start, profiler->timed[i].end),
            "cudaEventElapsedTime");
        profiler->seconds[profiler->timed[i].kind] += 1e-3 * (double)milliseconds;
    }
    if (profiler != NULL)
        profiler->count = 0;
}

void operations_close(struct backend *backend)
{
    struct profiler *profiler = backend->profiler;
    for (int i = 0; profiler != NULL && i < profiler->room; i++) {
        cudaEventDestroy(profiler->timed[i].start);
        cudaEventDestroy(profiler->timed[i].end);
    }
    if (profiler != NULL)
        free(profiler->timed);
    free(profiler);
    backend->profiler = NULL;
}

static void cuda_profile(struct backend *backend, double *seconds)
{
    operations_close(backend);
    if (seconds == NULL)
        return;
    backend->profiler = static_cast<struct profiler *>(calloc(1, sizeof *backend->profiler));
    if (backend->profiler != NULL) /* else nothing is counted */
        backend->profiler->seconds = seconds;
}

void operations_set(struct ops *ops)
{
    ops->perform = operations_perform;
    ops->profile = cuda_profile;
}
