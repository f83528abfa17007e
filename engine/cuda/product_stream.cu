/* SPDX-License-Identifier: Apache-2.0 */
/* Products with few rows, bound by reading the weights. A warp has one segment of one or two panels
 * (MT) and requests some blocks of each before it needs the first. A CTA has 8 NT rows of x, split,
 * in shared memory in the order of fragments. Up to 8 rows it norms, gates and splits itself; more
 * are split already (product_split.cu). The segments' sums are added in shared memory, too: in one
 * CTA's, or where a product has too few panels for all multiprocessors, in the first CTA's of a
 * cluster that shares a panel.
 *
 * A call with N rows reads the weights once, and again from the second cache for each 8 NT rows
 * more; for every CTA 4 N in bytes of x from the caches; and moves y. It does 4 N in out
 * operations, as x is split (half if x is rounded), on tensor cores that work as for 8 NT rows. A
 * bf16 weight of 768 x 3072 is 4.7 MB in 192 CTAs of 8 warps, one of 3072 x 768 in 192 of 4. */
/* clang-format off */
/* nvcc 13.0 for sm_90, with 8 warps in a CTA (16 from 48 blocks on, then twice the shared memory),
 * with 4 where it is spread; x of up to 8 rows as it is kept (KEPT), of more as it is copied (SPLIT):
 *   MT, NT          1, 1      1, 1 spread  2, 1     1, 2     2, 2     2, 4
 *   registers       80        109          128      74       112      128
 *     q8            78        93           125      79       121      128
 *     x rounded     80        109          128      66       106      128
 *     q8 and that   77        92           125      69       112      128
 *   spilled bytes   8         0            0        0        0        16; 0 if x is rounded
 *     q8            0         0            0        0        0        16; 0 if x is rounded
 *   fragments       32 KiB    24 KiB       32 KiB   48 KiB   48 KiB   96 KiB (q8: 64; x rounded: half)
 *   CTAs            3         4            2        3        2        2
 *   in flight       96 KiB    96 KiB       128 KiB  72 KiB   96 KiB   96 KiB of bf16 weights
 * Where switches are off, up to 8 rows spill 16 bytes if they are gated, and 2, 4 8 (q8:
 * 32). On an H200 one takes 2.3 to 5.6 us of a decode step (loadtest/FIGURES.md). */
/* clang-format on */
#include "engine/cuda/product_rows.cuh"

/* How a CTA gets its inputs. */
enum input_way {
    READ,  /* it reads x, norms it where it has up to 8 rows, and splits it */
    GATED, /* the same, and may gate it, which takes registers */
    KEPT,  /* the same, once x and all that norms and gates it are in shared memory */
    SPLIT  /* it copies what product_split.cu has split */
};

/* Where a product has too few outputs for all multiprocessors, a cluster of CTAs shares the
 * segments of a panel: so many each, in as many warps. */
enum { SPREAD_WARPS = 4 };

/* Blocks of a segment at a time: as many as registers hold and, with 16 segments, 96 KiB of x. */
template <enum weight_format format, int NT, bool spread = false>
constexpr int DEPTH = spread                            ? 6
                      : NT == 1                         ? 4
                      : (NT == 4 && HAS_SCALES<format>) ? 2
                                                        : 3;

/* Shared memory, at one time x split, [segments][DEPTH][NT][numbers][32 lanes] of 16 bytes, at
 * another the warps' sums, [warps][8 NT rows][16 MT outputs and a gap that spreads the banks]. In
 * a cluster the sums of all warps have their own place, in its first CTA. */
template <int MT, int NT> __host__ __device__ constexpr int sum_stride()
{
    return FRAGMENT_OUTPUTS * MT + 4;
}

template <enum weight_format format, int numbers, int NT, bool spread>
__host__ __device__ inline int input_floats(int segments)
{
    return segments * DEPTH<format, NT, spread> * NT * 32 * numbers * 4;
}

template <int MT, int NT> static int sum_floats(int warps)
{
    return warps * 8 * NT * sum_stride<MT, NT>();
}

