/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend of the engine: opens a device and provides its operations (engine/ops/ops.h). */
#ifndef ENGINE_CUDA_BACKEND_H
#define ENGINE_CUDA_BACKEND_H

#include "engine/ops/ops.h"
#include "lib/base/error.h"

struct cuda_options {
    int device;                         /* CUDA's number of the device */
    enum activation_format activations; /* for weights that they fit: f32 or 16bit */
    enum weight_format weights;         /* of the model; 0 where only single products are made */
    enum products products;             /* of many rows, with weights that they fit */
};

const struct ops *cuda_ops(void);

int cuda_devices(void);                       /* how many can be used; 0 without a driver */
int cuda_find(int device, struct error *err); /* 0: the device exists */
/* Of a device that exists. Which kernel runs often depends on it. */
int cuda_multiprocessors(int device);
int cuda_open(struct backend **out, const struct cuda_options *options, struct error *err);
/* What REGLA_CUDA_WITHOUT may name (switches.h), one by one; NULL past the last. */
const char *cuda_switch_name(int i);

#endif
