/* Products of many rows: a CTA has a tile of y and walks the inputs from first to last, while the
 * next blocks of weights and of x are on their way into shared memory. x lies there in f32 and is
 * split where a fragment is loaded. A warp keeps the sums of the segment it is in, and those of
 * the segments before.
 *
 * Bytes of a call with N rows: the weights once for each row of tiles, 4 N in bytes of x once for
 * each column of them, mostly from the second cache; operations: 4 N in out, as x is split.
 *
 * As nvcc 13.0 computes it for sm_90, nothing spilled but 12 bytes of q8's:
 *   tile        128 x 128, 3 stages           64 x 64, 4 stages
 *   registers   224 bf16, 236 f16, 255 q8     124, 126, 168
 *   shared      78 KiB bf16, f16; 67 KiB q8   52 KiB; 45 KiB
 *   CTAs        1 of 8 warps                  4 of 4 warps (q8: 3)
 * No speed has been measured: there was no device. */
#include "engine/cuda/product.cuh"

/* WM x WN warps, each with MT panels and NT times 8 rows. */
template <enum weight_format format, int WM, int WN, int MT, int NT, int depth> struct tile {
    enum {
        threads = WM * WN * 32,
        panels = WM * MT,
        rows = WN * NT * 8,
        stages = depth,
        row_floats = BLOCK_INPUTS + 4, /* a gap that spreads the banks */
        weight_bytes = panels * (int)BLOCK_BYTES<format>,
        stage_bytes = weight_bytes + rows * row_floats * (int)sizeof(float),
        outputs = panels * FRAGMENT_OUTPUTS,
        sum_stride = outputs + 4, /* likewise, of the sums at the end */
        sum_bytes = rows * sum_stride * (int)sizeof(float),
        shared_bytes = depth * stage_bytes > sum_bytes ? depth *stage_bytes : sum_bytes
    };
};

/* One block of the tile's weights and x on their way into a stage. */
template <enum weight_format format, typename shape>
__device__ inline void load_stage(const product_call &call, struct cta_place place, int block,
                                  unsigned char *stage)
{
    const int pieces = (int)BLOCK_BYTES<format> / 16;
    for (int i = threadIdx.x; i < shape::panels * pieces; i += shape::threads) {
        int panel = place.group * shape::panels + i / pieces;
        if (panel < call.panels)
            copy_async_16(stage + i * 16, panel_data(call, BLOCK_BYTES<format>, panel) +
                                              (size_t)block * BLOCK_BYTES<format> +
                                              i % pieces * 16);
    }
    float *rows = (float *)(void *)(stage + shape::weight_bytes);
    for (int i = threadIdx.x; i < shape::rows * 8; i += shape::threads) {
        int row = place.row + i / 8, k = block * BLOCK_INPUTS + i % 8 * 4;
        float *to = rows + i / 8 * shape::row_floats + i % 8 * 4;
        if (row >= call.num_rows)
            continue;
        if (call.aligned && k + 4 <= call.in)
            copy_async_16(to, input_row(call, row) + k);
        else
            *(float4 *)(void *)to = load_four(input_row(call, row), k, call.in, call.aligned);
    }
}

/* 16 bytes of shared memory. */
__device__ inline uint4 load_shared(const void *from)
{
    return *(const uint4 *)from;
}

/* What a warp does with a stage. */
template <enum weight_format format, typename shape, int WM, int MT, int NT>
__device__ inline void multiply_stage(float (&sums)[MT][NT][4], const unsigned char *stage)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *rows = (const float *)(const void *)(stage + shape::weight_bytes);
    block_inputs x[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int row = (warp / WM * NT + n) * 8 + lane / 4;
        const float4 *from =
            (const float4 *)(const void *)(rows + row * shape::row_floats + lane % 4 * 8);
        x[n] = split_inputs<format>(from[0], from[1]);
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        block_part<format> part;
        fragments<format> weights;
        load_block<format>(part, stage + (warp % WM * MT + m) * BLOCK_BYTES<format>, lane,
                           load_shared);
        unpack_block<format>(weights, part);
#pragma unroll
        for (int n = 0; n < NT; n++)
            multiply_block<format>(sums[m][n], weights, x[n]);
    }
}

