/* SPDX-License-Identifier: Apache-2.0 */
/* That races.cc finds races: each kernel here is run as it should be, which must pass, and without
 * what orders its accesses, which must end the program with a message that names both. */
#include "engine/cuda/common.cuh"

extern "C" {
#include "engine/cuda/backend.h"
}

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 128 };

static int passed, failed;

struct device {
    struct backend *backend;
    cudaStream_t other;
    cudaEvent_t event;
    float *cells, *pinned, *mapped; /* [THREADS * 2]; mapped: the pinned one, for kernels */
};

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "races: %s\n", what);
    exit(1);
}

static struct device open_device()
{
    struct error err = ERROR_INIT;
    struct device device = {};
    const struct cuda_options options = {0};
    void *cells, *pinned, *mapped;
    must(cuda_open(&device.backend, &options, &err) == 0 &&
             cuda_ops()->reserve(device.backend, THREADS * 2 * sizeof(float), &cells, &err) == 0 &&
             device_map(device.backend, THREADS * 2 * sizeof(float), &pinned, &mapped) &&
             cudaStreamCreateWithFlags(&device.other, cudaStreamNonBlocking) == cudaSuccess &&
             cudaEventCreateWithFlags(&device.event, cudaEventDisableTiming) == cudaSuccess,
         err.message);
    must(cudaDeviceSynchronize() == cudaSuccess, "the device fails");
    device.cells = static_cast<float *>(cells);
    device.pinned = static_cast<float *>(pinned);
    device.mapped = static_cast<float *>(mapped);
    return device;
}

/* ---- a block ---- */

template <bool orderly> __global__ static void read_after_write(float *cells)
{
    SHARED_MEMORY(float, shared);
    int i = (int)threadIdx.x;
    grid_wait();
    shared[i] = (float)i;
    if (orderly)
        __syncthreads();
    cells[i] = shared[(i + 32) % THREADS];
}

template <bool orderly> __global__ static void write_after_read(float *cells)
{
    __shared__ float shared[THREADS];
    int i = (int)threadIdx.x;
    grid_wait();
    shared[i] = (float)i;
    __syncthreads();
    float sum = shared[0] + shared[THREADS - 1];
    if (orderly)
        __syncthreads();
    shared[i] = sum;
    cells[i] = shared[i];
}

/* Two bytes each, side by side. */
template <bool orderly> __global__ static void halves(float *cells)
{
    uint16_t *numbers = reinterpret_cast<uint16_t *>(cells);
    grid_wait();
    numbers[threadIdx.x / (orderly ? 1 : 2)] = 1;
}

/* A shuffle gives numbers, and orders nothing. */
template <bool orderly> __global__ static void lanes(float *cells)
{
    __shared__ float shared[THREADS];
    int i = (int)threadIdx.x;
    grid_wait();
    shared[i] = (float)i;
    if (orderly)
        __syncwarp();
    float sum = warp_sum(1.0f);
    cells[i] = sum + shared[i ^ 1];
}

/* Half a warp waits for itself alone. */
template <bool orderly> __global__ static void half_warps(float *cells)
{
    __shared__ float shared[THREADS];
    int i = (int)threadIdx.x;
    grid_wait();
    shared[i] = (float)i;
    __syncwarp(i % 32 < 16 ? 0xffffu : 0xffff0000u);
    cells[i] = shared[i ^ (orderly ? 8 : 16)];
}

template <bool orderly> __global__ static void pieces_on_their_way(float *cells, const float *from)
{
    SHARED_MEMORY(float, shared);
    int i = (int)threadIdx.x;
    grid_wait();
    copy_async_16(shared + i * 4, from + i % 16 * 4);
    copy_async_commit();
    if (!orderly) /* orders their beginning */
        __syncthreads();
    copy_async_wait<0>();
    if (orderly)
        __syncthreads();
    cells[i] = shared[(i + 32) % THREADS * 4];
}

/* Two blocks write to each other's shared memory; a block's barrier does not order that. */
template <bool orderly> __global__ static void neighbours(float *cells)
{
    SHARED_MEMORY(float, shared);
    int i = (int)threadIdx.x;
    grid_wait();
    cluster_begin();
    cluster_begun();
    cluster_shared(shared, 1 - blockIdx.x)[i] = (float)i;
    if (orderly)
        cluster_sync();
    else
        __syncthreads();
    cells[(int)blockIdx.x * THREADS + i] = shared[i];
}

/* A bulk load that others read once they, too, have waited for it. */
template <bool orderly> __global__ static void bulk_reader(float *cells)
{
    SHARED_MEMORY(float, shared);
    __shared__ bulk_barrier arrived;
    grid_wait();
    if (threadIdx.x == 0) {
        bulk_open(&arrived);
        bulk_fence();
        bulk_expect(&arrived, THREADS * sizeof(float));
        bulk_load(shared, cells + THREADS, THREADS * sizeof(float), &arrived);
    }
    __syncthreads();
    if (orderly || threadIdx.x == 0)
        bulk_wait(&arrived, 0);
    cells[threadIdx.x] = shared[threadIdx.x];
}

