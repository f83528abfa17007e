/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the replies of requests with an Idempotency-Key, and gives them again to a client that
 * repeats its request within ten minutes (api.md, "Sessions"). They are in memory, bounded in
 * bytes; the least recently used reply goes first; a request that is still at work stays. With a
 * store they are in it, too, before their clients have them, and a restart finds them.
 *
 * For any thread. One lock, held for no longer than a copy of a few pointers. */
#ifndef SERVER_ENDPOINTS_REPLAY_H
#define SERVER_ENDPOINTS_REPLAY_H

#include "server/endpoints/replay_reply.h"
#include "server/store/session_op.h"

struct replay;
struct store;
struct replay_entry; /* a request at work; its holder ends it by replay_keep* or replay_drop */

enum { REPLAY_KEY_MAX = 255, REPLAY_NAME_SIZE = 33 };

int replay_create(struct replay **out, int64_t max_bytes, double lifetime_s, struct error *err);
void replay_free(struct replay *replay); /* NULL is allowed; no entry may be held */

/* Before any request: where replies are to be written; NULL: nowhere. waiting: counts the clients
 * that wait for that. */
void replay_attach(struct replay *replay, struct store *store, _Atomic int *waiting);
/* For store_options.reply, before replay_attach; context: a replay. */
void replay_found(void *context, const struct store_reply *reply);
/* Nobody waits for the store any more. NULL is allowed. */
void replay_give_up(struct replay *replay);

struct replay_request {
    const char *owner, *path, *key;
    const char *body; /* [length] */
    size_t length;
    const char *session; /* X-Session-Id, which counts as part of the body; NULL: none */
    bool found_again;    /* what it makes has replay_name: so a reply that is lost is none of -1 */
};

/* 0 with *entry: the request is new, or its reply is lost and it may be found again. 0 with *kept:
 * it has been answered already; the caller releases *kept. -1: API_INVALID_VALUE (the key),
 * API_KEY_IN_FLIGHT, API_KEY_MISMATCH, API_KEY_LOST, API_OUT_OF_MEMORY. */
int replay_begin(struct replay *replay, const struct replay_request *request,
                 struct replay_entry **entry, struct replay_reply **kept, struct api_error *err);

/* Where servers share the store: asks it for a request that is new here, since another may be at
 * work on it, or have its reply. False: there is nothing to ask. Else `asked` is called by the
 * engine thread, without anything if the request is to go on (also where the store is away); or
 * the entry is over, with the reply, which is the callee's to release, or with the error. */
bool replay_ask(struct replay *replay, struct replay_entry *entry, replay_asked *asked,
                void *context);

/* A name for what the request makes, the same each time and on each server: of its owner, path, key
 * and body. The hash has no key of the server's, and need not: what is made is looked for among its
 * owner's, so who finds two requests with one name gets the reply to the first of his own. */
void replay_name(const struct replay_entry *entry, char name[REPLAY_NAME_SIZE]);
/* Whether it has been carried out, as far as known here. */
bool replay_has_worked(struct replay *replay, const struct replay_entry *entry);

/* That the request has been carried out: for the store, with what it has done. Borrows from the
 * entry. */
struct store_reply replay_claim(const struct replay *replay, const struct replay_entry *entry);

/* What the request asks for has been done, or may have been. However its reply is lost from now on,
 * the request is not done again: it gets API_KEY_LOST. */
void replay_worked(struct replay *replay, struct replay_entry *entry);

/* These end the entry: replay_keep with a copy of data [length], replay_drop with nothing.
 * after(context) is called, perhaps at once, when the store has that, or cannot have it; NULL:
 * nobody waits for it. A client that asks again sooner may find its own request at work. */
void replay_keep(struct replay *replay, struct replay_entry *entry, int status, bool stream,
                 const char *data, size_t length, replay_after *after, void *context);
void replay_drop(struct replay *replay, struct replay_entry *entry, replay_after *after,
                 void *context);
/* Ends the entry, too. Keeps the error, as `encode` writes it (api_error_encode_as), if the same
 * request would get it again. An error that passes with time (a busy session, a full queue, a
 * failure) is dropped, so that a retry may succeed. */
void replay_keep_error(struct replay *replay, struct replay_entry *entry,
                       const struct api_error *error, api_error_encoder *encode,
                       replay_after *after, void *context);

/* Bytes of all that is kept. */
int64_t replay_bytes(struct replay *replay);

#endif
