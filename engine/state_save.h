/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a state into an image in host memory, while the engine continues or while the caller
 * waits.
 *
 * The image has the slot, then the KV pages. What its text has not written is zero. */
#ifndef ENGINE_STATE_SAVE_H
#define ENGINE_STATE_SAVE_H

#include "lib/base/error.h"

#include <stdint.h>

struct state;
struct state_memory;

/* A copy that may still run. {0}: none. Copies of the struct are equivalent. */
struct state_save {
    struct state_memory *memory;
    uint64_t number;
};

/* Starts the copy. The state may be advanced or freed at once. image:
 * [state_image_bytes(position)]; it belongs to the engine until state_save_wait has returned. */
struct state_save state_save_begin(const struct state *state, void *image);
/* Waits until the image is complete. -1: the device failed, and there is no image. Any thread may
 * call it, any number of times, before the engine is closed. */
int state_save_wait(const struct state_save *save, struct error *err);
/* Starts the copy and waits. */
int state_save(const struct state *state, void *image, struct error *err);

#endif
