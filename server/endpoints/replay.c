/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/replay.h"

#include "lib/base/clock.h"
#include "server/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

enum { NUM_BUCKETS = 4096 };

struct replay_entry {
    struct replay_entry *next;          /* in its bucket */
    struct replay_entry *older, *newer; /* of those that have been answered, by last use */
    XXH128_hash_t body;
    struct replay_reply *reply;   /* NULL: still at work */
    double expires;               /* clock_seconds() */
    char holder[STORE_NAME_SIZE]; /* in a store that servers share; "": it does not know of it */
    bool worked; /* what it asks for has been done, whatever becomes of the reply */
    size_t bucket;
    size_t name_length;
    char name[]; /* [name_length] owner, path and key, a NUL after each */
};

/* A reply on its way to the store. */
struct kept_op {
    union { /* the first member */
        struct store_op op;
        struct store_reply_op request;
        struct store_claim claim;
        struct store_keep keep;
        struct store_drop drop;
    };
    struct replay *replay;
    struct kept_op *before, *next; /* in the list of those whose clients wait */
    replay_after *after;           /* NULL: nobody waits (any more) */
    void *context;
    struct replay_entry *entry; /* that is asked for; NULL: none is */
    replay_asked *asked;
    void *asked_context;
    atomic_bool over; /* of two who end it: the store, and who gave up waiting for it */
    struct store_reply reply;
    struct replay_reply *held; /* its bytes; NULL: the reply is to be removed */
    char name[];               /* [reply.name_length] */
};

struct replay {
    struct store *store;  /* NULL: none */
    _Atomic int *waiting; /* clients */
    double lifetime_s;
    uint64_t seed;        /* of the buckets */
    pthread_mutex_t lock; /* of all that follows */
    struct kept_op *waited;
    int64_t max_bytes, bytes;
    struct replay_entry *buckets[NUM_BUCKETS];
    struct replay_entry *oldest, *newest;
};

