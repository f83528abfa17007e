/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the replies of requests with an Idempotency-Key, and gives them again to a client that
 * repeats its request within ten minutes (api.md, "Sessions"). They are in memory, bounded in
 * bytes. The least recently used reply goes first; a request that is still at work stays.
 *
 * For any thread. One lock, held for no longer than a copy of a few pointers. */
#ifndef SERVER_ENDPOINTS_REPLAY_H
#define SERVER_ENDPOINTS_REPLAY_H

#include "api/errors.h"

#include <stdatomic.h>

struct replay;
struct replay_entry; /* a request at work; its holder ends it by replay_keep* or replay_drop */

enum { REPLAY_KEY_MAX = 255 };

/* A reply that is kept. It counts its references: replay_reply_release gives one back. */
struct replay_reply {
    _Atomic int references;
    int status;
    enum api_code error; /* API_OK: none */
    bool stream;         /* server-sent events */
    char *data;          /* [length] */
    size_t length;
};

int replay_create(struct replay **out, int64_t max_bytes, double lifetime_s, struct error *err);
void replay_free(struct replay *replay); /* NULL is allowed; no entry may be held */

struct replay_request {
    const char *owner, *path, *key;
    const char *body; /* [length] */
    size_t length;
};

/* 0 with *entry: the request is new. 0 with *kept: it has been answered already; the caller
 * releases *kept. -1: API_INVALID_VALUE (the key), API_KEY_IN_FLIGHT, API_KEY_MISMATCH,
 * API_OUT_OF_MEMORY. */
int replay_begin(struct replay *replay, const struct replay_request *request,
                 struct replay_entry **entry, struct replay_reply **kept, struct api_error *err);

/* These end the entry: replay_keep with a copy of data [length], replay_drop with nothing. */
void replay_keep(struct replay *replay, struct replay_entry *entry, int status, bool stream,
                 const char *data, size_t length);
void replay_drop(struct replay *replay, struct replay_entry *entry);
/* Ends the entry, too. Keeps the error if the same request would get it again. An error that passes
 * with time (a busy session, a full queue, a failure) is dropped, so that a retry may succeed. */
void replay_keep_error(struct replay *replay, struct replay_entry *entry,
                       const struct api_error *error);

void replay_reply_release(struct replay_reply *reply);

/* Bytes of all that is kept. */
int64_t replay_bytes(struct replay *replay);

#endif