/* A bulk load into what others may still read. */
template <bool orderly> __global__ static void bulk_refill(float *cells)
{
    SHARED_MEMORY(float, shared);
    __shared__ bulk_barrier arrived;
    int i = (int)threadIdx.x;
    grid_wait();
    shared[i] = 1.0f;
    if (i == 0)
        bulk_open(&arrived);
    bulk_fence();
    __syncthreads();
    cells[i] = shared[(i + 32) % THREADS];
    if (orderly)
        __syncthreads();
    if (i == THREADS - 1) {
        bulk_expect(&arrived, THREADS * sizeof(float));
        bulk_load(shared, cells + THREADS, THREADS * sizeof(float), &arrived);
        bulk_wait(&arrived, 0);
    }
}

/* What a bulk store reads is overwritten, after it has read it or while it does. */
template <bool orderly> __global__ static void bulk_reuse(float *cells)
{
    SHARED_MEMORY(float, shared);
    grid_wait();
    shared[threadIdx.x] = 1.0f;
    bulk_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(cells, shared, THREADS * sizeof(float));
        bulk_commit();
        if (orderly)
            bulk_wait_read<0>();
    }
    __syncthreads();
    shared[threadIdx.x] = 2.0f;
    if (threadIdx.x == 0)
        bulk_wait_written<0>();
}

/* A bulk store sees only what a fence follows. */
template <bool orderly> __global__ static void bulk_unfenced(float *cells)
{
    SHARED_MEMORY(float, shared);
    grid_wait();
    if (!orderly)
        bulk_fence();
    shared[threadIdx.x] = 1.0f;
    if (orderly)
        bulk_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(cells, shared, THREADS * sizeof(float));
        bulk_commit();
        bulk_wait_written<0>();
    }
}

/* All write the same number, or each its own. */
template <bool orderly> __global__ static void same_from_all(float *cells)
{
    __shared__ float shared;
    grid_wait();
    store_same(&shared, orderly ? 3.0f : (float)threadIdx.x);
    __syncthreads();
    cells[threadIdx.x] = shared;
}

/* ---- blocks, kernels ---- */

__global__ static void fill(float *cells, int apart)
{
    grid_wait();
    cells[(int)blockIdx.x * apart + (int)threadIdx.x] = 1.0f;
}

template <bool orderly> __global__ static void early_reader(const float *cells, float *out)
{
    float x = 0.0f;
    if (orderly)
        grid_wait();
    x = cells[threadIdx.x];
    if (!orderly)
        grid_wait();
    out[threadIdx.x] = x;
}

template <void (*kernel)(float *)> static void run_block(const struct device &device)
{
    launch(device.backend, kernel, dim3(1), dim3(THREADS), THREADS * sizeof(float), device.cells);
}

template <bool orderly> static void run_pieces(const struct device &device)
{
    launch(device.backend, pieces_on_their_way<orderly>, dim3(1), dim3(THREADS),
           THREADS * 4 * sizeof(float), device.cells, device.cells + THREADS);
}

template <bool orderly> static void run_cluster(const struct device &device)
{
    launch_clusters(device.backend, neighbours<orderly>, 2, dim3(2), dim3(THREADS),
                    THREADS * sizeof(float), device.cells);
}

template <bool orderly> static void run_blocks(const struct device &device)
{
    launch(device.backend, fill, dim3(2), dim3(THREADS), 0, device.cells, orderly ? THREADS : 0);
}

template <bool orderly> static void run_early(const struct device &device)
{
    launch(device.backend, fill, dim3(1), dim3(THREADS), 0, device.cells, 0);
    launch(device.backend, early_reader<orderly>, dim3(1), dim3(THREADS), 0,
           (const float *)device.cells, device.cells + THREADS);
}

/* What no kernel writes may be read early, and what one reads be overwritten after the wait. */
template <bool orderly> static void run_constants(const struct device &device)
{
    launch(device.backend, early_reader<true>, dim3(1), dim3(THREADS), 0,
           (const float *)device.cells, device.cells + THREADS);
    launch(device.backend, early_reader<false>, dim3(1), dim3(THREADS), 0,
           (const float *)device.cells + (orderly ? 0 : THREADS), device.cells);
}

/* ---- streams and the host ---- */

static const size_t BYTES = THREADS * sizeof(float);

template <bool orderly> static void run_streams(const struct device &device)
{
    launch(device.backend, fill, dim3(1), dim3(THREADS), 0, device.cells, 0);
    cudaEventRecord(device.event, device.backend->stream);
    if (orderly)
        cudaStreamWaitEvent(device.other, device.event, 0);
    cudaMemcpyAsync(device.pinned, device.cells, BYTES, cudaMemcpyDeviceToHost, device.other);
    cudaStreamSynchronize(device.other);
}

