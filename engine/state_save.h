/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a state into an image in host memory, while the engine goes on or waiting for it.
 *
 * The image: the slot, then the KV pages; what its text has not written is zero. */
#ifndef ENGINE_STATE_SAVE_H
#define ENGINE_STATE_SAVE_H

#include "engine/base/error.h"

#include <stdint.h>

struct state;
struct state_memory;

/* {0}: nothing is on its way. Copies of it are as good. */
struct state_save {
    struct state_memory *memory;
    uint64_t number;
};

/* The state may go on or be freed at once. image: [state_image_bytes(position)], the engine's until
 * state_save_wait has returned. */
struct state_save state_save_begin(const struct state *state, void *image);
/* Until the image is there. -1: the device failed, and there is none. Any thread may call, any
 * number of times, before the engine is closed. */
int state_save_wait(const struct state_save *save, struct error *err);
/* Both at once. */
int state_save(const struct state *state, void *image, struct error *err);

#endif
