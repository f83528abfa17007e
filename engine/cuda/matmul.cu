/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: chooses the kernel by a product's shape and number of rows. */
#include "engine/cuda/product.cuh"

/* Whether x is split once, before a product with few rows but more than 8. */
static bool splits(const struct backend *backend, const struct weight *weight, int num_rows)
{
    return weight_format_kind(weight->format) != WEIGHT_FLOATS && num_rows > MOST_NORMED_ROWS &&
           num_rows <= backend->streamed_rows && switch_on(backend, CUDA_SWITCH_SPLIT);
}

template <enum weight_format format, int numbers>
static void multiply(struct backend *backend, const struct product_call *call,
                     const struct weight *weight)
{
    const enum weight_format as = HAS_SCALES<format> ? WEIGHTS_BF16 : format;
    struct product_call own = *call;
    if (splits(backend, weight, call->num_rows))
        product_split<as, numbers>(backend, &own, weight->heads);
    if (call->num_rows <= backend->streamed_rows)
        product_stream<format, numbers>(backend, &own, weight->heads);
    else
        product_tiles<format, numbers>(backend, &own, weight->heads);
}

size_t product_scratch(const struct backend *backend)
{
    size_t split = split_scratch(backend), tiles = tiles_scratch(backend);
    return split > tiles ? split : tiles;
}

bool product_norms(const struct backend *backend, const struct ops_matmul *a)
{
    const struct ops_norm *norm = a->norm;
    if (cublaslt_takes(backend, a) /* which reads x as it is */ || norm->gate_of_group)
        return false;
    if (norm->gate_first && norm->gate.data != NULL) /* it needs a second pass over x */
        return false;
    int64_t numbers = (int64_t)a->num_rows * norm->groups * norm->size;
    bool fours = norm->size % 4 == 0 &&
                 (norm->gate.data == NULL ||
                  ((uintptr_t)norm->gate.data % 16 == 0 && norm->gate.stride % 4 == 0));
    if (splits(backend, a->weight, a->num_rows))
        return fours && a->weight->heads == 1;
    bool gates =
        norm->gate.data == NULL || (norm->formula == FORMULA_SILU && numbers <= MOST_GATED);
    return gates && fours && a->num_rows <= MOST_NORMED_ROWS &&
           a->num_rows * norm->groups <= MOST_NORMED_PARTS;
}

void cuda_matmul(struct backend *backend, const struct ops_matmul *a)
{
    const struct weight *weight = a->weight;
    struct rows x = a->norm != NULL ? a->norm->x : a->x;
    struct product_call call = {};
    call.data = weight->data;
    call.bias = weight->bias;
    call.x = x.data;
    call.y = a->y.data;
    call.x_stride = x.stride;
    call.y_stride = a->y.stride;
    call.num_rows = a->num_rows;
    call.in = (int)weight->in;
    call.out = (int)weight->out;
    call.panels = (int)weight->panels;
    call.blocks = weight->blocks;
    call.segments = weight->segments;
    call.segment_shift = __builtin_ctz((unsigned)weight->segments);
    call.aligned = (uintptr_t)x.data % 16 == 0 && x.stride % 4 == 0 &&
                   (weight->in % 4 == 0 || weight->heads == 1);
    call.accumulate = a->accumulate;
    call.activation = a->activation;
    if (a->norm != NULL)
        call.norm = *a->norm;
    call.ahead = ahead_of(backend, a->next, a->num_rows);
    call.stages = switch_on(backend, CUDA_SWITCH_STAGES);
    const int numbers = weight->rounded ? 1 : 2;
    if (a->chosen > 0)
        cuda_routed_matmul(backend, a, &call);
    else if (a->norm == NULL && cublaslt_takes(backend, a))
        cublaslt_product(backend, weight, &call);
    else if (weight_format_kind(weight->format) == WEIGHT_FLOATS)
        product_f32(backend, &call, weight->heads);
#define MULTIPLY(kind, of) \
    else if (weight->format == kind && numbers == of) multiply<kind, of>(backend, &call, weight);
    PRODUCT_KINDS(MULTIPLY)
}
