/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and opens the device of an engine: "cpu", "cuda", "cuda:1" or "auto". auto is the first
 * GPU, if this program was built with CUDA and there is one, else the CPU. An emulated GPU
 * (tests/cuda/) must be named. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include "engine/engine_types.h"
#include "engine/ops/ops.h"
#include "lib/base/error.h"

/* 0: device_open would find the device. Call it before you read a model of gigabytes. */
int device_find(const char *name, struct error *err);

/* Whether device_open would find the CPU. */
bool device_is_cpu(const char *name);

/* What `auto` is for weights of a format, not auto: a fixed table, so that a machine has the same
 * bits every time. f32 where device_open would fail. */
enum activation_format device_activations(const char *name, const char *instruction_set,
                                          enum weight_format weights);

/* Why the processor's best instruction set is not the one that device_open takes where none is
 * named, or NULL. */
const char *device_refused_set(const struct engine_options *options);

/* The caller closes *backend with (*ops)->close. ERROR_INVALID: no device has such a name.
 * ERROR_UNSUPPORTED: the device does not exist here. */
int device_open(const struct ops **ops, struct backend **backend,
                const struct engine_options *options, struct error *err);

/* All weights are packed, and the model's fingerprint, owner, is known. Files of packed weights are
 * finished, or refused (ERROR_INVALID). */
int device_weights_settle(const struct ops *ops, struct backend *backend,
                          const unsigned char *owner, struct error *err);

#endif