/* The part of a product that a CTA has: its first row and panel, how many groups of warps with MT
 * panels each, and its segments. */
struct cta_part {
    int row, panel, groups, segment, segments;
};

template <int MT, int NT, bool spread>
__device__ inline struct cta_part part_of_cta(const product_call &call)
{
    if (spread) {
        int cluster = call.segments / SPREAD_WARPS;
        return {0, (int)blockIdx.x / cluster, 1, (int)blockIdx.x % cluster * SPREAD_WARPS,
                SPREAD_WARPS};
    }
    int groups = (int)(blockDim.x / 32 >> call.segment_shift);
    struct cta_place place = {0, (int)blockIdx.x};
    if (NT > 1)
        place = place_of_cta(call, 8 * NT);
    return {place.row, place.group * groups * MT, groups, 0, call.segments};
}

/* Writes the fragments `b` of blocks [at, at + DEPTH) of every segment. Eight threads share a block
 * of a row. Rows past the last contain any numbers; they change no other row's sums. */
template <enum weight_format format, int numbers, int NT, bool gated, bool spread>
__device__ inline void stage_inputs(const product_call &call, struct cta_part part, int at,
                                    const struct norm_terms *terms, uint4 *shared)
{
    const bool norms = NT == 1;
    const int depth = DEPTH<format, NT, spread>;
    unsigned rows = (unsigned)min(8 * NT, call.num_rows - part.row);
    unsigned items = (unsigned)(part.segments * depth) * rows * 8;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < items; i += blockDim.x) {
        int slot = (int)(i / 8 / rows), row = (int)(i / 8 % rows), four = (int)(i % 8);
        int segment = part.segment + slot / depth;
        int block = segment_begin(call, segment) + at + slot % depth;
        int k = block * BLOCK_INPUTS + four * 4;
        if (block >= segment_begin(call, segment + 1))
            continue;
        struct norm_four from = load_inputs<norms, gated>(call, part.row, row, k);
        uint2 split[numbers];
        split_four<format>(finish_inputs<norms, gated>(call, row, k, terms, from), split);
        uint4 *fragment = shared + (slot * NT + row / 8) * 32 * numbers;
#pragma unroll
        for (int n = 0; n < numbers; n++)
            reinterpret_cast<uint2 *>(fragment + n * 32)[row % 8 * 8 + four] = split[n];
    }
}

/* The same of rows that are kept. from: the first input that is. */
template <enum weight_format format, int numbers, bool spread>
__device__ inline void stage_kept(const product_call &call, struct cta_part part, int from, int at,
                                  const struct norm_terms *terms, uint4 *shared)
{
    const int depth = DEPTH<format, 1, spread>;
#pragma unroll 1
    for (int i = threadIdx.x; i < part.segments * depth * 8; i += blockDim.x) {
        int slot = i / 8, segment = part.segment + slot / depth;
        int block = segment_begin(call, segment) + at + slot % depth;
        if (block >= segment_begin(call, segment + 1))
            continue;
        uint2 *fragment = reinterpret_cast<uint2 *>(shared + slot * 32 * numbers) + i % 8;
#pragma unroll 1
        for (int row = 0; row < call.num_rows; row++) {
            int k = block * BLOCK_INPUTS + i % 8 * 4;
            struct norm_four four =
                kept_inputs(call, reinterpret_cast<const float *>(shared), from, row, k);
            uint2 split[numbers];
            split_four<format>(finish_inputs<true, true>(call, row, k, terms, four), split);
#pragma unroll
            for (int n = 0; n < numbers; n++)
                fragment[n * 64 + row * 8] = split[n];
        }
    }
}

/* Starts to copy the same, which lie split in memory: a warp has a block of 8 rows at a time. */
template <enum weight_format format, int numbers, int NT>
__device__ inline void request_split(const product_call &call, struct cta_part part, int at,
                                     uint4 *shared)
{
    const int depth = DEPTH<format, NT>;
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < part.segments * depth * NT; i += blockDim.x / 32) {
        int slot = i / NT, row = part.row + i % NT * 8;
        int block = segment_begin(call, slot / depth) + at + slot % depth;
        if (row >= call.num_rows || block >= segment_begin(call, slot / depth + 1))
            continue;
        const uint4 *from = call.split + split_place(call, row, block) * 32 * numbers;
#pragma unroll
        for (int n = 0; n < numbers * 32; n += 32)
            copy_async_16(shared + i * 32 * numbers + n + lane, from + n + lane);
    }
}

