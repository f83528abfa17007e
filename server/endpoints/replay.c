/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/replay.h"

#include "lib/base/clock.h"
#include "server/endpoints/replay_store.h"
#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

int replay_create(struct replay **out, int64_t max_bytes, double lifetime_s, struct error *err)
{
    struct replay *replay = calloc(1, sizeof *replay);
    if (!replay)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for kept replies");
    if (replay_table_init(&replay->table, max_bytes, err)) {
        free(replay);
        return -1;
    }
    pthread_mutex_init(&replay->lock, NULL);
    replay->lifetime_s = lifetime_s;
    *out = replay;
    return 0;
}

void replay_free(struct replay *replay)
{
    if (!replay)
        return;
    replay_table_clear(&replay->table);
    pthread_mutex_destroy(&replay->lock);
    free(replay);
}

/* ---- the store ---- */

void replay_give_up(struct replay *replay)
{
    struct replay_store_op *kept;
    if (!replay)
        return;
    pthread_mutex_lock(&replay->lock);
    replay->given_up = true;
    while ((kept = replay->waited)) {
        replay_after *after = replay_store_leave(replay, kept);
        void *context = kept->context;
        pthread_mutex_unlock(&replay->lock);
        replay_store_tell(replay, after, context);
        pthread_mutex_lock(&replay->lock);
    }
    pthread_mutex_unlock(&replay->lock);
}

struct store_reply replay_claim(const struct replay *replay, const struct replay_entry *entry)
{
    return replay_store_claim(replay, entry);
}

void replay_attach(struct replay *replay, struct store *store, _Atomic int *waiting)
{
    replay->store = store;
    replay->waiting = waiting;
}

/* NULL: out of memory. */
static struct replay_entry *new_entry(const struct replay *replay,
                                      const struct replay_request *request)
{
    const char *parts[] = {request->owner, request->path, request->key};
    size_t length = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        length += strlen(parts[i]) + 1;
    struct replay_entry *entry = calloc(1, sizeof *entry + length);
    if (!entry)
        return NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t bytes = strlen(parts[i]) + 1;
        memcpy(entry->name + entry->name_length, parts[i], bytes);
        entry->name_length += bytes;
    }
    replay_table_place(&replay->table, entry);
    XXH64_hash_t seed =
        request->session ? XXH3_64bits(request->session, strlen(request->session)) : 0;
    entry->body = XXH3_128bits_withSeed(request->body ? request->body : "", request->length, seed);
    return entry;
}

static int check_key(const char *key, struct api_error *err)
{
    size_t length = strlen(key);
    bool valid = length >= 1 && length <= REPLAY_KEY_MAX;
    for (size_t i = 0; i < length && valid; i++)
        valid = key[i] >= ' ' && key[i] < 0x7F;
    if (valid)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, "Idempotency-Key",
                         "Idempotency-Key: expected 1 to %d printable ASCII characters",
                         REPLAY_KEY_MAX);
}

/* With the lock held: enters *entry, or finds the entry of the same name; *entry becomes one whose
 * reply is lost. */
static int enter(struct replay *replay, bool found_again, struct replay_entry **fresh,
                 struct replay_reply **kept, struct api_error *err)
{
    struct replay_entry *entry = *fresh;
    double now = clock_seconds();
    replay_table_expire(&replay->table, now);
    struct replay_entry *known = replay_table_find(&replay->table, entry);
    if (known && known->reply && known->expires <= now) {
        replay_table_remove(&replay->table, known);
        known = NULL;
    }
    if (!known) {
        replay_table_add(&replay->table, entry);
        return 0;
    }
    if (!XXH128_isEqual(known->body, entry->body))
        return api_error_set(err, API_KEY_MISMATCH, "Idempotency-Key",
                             "this Idempotency-Key was sent with another body");
    if (known->reply && known->reply->status == 0 && found_again) {
        replay_table_reopen(&replay->table, known);
        *fresh = known;
        return 0;
    }
    if (known->reply && known->reply->status == 0)
        return api_error_set(
            err, API_KEY_LOST, "Idempotency-Key",
            "the request with this Idempotency-Key has been carried out, and its reply is lost");
    if (!known->reply)
        return api_error_set(err, API_KEY_IN_FLIGHT, "Idempotency-Key",
                             "the request with this Idempotency-Key is still being answered");
    *kept = replay_table_use(&replay->table, known);
    return 0;
}

