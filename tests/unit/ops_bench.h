/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of single operations: a backend per instruction set, random arrays, a batch. */
#ifndef TESTS_UNIT_OPS_BENCH_H
#define TESTS_UNIT_OPS_BENCH_H

#include "engine/cpu/backend.h"
#include "engine/cpu/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const bench_sets[] = {"avx512",       "avx2",   "generic", "avx512vnni", "amx",
                                         "amx_emulated", "neonmm", "neondot", "neon"};

/* The set that rounds inputs of every format, and one that differs from others for cores alone. */
#if defined(__aarch64__)
static const char *const bench_rounding_set = "neonmm", *const bench_core_set = "neondot";
#else
static const char *const bench_rounding_set = "avx512vnni", *const bench_core_set = "avx512vnni";
#endif

/* The kernels that give the bits of bench_core_set: first the set's own, then those for certain
 * cores; NULL after the last. */
static inline const struct kernels *bench_core(int i)
{
#if defined(__aarch64__)
    return i == 0 ? kernels_neondot : i == 1 ? instruction_set_choose("neonmm", NULL) : NULL;
#else
    const struct kernels *const cores[] = {kernels_avx512vnni, kernels_zen4, kernels_zen5};
    return i < 3 ? cores[i] : NULL;
#endif
}

/* NULL where the machine does not have the instruction set, or does not round so for such weights.
 */
static inline struct backend *bench_open_rounding(const char *set, int threads,
                                                  enum weight_format weights,
                                                  enum activation_format activations)
{
    const struct cpu_options options = {.threads = threads,
                                        .instruction_set = set,
                                        .activations = activations,
                                        .weights = weights,
                                        .share_always = true};
    const struct ops_limits limits = {.max_rows = 4096,
                                      .max_value_dim = 256,
                                      .max_input = 4096,
                                      .max_head_dim = 256,
                                      .max_features = 512,
                                      .max_key_dim = 256,
                                      .max_value_dim_in_keys = 256};
    struct backend *backend = NULL;
    if (cpu_open(&backend, &options, NULL) != 0)
        return NULL;
    cr_assert(cpu_ops.prepare(backend, &limits, NULL) == 0);
    return backend;
}

static inline struct backend *bench_open(const char *set, int threads)
{
    return bench_open_rounding(set, threads, WEIGHTS_F32, ACTIVATIONS_F32);
}

/* count floats, uniform in [low, high). */
static inline float *bench_floats(size_t count, float low, float high, uint32_t seed)
{
    float *out = malloc(count * sizeof(float) + 1);
    uint32_t x = seed * 2654435761u + 1u;
    for (size_t i = 0; i < count; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        out[i] = low + (high - low) * (float)(x >> 8) * 0x1p-24f;
    }
    return out;
}

static inline float *bench_nans(size_t count)
{
    float *out = malloc(count * sizeof(float) + 1);
    for (size_t i = 0; i < count; i++)
        out[i] = NAN;
    return out;
}

/* One text of the rows [0, num_rows), at `position`. */
struct bench_text {
    struct batch batch;
    struct batch_span span;
    int64_t positions[4096];
};

static inline void bench_text(struct bench_text *text, int num_rows, int64_t position, char *slot,
                              char *const *pages)
{
    for (int i = 0; i < num_rows; i++)
        text->positions[i] = position + i;
    text->span = (struct batch_span){
        .num_rows = num_rows, .position = position, .slot = slot, .pages = pages};
    text->batch = (struct batch){
        .num_rows = num_rows, .num_spans = 1, .positions = text->positions, .spans = &text->span};
}

#endif