/* Requests a warp's blocks from `begin` on, of its segment that ends before `end`. */
template <enum weight_format format, int MT, int depth>
__device__ inline void load_parts(const product_call &call, int panel, int begin, int end,
                                  block_part<format> (&parts)[MT][depth])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int d = 0; d < depth; d++) {
            parts[m][d] = {};
            if (panel + m < call.panels && begin + d < end)
                load_block<format>(parts[m][d],
                                   panel_data(call, BLOCK_BYTES<format>, panel + m) +
                                       (size_t)(begin + d) * BLOCK_BYTES<format>,
                                   threadIdx.x % 32, load_once);
        }
}

/* After the wait: requests what is not weights, and norms. from: the first input that is kept. */
template <int NT, enum input_way way>
__device__ inline void begin_rows(const product_call &call, struct cta_part part, int from,
                                  int outputs, struct norm_terms *terms, float *shared)
{
    if (way == KEPT && !call.early)
        request_parameters(call, shared);
    if (way == KEPT)
        request_rows(call, from, shared);
    copy_async_commit();
    if (call.early && part.segment == 0)
        request_before(call, shared, part.row, 8 * NT, part.panel * FRAGMENT_OUTPUTS, outputs);
    copy_async_commit();
    if (way == KEPT) {
        copy_async_wait<1>();
        __syncthreads();
        prepare_kept_norm(call, shared, terms);
    } else if (NT == 1) {
        prepare_norm(call, part.row, 8, terms);
    }
}

/* Adds the segments in order and finishes. */
template <int MT, int NT>
__device__ inline void add_segments(const product_call &call, struct cta_part part,
                                    const float *sums, const float *shared)
{
    const int outputs = FRAGMENT_OUTPUTS * MT, size = 8 * NT * sum_stride<MT, NT>();
    int rows = min(8 * NT, call.num_rows - part.row);
    int width = part.groups * outputs, shift = __ffs(width) - 1; /* a power of two */
#pragma unroll 1
    for (int i = threadIdx.x; i < width * rows; i += blockDim.x) {
        int row = i >> shift, column = i & (width - 1);
        int output = part.panel * FRAGMENT_OUTPUTS + column;
        if (output >= call.out)
            continue;
        struct sum_end end = call.early ? kept_end(call, shared, row, column, width)
                                        : load_end(call, part.row + row, output);
        const float *at = sums + column / outputs * call.segments * size +
                          row * sum_stride<MT, NT>() + column % outputs;
        float sum = 0.0f;
        for (int s = 0; s < call.segments; s++)
            sum += at[s * size];
        finish_sum(call, part.row + row, output, end, sum);
    }
}

/* With few rows the next product's CTAs should find room beside this one's, so that their weights
 * are already being loaded. So registers are limited to what lets 24 warps in, or four CTAs of 4.
 */
