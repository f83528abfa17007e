/* SPDX-License-Identifier: Apache-2.0 */
/* The META section of a checkpoint's file: what its bits depend on (engine/bits.h), the owner and
 * the salt of its space. Each ends with a newline, except the salt, which may hold any bytes. */
#ifndef SERVER_STATES_CHECKPOINT_META_H
#define SERVER_STATES_CHECKPOINT_META_H

#include "engine/engine.h"
#include "server/states/spaces.h"
#include "server/store/store_op.h"

/* malloc'd, [*length]. NULL: no memory. */
char *checkpoint_meta_encode(const struct engine *engine, const struct space *space,
                             size_t *length);
/* The space that a file names, with a reference that the caller gives back. NULL: the file is of no
 * use here, because its bits are others or it holds more than a state. */
struct space *checkpoint_meta_space(const struct engine *engine, struct spaces *spaces,
                                    const struct store_found *found);

#endif
