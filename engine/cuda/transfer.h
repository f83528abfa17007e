/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between host and device. */
#ifndef ENGINE_CUDA_TRANSFER_H
#define ENGINE_CUDA_TRANSFER_H

#include "engine/cuda/device.h"

int transfer_open(struct backend *backend, struct error *err);
void transfer_close(struct backend *backend); /* also of what is half open */
/* Makes a failed copy to the host the device's failure. */
void transfer_check(struct backend *backend);

extern "C" {
/* Into device memory; the host's may be used again at once. */
void cuda_copy_in(struct backend *, void *to, const void *from, size_t bytes);
uint64_t cuda_save(struct backend *, const struct ops_save *);
int cuda_save_wait(struct backend *, uint64_t number, struct error *);
void cuda_copy_out(struct backend *, void *to, const void *from, size_t bytes);
}

#endif
