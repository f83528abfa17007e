/* SPDX-License-Identifier: Apache-2.0 */
/* A session is a name for a list of tokens, so that a client can continue it, fork it or rewind it
 * (api.md, "Sessions"). It has no state of its own: its state is the deepest checkpoint on the path
 * of its tokens in the tree. The tokens after that are computed again when the session is
 * continued. With a store each change is on disk before it is answered, or it is not made.
 *
 * The layers below, from the top: session_changes.h, session.h, session_meta.h. All functions are
 * for the engine thread. */
#ifndef SERVER_STATES_SESSIONS_H
#define SERVER_STATES_SESSIONS_H

#include "api/errors.h"
#include "api/sessions.h"
#include "server/names.h"
#include "server/states/session.h"

/* What a reply says about a session. */
struct session_view {
    char id[SESSION_ID_SIZE];
    int64_t position; /* tokens it holds */
    int64_t recurrent_bytes, kv_bytes;
    enum tier tier;
    double created, used; /* seconds since 1970 */
    int checkpoints;
    bool durable; /* it is on disk as it is */
    /* session_shares.h; "": it shares none */
    char shared_with[SESSION_ID_SIZE];
    int64_t shared_tokens;
};

/* The same of one that the store has told of, which may not be here. */
void sessions_view_found(struct sessions *sessions, const struct session_meta *meta, int64_t count,
                         struct session_view *view);
/* The same for JSON; borrows the id. */
struct session_card session_card(const struct session_view *view);

int sessions_create(struct sessions **out, const struct sessions_options *options,
                    struct error *err);
/* Waits for what is being written or removed. */
void sessions_free(struct sessions *sessions);
/* For store_options.found: enters a session of an earlier run. */
void sessions_found(struct sessions *sessions, const struct store_found *file);
/* Before the end, and before checkpoints take the room that is left: writes the sessions that the
 * store does not have as they are, and waits for them until clock_seconds() is `deadline`. */
void sessions_save_all(struct sessions *sessions, double deadline);
/* Sessions that the store does not have as they are, or may not have. */
size_t sessions_unsaved(const struct sessions *sessions);
/* Tells all who wait for a change that it ends so; the sessions stay busy until it has ended. */
void sessions_give_up(struct sessions *sessions, const struct api_error *err);
/* Removes sessions that have lived their time, and tries failed writes again. Returns the seconds
 * until the next call is due; < 0: none is. */
double sessions_poll(struct sessions *sessions);
/* Whether something is being written or removed, so that a `done` is still to come. */
bool sessions_pending(const struct sessions *sessions);

/* A request asks for its session first (session_ask.h), and in `done` does with it what is below.
 */

/* owner: as state_tree_space's. Unknown, or another owner's: API_SESSION_NOT_FOUND. */
struct session *sessions_find(struct sessions *sessions, const char *owner, const char *id,
                              struct api_error *err);
/* Whether a request makes a session of that name at the moment. */
bool sessions_makes(const struct sessions *sessions, const char *owner, const char *id);
/* The salt of its space: "" as for all prompts without a salt. Only an imported session and its
 * forks have a space of their own, since their state may have other bits than this server computes.
 */
const char *session_salt(const struct session *session);
const int32_t *session_tokens(const struct session *session, int64_t *count);
/* Of its chat (chat_turns.h). NULL, 0: it has none. */
const char *session_turns(const struct session *session, int64_t *length);
/* Finds the deepest checkpoint on the path of its tokens; one at their end will do. */
void session_match(struct sessions *sessions, const struct session *session,
                   struct state_match *match);
void session_view(struct sessions *sessions, const struct session *session,
                  struct session_view *view);
/* Calls `each` for every session of the owner, in the order of their ids. */
void sessions_each(struct sessions *sessions, const char *owner,
                   void (*each)(void *context, const struct session *session), void *context);

/* Sessions whose owner is none of these. */
size_t sessions_orphans(const struct sessions *sessions, const struct names *owners);

/* Counts the sessions of all owners by the tier of their states. counts: [4], by enum tier. */
void sessions_count(struct sessions *sessions, int64_t counts[4]);

/* Finds or makes the session for a request, and marks it busy until sessions_settle. expected < 0:
 * any position. Fails with API_SESSION_BUSY, API_POSITION_MISMATCH (the message gives the position)
 * or API_OUT_OF_MEMORY. */
int sessions_bind(struct sessions *sessions, const char *owner, const char *id, int64_t expected,
                  struct session **out, struct api_error *err);
/* The same for a request that only reads. *out is valid until the next call; NULL: there is no such
 * session, and the request treats it as an empty one. */
int sessions_peek(struct sessions *sessions, const char *owner, const char *id, int64_t expected,
                  const struct session **out, struct api_error *err);
/* Whether the sessions of an owner have a limit. */
bool sessions_have_quota(const struct sessions *sessions);
/* A bound request may leave the session with so many tokens, and so many more bytes of turns. Fails
 * with API_SESSION_QUOTA if the owner's sessions would then take more than their quota; where
 * servers share the store, session_quota_reserve asks that. */
int sessions_admit(struct sessions *sessions, struct session *session, int64_t tokens,
                   int64_t turns, struct api_error *err);
/* The request has ended, and the session is to hold this (taken over). Without tokens it
 * stays as it was; one that was made for the request goes away. `done` is called, perhaps at once,
 * when the change is on disk (or in memory, by options.memory_only), or has been refused. Only then
 * is the session free again. claim: as session_changes_save's. */
void sessions_settle(struct session *session, const struct session_content *content,
                     const struct store_reply *claim, session_done *done, void *context);

/* Changes outside of a completion. Each returns -1 with *err (API_SESSION_NOT_FOUND,
 * API_SESSION_BUSY, API_SESSION_EXISTS or API_SESSION_QUOTA), or returns 0 and calls `done` as
 * sessions_settle does, perhaps before it returns. A session that cannot be removed stays. */
int sessions_remove(struct sessions *sessions, const char *owner, const char *id,
                    session_done *done, void *context, struct api_error *err);
int sessions_fork(struct sessions *sessions, const char *owner, const char *id, const char *target,
                  session_done *done, void *context, struct api_error *err);
int sessions_rewind(struct sessions *sessions, const char *owner, const char *id, int64_t position,
                    session_done *done, void *context, struct api_error *err);
/* Makes a session of these tokens, in a space of its own. image: their state at `position`
 * (malloc'd, taken over, also on an error), or NULL. */
int sessions_import(struct sessions *sessions, const char *owner, const char *id,
                    const int32_t *tokens, int64_t count, void *image, int64_t position,
                    session_done *done, void *context, struct api_error *err);

#endif
