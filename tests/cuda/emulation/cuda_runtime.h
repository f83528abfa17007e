/* SPDX-License-Identifier: Apache-2.0 */
/* A device that is not there: the part of the CUDA runtime that engine/cuda/ uses, in C++, so that
 * its kernels run, slowly, where no GPU is, under the debugger and the sanitizers.
 *
 * Blocks, or clusters of them, run one after the other; every thread is a fiber that runs until it
 * waits. What is launched or copied asynchronously happens when somebody waits for it, stream by
 * stream, in the thread that waits. Device memory is malloc's, filled with NaN. Threads that wait
 * for each other in vain, lanes that meet in different collectives, threads that end without
 * grid_wait in a kernel that may overlap the one before, and calls that a thread may not make while
 * it captures a stream, end the program with a message.
 *
 * Settings, by environment:
 *   REGLA_EMULATION_ORDER   forward (default), backward, or a number: the order of blocks, warps
 *                           and lanes between barriers, which must not change a bit
 *   REGLA_EMULATION_MEMORY  bytes of the device (default 4 GiB)
 *   REGLA_EMULATION_SHARED  bytes of shared memory that a block may have (default 99 KiB, as
 *                           devices 8.6 and 8.9 have, the least)
 *   REGLA_EMULATION_FAIL    n: the n-th launch and all after it fail
 *   REGLA_EMULATION_WITHOUT file:line of a __syncthreads, a __syncwarp or a grid_wait, which then
 *                           orders nothing: to see that its absence would be found (races.h)
 *
 * emulation_kernels() says how many kernels have run, emulation_graphs() how many graphs were made,
 * emulation_copies() how many copies between host and device were queued, emulation_memory() what
 * cudaMemGetInfo does, emulation_prefetched() what kernels have prefetched, emulation_carveout()
 * what the last launch preferred.
 */
#ifndef TESTS_CUDA_EMULATION_CUDA_RUNTIME_H
#define TESTS_CUDA_EMULATION_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static /* blocks run one after the other */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};
struct uint3 {
    unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* ---- vectors ---- */

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
inline int2 make_int2(int x, int y)
{
    return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* ---- of a thread ---- */

namespace emulation
{
/* A collective of the lanes in `mask`: each gives `give` and gets the place where lane i's lies
 * [32][words], valid until its next collective but one. Lanes that meet with another `operation`
 * are an error. */
enum { EXCHANGE_WORDS = 8 };
typedef uint32_t exchange_rows[32][EXCHANGE_WORDS];
const exchange_rows &exchange(unsigned mask, const char *operation, const void *give, size_t bytes);
int lane();
void *shared_memory();
/* Where they were called: of all that is emulated, what orders memory. */
void barrier(const char *file = __builtin_FILE(), int line = __builtin_LINE());
void grid_wait(const char *file = __builtin_FILE(), int line = __builtin_LINE());
void sync_warp(unsigned mask, const char *file, int line);
/* Of a cluster: see common.cuh. */
void cluster_begin();
void cluster_begun();
void cluster_sync(const char *file = __builtin_FILE(), int line = __builtin_LINE());
void *cluster_shared(void *own, unsigned block);
/* Writes; whoever else does without an order has to write the same. */
void store_same(void *to, const void *value, size_t bytes);
/* cp.async: the copy happens in wait, the destination is NaN until then */
void copy_async(void *to, const void *from, size_t bytes);
void copy_commit();
void copy_wait(int groups_in_flight);
void prefetch(const void *from, unsigned bytes);
uint64_t global_time(); /* ns */
/* The times of a thread's kernel (engine/cuda/timestamps.cuh): once, and no barrier comes after. */
void kernel_times_begin();
void kernel_times_end();
/* Bulk copies, as common.cuh describes them (bulk.cc). */
void bulk_open(void *barrier);
void bulk_fence();
void bulk_expect(void *barrier, unsigned bytes);
void bulk_load(void *shared, const void *global, unsigned bytes, void *barrier);
void bulk_wait(void *barrier, unsigned parity);
void bulk_store(void *global, const void *shared, unsigned bytes);
void bulk_commit();
void bulk_wait_read(int groups_in_flight);
void bulk_wait_written(int groups_in_flight);

template <typename T> T shuffle(unsigned mask, const char *operation, T value, int source)
{
    static_assert(sizeof(T) <= sizeof(uint32_t[EXCHANGE_WORDS]), "too large");
    T result;
    memcpy(&result, exchange(mask, operation, &value, sizeof value)[source], sizeof result);
    return result;
}
} // namespace emulation

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    emulation::barrier(file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char *file = __builtin_FILE(),
                       int line = __builtin_LINE())
{
    emulation::sync_warp(mask, file, line);
}

template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    int lane = emulation::lane();
    return emulation::shuffle(mask, "__shfl_sync", value,
                              (lane & ~(width - 1)) + (source & (width - 1)));
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32)
{
    int lane = emulation::lane(), source = lane ^ other;
    bool inside = source < (lane | (width - 1)) + 1;
    return emulation::shuffle(mask, "__shfl_xor_sync", value, inside ? source : lane);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = emulation::lane(), source = lane + (int)by;
    return emulation::shuffle(mask, "__shfl_down_sync", value,
                              source <= (lane | (width - 1)) ? source : lane);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = emulation::lane(), source = lane - (int)by;
    return emulation::shuffle(mask, "__shfl_up_sync", value,
                              source >= (lane & ~(width - 1)) ? source : lane);
}
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}

