/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that nobody trained: for a preset, which is a configuration without tensors.
 *
 * Every tensor the configuration asks for, of a size that keeps activations and logits near 1:
 * matrices are normal (nearly: sums of four uniform numbers) with deviation 1/sqrt(inputs), those
 * that write into the residual stream less by 1/sqrt(2 layers); norms are 1; gates begin open. A
 * number is a pure function of its tensor and place, so that every machine makes the same ones. */
#ifndef ENGINE_MODEL_RANDOM_WEIGHTS_H
#define ENGINE_MODEL_RANDOM_WEIGHTS_H

#include "engine/base/file.h"
#include "engine/model/config.h"
#include "engine/model/random_list.h"

/* A safetensors file in memory: matrices BF16, all else F32 or I32. The caller closes *image. */
int random_weights_create(struct file_map *image, const struct config *config,
                          const struct random_shapes *shapes, struct error *err);

#endif
