/* SPDX-License-Identifier: Apache-2.0 */
/* Products with many rows. A CTA has a tile of y and walks the inputs from first to last, while the
 * next blocks of weights and of x are loaded into shared memory. x is there in f32 and is split
 * when a fragment is loaded. A warp keeps the sums of its current segment, and those of the
 * segments before. If there are too few tiles for all multiprocessors, several CTAs share the
 * segments of a tile and leave their sums in memory; another kernel adds them in the same order.
 *
 * A call with N rows reads the weights once for each row of tiles, and 4 N in bytes of x once for
 * each column of tiles, mostly from the second cache. Shared segments write and read 4 N out bytes
 * of sums each. It does 4 N in out operations, as x is split (half if x is rounded). 256 rows of
 * 3072 x 768 are 48 tiles of 64 x 64, each in 8 CTAs on 132 multiprocessors.
 *
 * nvcc 13.0 for sm_90, 8 bytes spilled of q8's 128 x 128 and of f16's apart, 4 of f16's 64 x 64:
 *   tile        128 x 128, 3 stages           64 x 64, 4 stages        the same, apart
 *   registers   228 bf16, 241 f16, 255 q8     128, 128, 129            73, 72, 98
 *   x rounded   211 bf16, 235 q8              126, 126                 73, 86
 *   shared      78 KiB bf16, f16; 67 KiB q8   52 KiB; 45 KiB           the same
 *   CTAs        1 of 8 warps                  4 of 4 warps (q8: 3)     4 (q8: 5)
 * Its own speed has not been measured; a prompt's, on an H200, is in loadtest/FIGURES.md. */
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

/* Starts to load one block of the tile's weights into a stage. */
template <enum weight_format format, typename shape>
__device__ inline void load_weights(const product_call &call, struct cta_place place, int block,
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
}

