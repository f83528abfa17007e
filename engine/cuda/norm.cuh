/* Norms of a part of a row by a warp: for the operation itself (elementwise.cu), and for products
 * that norm and gate their x as they read it (product.cuh). Both give the same bits, as the sums
 * are trees whose shape the part's size alone decides: a lane's fours in order, then the lanes. */
#ifndef ENGINE_CUDA_NORM_CUH
#define ENGINE_CUDA_NORM_CUH

#include "engine/cuda/common.cuh"

/* What the numbers of a part have in common. */
struct norm_terms {
    float mean, factor;
};

/* Numbers [j, j + 4) of `count`, zero past the last. aligned: the first lies at a multiple of 16
 * bytes; j is one of 4. */
__device__ inline float4 load_four(const float *from, int j, int count, bool aligned)
{
    if (aligned && j + 4 <= count)
        return *reinterpret_cast<const float4 *>(from + j);
    float4 x;
    x.x = j < count ? from[j] : 0.0f;
    x.y = j + 1 < count ? from[j + 1] : 0.0f;
    x.z = j + 2 < count ? from[j + 2] : 0.0f;
    x.w = j + 3 < count ? from[j + 3] : 0.0f;
    return x;
}

/* whole: x is at a multiple of 16 bytes, and so is its end: then nothing stands between the loads,
 * and several are under way. */
template <bool whole>
__device__ inline float4 load_part(const struct ops_norm &a, const float *x, int j, bool aligned)
{
    return whole ? *reinterpret_cast<const float4 *>(x + j) : load_four(x, j, a.size, aligned);
}

template <bool whole>
__device__ inline struct norm_terms norm_terms_by(const struct ops_norm &a, const float *x,
                                                  bool aligned)
{
    int first = (int)threadIdx.x % 32 * 4;
    float n = (float)a.size, mean = 0.0f, squares = 0.0f;
    if (a.kind == NORM_LAYERNORM) {
        float sum = 0.0f;
#pragma unroll 2
        for (int j = first; j < a.size; j += 128) {
            float4 four = load_part<whole>(a, x, j, aligned);
            sum += (four.x + four.y) + (four.z + four.w);
        }
        mean = warp_sum(sum) / n;
    }
#pragma unroll 2
    for (int j = first; j < a.size; j += 128) {
        float4 four = load_part<whole>(a, x, j, aligned);
        const float numbers[4] = {four.x, four.y, four.z, four.w};
        for (int i = 0; i < 4; i++)
            if (whole || j + i < a.size)
                squares = fmaf(numbers[i] - mean, numbers[i] - mean, squares);
    }
    float square = warp_sum(squares) / n;
    return {mean, a.kind == NORM_SIMPLE_RMSNORM ? 1.0f / (sqrtf(square) + a.eps)
                                                : 1.0f / sqrtf(square + a.eps)};
}

/* Of a part x [a.size]; every lane of the warp gets it. */
__device__ inline struct norm_terms norm_terms_of(const struct ops_norm &a, const float *x)
{
    bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    return aligned && a.size % 4 == 0 ? norm_terms_by<true>(a, x, aligned)
                                      : norm_terms_by<false>(a, x, aligned);
}

/* Number j of the part. */
__device__ inline float norm_number(const struct ops_norm &a, struct norm_terms terms, float x,
                                    int j)
{
    float value = (x - terms.mean) * terms.factor;
    if (a.weight != NULL)
        value *= a.weight[j];
    if (a.bias != NULL)
        value += a.bias[j];
    return value;
}

/* A number that its gate lets through. */
__device__ inline float gate_number(const struct ops_norm &a, float gate, float value)
{
    return formula_apply(a.formula, gate, 0.0f, 0.0f) * value;
}

/* Numbers [j, j + 4) of it, all of them there; j is one of 4, and parameters begin at a multiple of
 * 16 bytes. */
__device__ inline float4 norm_four(const struct ops_norm &a, struct norm_terms terms, float4 x,
                                   int j)
{
    x.x = (x.x - terms.mean) * terms.factor;
    x.y = (x.y - terms.mean) * terms.factor;
    x.z = (x.z - terms.mean) * terms.factor;
    x.w = (x.w - terms.mean) * terms.factor;
    if (a.weight != NULL) {
        float4 weight = *reinterpret_cast<const float4 *>(a.weight + j);
        x.x *= weight.x;
        x.y *= weight.y;
        x.z *= weight.z;
        x.w *= weight.w;
    }
    if (a.bias != NULL) {
        float4 bias = *reinterpret_cast<const float4 *>(a.bias + j);
        x.x += bias.x;
        x.y += bias.y;
        x.z += bias.z;
        x.w += bias.w;
    }
    return x;
}

#endif
