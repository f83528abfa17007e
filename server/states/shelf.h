/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions of a place, for commands that look after them: of a --state-dir, or of a store that
 * servers share. It needs no model, and has the sessions of all models and owners. */
#ifndef SERVER_STATES_SHELF_H
#define SERVER_STATES_SHELF_H

#include "server/states/shelf_session.h"
#include "server/store/store_upkeep.h"

struct shelf;

/* tls, replicas (that have each change before it counts as made): of a store; tls is borrowed.
 * secret: [SIPHASH_BYTES], what a place without one gets; NULL: a new one. */
int shelf_open(struct shelf **out, const char *location, const struct store_tls *tls, int replicas,
               enum shelf_use use, const unsigned char *secret, struct error *err);
/* The place that sessions of `from` go to, with its tls and replicas: made if it is missing, and
 * with the secret of `from` if it is new. `from` itself is refused, whatever its name. */
int shelf_open_other(struct shelf **out, const char *location, struct shelf *from,
                     struct error *err);
void shelf_close(struct shelf *shelf);                        /* NULL is allowed */
const char *shelf_name(const struct shelf *shelf);            /* for people */
const unsigned char *shelf_secret(const struct shelf *shelf); /* [SIPHASH_BYTES] */

/* Calls `each` for every session; whole: with tokens and turns, which then have been checked.
 * `each` may not change this place if it is a directory. -1: it has failed, or the place cannot be
 * read. *damaged: sessions of a directory that cannot be told; a store's have `damage`. */
int shelf_each(struct shelf *shelf, bool whole,
               int (*each)(void *context, const struct shelf_session *session, struct error *err),
               void *context, int64_t *damaged, struct error *err);

/* Puts a whole session. replace: in the place of another of its name. It is there, or not, as a
 * whole. */
int shelf_put(struct shelf *shelf, const struct shelf_session *session, bool replace,
              enum shelf_outcome *outcome, struct error *err);
/* Removes sessions [count] as shelf_each has told them, whole, and from a directory the files of
 * their checkpoints. outcomes: [count] */
int shelf_remove(struct shelf *shelf, const struct shelf_session *sessions, size_t count,
                 enum shelf_outcome *outcomes, struct error *err);

/* Sets aside what is damaged. In a store it also gives each session a new version, which servers
 * that have seen a later one than the store's go on from, and mends the lists of names. Times to
 * live go on. */
int shelf_repair(struct shelf *shelf, struct store_repair *repair, struct error *err);

#endif
