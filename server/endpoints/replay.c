/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/replay.h"

#include "engine/base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NUM_BUCKETS = 4096 };

struct replay_entry {
    struct replay_entry *next;          /* in its bucket */
    struct replay_entry *older, *newer; /* of those that have been answered, by last use */
    XXH128_hash_t body;
    struct replay_reply *reply; /* NULL: still at work */
    double expires;             /* clock_seconds() */
    size_t bucket;
    size_t name_length;
    char name[]; /* [name_length] owner, path and key, a NUL after each */
};

struct replay {
    pthread_mutex_t lock; /* of all that follows */
    int64_t max_bytes, bytes;
    double lifetime_s;
    struct replay_entry *buckets[NUM_BUCKETS];
    struct replay_entry *oldest, *newest;
};

int replay_create(struct replay **out, int64_t max_bytes, double lifetime_s, struct error *err)
{
    struct replay *replay = calloc(1, sizeof *replay);
    if (!replay)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for kept replies");
    pthread_mutex_init(&replay->lock, NULL);
    replay->max_bytes = max_bytes;
    replay->lifetime_s = lifetime_s;
    *out = replay;
    return 0;
}

void replay_reply_release(struct replay_reply *reply)
{
    if (atomic_fetch_sub(&reply->references, 1) > 1)
        return;
    free(reply->data);
    free(reply);
}

static void entry_free(struct replay_entry *entry)
{
    if (entry->reply)
        replay_reply_release(entry->reply);
    free(entry);
}

void replay_free(struct replay *replay)
{
    if (!replay)
        return;
    for (size_t i = 0; i < NUM_BUCKETS; i++)
        for (struct replay_entry *entry = replay->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            entry_free(entry);
        }
    pthread_mutex_destroy(&replay->lock);
    free(replay);
}

static int64_t bytes_of(const struct replay_entry *entry)
{
    return (int64_t)(sizeof *entry + entry->name_length + sizeof *entry->reply +
                     entry->reply->length);
}

static void unlink_used(struct replay *replay, struct replay_entry *entry)
{
    *(entry->older ? &entry->older->newer : &replay->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &replay->newest) = entry->older;
    entry->older = entry->newer = NULL;
}

static void link_newest(struct replay *replay, struct replay_entry *entry)
{
    entry->older = replay->newest;
    *(replay->newest ? &replay->newest->newer : &replay->oldest) = entry;
    replay->newest = entry;
}

static void take_out(struct replay *replay, struct replay_entry *entry)
{
    struct replay_entry **link = &replay->buckets[entry->bucket];
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    if (entry->reply) {
        unlink_used(replay, entry);
        replay->bytes -= bytes_of(entry);
    }
    entry_free(entry);
}

/* NULL: out of memory. */
static struct replay_entry *new_entry(const struct replay_request *request)
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
    entry->bucket = XXH3_64bits(entry->name, entry->name_length) % NUM_BUCKETS;
    entry->body = XXH3_128bits(request->body ? request->body : "", request->length);
    return entry;
}

static struct replay_entry *find(struct replay *replay, const struct replay_entry *like)
{
    struct replay_entry *entry = replay->buckets[like->bucket];
    while (entry && (entry->name_length != like->name_length ||
                     memcmp(entry->name, like->name, like->name_length) != 0))
        entry = entry->next;
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

/* With the lock held: enters `entry`, or finds the entry of the same name. */
static int enter(struct replay *replay, struct replay_entry *entry, struct replay_reply **kept,
                 struct api_error *err)
{
    double now = clock_seconds();
    while (replay->oldest && replay->oldest->expires <= now)
        take_out(replay, replay->oldest);
    struct replay_entry *known = find(replay, entry);
    if (known && known->reply && known->expires <= now) {
        take_out(replay, known);
        known = NULL;
    }
    if (!known) {
        entry->next = replay->buckets[entry->bucket];
        replay->buckets[entry->bucket] = entry;
        return 0;
    }
    if (!XXH128_isEqual(known->body, entry->body))
        return api_error_set(err, API_KEY_MISMATCH, "Idempotency-Key",
                             "this Idempotency-Key was sent with another body");
    if (!known->reply)
        return api_error_set(err, API_KEY_IN_FLIGHT, "Idempotency-Key",
                             "the request with this Idempotency-Key is still being answered");
    unlink_used(replay, known);
    link_newest(replay, known);
    *kept = known->reply;
    atomic_fetch_add(&known->reply->references, 1);
    return 0;
}

int replay_begin(struct replay *replay, const struct replay_request *request,
                 struct replay_entry **entry, struct replay_reply **kept, struct api_error *err)
{
    *entry = NULL;
    *kept = NULL;
    if (check_key(request->key, err))
        return -1;
    struct replay_entry *fresh = new_entry(request);
    if (!fresh)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    pthread_mutex_lock(&replay->lock);
    int result = enter(replay, fresh, kept, err);
    pthread_mutex_unlock(&replay->lock);
    if (result || *kept)
        free(fresh);
    else
        *entry = fresh;
    return result;
}

void replay_drop(struct replay *replay, struct replay_entry *entry)
{
    pthread_mutex_lock(&replay->lock);
    take_out(replay, entry);
    pthread_mutex_unlock(&replay->lock);
}

static void keep(struct replay *replay, struct replay_entry *entry, struct replay_reply what,
                 const char *data)
{
    /* One that can never fit takes nobody's place. */
    bool fits = (int64_t)(sizeof *entry + entry->name_length + sizeof what + what.length) <=
                replay->max_bytes;
    struct replay_reply *reply = fits ? malloc(sizeof *reply) : NULL;
    if (reply) {
        *reply = what;
        atomic_init(&reply->references, 1);
        reply->data = malloc(what.length + 1);
    }
    if (!reply || !reply->data) {
        free(reply);
        replay_drop(replay, entry);
        return;
    }
    memcpy(reply->data, data, what.length);
    pthread_mutex_lock(&replay->lock);
    entry->reply = reply;
    entry->expires = clock_seconds() + replay->lifetime_s;
    link_newest(replay, entry);
    replay->bytes += bytes_of(entry);
    while (replay->bytes > replay->max_bytes)
        take_out(replay, replay->oldest);
    pthread_mutex_unlock(&replay->lock);
}

void replay_keep(struct replay *replay, struct replay_entry *entry, int status, bool stream,
                 const char *data, size_t length)
{
    struct replay_reply what = {.status = status, .stream = stream, .length = length};
    keep(replay, entry, what, data);
}

static bool definite(enum api_code code)
{
    int status = api_error_row(code)->status;
    return status >= 400 && status < 500 && code != API_SESSION_BUSY && code != API_QUEUE_FULL &&
           code != API_SESSION_QUOTA;
}

void replay_keep_error(struct replay *replay, struct replay_entry *entry,
                       const struct api_error *error)
{
    struct strbuf body = {0};
    api_error_encode(&body, error);
    struct replay_reply what = {
        .status = api_error_row(error->code)->status, .error = error->code, .length = body.length};
    if (definite(error->code) && !body.failed)
        keep(replay, entry, what, body.data);
    else
        replay_drop(replay, entry);
    strbuf_clear(&body);
}

int64_t replay_bytes(struct replay *replay)
{
    pthread_mutex_lock(&replay->lock);
    int64_t bytes = replay->bytes;
    pthread_mutex_unlock(&replay->lock);
    return bytes;
}
