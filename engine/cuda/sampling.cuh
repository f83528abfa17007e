/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that draws a token for each of many texts. */
#ifndef ENGINE_CUDA_SAMPLING_CUH
#define ENGINE_CUDA_SAMPLING_CUH

#include "engine/cuda/sampling_arrays.cuh"

/* Queues the draws of `count` texts from logits [count, vocab_size]. asked: [count], with the lists
 * behind it. told, if not NULL: mapped memory, which gets the same as drawn [count]. */
void sampling_launch(struct backend *backend, const float *logits, int32_t vocab_size, int count,
                     const sampling_text *asked, const sampling_scratch &scratch,
                     sampling_drawn *drawn, sampling_drawn *told);

#endif
