/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/replay_reply.h"

#include <stdlib.h>
#include <string.h>

struct replay_reply *replay_reply_copy(struct replay_reply what, const char *data)
{
    struct replay_reply *reply = malloc(sizeof *reply);
    if (!reply)
        return NULL;
    *reply = what;
    atomic_init(&reply->references, 1);
    reply->data = malloc(what.length + 1);
    if (!reply->data) {
        free(reply);
        return NULL;
    }
    if (data && what.length)
        memcpy(reply->data, data, what.length);
    return reply;
}

void replay_reply_hold(struct replay_reply *reply)
{
    atomic_fetch_add(&reply->references, 1);
}

void replay_reply_release(struct replay_reply *reply)
{
    if (atomic_fetch_sub(&reply->references, 1) > 1)
        return;
    free(reply->data);
    free(reply);
}