/* The same of its x. */
template <typename shape>
__device__ inline void load_rows(const product_call &call, struct cta_place place, int block,
                                 unsigned char *stage)
{
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
template <enum weight_format format, int numbers, typename shape, int WM, int MT, int NT>
__device__ inline void multiply_stage(float (&sums)[MT][NT][4], const unsigned char *stage)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *rows = (const float *)(const void *)(stage + shape::weight_bytes);
    block_inputs<numbers> x[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int row = (warp / WM * NT + n) * 8 + lane / 4;
        const float4 *from =
            (const float4 *)(const void *)(rows + row * shape::row_floats + lane % 4 * 8);
        x[n] = split_inputs<format, numbers>(from[0], from[1]);
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

/* The tile's sums are adjacent, so that their end is one loop with adjacent writes. */
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

/* ---- tiles whose segments are shared ---- */

/* Sums of segments, as the lanes have them: [segments][heads][groups of 8 rows][panels][32 lanes].
 */
struct segment_sums {
    float4 *data;
    int row_groups;
};

inline struct segment_sums sums_of(const struct product_call *call)
{
    return {NULL, (call->num_rows + 7) / 8};
}

/* A segment of the head's sums. */
__device__ inline float4 *sums_of_segment(const product_call &call, segment_sums sums, int segment)
{
    return sums.data +
           ((int64_t)segment * gridDim.z + blockIdx.z) * sums.row_groups * call.panels * 32;
}

/* A warp's sums of a segment, from a group of rows and a panel on. */
template <int MT, int NT>
__device__ inline void leave_segment(const product_call &call, segment_sums to, int segment,
                                     int group, int panel, float (&sums)[MT][NT][4])
{
    float4 *all = sums_of_segment(call, to, segment) + threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int m = 0; m < MT; m++) {
            float *own = sums[m][n];
            if (group + n < to.row_groups && panel + m < call.panels)
                all[((int64_t)(group + n) * call.panels + panel + m) * 32] =
                    make_float4(own[0], own[1], own[2], own[3]);
            own[0] = own[1] = own[2] = own[3] = 0.0f;
        }
}

enum { ADDING_WARPS = 8, ADDING_LOADS = 8 };

/* Adds the segments in order and finishes: 8 rows of a panel by each warp. */
__global__ static void add_segments_kernel(product_call call, segment_sums sums)
{
    int64_t item = (int64_t)blockIdx.x * ADDING_WARPS + threadIdx.x / 32;
    int group = (int)(item / call.panels), panel = (int)(item % call.panels);
    int lane = threadIdx.x % 32, row = group * 8 + lane % 4 * 2;
    int output = panel * FRAGMENT_OUTPUTS + lane / 4;
    grid_wait();
    if (group >= sums.row_groups)
        return;
    struct sum_end ends[4];
    float total[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row + i % 2 < call.num_rows && output + i / 2 * 8 < call.out)
            ends[i] = load_end(call, row + i % 2, output + i / 2 * 8);
    for (int first = 0; first < call.segments; first += ADDING_LOADS) {
        float4 part[ADDING_LOADS];
#pragma unroll
        for (int s = 0; s < ADDING_LOADS; s++)
            if (first + s < call.segments)
                part[s] = sums_of_segment(call, sums, first + s)[item * 32 + lane];
#pragma unroll
        for (int s = 0; s < ADDING_LOADS; s++)
            if (first + s < call.segments) {
                total[0] += part[s].x;
                total[1] += part[s].y;
                total[2] += part[s].z;
                total[3] += part[s].w;
            }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row + i % 2 < call.num_rows && output + i / 2 * 8 < call.out)
            finish_sum(call, row + i % 2, output + i / 2 * 8, ends[i], total[i]);
}

/* Places of the tile past the last row or panel contain any numbers; they change no other place.
 * apart: each of gridDim.y CTAs has a part of the tile's segments. */
template <enum weight_format format, int numbers, int WM, int WN, int MT, int NT, int depth,
          bool apart>
__global__ void __launch_bounds__(WM *WN * 32) tile_kernel(product_call call, segment_sums left)
{
    typedef tile<format, WM, WN, MT, NT, depth> shape;
    KERNEL_TIMES();
    request_ahead(call.ahead);
    SHARED_MEMORY(unsigned char, stages);
    float sums[MT][NT][4] = {}, totals[MT][NT][4] = {};
    struct cta_place place = place_of_cta(call, shape::rows);
    int segments = apart ? call.segments / (int)gridDim.y : call.segments;
    int segment = apart ? (int)blockIdx.y * segments : 0;
    int begin = apart ? segment_begin(call, segment) : 0, end = segment_begin(call, segment + 1);
    int blocks = (apart ? segment_begin(call, segment + segments) : call.blocks) - begin;
    int warp = threadIdx.x / 32;
    const int first = min(depth - 1, blocks); /* stages that are loaded before the loop */
    /* Weights that are loaded before the wait belong to the first stage's group. */
#pragma unroll 1
    for (int s = 0; s < first && call.stages; s++)
        load_weights<format, shape>(call, place, begin + s, stages + s * shape::stage_bytes);
    grid_wait();
#pragma unroll 1
    for (int s = 0; s < depth - 1; s++) {
        if (s < first && !call.stages)
            load_weights<format, shape>(call, place, begin + s, stages + s * shape::stage_bytes);
        if (s < first)
            load_rows<shape>(call, place, begin + s, stages + s * shape::stage_bytes);
        copy_async_commit();
    }
    for (int block = 0; block < blocks; block++) {
        copy_async_wait<depth - 2>();
        __syncthreads();
        int next = block + depth - 1;
        unsigned char *stage = stages + next % depth * shape::stage_bytes;
        if (next < blocks) {
            load_weights<format, shape>(call, place, begin + next, stage);
            load_rows<shape>(call, place, begin + next, stage);
        }
        copy_async_commit();
        multiply_stage<format, numbers, shape, WM>(sums,
                                                   stages + block % depth * shape::stage_bytes);
        if (begin + block + 1 < end)
            continue;
        if (apart)
            leave_segment(call, left, segment, place.row / 8 + warp / WM * NT,
                          place.group * shape::panels + warp % WM * MT, sums);
        else
            end_segment(totals, sums);
        end = segment_begin(call, ++segment + 1);
    }
    if (apart)
        return;
    copy_async_wait<0>();
    __syncthreads(); /* the stages are free */
    float *all = (float *)(void *)stages;
    put_sums(totals,
             all + warp / WM * NT * 8 * shape::sum_stride + warp % WM * MT * FRAGMENT_OUTPUTS,
             shape::sum_stride);
    __syncthreads();
    finish_tile<shape>(call, place, all);
}

/* sharing: how many CTAs share the segments of a tile; 1: they are not shared. */
template <enum weight_format format, int numbers, int WM, int WN, int MT, int NT, int depth,
          bool apart = false>
static void run(struct backend *backend, const struct product_call *call, int heads,
                struct segment_sums sums = {}, int sharing = 1)
{
    typedef tile<format, WM, WN, MT, NT, depth> shape;
    dim3 grid = product_grid(call, heads, shape::panels, shape::rows);
    grid.y = (unsigned)sharing;
    launch(backend, tile_kernel<format, numbers, WM, WN, MT, NT, depth, apart>, grid,
           dim3(shape::threads), (size_t)shape::shared_bytes, *call, sums);
}

template <enum weight_format format, int numbers>
static void run_apart(struct backend *backend, const struct product_call *call, int heads,
                      int sharing)
{
    struct segment_sums sums = sums_of(call);
    int64_t items = (int64_t)sums.row_groups * call->panels;
    size_t count = (size_t)(call->segments * heads * items * 32);
    sums.data = (float4 *)device_scratch(backend, count * sizeof(float4));
    run<format, numbers, 2, 2, 2, 4, 4, true>(backend, call, heads, sums, sharing);
    launch(backend, add_segments_kernel,
           dim3((unsigned)((items + ADDING_WARPS - 1) / ADDING_WARPS), 1, (unsigned)heads),
           dim3(ADDING_WARPS * 32), 0, *call, sums);
}

/* For the sums of all segments of small tiles, which are shared only where there are fewer of them
 * than multiprocessors. */
size_t tiles_scratch(const struct backend *backend)
{
    int blocks = (int)((backend->limits.max_input - 1) / BLOCK_INPUTS + 1);
    size_t sums = (size_t)backend->multiprocessors * 64 * 64 * sizeof(float);
    return backend->limits.max_rows > backend->streamed_rows ? weight_segments(blocks) * sums : 0;
}

static int64_t tiles(const struct product_call *call, int heads, int panels, int rows)
{
    dim3 grid = product_grid(call, heads, panels, rows);
    return (int64_t)grid.x * grid.z;
}

/* Uses tiles of 128 x 128 if there are enough of them for all multiprocessors, else tiles of 64
 * x 64. If these are too few as well, several CTAs share a tile, so that each multiprocessor has
 * two. */
template <enum weight_format format, int numbers>
void product_tiles(struct backend *backend, const struct product_call *call, int heads)
{
    const int64_t enough = backend->multiprocessors, small = tiles(call, heads, 4, 64);
    int sharing = 1;
    while (small < enough && sharing * small < 2 * enough && sharing < call->segments)
        sharing *= 2;
    if (tiles(call, heads, 8, 128) >= enough)
        run<format, numbers, 2, 4, 4, 4, 3>(backend, call, heads);
    else if (sharing > 1)
        run_apart<format, numbers>(backend, call, heads, sharing);
    else
        run<format, numbers, 2, 2, 2, 4, 4>(backend, call, heads);
}

#define INSTANCE(format, numbers)                                                               \
    template void product_tiles<format, numbers>(struct backend *, const struct product_call *, \
                                                 int);
PRODUCT_KINDS(INSTANCE)
