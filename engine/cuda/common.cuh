/* SPDX-License-Identifier: Apache-2.0 */
/* The tools of all CUDA kernels: loads, conversions, reductions in a fixed order, tensor core
 * products, asynchronous copies, and the launch.
 *
 * g++ compiles the same .cu files with -DREGLA_CUDA_EMULATION against tests/cuda/emulation/, where
 * plain C++ with the same meaning replaces inline PTX. So write PTX only here and in its part
 * timestamps.cuh, and launch kernels with launch(), not <<<>>>. */
#ifndef ENGINE_CUDA_COMMON_CUH
#define ENGINE_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "engine/cuda/switches.h"

#define FULL_WARP 0xffffffffu

/* Dynamic shared memory of the block as an array; aligned to 128 bytes. */
#ifdef REGLA_CUDA_EMULATION
#define SHARED_MEMORY(type, name) type *name = static_cast<type *>(emulation::shared_memory())
#else
#define SHARED_MEMORY(type, name)                                    \
    extern __shared__ __align__(128) unsigned char shared_memory_[]; \
    type *name = reinterpret_cast<type *>(shared_memory_)
#endif

/* ---- numbers of two bytes ---- */

__device__ inline float f32_of_f16(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

__device__ inline float f32_of_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

__device__ inline uint16_t f16_of_f32(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

__device__ inline uint16_t bf16_of_f32(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* The lower address in the lower half, as fragments want it. */
__device__ inline uint32_t pack_halves(uint16_t low, uint16_t high)
{
    return low | (uint32_t)high << 16;
}

/* Two numbers rounded to bf16, or to f16; infinite where they are too large. */
__device__ inline uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

__device__ inline uint32_t pack_f16(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* ---- reductions: always the same tree ---- */

/* Reduces `width` neighbouring lanes (a power of two); each of them gets the result. */
__device__ inline float warp_sum(float value, int width = 32)
{
    for (int other = width / 2; other > 0; other /= 2)
        value += __shfl_xor_sync(FULL_WARP, value, other);
    return value;
}

__device__ inline float warp_max(float value, int width = 32)
{
    for (int other = width / 2; other > 0; other /= 2)
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, other));
    return value;
}

/* ---- asynchronous copies from global to shared memory ---- */

#ifdef REGLA_CUDA_EMULATION
__device__ inline void copy_async_16(void *shared, const void *global)
{
    emulation::copy_async(shared, global, 16);
}
__device__ inline void copy_async_4(void *shared, const void *global)
{
    emulation::copy_async(shared, global, 4);
}
__device__ inline void copy_async_commit()
{
    emulation::copy_commit();
}
template <int groups_in_flight> __device__ inline void copy_async_wait()
{
    emulation::copy_wait(groups_in_flight);
}
#else
__device__ inline void copy_async_16(void *shared, const void *global)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
}
__device__ inline void copy_async_4(void *shared, const void *global)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(global) : "memory");
}
__device__ inline void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for this thread's copies. To read those of other threads, a barrier must follow. */
template <int groups_in_flight> __device__ inline void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups_in_flight) : "memory");
}
#endif

/* Asks for memory that is read soon, so that it lies in the second cache then. The address and the
 * bytes, less than a MiB, are multiples of 16. */
#ifdef REGLA_CUDA_EMULATION
using emulation::prefetch;
#else
__device__ inline void prefetch(const void *global, unsigned bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes));
#else
    for (unsigned at = 0; at < bytes; at += 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(global) + at));
#endif
}
#endif

/* ---- clusters: CTAs that write to each other's shared memory ----
 * A kernel that is launched in clusters has no __shared__ arrays, only dynamic shared memory: the
 * emulated device has one of each for all its blocks. */

#ifdef REGLA_CUDA_EMULATION
using emulation::cluster_begin;
using emulation::cluster_begun;
using emulation::cluster_sync;
template <typename T> inline T *cluster_shared(T *own, unsigned block)
{
    return static_cast<T *>(emulation::cluster_shared(own, block));
}
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* A thread begins; and waits until all threads of its cluster have. Before that another CTA's
 * shared memory may not be there. */
__device__ inline void cluster_begin()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_begun()
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
/* __syncthreads of all threads of a cluster. */
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Where `own` lies in another CTA of the cluster. */
template <typename T> __device__ inline T *cluster_shared(T *own, unsigned block)
{
    T *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(block));
    return there;
}
#else /* never: backend.cu, has_clusters */
__device__ inline void cluster_begin()
{
}
__device__ inline void cluster_begun()
{
}
__device__ inline void cluster_sync()
{
    __trap();
}
template <typename T> __device__ inline T *cluster_shared(T *own, unsigned block)
{
    return own + block;
}
#endif

