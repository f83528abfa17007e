/* SPDX-License-Identifier: Apache-2.0 */
/* Products with few rows, bound by reading the weights. A warp has one segment of one or two panels
 * (MT) and requests up to 4 blocks of each before it needs the first. Every CTA splits x once, into
 * shared memory and in the order of fragments; with few rows it norms x first. The segments' sums
 * are added there too.
 *
 * A call with N rows reads the weights once, and again from the second cache for each 8 NT rows
 * more; for every CTA 4 N in bytes of x from the caches; and moves y. It does 4 N in out
 * operations, as x is split (half if x is rounded), on tensor cores that work as for 8 NT rows. A
 * bf16 weight of 768 x 3072 is 4.7 MB in 192 CTAs of 8 warps.
 *
 * nvcc 13.0 for sm_90: registers, CTAs of a multiprocessor, and bytes of bf16 weights in flight,
 * with 8 warps in a CTA (16 from 48 blocks on, then twice the shared memory): MT, NT      1, 1 2, 1
 * 1, 2     2, 2     2, 4 bf16, f16   80       127      72       109      128 registers q8 79 110 75
 * 115      128 x rounded   80       127      74       108      124 (q8: 79, 110, 63, 106, 124)
 *   gated       80       128 (q8: 80 and 116)
 *   spilled     24 bytes of 1, 1 and, gated, 40 or 56; q8 16 bytes of 2, 4
 *   shared      32 KiB   32 KiB   48 KiB   48 KiB   96 KiB (q8: 64; x rounded: half)
 *   CTAs        3        2        3        2        2
 *   in flight   96 KiB   128 KiB  72 KiB   96 KiB   96 KiB
 * No speed has been measured: there was no device. */
#include "engine/cuda/product.cuh"

enum { MOST_WARPS = 16 };

/* Blocks of a segment at a time: as many as registers hold and, with 16 segments, 96 KiB of x. */
template <enum weight_format format, int NT>
constexpr int DEPTH = NT == 1                           ? 4
                      : (NT == 4 && HAS_SCALES<format>) ? 2
                                                        : 3;

/* Shared memory, at one time x split, [segments][DEPTH][NT][numbers][32 lanes] of 16 bytes, at
 * another the warps' sums, [warps][8 NT rows][16 MT outputs and a gap that spreads the banks]. */
template <int MT, int NT> __host__ __device__ constexpr int sum_stride()
{
    return FRAGMENT_OUTPUTS * MT + 4;
}

template <enum weight_format format, int numbers, int MT, int NT>
static size_t shared_bytes(int warps, int segments)
{
    size_t inputs = (size_t)segments * DEPTH<format, NT> * NT * 32 * sizeof(block_inputs<numbers>);
    size_t sums = (size_t)warps * 8 * NT * sum_stride<MT, NT>() * sizeof(float);
    return inputs > sums ? inputs : sums;
}

/* Writes the fragments `b` of blocks [at, at + DEPTH) of every segment, of rows from `first` on.
 * Eight threads share a block of a row. Rows past the last contain any numbers; they change no
 * other row's sums. */
template <enum weight_format format, int numbers, int NT, bool gated>
__device__ inline void stage_inputs(const product_call &call, int first, int at,
                                    const struct norm_terms *terms, uint4 *shared)
{
    const bool norms = NT == 1;
    unsigned rows = (unsigned)min(8 * NT, call.num_rows - first);
    unsigned items = (unsigned)(call.segments * DEPTH<format, NT>)*rows * 8;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < items; i += blockDim.x) {
        int slot = (int)(i / 8 / rows), row = (int)(i / 8 % rows), four = (int)(i % 8);
        int segment = slot / DEPTH<format, NT>, d = slot % DEPTH<format, NT>;
        int block = segment_begin(call, segment) + at + d, k = block * BLOCK_INPUTS + four * 4;
        if (block >= segment_begin(call, segment + 1))
            continue;
        struct norm_four from = load_inputs<norms, gated>(call, first, row, k);
        uint2 split[numbers];
        split_four<format>(finish_inputs<norms, gated>(call, row, k, terms, from), split);
        uint4 *fragment = shared + (slot * NT + row / 8) * 32 * numbers;
#pragma unroll
        for (int n = 0; n < numbers; n++)
            reinterpret_cast<uint2 *>(fragment + n * 32)[row % 8 * 8 + four] = split[n];
    }
}

/* Adds the segments in order and finishes. panel: the block's first. */
template <int MT, int NT>
__device__ inline void add_segments(const product_call &call, int first, int panel,
                                    const float *shared)
{
    const int outputs = FRAGMENT_OUTPUTS * MT, size = 8 * NT * sum_stride<MT, NT>();
    int groups = blockDim.x / 32 / call.segments, rows = min(8 * NT, call.num_rows - first);
#pragma unroll 1
    for (int i = threadIdx.x; i < groups * outputs * rows; i += blockDim.x) {
        int group = i / outputs % groups, row = i / outputs / groups;
        int output = panel * FRAGMENT_OUTPUTS + i % (outputs * groups);
        if (output >= call.out)
            continue;
        struct sum_end end = load_end(call, first + row, output);
        const float *at = shared + (int64_t)group * call.segments * size +
                          row * sum_stride<MT, NT>() + i % outputs;
        float sum = 0.0f;
        for (int s = 0; s < call.segments; s++)
            sum += at[s * size];
        finish_sum(call, first + row, output, end, sum);
    }
}

