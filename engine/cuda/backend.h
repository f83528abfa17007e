/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device of the engine: opens it and gives its operations (engine/ops/ops.h). */
#ifndef ENGINE_CUDA_BACKEND_H
#define ENGINE_CUDA_BACKEND_H

#include "engine/base/error.h"
#include "engine/ops/ops.h"

struct cuda_options {
    int device;                         /* by CUDA's numbers */
    enum activation_format activations; /* of weights that they fit: f32 or 16bit */
};

const struct ops *cuda_ops(void);

int cuda_devices(void);                       /* that can be used; 0 where there is no driver */
int cuda_find(int device, struct error *err); /* 0: there is one of this number */
int cuda_open(struct backend **out, const struct cuda_options *options, struct error *err);

#endif
