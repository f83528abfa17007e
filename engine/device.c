/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device.h"

#include "engine/bits.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/residence.h"
#ifdef REGLA_CUDA
#include "engine/cuda/backend.h"
#endif
#include "engine/model/fingerprint.h"

#include <stdlib.h>
#include <string.h>

/* Of all that packing depends on beside the model. */
static uint32_t packed_number(const struct engine_options *options)
{
    return (uint32_t)engine_bits(options->weights, ACTIVATIONS_F32) << 8 |
           (uint32_t)options->weights;
}

static int open_cpu(const struct ops **ops, struct backend **backend,
                    const struct engine_options *options, struct error *err)
{
    const struct cpu_options cpu = {.threads = options->threads,
                                    .instruction_set = options->instruction_set,
                                    .activations = options->activations,
                                    .weights = options->weights,
                                    .share_always = options->share_always,
                                    .observer = options->observer,
                                    .packed_weights = options->packed_weights,
                                    .packed_number = packed_number(options)};
    if (options->products != PRODUCTS_OWN)
        return error_set(err, ERROR_UNSUPPORTED, "products: expected %s on the CPU, got %s",
                         products_name(PRODUCTS_OWN), products_name(options->products));
    *ops = &cpu_ops;
    return cpu_open(backend, &cpu, err);
}

#ifdef REGLA_CUDA
static int open_cuda(const struct ops **ops, struct backend **backend, int device,
                     const struct engine_options *options, struct error *err)
{
    const struct cuda_options cuda = {.device = device,
                                      .activations = options->activations,
                                      .weights = options->weights,
                                      .products = options->products};
    if (options->packed_weights != NULL)
        return error_set(err, ERROR_UNSUPPORTED, "packed_weights: only on the CPU");
    *ops = cuda_ops();
    return cuda_open(backend, &cuda, err);
}

static int find_cuda(int device, struct error *err)
{
    return cuda_find(device, err);
}

static bool cuda_unasked(void)
{
#ifdef REGLA_CUDA_EMULATION
    return false; /* one that is emulated is for those who name it */
#else
    return cuda_devices() > 0;
#endif
}
#else
static int find_cuda(int device, struct error *err)
{
    return error_set(err, ERROR_UNSUPPORTED,
                     "device cuda:%d: this program was built without CUDA (make cuda)", device);
}

static int open_cuda(const struct ops **ops, struct backend **backend, int device,
                     const struct engine_options *options, struct error *err)
{
    (void)ops;
    (void)backend;
    (void)options;
    return find_cuda(device, err);
}

static bool cuda_unasked(void)
{
    return false;
}
#endif

enum { CPU = -1, MOST_DEVICES = 1024 };

/* The number in "cuda" or "cuda:n"; -1: it is neither. */
static int cuda_number(const char *name)
{
    if (strcmp(name, "cuda") == 0)
        return 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    char *end;
    long number = strtol(name + 5, &end, 10);
    return *end == 0 && number < MOST_DEVICES ? (int)number : -1;
}

/* *device: CPU, or the number of a GPU that is there. */
static int find(const char *name, int *device, struct error *err)
{
    *device = CPU;
    if (name == NULL || strcmp(name, "auto") == 0) {
        *device = cuda_unasked() ? 0 : CPU;
        return 0;
    }
    if (strcmp(name, "cpu") == 0)
        return 0;
    *device = cuda_number(name);
    if (*device < 0)
        return error_set(err, ERROR_INVALID,
                         "device: expected auto, cpu, cuda or cuda:N (N up to %d), got \"%s\"",
                         MOST_DEVICES - 1, name);
    return find_cuda(*device, err);
}

bool device_is_cpu(const char *name)
{
    struct error ignored = ERROR_INIT; /* device_open will tell */
    int device;
    return find(name, &device, &ignored) == 0 && device == CPU;
}

int device_find(const char *name, struct error *err)
{
    int device;
    return find(name, &device, err);
}

enum activation_format device_activations(const char *name, const char *instruction_set,
                                          enum weight_format weights)
{
    return device_is_cpu(name) ? cpu_activations(instruction_set, weights) : ACTIVATIONS_F32;
}

const char *device_refused_set(const struct engine_options *options)
{
    return options->instruction_set == NULL && device_is_cpu(options->device) ? cpu_refused_set()
                                                                              : NULL;
}

int device_open(const struct ops **ops, struct backend **backend,
                const struct engine_options *options, struct error *err)
{
    int device;
    if (find(options->device, &device, err) != 0)
        return -1;
    if (device == CPU)
        return open_cpu(ops, backend, options, err);
    if (options->observer != NULL)
        return error_set(err, ERROR_UNSUPPORTED, "observer: expected none on a GPU");
    if (options->instruction_set != NULL)
        return error_set(err, ERROR_UNSUPPORTED,
                         "instruction_set: expected none on a GPU, got \"%s\"",
                         options->instruction_set);
    return open_cuda(ops, backend, device, options, err);
}

_Static_assert(RESIDENCE_OWNER_BYTES == (int)FINGERPRINT_BYTES, "files have a fingerprint");

int device_weights_settle(const struct ops *ops, struct backend *backend,
                          const unsigned char *owner, struct error *err)
{
    return ops == &cpu_ops ? cpu_weights_settle(backend, owner, err) : 0;
}
