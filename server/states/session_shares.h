/* SPDX-License-Identifier: Apache-2.0 */
/* Which sessions begin alike: they are a tree, in which each hangs below the older one with which
 * it shares most tokens. A fork is below what it was forked from, as far as both are still the
 * same. */
#ifndef SERVER_STATES_SESSION_SHARES_H
#define SERVER_STATES_SESSION_SHARES_H

#include "server/states/sessions.h"

/* Fills in shared_with and shared_tokens. sessions, views: [count], in the order of sessions_each.
 * Without memory for it, none shares anything. */
void session_shares_find(const struct session *const *sessions, struct session_view *views,
                         size_t count);

#endif
