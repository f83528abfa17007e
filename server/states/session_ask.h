/* SPDX-License-Identifier: Apache-2.0 */
/* Before a request works on a session, the store is asked for it, and for the lease if the request
 * may change it, since what is here may be a copy of what others change. The lease is held until
 * the change is in the store, or is not made (session_leases.h). Where nobody else uses the store,
 * or there is none, the answer comes at once. */
#ifndef SERVER_STATES_SESSION_ASK_H
#define SERVER_STATES_SESSION_ASK_H

#include "server/states/session_leases.h"
#include "server/states/sessions.h"

/* What a request needs of a session. Only reading is no use, which would extend its time to live.
 */
enum session_need { SESSION_READS, SESSION_USES, SESSION_CHANGES };

/* Asks for a session, and calls `done` once the copy is what the store has, perhaps at once. Who
 * changes it gets the lease; until `done` returns another request has to be at work on the session,
 * or the lease is given back. key: of a request with an Idempotency-Key, which may have made its
 * turn already; NULL: it has none. Errors: API_SESSION_BUSY, API_SESSION_CONFLICT,
 * API_STORE_UNAVAILABLE, API_STORE_FAILED, API_KEY_LOST, API_KEY_MISMATCH, API_OUT_OF_MEMORY. */
void session_ask(struct sessions *sessions, const char *owner, const char *id,
                 enum session_need need, const char *kept, const struct store_reply *key,
                 session_done *done, void *context);

/* Within `done`: nobody will be at work on the session after all. Calls `back` once the lease is
 * back; false: there is none, and `back` is not called. */
bool session_ask_undo(struct sessions *sessions, const char *owner, const char *id,
                      session_done *back, void *context);

/* Lists all sessions of an owner as the store has them. False: as they are here. */
bool session_ask_list(struct sessions *sessions, const char *owner,
                      const struct session_lister *lister);

#endif