/* ---- bulk copies between global and shared memory: backend->bulk_copies ----
 * One thread copies many bytes. Addresses and sizes are multiples of 16.
 *
 * In: a barrier in shared memory says when everything that it expects has arrived; it can be used
 * again and again. bulk_open once, then for each round bulk_expect with the bytes of its loads, the
 * loads, and bulk_wait by whoever reads them, with the round's number modulo 2.
 * Out: after bulk_commit the stores so far are a group of the calling thread, which waits until
 * they have read shared memory (bulk_wait_read), or have been written (bulk_wait_written), but for
 * so many newest groups.
 *
 * Bulk copies see what other threads, and the copying one, have written to shared memory only if
 * those called bulk_fence after it and a barrier followed. bulk_open needs one, too. */

#ifdef REGLA_CUDA_EMULATION
typedef uint64_t bulk_barrier;
using emulation::bulk_commit;
using emulation::bulk_expect;
using emulation::bulk_fence;
using emulation::bulk_load;
using emulation::bulk_open;
using emulation::bulk_store;
using emulation::bulk_wait;
template <int groups_in_flight> inline void bulk_wait_read()
{
    emulation::bulk_wait_read(groups_in_flight);
}
template <int groups_in_flight> inline void bulk_wait_written()
{
    emulation::bulk_wait_written(groups_in_flight);
}
#else
typedef unsigned long long bulk_barrier;
#if __CUDA_ARCH__ >= 900
#define BULK_ASM(...) asm volatile(__VA_ARGS__)
#else
#define BULK_ASM(...) __trap() /* others have no such copies: nobody launches kernels with them */
#endif
__device__ inline unsigned shared_address(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}
__device__ inline void bulk_open(bulk_barrier *barrier)
{
    BULK_ASM("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void bulk_fence()
{
    BULK_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void bulk_expect(bulk_barrier *barrier, unsigned bytes)
{
    BULK_ASM(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}
__device__ inline void bulk_load(void *shared, const void *global, unsigned bytes,
                                 bulk_barrier *barrier)
{
    BULK_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
             "[%3];" ::"r"(shared_address(shared)),
             "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
             : "memory");
}
__device__ inline void bulk_wait(bulk_barrier *barrier, unsigned parity)
{
    BULK_ASM("{\n"
             ".reg .pred there;\n"
             "again:\n"
             "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
             "@!there bra again;\n"
             "}" ::"r"(shared_address(barrier)),
             "r"(parity)
             : "memory");
}
__device__ inline void bulk_store(void *global, const void *shared, unsigned bytes)
{
    BULK_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                 __cvta_generic_to_global(global)),
             "r"(shared_address(shared)), "r"(bytes)
             : "memory");
}
__device__ inline void bulk_commit()
{
    BULK_ASM("cp.async.bulk.commit_group;" ::: "memory");
}
template <int groups_in_flight> __device__ inline void bulk_wait_read()
{
    BULK_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(groups_in_flight) : "memory");
}
template <int groups_in_flight> __device__ inline void bulk_wait_written()
{
    BULK_ASM("cp.async.bulk.wait_group %0;" ::"n"(groups_in_flight) : "memory");
}
#undef BULK_ASM
#endif

/* ---- the same number, from several threads at a time ---- */

/* Writes a number that other threads may write too, if it is the same number. A thread that reads
 * it without writing it must come after all of them. */
#ifdef REGLA_CUDA_EMULATION
template <typename T> inline void store_same(T *at, T value)
{
    emulation::store_same(at, &value, sizeof value);
}
#else
template <typename T> __device__ inline void store_same(T *at, T value)
{
    *at = value;
}
#endif

/* ---- tensor cores ----
 * d += a b of a warp: a [16, 16] row-major, b [16, 8], d [16, 8] f32. With g = lane / 4, t = lane %
 * 4: a[0] holds row g, columns 2t, 2t + 1; a[1] row g + 8; a[2], a[3] likewise 8 columns on. b[0]
 * holds rows 2t, 2t + 1 of column g, b[1] 8 rows on. d[0], d[1] are row g, columns 2t, 2t + 1, and
 * d[2], d[3] row g + 8. */

#ifdef REGLA_CUDA_EMULATION
template <float (*number)(uint16_t)>
inline void emulated_mma(const char *operation, float d[4], const uint32_t a[4],
                         const uint32_t b[2])
{
    const uint32_t give[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const emulation::exchange_rows &rows =
        emulation::exchange(FULL_WARP, operation, give, sizeof give);
    int g = emulation::lane() / 4, t = emulation::lane() % 4;
    float left[2][16], right[2][16];
    for (int i = 0; i < 16; i++) {
        int half = i / 8, step = i / 4 % 2, part = i % 4, k = step * 8 + part * 2;
        uint32_t a_pair = rows[g * 4 + part][half + step * 2];
        uint32_t b_pair = rows[(t * 2 + half) * 4 + part][4 + step];
        left[half][k] = number((uint16_t)a_pair);
        left[half][k + 1] = number((uint16_t)(a_pair >> 16));
        right[half][k] = number((uint16_t)b_pair);
        right[half][k + 1] = number((uint16_t)(b_pair >> 16));
    }
    for (int k = 0; k < 16; k++) /* products of two such numbers are exact */
        for (int i = 0; i < 4; i++)
            d[i] += left[i / 2][k] * right[i % 2][k];
}
inline void mma_bf16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulated_mma<f32_of_bf16>("mma.bf16", d, a, b);
}
inline void mma_f16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulated_mma<f32_of_f16>("mma.f16", d, a, b);
}
#else
__device__ inline void mma_bf16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_f16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

