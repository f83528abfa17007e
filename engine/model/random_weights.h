/* SPDX-License-Identifier: Apache-2.0 */
/* Makes random weights for a preset, which is a configuration without tensors.
 *
 * The numbers keep activations and logits near 1. A matrix is normal, nearly: each number is a sum
 * of four uniform ones. Its deviation is 1/sqrt(inputs), times 1/sqrt(2 layers) where it writes
 * into the residual stream. Norms are 1, and gates begin open. A number depends only on its
 * tensor's place in the list and its own in the tensor, so every machine makes the same numbers. */
#ifndef ENGINE_MODEL_RANDOM_WEIGHTS_H
#define ENGINE_MODEL_RANDOM_WEIGHTS_H

#include "engine/model/config.h"
#include "engine/model/random_list.h"
#include "lib/base/file.h"

/* A safetensors file in memory: matrices BF16, all else F32 or I32. The caller closes *image. */
int random_weights_create(struct file_map *image, const struct config *config,
                          const struct random_shapes *shapes, struct error *err);

#endif