/* The event is of before what is copied. */
template <bool orderly> static void run_event(const struct device &device)
{
    if (!orderly)
        cudaEventRecord(device.event, device.backend->stream);
    launch(device.backend, fill, dim3(1), dim3(THREADS), 0, device.cells, 0);
    if (orderly)
        cudaEventRecord(device.event, device.backend->stream);
    cudaEventSynchronize(device.event);
    cudaMemcpyAsync(device.pinned, device.cells, BYTES, cudaMemcpyDeviceToHost, device.other);
    cudaStreamSynchronize(device.other);
}

template <bool orderly> static void run_host_reads(const struct device &device)
{
    cudaMemcpyAsync(device.pinned, device.cells, BYTES, cudaMemcpyDeviceToHost, device.other);
    if (orderly)
        cudaStreamSynchronize(device.other);
    volatile float first = device.pinned[0];
    (void)first;
    cudaStreamSynchronize(device.other);
}

template <bool orderly> static void run_host_writes(const struct device &device)
{
    cudaMemcpyAsync(device.cells, device.pinned, BYTES, cudaMemcpyHostToDevice, device.other);
    if (orderly)
        cudaStreamSynchronize(device.other);
    device.pinned[0] = 1.0f;
    cudaStreamSynchronize(device.other);
}

/* A kernel reads what the host writes next. */
__global__ static void read_host(const float *mapped, float *cells)
{
    grid_wait();
    cells[threadIdx.x] = mapped[threadIdx.x];
}

template <bool orderly> static void run_host_writes_mapped(const struct device &device)
{
    launch(device.backend, read_host, dim3(1), dim3(THREADS), 0, device.mapped, device.cells);
    if (orderly)
        cudaStreamSynchronize(device.backend->stream);
    device.pinned[0] = 1.0f;
    cudaStreamSynchronize(device.backend->stream);
}

template <bool orderly> static void run_host_reads_mapped(const struct device &device)
{
    launch(device.backend, fill, dim3(1), dim3(THREADS), 0, device.mapped, 0);
    if (orderly)
        cudaStreamSynchronize(device.backend->stream);
    volatile float first = device.pinned[0];
    (void)first;
    cudaStreamSynchronize(device.backend->stream);
}

template <bool orderly> static void run_host_copies(const struct device &device)
{
    volatile size_t bytes = BYTES; /* the compiler shall call memcpy */
    cudaMemcpyAsync(device.pinned, device.cells, BYTES, cudaMemcpyDeviceToHost, device.other);
    if (orderly)
        cudaStreamSynchronize(device.other);
    static char kept[BYTES];
    memcpy(kept, device.pinned, bytes);
    volatile char last = kept[BYTES - 1];
    (void)last;
    cudaStreamSynchronize(device.other);
}

/* ---- the test ---- */

/* Runs it in a process of its own: whether that ended with the message of a race. */
static bool ends_in_a_race(void (*run)(const struct device &), char *message, size_t size)
{
    int ends[2];
    must(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        dup2(ends[1], STDERR_FILENO);
        struct device device = open_device();
        run(device);
        cudaDeviceSynchronize();
        struct error err = ERROR_INIT;
        _exit(device_status(device.backend, &err) != 0);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got;
    while (length + 1 < size && (got = read(ends[0], message + length, size - 1 - length)) > 0)
        length += (size_t)got;
    message[length] = '\0';
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    bool raced = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
                 strstr(message, "emulation: a race on ") != NULL;
    must(raced || (WIFEXITED(status) && WEXITSTATUS(status) == 0), message);
    return raced;
}

static void check(const char *name, void (*orderly)(const struct device &),
                  void (*racing)(const struct device &))
{
    char message[4096];
    for (bool races : {false, true}) {
        bool found = ends_in_a_race(races ? racing : orderly, message, sizeof message);
        passed += found == races;
        failed += found != races;
        if (found != races)
            printf("FAIL %s: %s %s\n", name, races ? "no race found" : "found", message);
    }
}

int main()
{
#define BLOCK(name) check(#name, run_block<name<true>>, run_block<name<false>>)
#define RUN(name) check(#name, run_##name<true>, run_##name<false>)
    BLOCK(read_after_write);
    BLOCK(write_after_read);
    BLOCK(halves);
    BLOCK(lanes);
    BLOCK(half_warps);
    BLOCK(same_from_all);
    BLOCK(bulk_reader);
    BLOCK(bulk_refill);
    BLOCK(bulk_reuse);
    BLOCK(bulk_unfenced);
    RUN(pieces);
    RUN(cluster);
    RUN(blocks);
    RUN(early);
    RUN(constants);
    RUN(streams);
    RUN(event);
    RUN(host_reads);
    RUN(host_writes);
    RUN(host_writes_mapped);
    RUN(host_reads_mapped);
    RUN(host_copies);
    printf("races: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
