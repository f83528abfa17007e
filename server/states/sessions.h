/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: names for points of the tree of states (api.md, "Sessions"). A session is its tokens;
 * its state is the deepest checkpoint on their way, and what lies behind that is computed again
 * when it is continued, forked or exported. With a store each change of a session is on disk before
 * it is answered: a file with its tokens. All functions are for the engine thread. */
#ifndef SERVER_STATES_SESSIONS_H
#define SERVER_STATES_SESSIONS_H

#include "api/errors.h"
#include "api/sessions.h"
#include "server/states/session_meta.h"
#include "server/states/session_options.h"
#include "server/states/state_tree.h"

struct sessions;
struct session;

/* What a reply says about one. */
struct session_view {
    char id[SESSION_ID_SIZE];
    int64_t position; /* tokens it holds */
    int64_t recurrent_bytes, kv_bytes;
    enum tier tier;
    double created, used; /* seconds since 1970 */
    int checkpoints;
};

/* The same for JSON; borrows the id. */
struct session_card session_card(const struct session_view *view);

int sessions_create(struct sessions **out, const struct sessions_options *options,
                    struct error *err);
/* Waits for what is being written or removed. */
void sessions_free(struct sessions *sessions);
void sessions_found(struct sessions *sessions, const struct store_found *file);
/* Before the end, and before checkpoints take what room there is: writes what could not be written,
 * and waits for it. */
void sessions_save_all(struct sessions *sessions);
/* Time to live, and what could not be written. Returns the seconds until it wants to be called
 * again; < 0: it need not be. */
double sessions_poll(struct sessions *sessions);
/* Whether a file is being written or removed: `done`s are to come. */
bool sessions_pending(const struct sessions *sessions);

/* A change has ended. err: why a session that was to be removed stays; else NULL. */
typedef void session_done(void *context, const struct error *err);

/* owner: as state_tree_space's. Unknown, or another owner's: API_SESSION_NOT_FOUND. */
struct session *sessions_find(struct sessions *sessions, const char *owner, const char *id,
                              struct api_error *err);
/* The salt of its space: "", which is that of all prompts without a salt, but of one that was
 * imported, and of its forks: their state may have other bits than would be computed here. */
const char *session_salt(const struct session *session);
const int32_t *session_tokens(const struct session *session, int64_t *count);
/* The deepest checkpoint on the way of its tokens, with those that stand at their end. */
void session_match(struct sessions *sessions, const struct session *session,
                   struct state_match *match);
void session_view(struct sessions *sessions, const struct session *session,
                  struct session_view *view);
/* Calls each for every session of the owner, by id. */
void sessions_each(struct sessions *sessions, const char *owner,
                   void (*each)(void *context, const struct session *session), void *context);

/* Sessions of all owners by the tier of their states: counts[4], by enum tier. */
void sessions_count(struct sessions *sessions, int64_t counts[4]);

/* For a request: finds or makes the session and marks it busy until sessions_settle. expected < 0:
 * any position. API_SESSION_BUSY, API_POSITION_MISMATCH (the message gives the position),
 * API_OUT_OF_MEMORY. */
int sessions_bind(struct sessions *sessions, const char *owner, const char *id, int64_t expected,
                  struct session **out, struct api_error *err);
/* The same for a request that only reads: *out is NULL where there is no such session, which then
 * counts as an empty one; it is valid for the moment. */
int sessions_peek(struct sessions *sessions, const char *owner, const char *id, int64_t expected,
                  const struct session **out, struct api_error *err);
/* A bound request may leave the session with so many tokens: API_SESSION_QUOTA unless the owner's
 * sessions have room for that. */
int sessions_admit(struct sessions *sessions, struct session *session, int64_t tokens,
                   struct api_error *err);
/* The request has ended: the session now holds tokens [count] (malloc'd, taken over; NULL: as
 * before it; one that was made for the request then goes away). `done` is called, perhaps at once,
 * when that is on disk (or cannot be: then it goes on in memory, logged and counted); only then is
 * it free again. */
void sessions_settle(struct session *session, int32_t *tokens, int64_t count, session_done *done,
                     void *context);

/* Changes outside of a completion. Each returns -1 with *err, or 0 and calls `done`, perhaps before
 * it returns, once the change is on disk (or cannot be, as above; but a session whose file
 * cannot be removed stays). API_SESSION_NOT_FOUND, API_SESSION_BUSY, API_SESSION_EXISTS,
 * API_SESSION_QUOTA. */
int sessions_remove(struct sessions *sessions, const char *owner, const char *id,
                    session_done *done, void *context, struct api_error *err);
int sessions_fork(struct sessions *sessions, const char *owner, const char *id, const char *target,
                  session_done *done, void *context, struct api_error *err);
int sessions_rewind(struct sessions *sessions, const char *owner, const char *id, int64_t position,
                    session_done *done, void *context, struct api_error *err);
/* A new session of these tokens, in a space of its own. image (malloc'd, taken over, also on an
 * error; NULL: none): their state at `position`. */
int sessions_import(struct sessions *sessions, const char *owner, const char *id,
                    const int32_t *tokens, int64_t count, void *image, int64_t position,
                    session_done *done, void *context, struct api_error *err);

#endif
