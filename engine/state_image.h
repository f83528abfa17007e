/* SPDX-License-Identifier: Apache-2.0 */
/* A state's bytes in host memory (state_save.h): what of them a text has not
 * written, and what they are in another KV format. Pure functions over a layout. */
#ifndef ENGINE_STATE_IMAGE_H
#define ENGINE_STATE_IMAGE_H

#include "engine/state_layout.h"

/* SIZE_MAX when that is more than memory can have. */
size_t state_image_size(const struct state_layout *layout, int64_t position);

/* Zeroes what a text at `position` has not written: gaps between parts, places of rings and pages
 * past it. Slots are used again without being cleared, and nothing of one text may get into
 * another's file. */
void state_image_scrub(const struct state_layout *layout, int64_t position, void *image);

/* Elements of one KV format as another's; f32 to two bytes rounds to the nearest. */
void state_image_convert(enum kv_format from, const void *in, enum kv_format to, void *out,
                         size_t count);

#endif
