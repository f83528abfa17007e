/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/clock.h"
#include "engine/cpu/device.h"

static double begin(const struct backend *backend)
{
    return backend->profile == NULL ? 0 : clock_seconds();
}

static void end(const struct backend *backend, enum profile_kind kind, double start)
{
    if (backend->profile != NULL)
        backend->profile[kind] += clock_seconds() - start;
}

#define PROFILED(name, kind)                                                          \
    void profiled_##name(struct backend *backend, const struct ops_##name *arguments) \
    {                                                                                 \
        double start = begin(backend);                                                \
        cpu_##name(backend, arguments);                                               \
        end(backend, kind, start);                                                    \
    }

PROFILED(embed, PROFILE_EMBED)
PROFILED(norm, PROFILE_NORM)
PROFILED(route, PROFILE_ROUTE)
PROFILED(combine, PROFILE_ROUTE)
PROFILED(map, PROFILE_MAP)
PROFILED(conv, PROFILE_CONV)
PROFILED(angles, PROFILE_ANGLES)
PROFILED(positions, PROFILE_POSITIONS)
PROFILED(recurrence, PROFILE_RECURRENCE)
PROFILED(segments, PROFILE_ATTENTION)
PROFILED(attention, PROFILE_ATTENTION)

void profiled_matmul(struct backend *backend, const struct ops_matmul *arguments)
{
    if (arguments->norm != NULL)
        profiled_norm(backend, arguments->norm);
    double start = begin(backend);
    cpu_matmul(backend, arguments);
    end(backend, PROFILE_PRODUCT, start);
}

void profiled_gather(struct backend *backend, struct rows x, struct rows out, int cols)
{
    double start = begin(backend);
    cpu_gather(backend, x, out, cols);
    end(backend, PROFILE_GATHER, start);
}

void cpu_profile(struct backend *backend, double *seconds)
{
    backend->profile = seconds;
}
