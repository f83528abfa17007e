/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of single operations on a device against the CPU: both backends, random arrays on each
 * of them, and how far apart two results are. */
#ifndef TESTS_CUDA_BENCH_H
#define TESTS_CUDA_BENCH_H

#include "engine/cpu/backend.h"
#include "engine/cuda/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_NO_DEVICE = 77 }; /* exit status */

struct bench_device {
    const struct ops *ops;
    struct backend *backend;
};

/* What a program of tests has counted. */
struct bench_count {
    int passed, failed;
};

static inline void bench_fatal(const char *what, const struct error *err)
{
    fprintf(stderr, "%s: %s\n", what, err != NULL ? err->message : "failed");
    exit(1);
}

/* ---- the environment ---- */

/* Sets a variable, or unsets it (NULL). Returns what it was, for bench_restore. */
static inline char *bench_set(const char *name, const char *value)
{
    const char *before = getenv(name);
    char *copy = before != NULL ? strdup(before) : NULL;
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
    return copy;
}

static inline void bench_restore(const char *name, char *before)
{
    free(bench_set(name, before));
    free(before);
}

/* These switches of the backend are off, besides what whoever started the program has put off: such
 * as `overlap`, where a device hangs with it. Returns what bench_restore needs. */
static inline char *bench_without(const char *names)
{
    const char *before = getenv("REGLA_CUDA_WITHOUT");
    char all[512];
    bool both = before != NULL && before[0] != '\0' && names[0] != '\0';
    snprintf(all, sizeof all, "%s%s%s", before != NULL ? before : "", both ? "," : "", names);
    return bench_set("REGLA_CUDA_WITHOUT", all);
}

/* ---- devices ---- */

/* Of most tests: no draws, attention, products or state that is shared, for which a test says more.
 */
static inline struct ops_limits bench_limits(int max_rows)
{
    return (struct ops_limits){.max_rows = max_rows,
                               .max_keys = INT64_MAX,
                               .max_logits = max_rows,
                               .max_value_dim = 1024,
                               .max_input = 32,
                               .max_head_dim = 1024,
                               .max_features = 2048};
}

static inline void bench_prepare(const struct bench_device *device, const struct ops_limits *limits)
{
    struct error err = ERROR_INIT;
    if (device->ops->prepare(device->backend, limits, &err) != 0)
        bench_fatal(device->ops->device, &err);
}

/* Ends the program with BENCH_NO_DEVICE where there is none. */
static inline struct bench_device bench_open_cuda(enum activation_format activations,
                                                  const struct ops_limits *limits)
{
    const struct cuda_options options = {.device = 0, .activations = activations};
    struct bench_device cuda = {.ops = cuda_ops()};
    struct error err = ERROR_INIT;
    if (cuda_devices() == 0) {
        printf("skipped: there is no CUDA device\n");
        exit(BENCH_NO_DEVICE);
    }
    if (cuda_open(&cuda.backend, &options, &err) != 0)
        bench_fatal("cuda", &err);
    bench_prepare(&cuda, limits);
    return cuda;
}

static inline void bench_open(struct bench_device *cpu, struct bench_device *cuda,
                              const struct ops_limits *limits)
{
    const struct cpu_options options = {.threads = 0};
    struct error err = ERROR_INIT;
    *cuda = bench_open_cuda(ACTIVATIONS_F32, limits);
    cpu->ops = &cpu_ops;
    if (cpu_open(&cpu->backend, &options, &err) != 0)
        bench_fatal("cpu", &err);
    bench_prepare(cpu, limits);
}

/* Whether that was why a device with cuBLASLt did not open: no library is here, and none was
 * named. */
static inline bool bench_lacks_cublaslt(const struct error *err)
{
    return strstr(err->message, "expected libcublasLt.so.13 or .12") != NULL;
}

static inline void bench_check_status(const struct bench_device *device)
{
    struct error err = ERROR_INIT;
    if (device->ops->status(device->backend, &err) != 0)
        bench_fatal(device->ops->device, &err);
}

/* How many texts with so many heads are more than recurrence_kernel runs at once, so that another
 * kernel computes phi and the gates before it (recurrence.cu, HEADS_AT_ONCE); at least 9. */
static inline int bench_filling_texts(int heads)
{
    int texts = 2 * cuda_multiprocessors(0) / heads + 1;
    return texts < 9 ? 9 : texts;
}

/* ---- arrays ---- */

/* Uniform in [0, 1), by number: the same whatever was drawn before. */
static inline float bench_random(uint32_t seed, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)seed * 0xd1342543de82ef95u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((x ^ x >> 31) >> 40) * 0x1p-24f;
}

/* The caller frees it. */
static inline float *bench_floats(size_t count, float low, float high, uint32_t seed)
{
    float *out = malloc(count * sizeof(float) + 1);
    for (size_t i = 0; i < count; i++)
        out[i] = low + (high - low) * bench_random(seed, i);
    return out;
}

/* bytes of device memory, full of NaN, or a copy of `from`; bench_free gives it back. */
static inline void *bench_memory(const struct bench_device *device, size_t bytes, const void *from)
{
    struct error err = ERROR_INIT;
    void *memory = NULL;
    if (device->ops->reserve(device->backend, bytes, &memory, &err) != 0)
        bench_fatal("memory", &err);
    if (from != NULL)
        device->ops->copy_in(device->backend, memory, from, bytes);
    else
        device->ops->fill(device->backend, memory, NAN, bytes / sizeof(float));
    return memory;
}

static inline void bench_free(const struct bench_device *device, void *memory, size_t bytes)
{
    if (memory != NULL)
        device->ops->release(device->backend, memory, bytes);
}

/* ---- results ---- */

/* |out - expected| / |expected|; infinite where out has a NaN that expected has not. */
static inline double bench_distance(const float *out, const float *expected, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        if (isnan(expected[i]) || isinf(expected[i]))
            continue;
        if (!isfinite(out[i]))
            return INFINITY;
        double d = (double)out[i] - (double)expected[i];
        difference += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    return norm == 0 ? sqrt(difference) : sqrt(difference / norm);
}

static inline bool bench_expect(struct bench_count *count, bool holds, const char *name,
                                const char *what, double got)
{
    if (holds)
        count->passed++;
    else {
        count->failed++;
        printf("FAIL %s: %s (%g)\n", name, what, got);
    }
    return holds;
}

#endif
