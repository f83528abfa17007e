/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which texts have places in the batch and memory for their states, and which give way.
 *
 * A state's memory is reserved as the text grows, `ahead` tokens at a time. A share of the memory
 * is kept for tenants other than the one that takes most: no tenant may take it alone, and no
 * single text is accepted that would need it (capacity_share). So a short text finds room at once.
 *
 * Texts that have no room are aside. A text gives its place up, the youngest of a tenant first,
 * - to a tenant that has fewer places or less memory, as long as it has less afterwards, too;
 * - or where that cannot be, to one that has been served less, once the text has had its turn: it
 *   has gone on for some tokens, for a part of its length, and for what it had to compute once
 * more;
 * - or when a text of its own tenant cannot grow.
 *
 * The largest text fits when nothing else does, and nothing else takes its place before it has gone
 * on. So every text comes to its end. All functions are for the engine thread. */
#ifndef SERVER_SCHEDULE_ROOM_H
#define SERVER_SCHEDULE_ROOM_H

#include "server/schedule/batch.h"

struct room {
    struct service *service;
    struct state_tree *tree;
    struct batch *batch;
    struct tenants *tenants;
    size_t max_texts;
    size_t share;                /* bytes, kept for others */
    int64_t ahead;               /* tokens */
    const struct tenant *claims; /* in this turn it waits for memory that others have; or NULL */
};

void room_init(struct room *room, struct service *service, struct batch *batch,
               struct tenants *tenants, int max_texts);

/* So many tokens have memory reserved when the text goes on from a length. */
int64_t room_reach(const struct room *room, const struct sequence *sequence, int64_t length);
/* Whether a text of the tenant with a state of so many bytes may have a place. Sets texts of others
 * aside if that makes room for it. */
bool room_make(struct room *room, struct tenant *tenant, size_t bytes);
/* Before a step: reserves memory for what it may add to the texts that run, and sets texts aside
 * where there is none. */
void room_grow(struct room *room);

#endif