int replay_create(struct replay **out, int64_t max_bytes, double lifetime_s, struct error *err)
{
    struct replay *replay = calloc(1, sizeof *replay);
    if (!replay)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for kept replies");
    if (getrandom(&replay->seed, sizeof replay->seed, 0) != (ssize_t)sizeof replay->seed) {
        free(replay);
        return error_set(err, ERROR_INTERNAL, "the system has no random numbers");
    }
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

/* ---- the store ---- */

static struct kept_op *kept_op_create(struct replay *replay, const struct store_reply *reply,
                                      void (*done)(struct store_op *op))
{
    struct kept_op *kept = calloc(1, sizeof *kept + reply->name_length);
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

/* With the lock held: somebody waits for it. after NULL: nobody does. */
static void wait_for(struct replay *replay, struct kept_op *kept, replay_after *after,
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

/* With the lock held: who waits for it, who from now on does not any more. */
static replay_after *take_after(struct replay *replay, struct kept_op *kept)
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

static void tell(struct replay *replay, replay_after *after, void *context)
{
    if (!after)
        return;
    after(context);
    if (replay->waiting)
        atomic_fetch_sub(replay->waiting, 1);
}

/* The engine thread. A reply that the store did not take is kept in memory, as long as that lasts:
 * what it tells of has been done. */
static void on_stored(struct store_op *op)
{
    struct kept_op *kept = (struct kept_op *)op;
    struct replay *replay = kept->replay;
    pthread_mutex_lock(&replay->lock);
    replay_after *after = take_after(replay, kept);
    pthread_mutex_unlock(&replay->lock);
    tell(replay, after, kept->context);
    if (kept->held)
        replay_reply_release(kept->held);
    free(kept);
}

void replay_give_up(struct replay *replay)
{
    struct kept_op *kept;
    if (!replay)
        return;
    pthread_mutex_lock(&replay->lock);
    while ((kept = replay->waited)) {
        replay_after *after = take_after(replay, kept);
        void *context = kept->context;
        pthread_mutex_unlock(&replay->lock);
        tell(replay, after, context);
        pthread_mutex_lock(&replay->lock);
    }
    pthread_mutex_unlock(&replay->lock);
}

static int64_t wall_ns(void)
{
    return clock_nanos(CLOCK_REALTIME);
}

struct store_reply replay_claim(const struct replay *replay, const struct replay_entry *entry)
{
    struct store_reply claim = {.name = entry->name,
                                .name_length = entry->name_length,
                                .error = "",
                                .expires_ns = wall_ns() + (int64_t)(replay->lifetime_s * 1e9)};
    _Static_assert(sizeof entry->body == STORE_BODY_BYTES, "the hash of a body");
    memcpy(claim.body, &entry->body, sizeof claim.body);
    return claim;
}

/* With the lock held: the store is to forget it, as memory does. */
static void forget(struct replay *replay, const struct replay_entry *entry)
{
    struct store_reply reply = {.name = entry->name, .name_length = entry->name_length};
    struct kept_op *kept = replay->store ? kept_op_create(replay, &reply, on_stored) : NULL;
    if (kept && !store_drop(replay->store, &kept->drop))
        free(kept);
}

/* With the lock held: begins to write it. Returns false where nothing is to be waited for. */
static bool write_through(struct replay *replay, const struct replay_entry *entry,
                          replay_after *after, void *context)
{
    struct store_reply reply = replay_claim(replay, entry);
    const char *code = api_error_row(entry->reply->error)->code;
    reply.status = entry->reply->status;
    reply.error = entry->reply->error != API_OK && code ? code : "";
    reply.stream = entry->reply->stream;
    reply.data = entry->reply->data;
    reply.length = entry->reply->length;
    struct kept_op *kept = replay->store ? kept_op_create(replay, &reply, on_stored) : NULL;
    if (!kept)
        return false;
    memcpy(kept->request.holder, entry->holder, sizeof entry->holder);
    kept->held = entry->reply;
    atomic_fetch_add(&entry->reply->references, 1);
    if (!store_keep(replay->store, &kept->keep)) {
        replay_reply_release(kept->held);
        free(kept);
        return false;
    }
    wait_for(replay, kept, after, context); /* before on_stored gets the lock */
    return true;
}

void replay_attach(struct replay *replay, struct store *store, _Atomic int *waiting)
{
    replay->store = store;
    replay->waiting = waiting;
}

/* Clients choose keys: nobody can choose many that share a bucket. */
static size_t bucket_of(const struct replay *replay, const struct replay_entry *entry)
{
    return XXH3_64bits_withSeed(entry->name, entry->name_length, replay->seed) % NUM_BUCKETS;
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
    entry->bucket = bucket_of(replay, entry);
    XXH64_hash_t seed =
        request->session ? XXH3_64bits(request->session, strlen(request->session)) : 0;
    entry->body = XXH3_128bits_withSeed(request->body ? request->body : "", request->length, seed);
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

/* With the lock held: the request of a lost reply is at work again. */
static void reopen(struct replay *replay, struct replay_entry *entry)
{
    unlink_used(replay, entry);
    replay->bytes -= bytes_of(entry);
    replay_reply_release(entry->reply);
    entry->reply = NULL;
    entry->worked = true;
}

/* With the lock held: enters *entry, or finds the entry of the same name; *entry becomes one whose
 * reply is lost. */
static int enter(struct replay *replay, bool found_again, struct replay_entry **fresh,
                 struct replay_reply **kept, struct api_error *err)
{
    struct replay_entry *entry = *fresh;
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
    if (known->reply && known->reply->status == 0 && found_again) {
        reopen(replay, known);
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

/* A copy of a reply. NULL: no memory, or it is larger than all may be. */
static struct replay_reply *copy_reply(const struct replay *replay,
                                       const struct replay_entry *entry, struct replay_reply what,
                                       const char *data)
{
    /* One that can never fit takes nobody's place. */
    bool fits = (int64_t)(sizeof *entry + entry->name_length + sizeof what + what.length) <=
                replay->max_bytes;
    struct replay_reply *reply = fits ? malloc(sizeof *reply) : NULL;
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

/* With the lock held: the entry has its reply, for so long. */
static void answer(struct replay *replay, struct replay_entry *entry, struct replay_reply *reply,
                   double lifetime_s)
{
    entry->reply = reply;
    entry->expires = clock_seconds() + lifetime_s;
    link_newest(replay, entry);
    replay->bytes += bytes_of(entry);
}

void replay_worked(struct replay *replay, struct replay_entry *entry)
{
    pthread_mutex_lock(&replay->lock);
    entry->worked = true;
    pthread_mutex_unlock(&replay->lock);
}

/* With the lock held: where the request was taken in the store, others may have it. Returns false
 * where nothing is to be waited for. */
static bool give_back(struct replay *replay, struct replay_entry *entry, replay_after *after,
                      void *context)
{
    struct store_reply reply = replay_claim(replay, entry);
    struct kept_op *kept = entry->holder[0] ? kept_op_create(replay, &reply, on_stored) : NULL;
    if (!kept) /* it does not know of it; or for lack of memory not before this server ends */
        return false;
    memcpy(kept->request.holder, entry->holder, sizeof entry->holder);
    entry->holder[0] = 0;
    store_drop(replay->store, &kept->drop);
    wait_for(replay, kept, after, context); /* before on_stored gets the lock */
    return true;
}

/* Without memory for that the request stays as one at work: it had better be refused than be done
 * twice. */
void replay_drop(struct replay *replay, struct replay_entry *entry, replay_after *after,
                 void *context)
{
    struct replay_reply *lost =
        entry->worked ? copy_reply(replay, entry, (struct replay_reply){0}, NULL) : NULL;
    pthread_mutex_lock(&replay->lock);
    const bool waits = give_back(replay, entry, after, context);
    if (lost)
        answer(replay, entry, lost, replay->lifetime_s);
    else if (!entry->worked)
        take_out(replay, entry);
    pthread_mutex_unlock(&replay->lock);
    if (!waits && after)
        after(context);
}

static void keep(struct replay *replay, struct replay_entry *entry, struct replay_reply what,
                 const char *data, replay_after *after, void *context)
{
    struct replay_reply *reply = copy_reply(replay, entry, what, data);
    if (!reply) {
        replay_drop(replay, entry, after, context);
        return;
    }
    pthread_mutex_lock(&replay->lock);
    answer(replay, entry, reply, replay->lifetime_s);
    bool waits = write_through(replay, entry, after, context);
    while (replay->bytes > replay->max_bytes) {
        forget(replay, replay->oldest);
        take_out(replay, replay->oldest);
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
    double left = (double)(found->expires_ns - wall_ns()) * 1e-9;
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
    entry->bucket = bucket_of(replay, entry);
    bool wanted = left > 0 && !find(replay, entry);
    struct replay_reply *reply = wanted ? copy_reply(replay, entry, what, found->data) : NULL;
    if (wanted && !reply) /* what it tells of has been done all the same */
        reply = copy_reply(replay, entry, (struct replay_reply){0}, NULL);
    if (!reply) {
        free(entry);
        return;
    }
    pthread_mutex_lock(&replay->lock);
    entry->next = replay->buckets[entry->bucket];
    replay->buckets[entry->bucket] = entry;
    answer(replay, entry, reply, left < replay->lifetime_s ? left : replay->lifetime_s);
    while (replay->bytes > replay->max_bytes)
        take_out(replay, replay->oldest);
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
    int64_t bytes = replay->bytes;
    pthread_mutex_unlock(&replay->lock);
    return bytes;
}

/* ---- others that use the store ---- */

/* The server ends: the answer of the store comes too late. */
static void give_up_asking(void *context)
{
    struct kept_op *kept = context;
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
static struct replay_reply *take_found(struct kept_op *kept, struct api_error *err)
{
    struct replay *replay = kept->replay;
    const struct store_reply *found = kept->claim.found;
    struct replay_reply what = {.status = found->status,
                                .error = code_named(found->error),
                                .stream = found->stream,
                                .length = found->length};
    struct replay_reply *reply =
        found->status > 0 ? copy_reply(replay, kept->entry, what, found->data) : NULL;
    if (!reply) {
        replay_drop(replay, kept->entry, NULL, NULL);
        api_error_set(err, API_KEY_LOST, "Idempotency-Key",
                      "the request with this Idempotency-Key has been carried out, and its reply "
                      "is too large to be kept here");
        return NULL;
    }
    atomic_fetch_add(&reply->references, 1);
    pthread_mutex_lock(&replay->lock);
    /* The analyzer does not know that the caller holds a reference, and oldest is another then. */
    // NOLINTBEGIN(clang-analyzer-unix.Malloc)
    answer(replay, kept->entry, reply, (double)(found->expires_ns - wall_ns()) * 1e-9);
    while (replay->bytes > replay->max_bytes)
        take_out(replay, replay->oldest);
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
    struct kept_op *kept = (struct kept_op *)op;
    if (atomic_exchange(&kept->over, true))
        free(kept);
}

/* The store has answered after give_up_asking. What it gave goes back. */
static void end_late(struct kept_op *kept, bool holds)
{
    kept->op.done = leave_late;
    if (!holds || !store_drop(kept->replay->store, &kept->drop))
        leave_late(&kept->op);
}

static void on_asked(struct store_op *op)
{
    struct kept_op *kept = (struct kept_op *)op;
    struct replay *replay = kept->replay;
    struct replay_reply *reply = NULL;
    struct api_error err = {0};
    const bool holds = store_claim_holds(&kept->claim);
    pthread_mutex_lock(&replay->lock);
    bool waits = take_after(replay, kept) != NULL;
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
    struct store_reply reply = replay_claim(replay, entry);
    struct kept_op *kept = replay->store ? kept_op_create(replay, &reply, on_asked) : NULL;
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
        wait_for(replay, kept, give_up_asking, kept);
    pthread_mutex_unlock(&replay->lock);
    if (!asks)
        free(kept);
    return asks;
}
