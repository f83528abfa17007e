/* SPDX-License-Identifier: Apache-2.0 */
/* Idempotency-Key: the replies of requests that bore one, to be given again to whoever repeats the
 * request within ten minutes (api.md, "Sessions"). In memory, bounded in bytes: the least recently
 * used reply is forgotten first; a request that is still at work is not.
 *
 * Any thread; one lock, held for no longer than a copy of a few pointers. */
#ifndef SERVER_ENDPOINTS_REPLAY_H
#define SERVER_ENDPOINTS_REPLAY_H

#include "api/errors.h"

#include <stdatomic.h>

struct replay;
struct replay_entry; /* of a request at work: its holder keeps its reply, or drops it */

enum { REPLAY_KEY_MAX = 255 };

/* What was answered. Counted: replay_reply_release. */
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

/* 0 with *entry: the request is new. 0 with *kept: it has been answered, so (release it). -1:
 * API_INVALID_VALUE (the key), API_KEY_IN_FLIGHT, API_KEY_MISMATCH, API_OUT_OF_MEMORY. */
int replay_begin(struct replay *replay, const struct replay_request *request,
                 struct replay_entry **entry, struct replay_reply **kept, struct api_error *err);

/* Both end the entry. A copy of data [length] is kept. */
void replay_keep(struct replay *replay, struct replay_entry *entry, int status, bool stream,
                 const char *data, size_t length);
void replay_drop(struct replay *replay, struct replay_entry *entry);
/* Keeps the error if the same request would meet it again, else drops the entry: what a later
 * attempt may well do (a busy session, a full queue, a failure) is not held against it. */
void replay_keep_error(struct replay *replay, struct replay_entry *entry,
                       const struct api_error *error);

void replay_reply_release(struct replay_reply *reply);

/* Bytes that are kept. */
int64_t replay_bytes(struct replay *replay);

#endif
