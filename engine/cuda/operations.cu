/* SPDX-License-Identifier: Apache-2.0 */
/* Passes each operation of a step to its launcher: with the rows to which the step is padded, with
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

#define RUN(name, kind)                                                         \
    static void run_##name(struct backend *backend, const struct ops_##name *a) \
    {                                                                           \
        if (is_idle(backend))                                                   \
            return;                                                             \
        struct timed *timed = begin(backend, kind);                             \
        cuda_##name(backend, a);                                                \
        end(backend, timed);                                                    \
    }
#define RUN_PADDED(name, kind)                                                  \
    static void run_##name(struct backend *backend, const struct ops_##name *a) \
    {                                                                           \
        if (is_idle(backend))                                                   \
            return;                                                             \
        struct timed *timed = begin(backend, kind);                             \
        struct ops_##name call = *a;                                            \
        call.num_rows = padded(backend, a->num_rows);                           \
        cuda_##name(backend, &call);                                            \
        end(backend, timed);                                                    \
    }

RUN(embed, PROFILE_EMBED)
RUN_PADDED(norm, PROFILE_NORM)
RUN_PADDED(route, PROFILE_ROUTE)
RUN_PADDED(combine, PROFILE_ROUTE)
RUN_PADDED(map, PROFILE_MAP)
RUN(conv, PROFILE_CONV)
RUN(angles, PROFILE_ANGLES)
RUN(positions, PROFILE_POSITIONS)
RUN(recurrence, PROFILE_RECURRENCE)
RUN(segments, PROFILE_ATTENTION)
RUN(attention, PROFILE_ATTENTION)

static void run_matmul(struct backend *backend, const struct ops_matmul *a)
{
    if (is_idle(backend))
        return;
    struct ops_matmul call = *a;
    call.num_rows = padded(backend, a->num_rows);
    if (a->norm != NULL && !product_norms(backend, &call)) {
        run_norm(backend, a->norm);
        call.norm = NULL;
    }
    struct timed *timed = begin(backend, PROFILE_PRODUCT);
    cuda_matmul(backend, &call);
    end(backend, timed);
}

static void run_gather(struct backend *backend, struct rows x, struct rows out, int cols)
{
    if (is_idle(backend))
        return;
    struct timed *timed = begin(backend, PROFILE_GATHER);
    cuda_gather(backend, x, out, cols);
    end(backend, timed);
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
    ops->embed = run_embed;
    ops->norm = run_norm;
    ops->matmul = run_matmul;
    ops->route = run_route;
    ops->combine = run_combine;
    ops->map = run_map;
    ops->conv = run_conv;
    ops->angles = run_angles;
    ops->positions = run_positions;
    ops->recurrence = run_recurrence;
    ops->segments = run_segments;
    ops->attention = run_attention;
    ops->gather = run_gather;
    ops->profile = cuda_profile;
}
