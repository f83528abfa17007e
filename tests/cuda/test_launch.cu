/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that begin while the one before them ends (engine/cuda/common.cuh, grid_wait): each sees
 * what all before it wrote, and overwrites nothing that they still read; blocks that write to each
 * other's shared memory; and the emulated device ends the program where a kernel does not wait. */
#include "engine/cuda/common.cuh"

extern "C" {
#include "engine/cuda/backend.h"
}
#include "engine/cuda/step.h"

#ifdef REGLA_CUDA_EMULATION
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

enum { CELLS = 64, ROUNDS = 200, SPIN = 2000 };

static int passed, failed;

static void expect(bool holds, const char *what, int got)
{
    if (holds) {
        passed++;
    } else {
        failed++;
        printf("FAIL %s (%d)\n", what, got);
    }
}

static void must(int result, const struct error *err)
{
    if (result != 0) {
        fprintf(stderr, "launch: %s\n", err->message);
        exit(1);
    }
}

/* `count` zeros. */
static float *device_floats(struct backend *backend, size_t count)
{
    struct error err = ERROR_INIT;
    void *memory;
    must(cuda_ops()->reserve(backend, count * sizeof(float), &memory, &err), &err);
    return static_cast<float *>(memory);
}

/* Some time, as the sum of a chain that nobody can leave out. */
__device__ static float spin(const float *zero)
{
    float sum = *zero;
    for (int i = 0; i < SPIN; i++)
        sum = fmaf(sum, 0.5f, sum);
    return sum;
}

__global__ static void write_kernel(float *cells, const float *zero, float value)
{
    grid_wait();
    cells[threadIdx.x] = value + spin(zero);
}

__global__ static void idle_kernel()
{
    grid_wait();
}

__global__ static void read_kernel(const float *cells, const float *zero, float *out)
{
    grid_wait();
    float later = spin(zero);
    out[threadIdx.x] = cells[threadIdx.x] + later;
}

/* What a round writes, the kernel after the next reads, before the next round overwrites it. */
static void check_order(struct backend *backend)
{
    static float host[CELLS * ROUNDS];
    struct error err = ERROR_INIT;
    float *cells = device_floats(backend, CELLS), *zero = device_floats(backend, 1);
    float *out = device_floats(backend, CELLS * ROUNDS);
    for (int round = 0; round < ROUNDS; round++) {
        launch(backend, write_kernel, dim3(1), dim3(CELLS), 0, cells, zero, (float)(round + 1));
        launch(backend, idle_kernel, dim3(1), dim3(32), 0);
        launch(backend, read_kernel, dim3(1), dim3(CELLS), 0, cells, zero, out + CELLS * round);
    }
    cuda_ops()->copy_out(backend, host, out, sizeof host);
    must(cuda_ops()->status(backend, &err), &err);
    int wrong = 0;
    for (int i = 0; i < CELLS * ROUNDS; i++)
        wrong += host[i] != (float)(i / CELLS + 1);
    expect(wrong == 0, "kernels in a row: numbers of another round", wrong);
    for (float *memory : {cells, zero, out})
        cuda_ops()->release(backend, memory, 0);
}

enum { CLUSTER = 4 };

/* Each block of a cluster gets the next one's number in its shared memory. */
__global__ static void ring_kernel(float *cells)
{
    SHARED_MEMORY(float, shared);
    unsigned block = blockIdx.x % CLUSTER;
    cluster_begin();
    grid_wait();
    cluster_begun();
    cluster_shared(shared, (block + CLUSTER - 1) % CLUSTER)[threadIdx.x] = (float)blockIdx.x;
    cluster_sync();
    cells[blockIdx.x * CELLS + threadIdx.x] = shared[threadIdx.x];
}

static void check_clusters(struct backend *backend)
{
    enum { BLOCKS = 3 * CLUSTER };
    static float host[BLOCKS * CELLS];
    struct error err = ERROR_INIT;
    if (!backend->has_clusters)
        return;
    float *cells = device_floats(backend, BLOCKS * CELLS);
    launch_clusters(backend, ring_kernel, CLUSTER, dim3(BLOCKS), dim3(CELLS), CELLS * sizeof(float),
                    cells);
    cuda_ops()->copy_out(backend, host, cells, sizeof host);
    must(cuda_ops()->status(backend, &err), &err);
    int wrong = 0;
    for (int i = 0; i < BLOCKS * CELLS; i++) {
        int block = i / CELLS;
        wrong += host[i] != (float)(block / CLUSTER * CLUSTER + (block + 1) % CLUSTER);
    }
    expect(wrong == 0, "blocks of a cluster: numbers of another one", wrong);
    cuda_ops()->release(backend, cells, 0);
}

#ifdef REGLA_CUDA_EMULATION
/* One thread of many goes without. */
__global__ static void impatient_kernel(float *cells)
{
    if (threadIdx.x == 5)
        return;
    grid_wait();
    cells[threadIdx.x] = 1.0f;
}