template <enum weight_format format, int numbers, int MT, int NT, enum input_way way, bool spread>
__global__ void __maxnreg__(MT == 1 && NT == 1 && !spread ? 80 : 128)
    stream_kernel(product_call call)
{
    KERNEL_TIMES();
    request_ahead(call.ahead);
    SHARED_MEMORY(uint4, shared);
    const int depth = DEPTH<format, NT, spread>, size = 8 * NT * sum_stride<MT, NT>();
    float *floats = reinterpret_cast<float *>(shared);
    struct norm_terms *terms = reinterpret_cast<struct norm_terms *>(floats + call.kept.terms);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct cta_part part = part_of_cta<MT, NT, spread>(call);
    int segment = part.segment + (warp & (part.segments - 1));
    int own = part.panel + (spread ? 0 : warp >> call.segment_shift) * MT;
    int begin = segment_begin(call, segment), end = segment_begin(call, segment + 1);
    int longest = (call.blocks + call.segments - 1) >> call.segment_shift;
    int from = spread && call.norm.kind == NORM_NONE
                   ? segment_begin(call, part.segment) * BLOCK_INPUTS
                   : 0;
    int outputs = part.groups * MT * FRAGMENT_OUTPUTS;
    float sums[MT][NT][4] = {};
    if (spread)
        cluster_begin();
    if (call.early && part.segment == 0)
        request_bias(call, floats, part.panel * FRAGMENT_OUTPUTS, outputs);
    if (way == KEPT && call.early)
        request_parameters(call, floats);
    block_part<format> parts[MT][depth];
    load_parts<format>(call, own, begin, end, parts);
    grid_wait();
    begin_rows<NT, way>(call, part, from, outputs, terms, floats);
    for (int at = 0;;) {
        if constexpr (way == SPLIT) {
            request_split<format, numbers, NT>(call, part, at, shared);
            copy_async_commit();
            copy_async_wait<0>();
        } else if constexpr (way == KEPT) {
            stage_kept<format, numbers, spread>(call, part, from, at, terms, shared);
        } else {
            stage_inputs<format, numbers, NT, way == GATED, spread>(call, part, at, terms, shared);
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < depth; d++) {
            if (begin + at + d >= end)
                break;
            fragments<format> weights[MT];
#pragma unroll
            for (int m = 0; m < MT; m++)
                unpack_block<format>(weights[m], parts[m][d]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint4 *b =
                    shared + (((segment - part.segment) * depth + d) * NT + n) * 32 * numbers;
                block_inputs<numbers> x;
#pragma unroll
                for (int i = 0; i < numbers; i++)
                    x.number[i] = b[i * 32 + lane];
#pragma unroll
                for (int m = 0; m < MT; m++)
                    multiply_block<format>(sums[m][n], weights[m], x);
            }
        }
        at += depth;
        if (at >= longest)
            break;
        load_parts<format>(call, own, begin + at, end, parts);
        __syncthreads();
    }
    copy_async_wait<0>();
    if (spread) {
        floats += input_floats<format, numbers, NT, spread>(part.segments);
        cluster_begun();
        put_sums(sums, cluster_shared(floats, 0) + segment * size, sum_stride<MT, NT>());
        cluster_sync();
        if (part.segment > 0)
            return;
    } else {
        __syncthreads();
        put_sums(sums, floats + warp * size, sum_stride<MT, NT>());
        __syncthreads();
    }
    add_segments<MT, NT>(call, part, floats, reinterpret_cast<const float *>(shared));
}

/* ---- the choice, which no bit depends on ---- */

static dim3 grid_of(const struct product_call *call, int heads, int mt, int nt)
{
    int warps = call->segments > 8 ? 16 : 8;
    return product_grid(call, heads, warps / call->segments * mt, 8 * nt);
}

/* The most shared memory that a launch may ask for. */
static size_t room(const struct backend *backend)
{
    return backend->shared_bytes - OWN_ARRAYS;
}

/* Places in shared memory what a launch keeps there, behind x split and sums. Returns the bytes of
 * all. */
template <enum weight_format format, int numbers, int MT, int NT, enum input_way way, bool spread>
static size_t place_all(const struct backend *backend, struct product_call *call, int warps)
{
    int segments = spread ? warps : call->segments;
    int panels = spread ? MT : warps / segments * MT;
    int inputs = input_floats<format, numbers, NT, spread>(segments);
    int sums = sum_floats<MT, NT>(spread ? call->segments : warps);
    size_t at = (size_t)(spread ? inputs + sums : inputs > sums ? inputs : sums);
    call->kept.terms = (int)at;
    at += NT == 1 ? MOST_NORMED_PARTS * sizeof(struct norm_terms) / sizeof(float) : 0;
    if (way == KEPT)
        at = place_rows(call, at, spread ? call->segments / segments : 1);
    size_t ends = place_ends(call, at, 8 * NT, panels * FRAGMENT_OUTPUTS);
    call->early = switch_on(backend, CUDA_SWITCH_EARLY) && ends * sizeof(float) <= room(backend);
    return (call->early ? ends : at) * sizeof(float);
}