template <int MT, int NT>
__device__ inline void end_segment(float (&totals)[MT][NT][4], float (&sums)[MT][NT][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                totals[m][n][i] += sums[m][n][i];
                sums[m][n][i] = 0.0f;
            }
}

/* The tile's sums lie side by side, so that the end of each is one loop whose writes do, too. */
template <typename shape>
__device__ inline void finish_tile(const product_call &call, struct cta_place place,
                                   const float *all)
{
#pragma unroll 2
    for (int i = threadIdx.x; i < shape::rows * shape::outputs; i += shape::threads) {
        int row = place.row + i / shape::outputs;
        int output = place.group * shape::outputs + i % shape::outputs;
        if (row < call.num_rows && output < call.out)
            finish_sum(call, row, output, load_end(call, row, output),
                       all[i / shape::outputs * shape::sum_stride + i % shape::outputs]);
    }
}

/* A place of the tile that is past the last row or panel has any numbers in it: a product of them
 * shows in no other place. */
template <enum weight_format format, int WM, int WN, int MT, int NT, int depth>
__global__ void __launch_bounds__(WM *WN * 32) tile_kernel(product_call call)
{
    typedef tile<format, WM, WN, MT, NT, depth> shape;
    SHARED_MEMORY(unsigned char, stages);
    float sums[MT][NT][4] = {}, totals[MT][NT][4] = {};
    struct cta_place place = place_of_cta(call, shape::rows);
    grid_wait();
#pragma unroll
    for (int s = 0; s < depth - 1; s++) {
        if (s < call.blocks)
            load_stage<format, shape>(call, place, s, stages + s * shape::stage_bytes);
        copy_async_commit();
    }
    int segment = 0, end = segment_begin(call, 1);
    for (int block = 0; block < call.blocks; block++) {
        copy_async_wait<depth - 2>();
        __syncthreads();
        int next = block + depth - 1;
        if (next < call.blocks)
            load_stage<format, shape>(call, place, next,
                                      stages + next % depth * shape::stage_bytes);
        copy_async_commit();
        multiply_stage<format, shape, WM>(sums, stages + block % depth * shape::stage_bytes);
        if (block + 1 == end) {
            end_segment(totals, sums);
            end = segment_begin(call, ++segment + 1);
        }
    }
    copy_async_wait<0>();
    __syncthreads(); /* the stages are free */
    float *all = (float *)(void *)stages;
    int warp = threadIdx.x / 32;
    put_sums(totals,
             all + warp / WM * NT * 8 * shape::sum_stride + warp % WM * MT * FRAGMENT_OUTPUTS,
             shape::sum_stride);
    __syncthreads();
    finish_tile<shape>(call, place, all);
}

template <enum weight_format format, int WM, int WN, int MT, int NT, int depth>
static void run(struct backend *backend, const struct product_call *call, int heads)
{
    typedef tile<format, WM, WN, MT, NT, depth> shape;
    launch(backend, tile_kernel<format, WM, WN, MT, NT, depth>,
           product_grid(call, heads, shape::panels, shape::rows), dim3(shape::threads),
           (size_t)shape::shared_bytes, *call);
}

template <enum weight_format format>
void product_tiles(struct backend *backend, const struct product_call *call, int heads)
{
    /* tiles of 128 x 128 where there are enough of them for all multiprocessors, else of 64 x 64 */
    dim3 large = product_grid(call, heads, 8, 128);
    if ((int64_t)large.x * large.z >= backend->multiprocessors)
        run<format, 2, 4, 4, 4, 3>(backend, call, heads);
    else
        run<format, 2, 2, 2, 4, 4>(backend, call, heads);
}

template void product_tiles<WEIGHTS_BF16>(struct backend *, const struct product_call *, int);
template void product_tiles<WEIGHTS_F16>(struct backend *, const struct product_call *, int);
template void product_tiles<WEIGHTS_Q8>(struct backend *, const struct product_call *, int);
