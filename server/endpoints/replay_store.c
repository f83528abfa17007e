/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/replay_store.h"

#include "lib/base/clock.h"
#include "server/store/store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct replay_store_op *replay_store_op_create(struct replay *replay,
                                               const struct store_reply *reply,
                                               void (*done)(struct store_op *op))
{
    struct replay_store_op *kept = calloc(1, sizeof *kept + reply->name_length);
    if (!kept)
        return NULL;
    kept->replay = replay;
    kept->reply = *reply;
    memcpy(kept->name, reply->name, reply->name_length);
    kept->reply.name = kept->name;
    kept->op.done = done;
    kept->request.reply = &kept->reply;
    return kept;
}

void replay_store_wait(struct replay *replay, struct replay_store_op *kept, replay_after *after,
                       void *context)
{
    kept->after = after;
    kept->context = context;
    if (!after)
        return;
    atomic_fetch_add(replay->waiting, 1);
    kept->next = replay->waited;
    if (kept->next)
        kept->next->before = kept;
    replay->waited = kept;
}

replay_after *replay_store_leave(struct replay *replay, struct replay_store_op *kept)
{
    replay_after *after = kept->after;
    if (!after)
        return NULL;
    *(kept->before ? &kept->before->next : &replay->waited) = kept->next;
    if (kept->next)
        kept->next->before = kept->before;
    kept->after = NULL;
    return after;
}

void replay_store_tell(struct replay *replay, replay_after *after, void *context)
{
    if (!after)
        return;
    after(context);
    if (replay->waiting)
        atomic_fetch_sub(replay->waiting, 1);
}

/* With the lock held: whether the store, which is away, is to have it all the same. Nobody waits
 * for that any more, so it counts. */
static bool goes_on(struct replay *replay, struct replay_store_op *kept)
{
    const int64_t bytes = (int64_t)(sizeof *kept + kept->reply.name_length + kept->reply.length);
    const bool was = kept->request.lasts;
    kept->request.lasts = !was && !replay->given_up && kept->op.refusal == STORE_AWAY &&
                          replay->lasting + bytes <= replay->table.max_bytes / 2;
    replay->lasting += kept->request.lasts ? bytes : was ? -bytes : 0;
    return kept->request.lasts;
}

/* The engine thread. A reply that the store did not take is kept in memory, as long as that lasts:
 * what it tells of has been done. */
static void on_stored(struct store_op *op)
{
    struct replay_store_op *kept = (struct replay_store_op *)op;
    struct replay *replay = kept->replay;
    pthread_mutex_lock(&replay->lock);
    replay_after *after = replay_store_leave(replay, kept);
    bool again = goes_on(replay, kept);
    pthread_mutex_unlock(&replay->lock);
    replay_store_tell(replay, after, kept->context);
    if (again && (kept->held ? store_keep(replay->store, &kept->keep)
                             : store_drop(replay->store, &kept->drop)))
        return;
    if (kept->held)
        replay_reply_release(kept->held);
    free(kept);
}

struct store_reply replay_store_claim(const struct replay *replay, const struct replay_entry *entry)
{
    struct store_reply claim = {.name = entry->name,
                                .name_length = entry->name_length,
                                .error = "",
                                .expires_ns = clock_nanos(CLOCK_REALTIME) +
                                              (int64_t)(replay->lifetime_s * 1e9)};
    _Static_assert(sizeof entry->body == STORE_BODY_BYTES, "the hash of a body");
    memcpy(claim.body, &entry->body, sizeof claim.body);
    return claim;
}

void replay_store_forget(struct replay *replay, const struct replay_entry *entry)
{
    struct store_reply reply = {.name = entry->name, .name_length = entry->name_length};
    struct replay_store_op *kept =
        replay->store ? replay_store_op_create(replay, &reply, on_stored) : NULL;
    if (kept && !store_drop(replay->store, &kept->drop))
        free(kept);
}

bool replay_store_keep(struct replay *replay, const struct replay_entry *entry, replay_after *after,
                       void *context)
{
    struct store_reply reply = replay_store_claim(replay, entry);
    const char *code = api_error_row(entry->reply->error)->code;
    reply.status = entry->reply->status;
    reply.error = entry->reply->error != API_OK && code ? code : "";
    reply.stream = entry->reply->stream;
    reply.data = entry->reply->data;
    reply.length = entry->reply->length;
    struct replay_store_op *kept =
        replay->store ? replay_store_op_create(replay, &reply, on_stored) : NULL;
    if (!kept)
        return false;
    memcpy(kept->request.holder, entry->holder, sizeof entry->holder);
    kept->held = entry->reply;
    replay_reply_hold(entry->reply);
    if (!store_keep(replay->store, &kept->keep)) {
        replay_reply_release(kept->held);
        free(kept);
        return false;
    }
    replay_store_wait(replay, kept, after, context); /* before on_stored gets the lock */
    return true;
}

bool replay_store_drop(struct replay *replay, struct replay_entry *entry, replay_after *after,
                       void *context)
{
    struct store_reply reply = replay_store_claim(replay, entry);
    struct replay_store_op *kept =
        entry->holder[0] ? replay_store_op_create(replay, &reply, on_stored) : NULL;
    if (!kept) /* it does not know of it; or for lack of memory not before this server ends */
        return false;
    memcpy(kept->request.holder, entry->holder, sizeof entry->holder);
    entry->holder[0] = 0;
    store_drop(replay->store, &kept->drop);
    replay_store_wait(replay, kept, after, context); /* before on_stored gets the lock */
    return true;
}
