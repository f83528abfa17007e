/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend of engine/ops/ops.h: packed kernels of our own in three instruction sets, chosen
 * at run time. */
#ifndef ENGINE_CPU_BACKEND_H
#define ENGINE_CPU_BACKEND_H

#include "engine/ops/ops.h"

struct cpu_options {
    int threads;                 /* 0: as many as the affinity mask and the control groups allow */
    const char *instruction_set; /* "amx", "avx512vnni", "avx512", "avx2", "generic"; NULL: the best
                                    there is; for tests "amx_emulated" */
    enum activation_format activations;
    enum weight_format weights; /* the format that rounded activations are multiplied with */
    bool share_always;          /* for tests: threads share even the smallest operation */
    const struct product_observer *observer; /* NULL: none */
    const char *packed_weights;              /* a file of them (residence.h); NULL: in memory */
    uint32_t packed_number;
};

extern const struct ops cpu_ops;

/* What activations `auto` is with weights of a format, not auto, on this machine: the fastest for
 * prompts and batches of those that changed the shipped model's perplexity by less than 0.05 % and,
 * but with q4, no other model's by more (loadtest/FIGURES.md, "Number formats"). With two bytes by
 * AMX, whose speed was not measured, what takes the fewest products. f32 where none is faster, and
 * where instruction_set is unknown. */
enum activation_format cpu_activations(const char *instruction_set, enum weight_format weights);

/* Why the processor's best instruction set is not taken, or NULL. */
const char *cpu_refused_set(void);

/* ERROR_UNSUPPORTED when this machine cannot round to these activations. The caller closes *out
 * with cpu_ops.close. */
int cpu_open(struct backend **out, const struct cpu_options *options, struct error *err);

/* All weights are there; owner: [RESIDENCE_OWNER_BYTES], of the model. A file of packed weights is
 * finished, or found to be another model's (ERROR_INVALID). */
int cpu_weights_settle(struct backend *backend, const unsigned char *owner, struct error *err);

#endif