static void run_impatient(struct backend *backend, int overlaps)
{
    float *cells = device_floats(backend, CELLS);
    backend->overlaps = backend->overlaps && overlaps;
    launch(backend, impatient_kernel, dim3(1), dim3(CELLS), 0, cells);
}

enum cluster_fault { NONE, TWICE, UNBEGUN, SYNC_BETWEEN, UNFINISHED, EARLY, CLUSTER_FAULTS };

__global__ static void faulty_kernel(enum cluster_fault fault)
{
    SHARED_MEMORY(float, shared);
    grid_wait();
    if (fault != UNBEGUN)
        cluster_begin();
    if (fault == TWICE)
        cluster_begin();
    if (fault == SYNC_BETWEEN)
        cluster_sync();
    if (fault == EARLY)
        cluster_shared(shared, 1 - blockIdx.x)[threadIdx.x] = 1.0f;
    if (fault != UNFINISHED)
        cluster_begun();
}

static void run_faulty(struct backend *backend, int fault)
{
    launch_clusters(backend, faulty_kernel, 2, dim3(2), dim3(CELLS), CELLS * sizeof(float),
                    (enum cluster_fault)fault);
}

/* Whether a program that runs this is ended by the emulated device. */
static bool is_ended(void (*run)(struct backend *, int), int how)
{
    pid_t child = fork();
    if (child == 0) {
        struct error err = ERROR_INIT;
        struct backend *backend;
        const struct cuda_options options = {0};
        must(cuda_open(&backend, &options, &err), &err);
        fclose(stderr); /* it says what is wrong */
        run(backend, how);
        cudaDeviceSynchronize();
        _exit(device_status(backend, &err) != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    bool ended = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    expect(ended || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "how a program ends", status);
    return ended;
}

static void check_emulation()
{
    for (int overlaps = 0; overlaps < 2; overlaps++)
        expect(is_ended(run_impatient, overlaps) == (overlaps != 0),
               "the program ends where a thread does not wait, and may have to", overlaps);
    for (int fault = NONE; fault < CLUSTER_FAULTS; fault++)
        expect(is_ended(run_faulty, fault) == (fault != NONE),
               "the program ends where a cluster begins wrongly", fault);
}
#endif

/* Decode steps of any number of texts that may ask for logits are padded to one that has a graph.
 */
static void check_buckets(const struct backend *opened)
{
    static const struct {
        int max_rows, max_logits, rows, bucket;
    } cases[] = {{512, 128, 1, 1},     {512, 128, 5, 8},  {512, 128, 128, 128}, {512, 128, 129, 0},
                 {512, 100, 97, 100},  {512, 3, 3, 3},    {4, 128, 3, 4},       {2, 128, 3, 0},
                 {512, 300, 256, 256}, {512, 300, 257, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct backend backend = *opened;
        backend.limits.max_rows = cases[i].max_rows;
        backend.limits.max_logits = cases[i].max_logits;
        expect(graphs_bucket(&backend, cases[i].rows) == cases[i].bucket, "a step's bucket",
               graphs_bucket(&backend, cases[i].rows));
    }
}

/* What a kernel may have does not become less, since graphs may hold launches that need more. */
static void check_shared(struct backend *backend)
{
    struct error err = ERROR_INIT;
    cudaFuncAttributes attributes = {};
    const size_t most = backend->shared_bytes - OWN_ARRAYS;
    for (size_t bytes : {most, most - 1024, (size_t)0})
        launch(backend, idle_kernel, dim3(1), dim3(32), bytes);
    must(cuda_ops()->status(backend, &err), &err);
    cudaFuncGetAttributes(&attributes, idle_kernel);
    expect(attributes.maxDynamicSharedSizeBytes == (int)most, "shared memory of a kernel",
           attributes.maxDynamicSharedSizeBytes);
}

#ifdef REGLA_CUDA_EMULATION
/* Every kernel asks for the same part of shared memory, whatever it needs itself. */
static void check_carveout(struct backend *backend)
{
    const uint32_t before = backend->switched_off;
    for (int carveout : {100, -1}) {
        backend->switched_off = carveout < 0 ? 1u << CUDA_SWITCH_CARVEOUT : 0;
        launch(backend, idle_kernel, dim3(1), dim3(32), 0);
        expect(emulation_carveout() == carveout, "the part of shared memory", emulation_carveout());
    }
    backend->switched_off = before;
}
#endif

int main()
{
    struct error err = ERROR_INIT;
    struct backend *backend;
    const struct cuda_options options = {0};
    if (cuda_devices() == 0) {
        printf("launch: skipped: no CUDA device\n");
        return 77;
    }
#ifdef REGLA_CUDA_EMULATION
    check_emulation();
#endif
    must(cuda_open(&backend, &options, &err), &err);
    check_order(backend);
    check_clusters(backend);
    check_buckets(backend);
    check_shared(backend);
#ifdef REGLA_CUDA_EMULATION
    check_carveout(backend);
#endif
    cuda_ops()->close(backend);
    printf("launch: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