/* gated: whether x may be gated, which takes registers. With few rows the next product's CTAs
 * should find room beside this one's, so that their weights are already being loaded. So registers
 * are limited to what lets three CTAs of 8 warps in. */
template <enum weight_format format, int numbers, int MT, int NT, bool gated>
__global__ void __maxnreg__(MT == 1 && NT == 1 ? 80 : 128) stream_kernel(product_call call)
{
    KERNEL_TIMES();
    request_ahead(call.ahead);
    SHARED_MEMORY(uint4, shared);
    __shared__ struct norm_terms terms[MOST_NORMED_PARTS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int segment = warp % call.segments, groups = blockDim.x / 32 / call.segments;
    struct cta_place place = place_of_cta(call, 8 * NT);
    int first = place.row, panel = place.group * groups * MT;
    int own = panel + warp / call.segments * MT;
    int begin = segment_begin(call, segment), end = segment_begin(call, segment + 1);
    int longest = (call.blocks + call.segments - 1) / call.segments;
    float sums[MT][NT][4] = {};
    for (int at = 0; at < longest; at += DEPTH<format, NT>) {
        block_part<format> parts[MT][DEPTH<format, NT>] = {};
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int d = 0; d < DEPTH<format, NT>; d++)
                if (own + m < call.panels && begin + at + d < end)
                    load_block<format>(parts[m][d],
                                       panel_data(call, BLOCK_BYTES<format>, own + m) +
                                           (size_t)(begin + at + d) * BLOCK_BYTES<format>,
                                       lane, load_once);
        if (at > 0)
            __syncthreads();
        else {
            grid_wait();
            if (NT == 1)
                prepare_norm(call, first, 8, terms);
        }
        stage_inputs<format, numbers, NT, gated>(call, first, at, terms, shared);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH<format, NT>; d++) {
            if (begin + at + d >= end)
                break;
            fragments<format> weights[MT];
#pragma unroll
            for (int m = 0; m < MT; m++)
                unpack_block<format>(weights[m], parts[m][d]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint4 *from =
                    shared + ((segment * DEPTH<format, NT> + d) * NT + n) * 32 * numbers;
                block_inputs<numbers> x;
#pragma unroll
                for (int i = 0; i < numbers; i++)
                    x.number[i] = from[i * 32 + lane];
#pragma unroll
                for (int m = 0; m < MT; m++)
                    multiply_block<format>(sums[m][n], weights[m], x);
            }
        }
    }
    __syncthreads();
    float *all = (float *)shared;
    put_sums(sums, all + warp * 8 * NT * sum_stride<MT, NT>(), sum_stride<MT, NT>());
    __syncthreads();
    add_segments<MT, NT>(call, first, panel, all);
}

/* ---- the choice, which no bit depends on ---- */

static dim3 grid_of(const struct product_call *call, int heads, int mt, int nt)
{
    int warps = call->segments > 8 ? 16 : 8;
    return product_grid(call, heads, warps / call->segments * mt, 8 * nt);
}

template <enum weight_format format, int numbers, int MT, int NT, bool gated = false>
static void run(struct backend *backend, const struct product_call *call, int heads)
{
    int warps = call->segments > 8 ? 16 : 8;
    launch(backend, stream_kernel<format, numbers, MT, NT, gated>, grid_of(call, heads, MT, NT),
           dim3((unsigned)warps * 32), shared_bytes<format, numbers, MT, NT>(warps, call->segments),
           *call);
}

/* CTAs of a kernel. */
static int64_t ctas(const struct product_call *call, int heads, int mt, int nt)
{
    dim3 grid = grid_of(call, heads, mt, nt);
    return (int64_t)grid.x * grid.z;
}

/* As much as a CTA can hold, if that leaves work for all multiprocessors. */
template <enum weight_format format, int numbers>
void product_stream(struct backend *backend, const struct product_call *call, int heads)
{
    int64_t enough = backend->multiprocessors;
    bool gated = call->norm.gate.data != NULL;
    if (call->num_rows <= 8 && ctas(call, heads, 2, 1) >= 2 * enough)
        gated ? run<format, numbers, 2, 1, true>(backend, call, heads)
              : run<format, numbers, 2, 1>(backend, call, heads);
    else if (call->num_rows <= 8 && gated)
        run<format, numbers, 1, 1, true>(backend, call, heads);
    else if (call->num_rows <= 8)
        run<format, numbers, 1, 1>(backend, call, heads);
    else if (call->num_rows > 16 && call->segments <= 8 && ctas(call, heads, 2, 4) >= enough)
        run<format, numbers, 2, 4>(backend, call, heads);
    else if (ctas(call, heads, 2, 2) >= enough)
        run<format, numbers, 2, 2>(backend, call, heads);
    else
        run<format, numbers, 1, 2>(backend, call, heads);
}

#define INSTANCE(format, numbers)                                                                \
    template void product_stream<format, numbers>(struct backend *, const struct product_call *, \
                                                  int);
PRODUCT_KINDS(INSTANCE)
