/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store.h"

#include "engine/state_file.h"
#include "server/store/store_accounts.h"
#include "server/store/store_backends.h"
#include "server/store/store_leases.h"
#include "server/store/store_root.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct queue {
    struct store_op *first, **last;
};

struct store {
    const struct store_backend *backend;
    struct store_place *place; /* of the backend; NULL: not open */
    struct store_accounts accounts;
    struct store_leases leases;
    struct engine *engine;
    struct store_options options;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t filled, has_ended;
    /* Files that go make room, so they go before what may need it. A request may wait for what is
     * urgent; checkpoints are written when there is time. Sessions and replies are rows: all that
     * wait are run together. */
    struct queue removals, urgent, rows, background, ended;
    bool probe;      /* whether the disk takes commits is to be tried */
    int64_t pending; /* begun, and not yet told to its owner */
    bool closing;
};

static void queue_init(struct queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void queue_put(struct queue *queue, struct store_op *op)
{
    op->next = NULL;
    *queue->last = op;
    queue->last = &op->next;
}

static struct store_op *queue_take(struct queue *queue)
{
    struct store_op *op = queue->first;
    if (op == NULL)
        return NULL;
    queue->first = op->next;
    if (queue->first == NULL)
        queue->last = &queue->first;
    return op;
}

/* Whether an operation on the same file waits there. All in the queues of files have a name, but
 * for those that look for many. */
static bool queue_has(const struct queue *queue, const struct store_op *like)
{
    const char *name = ((const struct store_blob_op *)like)->name;
    for (const struct store_op *op = queue->first; op != NULL; op = op->next)
        if (op->what != STORE_FIND && strcmp(((const struct store_blob_op *)op)->name, name) == 0)
            return true;
    return false;
}

/* At no moment are the bytes that are there and those pending together less than there will be. */
static void execute(struct store *store, struct store_op *op)
{
    const struct store_blobs *blobs = store->backend->blobs;
    error_clear(&op->error);
    op->refusal = STORE_ACCEPTED;
    switch (op->what) {
    case STORE_PUT:
        if (state_save_wait(&((struct store_put *)op)->saving, &op->error) == 0)
            blobs->put(store->place, (struct store_put *)op);
        store_accounts_pend(&store->accounts, -op->bytes);
        break;
    case STORE_GET:
        blobs->get(store->place, (struct store_get *)op);
        break;
    case STORE_REMOVE:
        store_accounts_pend(&store->accounts, op->bytes);
        blobs->remove(store->place, (struct store_remove *)op);
        break;
    case STORE_TOUCH:
        blobs->touch(store->place, (struct store_touch *)op);
        break;
    default:
        blobs->find(store->place, (struct store_find *)op);
        break;
    }
}

/* With the mutex held: the operations have ended. */
static void tell(struct store *store, struct store_op *first)
{
    for (struct store_op *op = first, *next; op != NULL; op = next) {
        next = op->next;
        store_accounts_end(&store->accounts, op);
        queue_put(&store->ended, op);
    }
    pthread_cond_signal(&store->has_ended);
    if (!store->closing && store->options.wake != NULL) {
        pthread_mutex_unlock(&store->mutex);
        store->options.wake(store->options.wake_context);
        pthread_mutex_lock(&store->mutex);
    }
}

/* With the mutex held. */
static void run_file(struct store *store, struct store_op *op)
{
    pthread_mutex_unlock(&store->mutex);
    execute(store, op);
    pthread_mutex_lock(&store->mutex);
    op->next = NULL;
    tell(store, op);
}

/* With the mutex held. */
static void tidy_rows(struct store *store)
{
    pthread_mutex_unlock(&store->mutex);
    if (store->backend->sessions->tidy != NULL)
        store->backend->sessions->tidy(store->place);
    pthread_mutex_lock(&store->mutex);
}

static bool is_written(const struct store_op *op)
{
    return op->what == STORE_COMMIT || op->what == STORE_KEEP;
}

/* With the mutex held: everything that has come while the last commit was under way. */
static void run_rows(struct store *store)
{
    struct store_op *first = store->rows.first;
    int64_t freed = 0, written = 0;
    queue_init(&store->rows);
    store->probe = false;
    pthread_mutex_unlock(&store->mutex);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        freed += is_written(op) ? 0 : op->bytes;
        store_leases_before(&store->leases, op);
    }
    store_accounts_pend(&store->accounts, freed);
    first = store_backend_run(store->backend, store->place, first);
    for (const struct store_op *op = first; op != NULL; op = op->next) {
        written += is_written(op) ? op->bytes : 0;
        store_leases_after(&store->leases, op);
    }
    store_accounts_pend(&store->accounts, -written);
    pthread_mutex_lock(&store->mutex);
    tell(store, first);
    tidy_rows(store);
}