template <enum weight_format format, int numbers, int MT, int NT, enum input_way way,
          bool spread = false>
static void run(struct backend *backend, const struct product_call *call, int heads)
{
    struct product_call own = *call;
    int warps = spread ? SPREAD_WARPS : call->segments > 8 ? 16 : 8;
    size_t bytes = place_all<format, numbers, MT, NT, way, spread>(backend, &own, warps);
    dim3 grid = spread ? product_grid(call, heads, MT, 8 * NT) : grid_of(call, heads, MT, NT);
    unsigned cluster = spread ? (unsigned)(call->segments / SPREAD_WARPS) : 1;
    grid.x *= cluster;
    launch_clusters(backend, stream_kernel<format, numbers, MT, NT, way, spread>, cluster, grid,
                    dim3((unsigned)warps * 32), bytes, own);
}

/* Up to 8 rows. */
template <enum weight_format format, int numbers, int MT, bool spread>
static void run_few(struct backend *backend, const struct product_call *call, int heads)
{
    struct product_call own = *call;
    int warps = spread ? SPREAD_WARPS : call->segments > 8 ? 16 : 8;
    if (switch_on(backend, CUDA_SWITCH_ROW) &&
        can_keep_rows(call, spread ? call->segments / warps : 1) &&
        place_all<format, numbers, MT, 1, KEPT, spread>(backend, &own, warps) <= room(backend))
        run<format, numbers, MT, 1, KEPT, spread>(backend, call, heads);
    else if (call->norm.gate.data != NULL)
        run<format, numbers, MT, 1, GATED, spread>(backend, call, heads);
    else
        run<format, numbers, MT, 1, READ, spread>(backend, call, heads);
}

template <enum weight_format format, int numbers, int MT, int NT>
static void run_more(struct backend *backend, const struct product_call *call, int heads)
{
    if (call->split != NULL)
        run<format, numbers, MT, NT, SPLIT>(backend, call, heads);
    else
        run<format, numbers, MT, NT, READ>(backend, call, heads);
}

/* CTAs of a kernel. */
static int64_t ctas(const struct product_call *call, int heads, int mt, int nt)
{
    dim3 grid = grid_of(call, heads, mt, nt);
    return (int64_t)grid.x * grid.z;
}

static bool spreads(const struct backend *backend, const struct product_call *call, int heads)
{
    return switch_on(backend, CUDA_SWITCH_SPREAD) && backend->has_clusters &&
           call->segments >= 2 * SPREAD_WARPS && ctas(call, heads, 1, 1) < backend->multiprocessors;
}

/* As much as a CTA can hold, if that leaves work for all multiprocessors. */
template <enum weight_format format, int numbers>
void product_stream(struct backend *backend, const struct product_call *call, int heads)
{
    int64_t enough = backend->multiprocessors;
    if (call->num_rows <= 8 && ctas(call, heads, 2, 1) >= 2 * enough)
        run_few<format, numbers, 2, false>(backend, call, heads);
    else if (call->num_rows <= 8 && !spreads(backend, call, heads))
        run_few<format, numbers, 1, false>(backend, call, heads);
    else if (call->num_rows <= 8)
        run_few<format, numbers, 1, true>(backend, call, heads);
    else if (call->num_rows > 16 && call->segments <= 8 && ctas(call, heads, 2, 4) >= enough)
        run_more<format, numbers, 2, 4>(backend, call, heads);
    else if (ctas(call, heads, 2, 2) >= enough)
        run_more<format, numbers, 2, 2>(backend, call, heads);
    else
        run_more<format, numbers, 1, 2>(backend, call, heads);
}

#define INSTANCE(format, numbers)                                                                \
    template void product_stream<format, numbers>(struct backend *, const struct product_call *, \
                                                  int);
PRODUCT_KINDS(INSTANCE)
