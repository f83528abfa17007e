/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CPU backend share: the device, the division of an operation among its
 * threads, and the operations of engine/ops/operation.h. */
#ifndef ENGINE_CPU_DEVICE_H
#define ENGINE_CPU_DEVICE_H

#include "engine/cpu/kernels.h"
#include "engine/ops/operation.h"
#include "lib/base/threads.h"

#include <stddef.h>

/* The cost of an element that another thread wrote, in elements of an operation's size: its line
 * comes from another core. */
static const int64_t CROSSING_COST = 16;

struct backend {
    const struct kernels *kernels;
    enum activation_format activations; /* for weights that they fit */
    enum weight_format weights;         /* of most matrices */
    struct threads *threads;
    struct residence *residence; /* of the weights */
    int64_t share_elements;      /* an operation with fewer elements uses one thread */
    const struct batch *batch;   /* all of it, or a part */
    const struct batch *whole;
    struct batch part;
    struct query_group *groups; /* [max_rows]: of the batch */
    int num_groups;
    float *arranged; /* [max_rows, max_input]: x of a product, as kernels->arrange has it */
    size_t arranged_floats;
    struct routing *routing; /* of routed products (experts.c); NULL: there are none */
    float *scratch;          /* [threads][scratch_floats] */
    size_t scratch_floats;
    unsigned saved_float;                    /* the float state of the thread that called begin */
    const float *sent;                       /* what receive will return */
    double began, busy;                      /* when the step began; seconds of all sent steps */
    double *profile;                         /* [PROFILE_SECONDS], or NULL */
    const struct product_observer *observer; /* or NULL */
};

/* The best instruction set of this machine, or the named one. NULL with an error. */
const struct kernels *instruction_set_choose(const char *name, struct error *err);
/* Whether an instruction set that runs here can round the inputs of products with such weights. */
bool instruction_set_rounds(const struct kernels *kernels, enum weight_format weights);
/* Whether AMX is taken where it is `there`, the system `refused` it (an errno, or 0), and it agrees
 * with its emulation. refusal [size]: why it is not although it is there, or empty. */
bool instruction_set_amx_runs(bool there, int refused, bool agrees, char *refusal, size_t size);
/* What multiplies with weights of a format, and what that is called (cpu_ops.unit). */
enum unit instruction_set_unit(const struct kernels *, enum weight_format, enum activation_format);
const char *instruction_set_unit_name(const struct kernels *, enum unit);
/* tiles_check.c: whether both give the same bits in products with bf16, f16 and q8. */
bool tiles_agree(const struct kernels *, const struct kernels *);

/* A kernel over rows [first, end), with arguments of any type. */
typedef void rows_kernel(struct backend *backend, const void *arguments, int first, int end);

/* width: elements of a row, to decide whether sharing pays. */
void rows_run(struct backend *backend, rows_kernel *kernel, const void *arguments, int num_rows,
              int64_t width);

/* The operations: rows.c, matmul.c, experts.c, conv.c, recurrence.c, attention.c */
#define CPU_OPERATION(kind, name, profile, rows) \
    void cpu_##name(struct backend *, const struct ops_##name *);
OPERATIONS(CPU_OPERATION)

/* product.c */
/* The panels of one task of a product, of `panels` over all heads: whole pairs, a whole number of
 * tasks for each thread where there are so many. */
int64_t product_task_panels(enum weight_format format, int64_t panels, int64_t panel_bytes,
                            int num_rows, int threads);
/* The product with one matrix of each head. */
void product_multiply(struct backend *, const struct ops_matmul *);
/* How many rows of x are arranged together, for products with the weight. */
int product_arranged_rows(const struct backend *, const struct weight *);
/* experts.c */
int routing_prepare(struct backend *, const struct ops_limits *, struct error *);
/* Of struct ops. */
uint64_t cpu_experts_read(const struct backend *);
void routing_close(struct backend *);
void routing_multiply(struct backend *, const struct ops_matmul *);
/* attention.c */
void attention_groups(struct backend *, const struct batch *); /* fills backend->groups */
/* perform.c. Times operations if profiling is on. */
void cpu_run(struct backend *, const struct operation *operations, int num_operations,
             const struct batch *);
void cpu_perform(struct backend *, const struct operation *, int num_rows);
void cpu_profile(struct backend *, double *seconds);
/* state_memory.c */
size_t cpu_state_memory(struct backend *);
/* measure.c */
void cpu_measure(struct backend *, const void *memory, size_t bytes, double *read_bytes,
                 double *operations);

#endif