/* When rows are to be run again that the place has kept. */
static double due_in(const struct store *store)
{
    const struct store_sessions *sessions = store->backend->sessions;
    return sessions->due_in != NULL ? sessions->due_in(store->place) : INFINITY;
}

/* With the mutex held. False: nothing has come for a while. */
static bool wait_for_work(struct store *store)
{
    const double tidy = 5, second = 1e9;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanos = until.tv_nsec + (int64_t)(fmin(tidy, due_in(store)) * second);
    until.tv_sec += nanos / (int64_t)second;
    until.tv_nsec = nanos % (int64_t)second;
    return pthread_cond_timedwait(&store->filled, &store->mutex, &until) == 0;
}

static void *store_main(void *context)
{
    struct store *store = context;
    struct store_op *op;
    bool file_was_last = false; /* rows and urgent files take turns */
    pthread_setname_np(pthread_self(), "regla-files");
    pthread_mutex_lock(&store->mutex);
    tidy_rows(store); /* what an earlier server has left */
    for (;;) {
        const bool rows = store->rows.first != NULL || store->probe || due_in(store) <= 0;
        if ((op = queue_take(&store->removals)) != NULL) {
            run_file(store, op);
            continue;
        }
        const bool file = !(rows && file_was_last) && (op = queue_take(&store->urgent)) != NULL;
        file_was_last = file;
        if (file)
            run_file(store, op);
        else if (rows)
            run_rows(store);
        else if ((op = queue_take(&store->background)) != NULL)
            run_file(store, op);
        else if (store->closing && isinf(due_in(store)))
            break;
        else if (!wait_for_work(store))
            tidy_rows(store);
    }
    pthread_mutex_unlock(&store->mutex);
    return NULL;
}

int store_open(struct store **out, struct engine *engine, const struct store_options *options,
               struct error *err)
{
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", options->location);
    pthread_condattr_t monotonic;
    store->backend = store_backends_find(options->location);
    store->engine = engine;
    store->options = *options;
    store_accounts_init(&store->accounts, options->budget_bytes);
    queue_init(&store->removals);
    queue_init(&store->urgent);
    queue_init(&store->rows);
    queue_init(&store->background);
    queue_init(&store->ended);
    pthread_mutex_init(&store->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&store->filled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&store->has_ended, NULL);
    if (store->backend->open(&store->place, engine, options, &store->accounts, err) != 0 ||
        (store->backend->sessions->renew != NULL &&
         store_leases_start(&store->leases, store->backend, store->place, options->lease_s,
                            &store->accounts, err) != 0)) {
        store_close(store);
        return -1;
    }
    *out = store; /* already for `found`, which may begin operations: they are run afterwards */
    int result =
        store->backend->scan != NULL ? store->backend->scan(store->place, options, err) : 0;
    int code = pthread_create(&store->thread, NULL, store_main, store);
    store->started = code == 0;
    return code == 0 ? result
                     : error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
}

