/* SPDX-License-Identifier: Apache-2.0 */
/* A part of common.cuh where REGLA_CUDA_TIMESTAMPS is set: kernels store when they begin and end,
 * and launch() remembers their names.
 *
 * grid_wait() becomes a macro that also declares an object in the kernel. It stores the time there
 * and after the wait; its destructor stores that of the end. So a kernel that waits first, or only
 * computes indices before, needs no change. One that touches memory or meets others before, or
 * waits in a block of its own, says KERNEL_TIMES() at its beginning, and the object is there. A
 * function of a kernel does not see it, so it gets the wait as a lambda of the kernel. (On the
 * emulated device the program ends where a kernel has two objects, and at a barrier after its
 * object's end.)
 *
 * A kernel's place in the list comes from a counter: an atomic whose answer is needed at the
 * kernel's end alone. What is stored there delays that end by some instructions, and registers are
 * taken: so these builds are for the order of things and their gaps, not for speed. */
#ifndef ENGINE_CUDA_TIMESTAMPS_CUH
#define ENGINE_CUDA_TIMESTAMPS_CUH

#include <cuda_runtime.h>

extern "C" {
#include "engine/cuda/timestamps.h"
}

/* What the kernels of one .cu file have stored. Each file has its own, as its device code shares no
 * variables with that of others. */
struct kernel_log {
    unsigned count;
    struct kernel_moments kernels[MOST_KERNEL_TIMES];
};

/* Copies a file's log; NULL: empties it. */
typedef cudaError_t kernel_log_access(struct kernel_log *out);

/* Makes a file's log known. */
void timestamps_file(kernel_log_access *access);
/* The next launch is of a kernel of that file, at `path`. text: the arguments of launch, of which
 * the second names the kernel, or a variable. */
void timestamps_next(kernel_log_access *access, const char *path, const char *text);
/* It has happened. */
void timestamps_launched(dim3 grid, dim3 block);

namespace
{
__device__ struct kernel_log kernel_log;

cudaError_t access_kernel_log(struct kernel_log *out)
{
    const unsigned zero = 0;
    return out == NULL ? cudaMemcpyToSymbol(kernel_log, &zero, sizeof zero)
                       : cudaMemcpyFromSymbol(out, kernel_log, sizeof *out);
}

struct known_file {
    known_file()
    {
        timestamps_file(access_kernel_log);
    }
} const known_file;

__device__ inline uint64_t global_time()
{
#ifdef REGLA_CUDA_EMULATION
    return emulation::global_time();
#else
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
#endif
}

class kernel_times
{
    bool stores;
    unsigned place;
    struct kernel_moments moments;

  public:
    __device__ kernel_times()
        : stores((threadIdx.x | threadIdx.y | threadIdx.z | blockIdx.x | blockIdx.y | blockIdx.z) ==
                 0),
          place(0), moments{global_time(), 0, 0}
    {
#ifdef REGLA_CUDA_EMULATION
        emulation::kernel_times_begin();
#endif
        if (stores)
            place = atomicAdd(&kernel_log.count, 1u);
    }
    kernel_times(const kernel_times &) = delete;
    __device__ void wait_is_over()
    {
        moments.waited = global_time();
    }
    __device__ ~kernel_times()
    {
        moments.exit = global_time();
        if (stores && place < MOST_KERNEL_TIMES)
            kernel_log.kernels[place] = moments;
#ifdef REGLA_CUDA_EMULATION
        emulation::kernel_times_end();
#endif
    }
};

/* Where a kernel has no object yet, and in functions, its name means this number. */
enum no_kernel_times { times_of_kernel };

__device__ inline kernel_times times_at_wait(no_kernel_times)
{
    return kernel_times();
}
__device__ inline kernel_times &times_at_wait(kernel_times &own)
{
    return own;
}
} // namespace

#define KERNEL_TIMES() kernel_times times_of_kernel
#define grid_wait()                                                \
    decltype(auto) waiting_times = times_at_wait(times_of_kernel); \
    (grid_wait)();                                                 \
    waiting_times.wait_is_over()
#define launch(...) \
    (timestamps_next(access_kernel_log, __FILE__, #__VA_ARGS__), (launch)(__VA_ARGS__))
#define launch_clusters(...) \
    (timestamps_next(access_kernel_log, __FILE__, #__VA_ARGS__), (launch_clusters)(__VA_ARGS__))

#endif
