/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA backend share: the device itself, a step's batch as kernels see it,
 * and the launchers of the operations of engine/ops/operation.h.
 *
 * The files are C++17 with C interfaces. device_check checks everything asynchronous and keeps the
 * first failure. After it nothing is launched, and status() says what happened. */
#ifndef ENGINE_CUDA_DEVICE_H
#define ENGINE_CUDA_DEVICE_H

/* before the C headers, which would include them as C */
#include <assert.h>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <stdlib.h>

#include <cuda_runtime.h>

extern "C" {
#include "engine/ops/operation.h"
#include "engine/ops/packing.h"
#include "lib/base/error.h"
}

/* One text's part of a step. slot NULL: padding, for which nothing is computed. */
struct device_span {
    int32_t first_row, num_rows;
    int64_t position;   /* of its first row */
    char *slot;         /* the text's recurrent memory */
    char *const *pages; /* page i holds positions [64 i, 64 i + 64) of all layers that have pages */
};

/* A row's token. draw: of the step before, the draw that gives it instead; -1: none. */
struct alignas(8) device_token {
    int32_t id, draw;
};

struct sampling_text; /* sampling_arrays.cuh */
struct sampling_drawn;

enum { FEW_TOKENS = 8 }; /* attention takes spans with fewer tokens query by query */

/* The batch of a step; kernels get it by value. Its arrays lie at the same addresses in every step,
 * so that a step's graph can be launched again. A launcher may choose its grid by the numbers here
 * and by the operation alone, since a graph is chosen by them alone. */
struct device_batch {
    const struct device_token *tokens; /* [num_rows] */
    const int64_t *positions;          /* [num_rows] */
    const struct device_span *spans;   /* [num_spans] */
    const int32_t *row_span;           /* [num_rows] */
    const int32_t *logit_rows;         /* [num_logits] */
    const struct sampling_text
        *asked; /* [num_rows]: of each row's draw; NULL: cuda_draw sends it */
    int num_rows, num_spans, num_logits;
    int max_span_rows; /* of any span */
    int max_few_rows;  /* of any of fewer than FEW_TOKENS; 0: there is none */
    int64_t max_end;   /* the longest context, rounded up to a power of two, at least 64; less where
                          no window reaches as far */
};

/* What the first kernel of a step does before all else, so that the batch is where the others read
 * it (arrival.cuh). to NULL: nothing. */
struct device_arrival {
    const char *from; /* the host's image of the batch, mapped; NULL: the device has it */
    char *to;         /* the device's image, in which the batch's arrays lie */
    struct device_token *tokens; /* the batch's */
    struct device_span *spans;
    uint32_t first, sure; /* pieces of 16 bytes: the first that comes unchanged, and how many may be
                             read from there on before their number is known */
    const struct sampling_drawn *drawn; /* by the step before; NULL: no row waits for it */
};

struct product_call; /* product.cuh */

struct backend {
    int device;
    cudaStream_t stream;
    cudaError_t failure;                /* the first */
    const char *failed;                 /* what was tried */
    char name[320];                     /* of the device, with its compute capability */
    enum activation_format activations; /* of weights that they fit */
    int multiprocessors;
    size_t shared_bytes;       /* the most that a block may have, with its kernel's own arrays */
    bool overlaps;             /* a kernel may begin before the one before has ended */
    bool has_clusters;         /* of CTAs that share memory */
    bool bulk_copies;          /* between global and shared memory (common.cuh) */
    uint32_t switched_off;     /* bits of enum cuda_switch (switches.h) */
    int streamed_rows;         /* the most of a product for few rows (product.cuh) */
    struct device_batch batch; /* of the step between begin and send, padded */
    struct device_arrival arrival; /* of the step, until its first kernel is launched */
    int batch_rows;                /* rows of the step without padding */
    bool replaying;                /* the step's launches are in a graph already */
    int sending,
        waiting; /* steps have the numbers 0, 1, 0...: of the next one, of the oldest under way */
    double busy; /* seconds of the received steps */
    struct ops_limits limits;     /* of prepare */
    void *scratch;                /* device_scratch */
    size_t scratch_bytes;         /* of prepare */
    size_t taken, pinned;         /* total bytes allocated: on the device; pinned, on the host */
    struct weight_packer *packer; /* weights.cu; NULL: none yet */
    struct cublaslt *cublaslt;    /* cublaslt.cu; NULL: all products are own */
    struct transfer *transfer;    /* transfer.cu: pinned memory for copies */
    struct step_images *images;   /* step.cu: the batch on its way to the device */
    struct graphs *graphs;        /* graphs.cu; NULL: none yet */
    struct drawing *drawing;      /* draws.cu: those of steps under way */
    struct profiler *profiler;    /* operations.cu; NULL: profiling is off */
};