void store_close(struct store *store)
{
    if (store == NULL)
        return;
    pthread_mutex_lock(&store->mutex);
    store->closing = true;
    pthread_cond_signal(&store->filled);
    pthread_mutex_unlock(&store->mutex);
    if (store->started)
        pthread_join(store->thread, NULL);
    store_leases_stop(&store->leases);
    if (store->place != NULL)
        store->backend->close(store->place);
    store_accounts_clear(&store->accounts);
    pthread_cond_destroy(&store->filled);
    pthread_cond_destroy(&store->has_ended);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

void store_owner_tag(const struct store *store, const char *api_key, char tag[STORE_OWNER_SIZE])
{
    store_root_owner_tag(store->backend->secret(store->place), api_key, tag);
}

bool store_finds_by_name(const struct store *store)
{
    return store->backend->scan == NULL;
}

/* The sums alone would not do: whoever sends tokens can choose them so that two texts have the
 * same. */
static void name_of(const struct store *store, XXH128_hash_t meta, XXH128_hash_t tokens,
                    char name[STORE_NAME_SIZE])
{
    struct {
        XXH128_hash_t meta, tokens;
    } sums = {meta, tokens};
    unsigned char hash[SIPHASH_BYTES];
    siphash(store->backend->secret(store->place), &sums, sizeof sums, hash);
    for (size_t i = 0; i < sizeof hash; i++)
        snprintf(name + 2 * i, 3, "%02x", hash[i]);
}

void store_checkpoint_name(const struct store *store, const char *meta, size_t meta_length,
                           const int32_t *tokens, int64_t count, char name[STORE_NAME_SIZE])
{
    name_of(store, XXH3_128bits(meta, meta_length),
            XXH3_128bits(tokens, (size_t)count * sizeof *tokens), name);
}

int store_checkpoint_names(const struct store *store, const char *meta, size_t meta_length,
                           const int32_t *tokens, const int64_t *counts, size_t num_names,
                           char (*names)[STORE_NAME_SIZE])
{
    XXH3_state_t *state = XXH3_createState();
    int64_t done = 0;
    if (state == NULL)
        return -1;
    XXH3_128bits_reset(state);
    for (size_t i = num_names; i-- > 0; done = counts[i]) {
        XXH3_128bits_update(state, tokens + done, (size_t)(counts[i] - done) * sizeof *tokens);
        name_of(store, XXH3_128bits(meta, meta_length), XXH3_128bits_digest(state), names[i]);
    }
    XXH3_freeState(state);
    return 0;
}

/* With the mutex held: operations on one file run in the order in which they were begun. */
static struct queue *queue_of(struct store *store, const struct store_op *op)
{
    if (op->kind != STORE_CHECKPOINT)
        return &store->rows;
    if (op->what == STORE_FIND)
        return &store->urgent;
    if (op->what == STORE_PUT || queue_has(&store->background, op))
        return &store->background;
    return op->what == STORE_REMOVE && !queue_has(&store->urgent, op) ? &store->removals
                                                                      : &store->urgent;
}

static bool submit(struct store *store, struct store_op *op, enum store_kind kind,
                   enum store_what what)
{
    op->kind = kind;
    op->what = what;
    store_accounts_begin(&store->accounts, op);
    pthread_mutex_lock(&store->mutex);
    queue_put(queue_of(store, op), op);
    store->pending++;
    pthread_cond_signal(&store->filled);
    pthread_mutex_unlock(&store->mutex);
    return true;
}

/* ---- sessions ---- */

/* Whether others use the place, so that it has to be asked. */
static bool asks(const struct store *store)
{
    return store->backend->sessions->take != NULL;
}

bool store_take(struct store *store, struct store_take *take)
{
    return asks(store) && submit(store, &take->look.session.op, STORE_SESSION, STORE_TAKE);
}

bool store_look(struct store *store, struct store_look *look)
{
    return asks(store) && submit(store, &look->session.op, STORE_SESSION, STORE_LOOK);
}

bool store_give(struct store *store, struct store_give *give)
{
    return asks(store) && submit(store, &give->session.op, STORE_SESSION, STORE_GIVE);
}

bool store_list(struct store *store, struct store_list *list)
{
    return asks(store) && submit(store, &list->session.op, STORE_SESSION, STORE_LIST);
}

bool store_reserve(struct store *store, struct store_reserve *reserve)
{
    return asks(store) && submit(store, &reserve->session.op, STORE_SESSION, STORE_RESERVE);
}

void store_commit(struct store *store, struct store_commit *commit)
{
    struct store_op *op = &commit->session.op;
    op->bytes = store_commit_bytes(commit);
    store_accounts_pend(&store->accounts, op->bytes);
    submit(store, op, STORE_SESSION, STORE_COMMIT);
}

void store_delete(struct store *store, struct store_delete *deletion)
{
    submit(store, &deletion->session.op, STORE_SESSION, STORE_DELETE);
}

bool store_use(struct store *store, struct store_use *use)
{
    return store->backend->sessions->use != NULL &&
           submit(store, &use->session.op, STORE_SESSION, STORE_USE);
}

/* ---- replies ---- */

/* Whether the request is this server's in the place. */
static bool is_claimed(const struct store *store, const struct store_reply_op *request)
{
    return !asks(store) || request->holder[0] != 0;
}

bool store_claim(struct store *store, struct store_claim *claim)
{
    return asks(store) && submit(store, &claim->request.op, STORE_REPLY, STORE_CLAIM);
}

bool store_keep(struct store *store, struct store_keep *keep)
{
    struct store_op *op = &keep->request.op;
    if (!is_claimed(store, &keep->request))
        return false;
    op->bytes = store_keep_bytes(keep);
    store_accounts_pend(&store->accounts, op->bytes);
    return submit(store, op, STORE_REPLY, STORE_KEEP);
}

bool store_drop(struct store *store, struct store_drop *drop)
{
    return is_claimed(store, &drop->request) &&
           submit(store, &drop->request.op, STORE_REPLY, STORE_DROP);
}

/* ---- checkpoints ---- */

void store_put(struct store *store, struct store_put *put)
{
    struct store_op *op = &put->blob.op;
    op->bytes = store_file_bytes(store, put->position, put->count, put->image != NULL,
                                 put->logits != NULL, put->meta_length);
    store_accounts_pend(&store->accounts, op->bytes);
    submit(store, op, STORE_CHECKPOINT, STORE_PUT);
}

void store_get(struct store *store, struct store_get *get)
{
    submit(store, &get->blob.op, STORE_CHECKPOINT, STORE_GET);
}

void store_find(struct store *store, struct store_find *find)
{
    submit(store, &find->op, STORE_CHECKPOINT, STORE_FIND);
}

void store_remove(struct store *store, struct store_remove *removal)
{
    struct store_op *op = &removal->blob.op;
    store_accounts_pend(&store->accounts, -op->bytes);
    submit(store, op, STORE_CHECKPOINT, STORE_REMOVE);
}

void store_touch(struct store *store, struct store_touch *touch)
{
    submit(store, &touch->blob.op, STORE_CHECKPOINT, STORE_TOUCH);
}

/* ---- the rest ---- */

void store_probe(struct store *store)
{
    pthread_mutex_lock(&store->mutex);
    store->probe = true;
    pthread_cond_signal(&store->filled);
    pthread_mutex_unlock(&store->mutex);
}

bool store_poll(struct store *store)
{
    pthread_mutex_lock(&store->mutex);
    struct store_op *op;
    while ((op = queue_take(&store->ended)) != NULL) {
        store->pending--;
        pthread_mutex_unlock(&store->mutex);
        op->done(op);
        pthread_mutex_lock(&store->mutex);
    }
    bool pending = store->pending > 0;
    pthread_mutex_unlock(&store->mutex);
    return pending;
}

void store_finish(struct store *store)
{
    while (store_poll(store) && store->started) {
        pthread_mutex_lock(&store->mutex);
        while (store->ended.first == NULL)
            pthread_cond_wait(&store->has_ended, &store->mutex);
        pthread_mutex_unlock(&store->mutex);
    }
}

void store_report(const struct store *store, struct store_report *report)
{
    store_accounts_copy((struct store_accounts *)&store->accounts, report); /* for its mutex */
}

int64_t store_file_bytes(const struct store *store, int64_t position, int64_t count, bool state,
                         bool logits, size_t meta_length)
{
    static const float some = 0;
    return (int64_t)state_file_bytes(store->engine,
                                     &(struct state_file_source){.position = state ? position : 0,
                                                                 .num_tokens = count,
                                                                 .logits = logits ? &some : NULL,
                                                                 .meta_bytes = meta_length});
}
