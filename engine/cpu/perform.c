/* SPDX-License-Identifier: Apache-2.0 */
/* Performs the operations of a step, one after the other. */
#include "engine/cpu/backend.h"
#include "engine/cpu/device.h"
#include "engine/ops/walk.h"
#include "lib/base/clock.h"

static double begin(const struct backend *backend)
{
    return backend->profile == NULL ? 0 : clock_seconds();
}

static void end(const struct backend *backend, enum profile_kind kind, double start)
{
    if (backend->profile != NULL)
        backend->profile[kind] += clock_seconds() - start;
}

static void norm_first(struct backend *backend, const struct ops_matmul *product, int num_rows)
{
    const double start = begin(backend);
    struct ops_norm norm = *product->norm;
    norm.num_rows = num_rows;
    cpu_norm(backend, &norm);
    end(backend, PROFILE_NORM, start);
}

#define PERFORM_OF_BATCH(name) cpu_##name(backend, &operation->name);
#define PERFORM_OF_ROWS(name)                     \
    {                                             \
        struct ops_##name call = operation->name; \
        call.num_rows = num_rows;                 \
        cpu_##name(backend, &call);               \
    }
#define PERFORM(kind, name, profile, rows) \
    case kind:                             \
        PERFORM_##rows(name) break;
#define PROFILE_OF(kind, name, profile, rows) profile,

void cpu_perform(struct backend *backend, const struct operation *operation, int num_rows)
{
    static const enum profile_kind profiles[] = {OPERATIONS(PROFILE_OF)};
    if (operation->kind == OPERATION_MATMUL && operation->matmul.norm != NULL)
        norm_first(backend, &operation->matmul, num_rows);
    const double start = begin(backend);
    switch (operation->kind) {
        OPERATIONS(PERFORM)
    }
    end(backend, profiles[operation->kind], start);
}

/* What changes slots knows only spans. */
static void cpu_part(struct backend *backend, int part)
{
    backend->batch = backend->whole;
    if (part < 0)
        return;
    const struct batch_part *chosen = &backend->whole->parts[part];
    backend->part = *backend->whole;
    backend->part.spans = chosen->spans;
    backend->part.num_spans = chosen->num_spans;
    backend->part.num_rows = 0;
    for (int i = 0; i < chosen->num_spans; i++)
        backend->part.num_rows += chosen->spans[i].num_rows;
    backend->batch = &backend->part;
}

void cpu_run(struct backend *backend, const struct operation *operations, int num_operations,
             const struct batch *batch)
{
    const struct walk walk = {backend, cpu_perform, cpu_part, cpu_ops.copy};
    walk_operations(&walk, operations, num_operations, batch);
}

void cpu_profile(struct backend *backend, double *seconds)
{
    backend->profile = seconds;
}