template <typename T> T __ldg(const T *at)
{
    return *at;
}
template <typename T> T __ldcs(const T *at)
{
    return *at;
}
template <typename T> void __stcs(T *at, T value)
{
    *at = value;
}

/* one thread runs at a time */
inline unsigned atomicAdd(unsigned *at, unsigned by)
{
    unsigned before = *at;
    *at += by;
    return before;
}

template <typename To, typename From> To emulation_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x)
{
    return emulation_bits<unsigned>(x);
}
inline int __float_as_int(float x)
{
    return emulation_bits<int>(x);
}
inline float __uint_as_float(unsigned x)
{
    return emulation_bits<float>(x);
}
inline float __int_as_float(int x)
{
    return emulation_bits<float>(x);
}
using std::max;
using std::min;
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}

/* ---- of the host ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum {
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0,
    cudaHostAllocMapped = 2
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePreferredSharedMemoryCarveout = 14
};
enum { cudaSharedmemCarveoutMaxShared = 100 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
        unsigned sharedMemCarveout; /* percent */
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct emulated_stream;
struct emulated_event;
struct emulated_graph;
typedef emulated_stream *cudaStream_t;
typedef emulated_event *cudaEvent_t;
typedef emulated_graph *cudaGraph_t, *cudaGraphExec_t;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize;
};

struct cudaFuncAttributes {
    int ptxVersion, maxDynamicSharedSizeBytes;
};

extern "C" long emulation_kernels(void);
extern "C" long emulation_graphs(void);
extern "C" long emulation_copies(void);
extern "C" void emulation_memory(size_t *free_bytes, size_t *total_bytes);
/* bytes, and from the first to the last of them; the next call tells what came after this one */
extern "C" void emulation_prefetched(size_t *bytes, size_t *extent);
extern "C" int emulation_carveout(void); /* -1: nothing */

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

namespace emulation
{
/* A kernel's largest dynamic shared memory, as it has been asked for. */
size_t allowed_shared(void (*kernel)());
cudaError_t allow_shared(void (*kernel)(), size_t bytes);
cudaError_t launch(const cudaLaunchConfig_t &config, void (*kernel)(),
                   std::function<void()> thread);
} // namespace emulation

template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute, int bytes)
{
    return emulation::allow_shared(reinterpret_cast<void (*)()>(kernel), (size_t)bytes);
}

template <typename... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(P...))
{
    attributes->ptxVersion = 90;
    attributes->maxDynamicSharedSizeBytes =
        (int)emulation::allowed_shared(reinterpret_cast<void (*)()>(kernel));
    return cudaSuccess;
}

template <typename T> cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes)
{
    cudaDeviceSynchronize();
    memcpy(to, &symbol, bytes);
    return cudaSuccess;
}

template <typename T> cudaError_t cudaMemcpyToSymbol(T &symbol, const void *from, size_t bytes)
{
    cudaDeviceSynchronize();
    memcpy(&symbol, from, bytes);
    return cudaSuccess;
}

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...args)
{
    std::tuple<P...> values(std::forward<A>(args)...); /* as of now, as a device has them */
    return emulation::launch(*config, reinterpret_cast<void (*)()>(kernel),
                             [kernel, values] { std::apply(kernel, values); });
}

#endif
