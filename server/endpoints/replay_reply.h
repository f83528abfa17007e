/* SPDX-License-Identifier: Apache-2.0 */
/* A reply that is kept for who repeats its request. */
#ifndef SERVER_ENDPOINTS_REPLAY_REPLY_H
#define SERVER_ENDPOINTS_REPLAY_REPLY_H

#include "api/errors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* It counts its references: replay_reply_release gives one back. */
struct replay_reply {
    _Atomic int references;
    int status;          /* 0: the request was carried out, and its reply is lost */
    enum api_code error; /* API_OK: none */
    bool stream;         /* server-sent events */
    char *data;          /* [length] */
    size_t length;
};

/* Who waits for the store, and who asks it (replay.h). */
typedef void replay_after(void *context);
typedef void replay_asked(void *context, struct replay_reply *kept, const struct api_error *err);

/* With one reference and a copy of data; NULL: of nothing. NULL: no memory. */
struct replay_reply *replay_reply_copy(struct replay_reply what, const char *data);
void replay_reply_hold(struct replay_reply *reply);
void replay_reply_release(struct replay_reply *reply);

#endif
