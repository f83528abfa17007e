/* SPDX-License-Identifier: Apache-2.0 */
/* Which device an engine runs on: "cpu", "cuda", "cuda:1", or "auto", the first GPU where this
 * program was built with CUDA and there is one, else the CPU. An emulated GPU (tests/cuda/) must be
 * asked for. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include "engine/base/error.h"
#include "engine/engine_types.h"
#include "engine/ops/ops.h"

/* 0: device_open would find it. For whoever is about to read a model of gigabytes. */
int device_find(const char *name, struct error *err);

/* The caller closes *backend with (*ops)->close. ERROR_INVALID for a name that none has,
 * ERROR_UNSUPPORTED for a device that is not there. */
int device_open(const struct ops **ops, struct backend **backend,
                const struct engine_options *options, struct error *err);

#endif
