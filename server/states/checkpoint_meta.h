/* SPDX-License-Identifier: Apache-2.0 */
/* The META of a checkpoint's file: what its bits depend on besides the model, and the owner and
 * salt of its space; each but the last ended by a newline. */
#ifndef SERVER_STATES_CHECKPOINT_META_H
#define SERVER_STATES_CHECKPOINT_META_H

#include "server/states/tiers.h"

/* malloc'd, [*length]. NULL: no memory. */
char *checkpoint_meta_encode(const struct engine *engine, const struct space *space,
                             size_t *length);
/* The space that a file says it belongs to, which the caller releases. NULL: it is of no use here,
 * as other bits would come of it or it holds more than a state. */
struct space *checkpoint_meta_space(struct state_tree *tree, const struct store_found *found);

#endif
