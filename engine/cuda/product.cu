/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: chooses the kernel by a product's shape and number of rows. */
#include "engine/cuda/product.cuh"

template <enum weight_format format, int numbers>
static void multiply(struct backend *backend, const struct product_call *call, int heads)
{
    if (call->num_rows <= backend->streamed_rows)
        product_stream<format, numbers>(backend, call, heads);
    else
        product_tiles<format, numbers>(backend, call, heads);
}

bool product_norms(const struct ops_matmul *a)
{
    const struct ops_norm *norm = a->norm;
    int64_t numbers = (int64_t)a->num_rows * norm->groups * norm->size;
    bool gates = norm->gate.data == NULL ||
                 (norm->formula == FORMULA_SILU && numbers <= MOST_GATED &&
                  (uintptr_t)norm->gate.data % 16 == 0 && norm->gate.stride % 4 == 0);
    return gates && norm->size % 4 == 0 && a->num_rows <= MOST_NORMED_ROWS &&
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
    call.ahead = ahead_of(backend, a->next);
    call.early = switch_on(backend, CUDA_SWITCH_STAGES);
    const int numbers = weight->rounded ? 1 : 2;
    if (weight->format == WEIGHTS_F32)
        product_f32(backend, &call, weight->heads);
#define MULTIPLY(kind, of)                            \
    else if (weight->format == kind && numbers == of) \
        multiply<kind, of>(backend, &call, weight->heads);
    PRODUCT_KINDS(MULTIPLY)
}
