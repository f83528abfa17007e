/* SPDX-License-Identifier: Apache-2.0 */
/* Works on a state's bytes in host memory (state_save.h): clears what its text has not written, and
 * converts to another KV format. Pure functions over a layout. */
#ifndef ENGINE_STATE_IMAGE_H
#define ENGINE_STATE_IMAGE_H

#include "engine/state_layout.h"

/* The bytes of an image; SIZE_MAX when they exceed any memory. */
size_t state_image_size(const struct state_layout *layout, int64_t position);

/* Zeroes what a text at `position` has not written: gaps between parts, and places of rings and
 * pages past it. Slots are reused without clearing, and nothing of one text may get into another's
 * file. */
void state_image_scrub(const struct state_layout *layout, int64_t position, void *image);

/* Converts elements from one KV format to another. f32 to two bytes rounds to the nearest. */
void state_image_convert(enum kv_format from, const void *in, enum kv_format to, void *out,
                         size_t count);

#endif
