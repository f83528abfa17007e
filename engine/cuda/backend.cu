/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the device, and lists its operations. */
#include "engine/cuda/common.cuh"
#include "engine/cuda/step.h"
#include "engine/cuda/switches.h"
#include "engine/cuda/transfer.h"
#include "engine/cuda/weights.h"

extern "C" {
#include "engine/cuda/backend.h"
}

enum { FILL_THREADS = 256 };

static int cuda_status(struct backend *backend, struct error *err)
{
    transfer_check(backend);
    return device_status(backend, err);
}

/* ---- memory ---- */

/* As much scratch as the operation that needs most of it. */
static int reserve_scratch(struct backend *backend, struct error *err)
{
    size_t bytes = 0;
    for (size_t most :
         {product_scratch(backend), cublaslt_scratch(backend), recurrence_scratch(backend),
          attention_scratch(backend), drawing_scratch(backend)})
        bytes = most > bytes ? most : bytes;
    if (device_allocate(backend, bytes, "partial results", &backend->scratch, err) != 0)
        return -1;
    backend->scratch_bytes = bytes;
    return 0;
}

static int cuda_reserve(struct backend *backend, size_t bytes, void **out, struct error *err)
{
    if (device_allocate(backend, bytes, "workspace or states", out, err) != 0)
        return -1;
    device_check(backend, cudaMemsetAsync(*out, 0, bytes, backend->stream), "cudaMemset");
    return device_status(backend, err);
}

static void cuda_release(struct backend *backend, void *memory, size_t bytes)
{
    (void)bytes;
    device_free(backend, memory);
}

__global__ static void fill_kernel(float *memory, float value, size_t count)
{
    grid_wait();
    size_t stride = (size_t)gridDim.x * FILL_THREADS;
    for (size_t i = (size_t)blockIdx.x * FILL_THREADS + threadIdx.x; i < count; i += stride)
        memory[i] = value;
}

static void cuda_fill(struct backend *backend, void *memory, float value, size_t count)
{
    device_use(backend);
    size_t blocks = (count + FILL_THREADS - 1) / FILL_THREADS;
    launch(backend, fill_kernel, dim3((unsigned)(blocks < 4096 ? blocks : 4096)),
           dim3(FILL_THREADS), 0, static_cast<float *>(memory), value, count);
}

static int cuda_upload(struct backend *backend, const void *host, size_t bytes, void **out,
                       struct error *err)
{
    if (device_allocate(backend, bytes, "weights", out, err) != 0)
        return -1;
    cuda_copy_in(backend, *out, host, bytes);
    return device_status(backend, err);
}

static void cuda_unload(struct backend *backend, void *memory)
{
    device_free(backend, memory);
}

/* Nine tenths of what is free once the weights and the workspace are there: the rest is for graphs
 * and the driver. */
static size_t cuda_state_memory(struct backend *backend)
{
    size_t free_bytes = 0, total = 0;
    device_use(backend);
    device_check(backend, cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    return free_bytes / 10 * 9;
}

static void cuda_taken(const struct backend *backend, size_t *device, size_t *second,
                       size_t *pinned)
{
    *device = backend->taken;
    *second = cublaslt_bytes(backend);
    *pinned = backend->pinned;
}

/* ---- opening ---- */

static int cuda_prepare(struct backend *backend, const struct ops_limits *limits, struct error *err)
{
    backend->limits = *limits;
    if (recurrence_check(limits, err) != 0 || attention_check(backend, limits, err) != 0 ||
        cublaslt_prepare(backend, err) != 0 || reserve_scratch(backend, err) != 0 ||
        step_open(backend, err) != 0)
        return -1;
    return device_status(backend, err);
}

static void cuda_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    cudaSetDevice(backend->device);
    if (backend->stream != NULL)
        cudaStreamSynchronize(backend->stream);
    step_close(backend);
    weights_close(backend);
    cublaslt_close(backend);
    transfer_close(backend);
    cudaFree(backend->scratch);
    if (backend->stream != NULL)
        cudaStreamDestroy(backend->stream);
    free(backend);
}

static const char *cuda_instruction_set(const struct backend *backend)
{
    return backend->name;
}

static int cuda_threads(const struct backend *backend)
{
    (void)backend;
    return 1;
}

/* Before anything else asks the driver. All kernels are to be loaded with the device: the first
 * step that has one would wait for it, and a full device has no memory for it. */
static cudaError_t count_devices(int *count)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    cudaError_t error = cudaGetDeviceCount(count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        *count = 0;
    }
    return error;
}

int cuda_devices(void)
{
    int count;
    count_devices(&count);
    return count;
}

const char *cuda_switch_name(int i)
{
    return switch_name(i);
}

