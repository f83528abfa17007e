/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the device's peaks per second: with a stream of reads, and with multiply-adds that
 * depend only on each thread's own sums. */
#include "engine/cuda/common.cuh"

/* READS of the memory are timed as one, so that their beginnings and ends do not count. */
enum { THREADS = 256, SUMS = 8, AT_ONCE = 4 };
#ifdef REGLA_CUDA_EMULATION /* has no speed, and would take minutes */
enum { ROUNDS = 4, READS = 1, TRIES = 1 };
static const size_t MOST_BYTES = 1 << 20;
#else
enum { ROUNDS = 4096, READS = 4, TRIES = 5 };
static const size_t MOST_BYTES = SIZE_MAX;
#endif

__global__ static void read_kernel(const float4 *memory, size_t count, float *used)
{
    grid_wait();
    float sum = 0.0f;
    size_t stride = (size_t)gridDim.x * THREADS;
    size_t start = (size_t)blockIdx.x * THREADS + threadIdx.x;
    for (size_t i = start; i < count; i += AT_ONCE * stride) {
        float4 x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) /* not to be kept in the L2 cache for the next read */
            x[j] = i + j * stride < count ? __ldcs(&memory[i + j * stride]) : float4{};
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            sum += x[j].x + x[j].y + x[j].z + x[j].w;
    }
    if (sum == 0.1f) /* never: the sum must be needed */
        *used = sum;
}

__global__ static void multiply_kernel(float factor, int rounds, float *used)
{
    grid_wait();
    float sums[SUMS];
    for (int i = 0; i < SUMS; i++)
        sums[i] = (float)((int)threadIdx.x + i);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < SUMS; i++)
            sums[i] = fmaf(sums[i], factor, 1.0f);
    float sum = 0.0f;
    for (int i = 0; i < SUMS; i++)
        sum += sums[i];
    if (sum == 0.1f)
        *used = sum;
}

void cuda_measure(struct backend *backend, const void *memory, size_t bytes, double *read_bytes,
                  double *operations)
{
    cudaEvent_t events[2] = {};
    float best[2] = {INFINITY, INFINITY};
    unsigned blocks = (unsigned)backend->multiprocessors * 8;
    const int rounds = ROUNDS;
    bytes = bytes < MOST_BYTES ? bytes : MOST_BYTES;
    float *used = static_cast<float *>(const_cast<void *>(memory));
    device_use(backend);
    for (int i = 0; i < 2; i++)
        device_check(backend, cudaEventCreateWithFlags(&events[i], cudaEventDefault),
                     "cudaEventCreate");
    for (int i = 0; i < 2 * TRIES && backend->failure == cudaSuccess; i++) {
        float milliseconds = INFINITY;
        /* the timed kernels are queued while this runs, so that their launches do not count */
        launch(backend, multiply_kernel, dim3(blocks), dim3(THREADS), 0, 0.5f, rounds, used);
        device_check(backend, cudaEventRecord(events[0], backend->stream), "cudaEventRecord");
        for (int read = 0; i % 2 == 0 && read < READS; read++)
            launch(backend, read_kernel, dim3(blocks), dim3(THREADS), 0,
                   static_cast<const float4 *>(memory), bytes / sizeof(float4), used);
        if (i % 2 == 1)
            launch(backend, multiply_kernel, dim3(blocks), dim3(THREADS), 0, 0.5f, rounds, used);
        device_check(backend, cudaEventRecord(events[1], backend->stream), "cudaEventRecord");
        device_check(backend, cudaEventSynchronize(events[1]), "cudaEventSynchronize");
        device_check(backend, cudaEventElapsedTime(&milliseconds, events[0], events[1]),
                     "cudaEventElapsedTime");
        best[i % 2] = milliseconds < best[i % 2] ? milliseconds : best[i % 2];
    }
    for (int i = 0; i < 2; i++)
        if (events[i] != NULL)
            cudaEventDestroy(events[i]);
    *read_bytes = 1e3 * READS * (double)bytes / (double)best[0];
    *operations = 1e3 * 2.0 * blocks * THREADS * (double)rounds * SUMS / (double)best[1];
}