/* Remembers the first failure. Returns whether this call succeeded. */
bool device_check(struct backend *backend, cudaError_t error, const char *what);
/* Makes this the calling thread's device. Functions that are called from outside a step begin with
 * it, since any thread may call them. */
void device_use(struct backend *backend);
/* 0, or -1 with the first failure. */
int device_status(struct backend *backend, struct error *err);

/* Allocates device memory outside a step, aligned to 256. An error says how much `what` needed and
 * which flag to lower. device_free: NULL is allowed. */
int device_allocate(struct backend *backend, size_t bytes, const char *what, void **out,
                    struct error *err);
void device_free(struct backend *backend, void *memory);
/* ops->copy */
void device_copy(struct backend *backend, void *to, const void *from, size_t bytes);
/* Allocates pinned memory of the host, for copies. False: it failed, and the failure is remembered.
 */
bool device_pin(struct backend *backend, size_t bytes, void **out);
/* The same memory for kernels, too, which reach it at *mapped. device_unpin frees it, of *out even
 * if this failed. What the host writes before it launches a kernel, the kernel reads; what a kernel
 * writes, the host reads after it has waited for an event behind the kernel. Neither needs a fence.
 */
bool device_map(struct backend *backend, size_t bytes, void **out, void **mapped);
void device_unpin(void *memory); /* may be NULL */

/* Memory for the partial results of the operation that is being launched, aligned to 256. It
 * contains whatever earlier operations wrote. prepare reserves backend->scratch_bytes, the most
 * that product_scratch and the like return; more is a failure. */
void *device_scratch(struct backend *backend, size_t bytes);

/* arrival.cu. Launches a kernel that does what the step's first kernel has to do, unless one has
 * done it. */
void arrival_launch(struct backend *backend);

extern "C" {
/* The launchers of the operations: elementwise.cu, matmul.cu, experts.cu, conv.cu, recurrence.cu,
 * attention.cu */
#define CUDA_OPERATION(kind, name, profile, rows) \
    void cuda_##name(struct backend *, const struct ops_##name *);
OPERATIONS(CUDA_OPERATION)
/* weights.cu */
int cuda_weight_create(struct backend *, struct weight **out, const struct matrix *parts,
                       int num_parts, int heads, enum weight_format, struct error *);
void cuda_weight_free(struct backend *, struct weight *);
size_t cuda_weight_bytes(const struct weight *, enum weight_format);
int cuda_table_create(struct backend *, struct table **out, const struct matrix *, struct error *);
void cuda_table_free(struct backend *, struct table *);
void weights_close(struct backend *); /* after all weights are freed */
/* matmul.cu. Whether a product does its norm itself; otherwise cuda_norm must come first: */
bool product_norms(const struct backend *, const struct ops_matmul *);
size_t product_scratch(const struct backend *);
/* experts.cu */
void cuda_routed_matmul(struct backend *, const struct ops_matmul *, const struct product_call *);
/* cublaslt.cu; all but open do nothing in a backend that has not opened the library. open:
 * ERROR_UNSUPPORTED when there is none that can be used. prepare: once the limits are known;
 * ERROR_UNSUPPORTED when the library has no algorithm for a weight's products. */
int cublaslt_open(struct backend *, struct error *);
void cublaslt_close(struct backend *);
int cublaslt_prepare(struct backend *, struct error *);
size_t cublaslt_scratch(const struct backend *);
/* Bytes of a weight's rows, 0 where it has none; of all weights. add fills them, once the packed
 * weight has been queued. */
size_t cublaslt_weight_bytes(const struct backend *, const struct weight *);
size_t cublaslt_bytes(const struct backend *);
int cublaslt_weight_add(struct backend *, struct weight *, struct error *);
/* Whether a weight's products of so many rows probably are the library's. Whether a product is, its
 * norm left to cuda_norm; computes one that is. */
bool cublaslt_expects(const struct weight *, int num_rows);
bool cublaslt_takes(const struct backend *, const struct ops_matmul *);
void cublaslt_product(struct backend *, const struct weight *, const struct product_call *);
/* recurrence.cu. check: whether there are kernels for these sizes */
int recurrence_check(const struct ops_limits *limits, struct error *err);
size_t recurrence_scratch(const struct backend *);
/* attention.cu. check: whether a block has memory for these sizes */
int attention_check(const struct backend *, const struct ops_limits *limits, struct error *err);
size_t attention_scratch(const struct backend *);
/* draws.cu */
void cuda_draw(struct backend *, const float *logits, int32_t vocab_size, struct draw *const *draws,
               int count);
/* measure.cu */
void cuda_measure(struct backend *, const void *memory, size_t bytes, double *read_bytes,
                  double *operations);
}

/* A table on the device (weights.cu): row r begins at element r * cols. */
struct table {
    const void *data;
    enum dtype dtype;
    int64_t rows, cols;
};

#endif