/* ---- the launch ---- */

/* Lets the next kernel begin, and waits until the previous one has ended. From here on a kernel may
 * read what the previous one wrote, and write what it read. All threads of every kernel call it
 * before they touch memory that a kernel or copy of a step changes. Weights and other parameters
 * may be read before it, while the previous kernel ends.
 *
 * Waiting for the previous kernel means waiting for all before it, since that kernel cannot end
 * before its own threads have waited, and so on. For the same reason a kernel may reuse memory (the
 * rows of a step, device_scratch) without knowing who used it before. Copies do not overlap: they
 * begin when everything before them has ended, and what follows waits for them. */
#ifdef REGLA_CUDA_EMULATION
using emulation::grid_wait;
#else
__device__ inline void grid_wait()
{
#if __CUDA_ARCH__ >= 900 /* on others kernels do not overlap: backend.cu, find_abilities */
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

#ifdef REGLA_CUDA_TIMESTAMPS
void timestamps_launched(dim3 grid, dim3 block); /* timestamps.cuh */
#endif

/* A kernel's own arrays need shared memory too. This much is left for them, of the 48 KiB that a
 * kernel has without a request, and of the most that a block may have. */
enum { OWN_ARRAYS = 1024, SHARED_UNASKED = 48 * 1024 - OWN_ARRAYS };

/* Lets a kernel have this much shared memory, and never less than before: a graph may contain
 * launches of it that need more. A limit over 48 KiB has been requested before; a lower one may be
 * what the kernel has without a request, of which its own arrays take a part. */
template <typename... P>
void allow_shared(struct backend *backend, void (*kernel)(P...), size_t bytes)
{
    const size_t least = 48 * 1024 + OWN_ARRAYS;
    cudaFuncAttributes attributes = {};
    if (bytes <= SHARED_UNASKED)
        return;
    bytes = bytes < least ? least : bytes;
    if (!device_check(backend, cudaFuncGetAttributes(&attributes, kernel),
                      "cudaFuncGetAttributes") ||
        (size_t)attributes.maxDynamicSharedSizeBytes >= bytes)
        return;
    device_check(
        backend,
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "cudaFuncSetAttribute");
}

/* Queues a kernel, which must call grid_wait, in the backend's stream. A failure is remembered
 * (device.h, device_check). Name a template with its arguments: launch(backend, kernel<64, true>,
 * ...). A grid with a zero does nothing. cluster: how many neighbours along x are one. */
template <typename... P, typename... A>
void launch_clusters(struct backend *backend, void (*kernel)(P...), unsigned cluster, dim3 grid,
                     dim3 block, size_t shared_bytes, A... arguments)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || backend->failure != cudaSuccess ||
        backend->replaying)
        return;
    allow_shared(backend, kernel, shared_bytes);
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = backend->stream;
    cudaLaunchAttribute attributes[3] = {};
    config.attrs = attributes;
    if (backend->overlaps) { /* in a graph it becomes a programmatic edge */
        cudaLaunchAttribute *overlaps = &attributes[config.numAttrs++];
        overlaps->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlaps->val.programmaticStreamSerializationAllowed = 1;
    }
    /* A multiprocessor divides its memory between shared memory and the first cache anew only when
     * it is empty: kernels that want other parts could not begin beside each other. */
    if (switch_on(backend, CUDA_SWITCH_CARVEOUT)) {
        cudaLaunchAttribute *carveout = &attributes[config.numAttrs++];
        carveout->id = cudaLaunchAttributePreferredSharedMemoryCarveout;
        carveout->val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *clusters = &attributes[config.numAttrs++];
        clusters->id = cudaLaunchAttributeClusterDimension;
        clusters->val.clusterDim.x = cluster;
        clusters->val.clusterDim.y = 1;
        clusters->val.clusterDim.z = 1;
    }
#ifdef REGLA_CUDA_TIMESTAMPS
    timestamps_launched(grid, block);
#endif
    device_check(backend, cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

template <typename... P, typename... A>
void launch(struct backend *backend, void (*kernel)(P...), dim3 grid, dim3 block,
            size_t shared_bytes, A... arguments)
{
    launch_clusters(backend, kernel, 1, grid, block, shared_bytes, arguments...);
}

/* ---- when kernels begin and end ---- */

#ifdef REGLA_CUDA_TIMESTAMPS
#include "engine/cuda/timestamps.cuh"
#else
/* At the beginning of a kernel that touches memory before it waits, or waits in a block. */
#define KERNEL_TIMES() ((void)0)
#endif

#endif