int replay_begin(struct replay *replay, const struct replay_request *request,
                 struct replay_entry **entry, struct replay_reply **kept, struct api_error *err)
{
    *entry = NULL;
    *kept = NULL;
    if (check_key(request->key, err))
        return -1;
    struct replay_entry *fresh = new_entry(replay, request);
    if (!fresh)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    *entry = fresh;
    pthread_mutex_lock(&replay->lock);
    int result = enter(replay, request->found_again, entry, kept, err);
    pthread_mutex_unlock(&replay->lock);
    bool over = result || *kept;
    if (over || *entry != fresh)
        free(fresh);
    if (over)
        *entry = NULL;
    return result;
}

void replay_name(const struct replay_entry *entry, char name[REPLAY_NAME_SIZE])
{
    const XXH128_hash_t both[] = {XXH3_128bits(entry->name, entry->name_length), entry->body};
    const XXH128_hash_t hash = XXH3_128bits(both, sizeof both);
    snprintf(name, REPLAY_NAME_SIZE, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

bool replay_has_worked(struct replay *replay, const struct replay_entry *entry)
{
    pthread_mutex_lock(&replay->lock);
    bool worked = entry->worked;
    pthread_mutex_unlock(&replay->lock);
    return worked;
}

void replay_worked(struct replay *replay, struct replay_entry *entry)
{
    pthread_mutex_lock(&replay->lock);
    entry->worked = true;
    pthread_mutex_unlock(&replay->lock);
}

/* Without memory for that the request stays as one at work: it had better be refused than be done
 * twice. */
void replay_drop(struct replay *replay, struct replay_entry *entry, replay_after *after,
                 void *context)
{
    struct replay_reply *lost =
        entry->worked ? replay_table_copy(&replay->table, entry, (struct replay_reply){0}, NULL)
                      : NULL;
    pthread_mutex_lock(&replay->lock);
    const bool waits = replay_store_drop(replay, entry, after, context);
    if (lost)
        replay_table_answer(&replay->table, entry, lost, replay->lifetime_s);
    else if (!entry->worked)
        replay_table_remove(&replay->table, entry);
    pthread_mutex_unlock(&replay->lock);
    if (!waits && after)
        after(context);
}

static void keep(struct replay *replay, struct replay_entry *entry, struct replay_reply what,
                 const char *data, replay_after *after, void *context)
{
    struct replay_reply *reply = replay_table_copy(&replay->table, entry, what, data);
    if (!reply) {
        replay_drop(replay, entry, after, context);
        return;
    }
    pthread_mutex_lock(&replay->lock);
    replay_table_answer(&replay->table, entry, reply, replay->lifetime_s);
    bool waits = replay_store_keep(replay, entry, after, context);
    while (replay->table.bytes > replay->table.max_bytes) {
        replay_store_forget(replay, replay->table.oldest);
        replay_table_remove(&replay->table, replay->table.oldest);
    }
    pthread_mutex_unlock(&replay->lock);
    if (!waits && after)
        after(context);
}

static enum api_code code_named(const char *name)
{
    for (int code = API_OK + 1; code < API_NUM_CODES; code++)
        if (strcmp(api_error_row((enum api_code)code)->code, name) == 0)
            return (enum api_code)code;
    return API_OK;
}

void replay_found(void *context, const struct store_reply *found)
{
    struct replay *replay = context;
    double left = (double)(found->expires_ns - clock_nanos(CLOCK_REALTIME)) * 1e-9;
    struct replay_entry *entry = calloc(1, sizeof *entry + found->name_length);
    struct replay_reply what = {.status = found->status,
                                .error = code_named(found->error),
                                .stream = found->stream,
                                .length = found->length};
    if (!entry)
        return;
    memcpy(entry->name, found->name, found->name_length);
    memcpy(&entry->body, found->body, sizeof entry->body);
    entry->name_length = found->name_length;
    replay_table_place(&replay->table, entry);
    bool wanted = left > 0 && !replay_table_find(&replay->table, entry);
    struct replay_reply *reply =
        wanted ? replay_table_copy(&replay->table, entry, what, found->data) : NULL;
    if (wanted && !reply) /* what it tells of has been done all the same */
        reply = replay_table_copy(&replay->table, entry, (struct replay_reply){0}, NULL);
    if (!reply) {
        free(entry);
        return;
    }
    pthread_mutex_lock(&replay->lock);
    replay_table_add(&replay->table, entry);
    replay_table_answer(&replay->table, entry, reply,
                        left < replay->lifetime_s ? left : replay->lifetime_s);
    while (replay->table.bytes > replay->table.max_bytes)
        replay_table_remove(&replay->table, replay->table.oldest);
    pthread_mutex_unlock(&replay->lock);
}

void replay_keep(struct replay *replay, struct replay_entry *entry, int status, bool stream,
                 const char *data, size_t length, replay_after *after, void *context)
{
    struct replay_reply what = {.status = status, .stream = stream, .length = length};
    keep(replay, entry, what, data, after, context);
}

static bool definite(enum api_code code)
{
    int status = api_error_row(code)->status;
    return status >= 400 && status < 500 && code != API_SESSION_BUSY && code != API_QUEUE_FULL &&
           code != API_SESSION_QUOTA && code != API_SESSION_CONFLICT && code != API_KEY_MISMATCH;
}

void replay_keep_error(struct replay *replay, struct replay_entry *entry,
                       const struct api_error *error, api_error_encoder *encode,
                       replay_after *after, void *context)
{
    struct strbuf body = {0};
    api_error_encode_as(&body, encode, error, NULL);
    struct replay_reply what = {
        .status = api_error_row(error->code)->status, .error = error->code, .length = body.length};
    if (definite(error->code) && !body.failed)
        keep(replay, entry, what, body.data, after, context);
    else
        replay_drop(replay, entry, after, context);
    strbuf_clear(&body);
}

int64_t replay_bytes(struct replay *replay)
{
    pthread_mutex_lock(&replay->lock);
    int64_t bytes = replay->table.bytes;
    pthread_mutex_unlock(&replay->lock);
    return bytes;
}

/* ---- others that use the store ---- */

/* The server ends: the answer of the store comes too late. */
static void give_up_asking(void *context)
{
    struct replay_store_op *kept = context;
    struct api_error err = {0};
    replay_drop(kept->replay, kept->entry, NULL, NULL);
    kept->entry = NULL;
    api_error_set(&err, API_DRAINING, NULL, "the server is shutting down");
    kept->asked(kept->asked_context, NULL, &err);
    if (atomic_exchange(&kept->over, true))
        free(kept);
}

/* What another server has answered; the entry is over. NULL, with the error: it is not to be had.
 */
static struct replay_reply *take_found(struct replay_store_op *kept, struct api_error *err)
{
    struct replay *replay = kept->replay;
    const struct store_reply *found = kept->claim.found;
    struct replay_reply what = {.status = found->status,
                                .error = code_named(found->error),
                                .stream = found->stream,
                                .length = found->length};
    struct replay_reply *reply =
        found->status > 0 ? replay_table_copy(&replay->table, kept->entry, what, found->data)
                          : NULL;
    if (!reply) {
        replay_drop(replay, kept->entry, NULL, NULL);
        api_error_set(err, API_KEY_LOST, "Idempotency-Key",
                      "the request with this Idempotency-Key has been carried out, and its reply "
                      "is too large to be kept here");
        return NULL;
    }
    replay_reply_hold(reply);
    pthread_mutex_lock(&replay->lock);
    /* The analyzer does not know that the caller holds a reference, and oldest is another then. */
    // NOLINTBEGIN(clang-analyzer-unix.Malloc)
    replay_table_answer(&replay->table, kept->entry, reply,
                        (double)(found->expires_ns - clock_nanos(CLOCK_REALTIME)) * 1e-9);
    while (replay->table.bytes > replay->table.max_bytes)
        replay_table_remove(&replay->table, replay->table.oldest);
    pthread_mutex_unlock(&replay->lock);
    return reply;
    // NOLINTEND(clang-analyzer-unix.Malloc)
}

/* -1, with the error: the request is not to be carried out here. */
static int check_refusal(const struct store_op *op, struct api_error *err)
{
    if (op->refusal == STORE_BUSY)
        return api_error_set(err, API_KEY_IN_FLIGHT, "Idempotency-Key",
                             "the request with this Idempotency-Key is still being answered by "
                             "another server");
    if (op->refusal == STORE_KEY_OTHER)
        return api_error_set(err, API_KEY_MISMATCH, "Idempotency-Key",
                             "this Idempotency-Key was sent with another body");
    return 0;
}

/* Of two who end it, the other may still read it. */
static void leave_late(struct store_op *op)
{
    struct replay_store_op *kept = (struct replay_store_op *)op;
    if (atomic_exchange(&kept->over, true))
        free(kept);
}

/* The store has answered after give_up_asking. What it gave goes back. */
static void end_late(struct replay_store_op *kept, bool holds)
{
    kept->op.done = leave_late;
    if (!holds || !store_drop(kept->replay->store, &kept->drop))
        leave_late(&kept->op);
}

static void on_asked(struct store_op *op)
{
    struct replay_store_op *kept = (struct replay_store_op *)op;
    struct replay *replay = kept->replay;
    struct replay_reply *reply = NULL;
    struct api_error err = {0};
    const bool holds = store_claim_holds(&kept->claim);
    pthread_mutex_lock(&replay->lock);
    bool waits = replay_store_leave(replay, kept) != NULL;
    pthread_mutex_unlock(&replay->lock);
    if (waits) {
        if (kept->claim.found)
            reply = take_found(kept, &err);
        else if (check_refusal(op, &err))
            replay_drop(replay, kept->entry, NULL, NULL);
        else if (holds)
            memcpy(kept->entry->holder, kept->request.holder, sizeof kept->entry->holder);
        kept->asked(kept->asked_context, reply, err.code == API_OK ? NULL : &err);
        atomic_fetch_sub(replay->waiting, 1);
    }
    free(kept->claim.found);
    kept->claim.found = NULL;
    if (waits)
        free(kept);
    else
        end_late(kept, holds);
}

bool replay_ask(struct replay *replay, struct replay_entry *entry, replay_asked *asked,
                void *context)
{
    struct store_reply reply = replay_store_claim(replay, entry);
    struct replay_store_op *kept =
        replay->store ? replay_store_op_create(replay, &reply, on_asked) : NULL;
    if (!kept || !store_random_name(kept->request.holder)) {
        free(kept);
        return false; /* without memory it is known here alone */
    }
    kept->entry = entry;
    kept->asked = asked;
    kept->asked_context = context;
    pthread_mutex_lock(&replay->lock);
    const bool asks = store_claim(replay->store, &kept->claim);
    if (asks) /* before on_asked gets the lock */
        replay_store_wait(replay, kept, give_up_asking, kept);
    pthread_mutex_unlock(&replay->lock);
    if (!asks)
        free(kept);
    return asks;
}
