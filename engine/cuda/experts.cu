/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the router's choice, products with chosen matrices, and the weighted sum.
 *
 * Who chose what stays on the device. A warp of a routed product has one row, one of its experts
 * and one panel, and adds up what product.cuh's other kernels do, in their order, so that its sums
 * have the bits of an ordinary product with that matrix. It reads the panel for this row alone:
 * simple, and slow for many rows. No speed has been measured. */
#include "engine/cuda/product.cuh"

enum { WARPS = 4, THREADS = 128 };

/* How the rows of a product are routed. */
struct routes {
    const float *choices;
    int64_t stride;
    int chosen;
    bool by_part;
};

/* What a warp multiplies. */
struct routed_part {
    const float *x;            /* [in] */
    float *y;                  /* [out] */
    const float *bias;         /* [out], or NULL */
    const unsigned char *data; /* the panel's blocks */
    int panel;                 /* past the last: nothing */
};

__device__ inline struct routed_part routed_part_of(const product_call &call, const routes &routes,
                                                    size_t bytes_of_block)
{
    struct routed_part part = {};
    int64_t row = blockIdx.x / (unsigned)routes.chosen, i = blockIdx.x % (unsigned)routes.chosen;
    part.panel = (int)(blockIdx.y * WARPS + threadIdx.x / 32);
    int64_t expert = (int64_t)routes.choices[row * routes.stride + i];
    part.x = call.x + row * call.x_stride + (routes.by_part ? i * call.in : 0);
    part.y = call.y + row * call.y_stride + i * call.out;
    part.bias = call.bias == NULL ? NULL : call.bias + expert * call.out;
    part.data =
        call.data + (expert * call.panels + part.panel) * call.blocks * (int64_t)bytes_of_block;
    return part;
}

__device__ inline void finish_routed(const product_call &call, const struct routed_part &part,
                                     int output, float sum)
{
    if (output >= call.out)
        return;
    if (part.bias != NULL)
        sum += part.bias[output];
    if (call.activation != FORMULA_IDENTITY)
        sum = formula_apply(call.activation, sum, 0.0f, 0.0f);
    part.y[output] = sum;
}

/* x is one column of the fragments, of lanes 0 to 3; the other columns are zero. */
template <enum weight_format format, int numbers>
__global__ void routed_kernel(product_call call, routes routes)
{
    constexpr enum weight_format as = HAS_SCALES<format> ? WEIGHTS_BF16 : format;
    grid_wait();
    struct routed_part part = routed_part_of(call, routes, BLOCK_BYTES<format>);
    int lane = threadIdx.x % 32, count = lane < 4 ? call.in : 0;
    float total[2] = {};
    if (part.panel >= call.panels)
        return;
    for (int segment = 0; segment < call.segments; segment++) {
        float sums[4] = {};
        for (int b = segment_begin(call, segment); b < segment_begin(call, segment + 1); b++) {
            int k = b * BLOCK_INPUTS + lane * 8;
            block_part<format> block;
            fragments<format> weights;
            load_block<format>(block, part.data + (size_t)b * BLOCK_BYTES<format>, lane, load_once);
            unpack_block<format>(weights, block);
            multiply_block<format>(
                sums, weights,
                split_inputs<as, numbers>(load_four(part.x, k, count, false),
                                          load_four(part.x, k + 4, count, false)));
        }
        total[0] += sums[0];
        total[1] += sums[2];
    }
    if (lane % 4 > 0)
        return;
    for (int half = 0; half < 2; half++)
        finish_routed(call, part, part.panel * FRAGMENT_OUTPUTS + lane / 4 + half * 8, total[half]);
}

/* Lanes are outputs. */
__global__ static void routed_f32_kernel(product_call call, routes routes)
{
    grid_wait();
    struct routed_part part = routed_part_of(call, routes, BLOCK_BYTES<WEIGHTS_F32>);
    int lane = threadIdx.x % 32;
    float total = 0.0f;
    if (part.panel >= call.panels)
        return;
    for (int segment = 0; segment < call.segments; segment++) {
        float sum = 0.0f;
        for (int b = segment_begin(call, segment); b < segment_begin(call, segment + 1); b++) {
            const float4 *block =
                (const float4 *)(const void *)(part.data + (size_t)b * BLOCK_BYTES<WEIGHTS_F32>);
            for (int j = 0; j < BLOCK_INPUTS / 4; j++) {
                float4 x = load_four(part.x, b * BLOCK_INPUTS + j * 4, call.in, false);
                float4 w = __ldcs(block + j * 32 + lane);
                sum = fmaf(x.x, w.x, sum);
                sum = fmaf(x.y, w.y, sum);
                sum = fmaf(x.z, w.z, sum);
                sum = fmaf(x.w, w.w, sum);
            }
        }
        total += sum;
    }
    finish_routed(call, part, part.panel * F32_OUTPUTS + lane, total);
}

void cuda_routed_matmul(struct backend *backend, const struct ops_matmul *a,
                        const struct product_call *call)
{
    const struct routes routes = {a->choices.data, a->choices.stride, a->chosen, a->by_part};
    const struct weight *weight = a->weight;
    const int numbers = weight->rounded ? 1 : 2;
    dim3 grid((unsigned)(a->num_rows * a->chosen), (unsigned)(call->panels + WARPS - 1) / WARPS);
    if (weight->format == WEIGHTS_F32)
        launch(backend, routed_f32_kernel, grid, dim3(WARPS * 32), 0, *call, routes);
#define MULTIPLY(kind, of)                            \
    else if (weight->format == kind && numbers == of) \
        launch(backend, routed_kernel<kind, of>, grid, dim3(WARPS * 32), 0, *call, routes);
    PRODUCT_KINDS(MULTIPLY)
#undef MULTIPLY
}

/* A thread has a row. */
__global__ static void route_kernel(ops_route a)
{
    grid_wait();
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r >= a.num_rows)
        return;
    float *choices = a.choices.data + r * a.choices.stride;
    formula_route(&a.rule, a.scores.data + r * a.scores.stride, a.bias, a.scale, a.num_experts,
                  a.chosen, choices, choices + a.chosen);
}

void cuda_route(struct backend *backend, const struct ops_route *a)
{
    launch(backend, route_kernel, dim3((unsigned)(a->num_rows + THREADS - 1) / THREADS),
           dim3(THREADS), 0, *a);
}

/* A block has 128 columns of a row. */
__global__ static void combine_kernel(ops_combine a)
{
    grid_wait();
    int64_t r = blockIdx.x;
    int c = (int)(blockIdx.y * THREADS + threadIdx.x);
    if (c >= a.num_cols)
        return;
    float *out = a.out.data + r * a.out.stride + c;
    float sum = formula_combine(a.choices.data + r * a.choices.stride + a.chosen,
                                a.x.data + r * a.x.stride + c, a.num_cols, a.chosen);
    *out = a.accumulate ? *out + sum : sum;
}

void cuda_combine(struct backend *backend, const struct ops_combine *a)
{
    dim3 grid((unsigned)a->num_rows, (unsigned)(a->num_cols + THREADS - 1) / THREADS);
    launch(backend, combine_kernel, grid, dim3(THREADS), 0, *a);
}
