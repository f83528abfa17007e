/* SPDX-License-Identifier: Apache-2.0 */
/* What failed on the device, and its memory. */
#include "engine/cuda/device.h"

/* ---- what failed ---- */

bool device_check(struct backend *backend, cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        cudaGetLastError(); /* or the next call answers with it */
        if (backend->failure == cudaSuccess) {
            backend->failure = error;
            backend->failed = what;
        }
    }
    return error == cudaSuccess;
}

int device_status(struct backend *backend, struct error *err)
{
    if (backend->failure == cudaSuccess)
        return 0;
    return error_set(err, ERROR_INTERNAL, "cuda:%d (%s) failed: %s: %s", backend->device,
                     backend->name, backend->failed, cudaGetErrorString(backend->failure));
}

void device_use(struct backend *backend)
{
    device_check(backend, cudaSetDevice(backend->device), "cudaSetDevice");
}

/* ---- memory ---- */

int device_allocate(struct backend *backend, size_t bytes, const char *what, void **out,
                    struct error *err)
{
    device_use(backend);
    cudaError_t error = cudaMalloc(out, bytes == 0 ? 1 : bytes);
    if (error == cudaSuccess) {
        backend->taken += bytes;
        return 0;
    }
    cudaGetLastError();
    *out = NULL;
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    if (error == cudaErrorMemoryAllocation)
        return error_set(err, ERROR_NO_MEMORY,
                         "cuda:%d: no memory for %zu bytes of %s, %zu of %zu are free: lower "
                         "--device-memory or --max-step-tokens, or choose smaller --weights",
                         backend->device, bytes, what, free_bytes, total);
    return error_set(err, ERROR_INTERNAL, "cuda:%d: %zu bytes of %s: %s", backend->device, bytes,
                     what, cudaGetErrorString(error));
}

void device_free(struct backend *backend, void *memory)
{
    if (memory == NULL)
        return;
    device_use(backend);
    device_check(backend, cudaFree(memory), "cudaFree");
}

void device_copy(struct backend *backend, void *to, const void *from, size_t bytes)
{
    device_use(backend);
    if (bytes > 0)
        device_check(backend,
                     cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, backend->stream),
                     "cudaMemcpy");
}

static bool pin(struct backend *backend, size_t bytes, unsigned flags, void **out)
{
    *out = NULL;
    if (!device_check(backend, cudaHostAlloc(out, bytes == 0 ? 1 : bytes, flags), "cudaHostAlloc"))
        return false;
    backend->pinned += bytes;
    return true;
}

bool device_pin(struct backend *backend, size_t bytes, void **out)
{
    return pin(backend, bytes, cudaHostAllocDefault, out);
}

bool device_map(struct backend *backend, size_t bytes, void **out, void **mapped)
{
    *mapped = NULL;
    return pin(backend, bytes, cudaHostAllocMapped, out) &&
           device_check(backend, cudaHostGetDevicePointer(mapped, *out, 0),
                        "cudaHostGetDevicePointer");
}

void device_unpin(void *memory)
{
    if (memory != NULL)
        cudaFreeHost(memory);
}

void *device_scratch(struct backend *backend, size_t bytes)
{
    device_check(backend, bytes <= backend->scratch_bytes ? cudaSuccess : cudaErrorInvalidValue,
                 "more partial results than were reserved");
    return backend->scratch;
}