int cuda_find(int device, struct error *err)
{
    int count;
    cudaError_t why = count_devices(&count);
    if (count == 0)
        return error_set(err, ERROR_UNSUPPORTED, "cuda: no device that can be used: %s",
                         cudaGetErrorString(why));
    if (device < 0 || device >= count)
        return error_set(err, ERROR_INVALID, "cuda: expected a device from 0 to %d, got %d",
                         count - 1, device);
    return 0;
}

int cuda_multiprocessors(int device)
{
    struct cudaDeviceProp properties;
    return cudaGetDeviceProperties(&properties, device) == cudaSuccess
               ? properties.multiProcessorCount
               : 0;
}

/* What the device's compute capability is not enough for: what was compiled for it counts, too. A
 * kernel may begin while the one before it ends (common.cuh, grid_wait) where the driver's graphs
 * know of it. */
static void find_abilities(struct backend *backend)
{
    struct cudaFuncAttributes attributes = {};
    int driver = 0;
    if (!device_check(backend, cudaFuncGetAttributes(&attributes, fill_kernel),
                      "cudaFuncGetAttributes") ||
        !device_check(backend, cudaDriverGetVersion(&driver), "cudaDriverGetVersion"))
        return;
    backend->has_clusters = backend->bulk_copies = attributes.ptxVersion >= 90;
    backend->overlaps =
        attributes.ptxVersion >= 90 && driver >= 12030 && switch_on(backend, CUDA_SWITCH_OVERLAP);
}

static int open_device(struct backend *backend, struct error *err)
{
    struct cudaDeviceProp properties;
    if (switches_read(backend, err) != 0 || cuda_find(backend->device, err) != 0)
        return -1;
    if (!device_check(backend, cudaSetDevice(backend->device), "cudaSetDevice") ||
        !device_check(backend, cudaGetDeviceProperties(&properties, backend->device),
                      "cudaGetDeviceProperties") ||
        !device_check(backend, cudaStreamCreateWithFlags(&backend->stream, cudaStreamNonBlocking),
                      "cudaStreamCreate"))
        return device_status(backend, err);
    snprintf(backend->name, sizeof backend->name, "%s, sm_%d%d", properties.name, properties.major,
             properties.minor);
    backend->multiprocessors = properties.multiProcessorCount;
    backend->shared_bytes = properties.sharedMemPerBlockOptin;
    if (properties.major < 8)
        return error_set(err, ERROR_UNSUPPORTED,
                         "cuda:%d (%s): expected compute capability 8.0 or more", backend->device,
                         backend->name);
    find_abilities(backend);
    return transfer_open(backend, err);
}

int cuda_open(struct backend **out, const struct cuda_options *options, struct error *err)
{
    if (options->activations == ACTIVATIONS_8BIT)
        return error_set(err, ERROR_UNSUPPORTED,
                         "activations: expected f32 or 16bit on a GPU, got %s",
                         activation_format_name(options->activations));
    if (options->activations != ACTIVATIONS_F32 && is_f16(options->weights))
        return error_set(err, ERROR_UNSUPPORTED,
                         "activations: expected f32 with weights in f16 on a GPU, got %s",
                         activation_format_name(options->activations));
    struct backend *backend = static_cast<struct backend *>(calloc(1, sizeof *backend));
    if (backend == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
    backend->device = options->device;
    backend->activations = options->activations;
    if (open_device(backend, err) != 0 ||
        (options->products == PRODUCTS_CUBLASLT && cublaslt_open(backend, err) != 0)) {
        cuda_close(backend);
        return -1;
    }
    *out = backend;
    return 0;
}

static struct ops make_ops()
{
    struct ops ops = {};
    ops.device = "cuda";
    ops.close = cuda_close;
    ops.status = cuda_status;
    ops.instruction_set = cuda_instruction_set;
    ops.threads = cuda_threads;
    ops.prepare = cuda_prepare;
    ops.state_memory = cuda_state_memory;
    ops.taken = cuda_taken;
    ops.reserve = cuda_reserve;
    ops.release = cuda_release;
    ops.fill = cuda_fill;
    ops.copy = device_copy;
    ops.copy_in = cuda_copy_in;
    ops.copy_out = cuda_copy_out;
    ops.save = cuda_save;
    ops.save_wait = cuda_save_wait;
    ops.upload = cuda_upload;
    ops.unload = cuda_unload;
    ops.weight_create = cuda_weight_create;
    ops.weight_free = cuda_weight_free;
    ops.weight_bytes = cuda_weight_bytes;
    ops.table_create = cuda_table_create;
    ops.table_free = cuda_table_free;
    ops.measure = cuda_measure;
    step_operations(&ops);
    return ops;
}

extern "C" const struct ops *cuda_ops()
{
    static const struct ops ops = make_ops();
    return &ops;
}
