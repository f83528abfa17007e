/* SPDX-License-Identifier: Apache-2.0 */
/* --share-prefixes: servers that share a store have the checkpoints of prompts there, too. A server
 * whose tree has much less of a prompt asks which are there, once, and reads the deepest into its
 * tree while the request waits; without an answer in time the prompt is computed.
 *
 * Any server has to know the positions that another may have chosen. They are on a grid: the tree's
 * interval times 1 to 16, and beyond that only numbers whose last bits are 0, eight of them for
 * each doubling. So a prompt of any length has few, and the deepest is less than an interval or an
 * eighth of the prompt before its end.
 *
 * What is written: of a prompt that was computed here the deepest on the grid, and what a second
 * text began with. That is one state for a prompt that comes once, and what many begin with gets
 * there with the second of them. All functions are for the engine thread. */
#ifndef SERVER_STATES_SHARED_PREFIXES_H
#define SERVER_STATES_SHARED_PREFIXES_H

#include "server/states/state_tree.h"

struct shared_prefixes;

/* All are borrowed. */
int shared_prefixes_create(struct shared_prefixes **out, struct engine *engine,
                           struct state_tree *tree, struct store *store, struct error *err);
/* Waits for the operations under way. NULL is allowed. */
void shared_prefixes_free(struct shared_prefixes *shared);

/* The deepest position on the grid among the first `count`; 0: there is none. */
int64_t shared_prefixes_deepest(const struct shared_prefixes *shared, int64_t count);

/* Begins to ask for a prefix of tokens [0, count) if it may have much more than `have` tokens. The
 * number of what was begun; 0: nothing was. */
uint64_t shared_prefixes_ask(struct shared_prefixes *shared, struct space *space,
                             const int32_t *tokens, int64_t count, int64_t have);
/* Whether it is under way, and in time. */
bool shared_prefixes_waits(const struct shared_prefixes *shared, uint64_t ask);
/* Whether the time of one has come, so that those who wait for it need not any longer. */
bool shared_prefixes_poll(struct shared_prefixes *shared);

/* Begins to write the tree's checkpoint of tokens [0, position), if the position is on the grid and
 * it was not written or used lately. */
void shared_prefixes_publish(struct shared_prefixes *shared, struct space *space,
                             const int32_t *tokens, int64_t position);

#endif
