/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a store on a directory of its own, operations on it, and what it has said. */
#ifndef TESTS_UNIT_STORE_BENCH_H
#define TESTS_UNIT_STORE_BENCH_H

#include "lib/base/bytes.h"
#include "server/store/store.h"
#include "tests/unit/checkpoint.h"
#include "tests/unit/session_database.h"
#include "tests/unit/state_texts.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

enum { MOST_FOUND = 32, BUDGET = 64 << 20 };

struct found {
    enum store_kind kind;
    char name[STORE_NAME_SIZE], meta[128];
    int64_t count, position, bytes;
    int32_t last_token;
    bool logits;
};

/* A directory, the store on it, and what the store has said. */
struct bench {
    char path[64], folder[256]; /* folder: of the model */
    struct engine *engine;
    struct store *store;
    struct found found[MOST_FOUND];
    int num_found, done;
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    int wakes;
};

static inline void on_found(void *context, const struct store_found *file)
{
    struct bench *bench = context;
    struct found *found = &bench->found[bench->num_found++];
    cr_assert(bench->num_found <= MOST_FOUND);
    *found = (struct found){.kind = file->kind,
                            .count = file->count,
                            .position = file->position,
                            .bytes = file->bytes,
                            .last_token = file->count > 0 ? file->tokens[file->count - 1] : -1,
                            .logits = file->logits};
    snprintf(found->name, sizeof found->name, "%s", file->name);
    snprintf(found->meta, sizeof found->meta, "%.*s", (int)file->meta_length,
             file->meta != NULL ? file->meta : "");
    cr_expect(llabs(file->modified_ns / 1000000000 - (int64_t)time(NULL)) < 3600);
}

static inline void on_wake(void *context)
{
    struct bench *bench = context;
    pthread_mutex_lock(&bench->mutex);
    bench->wakes++;
    pthread_cond_signal(&bench->woken);
    pthread_mutex_unlock(&bench->mutex);
}

static inline int try_open(struct bench *bench, int64_t budget, struct error *err)
{
    const struct store_options options = {.location = bench->path,
                                          .budget_bytes = budget,
                                          .wake = on_wake,
                                          .wake_context = bench,
                                          .found = on_found,
                                          .found_context = bench};
    bench->num_found = 0;
    return store_open(&bench->store, bench->engine, &options, err);
}

static inline void reopen(struct bench *bench, int64_t budget)
{
    struct error err = ERROR_INIT;
    store_close(bench->store);
    cr_assert(try_open(bench, budget, &err) == 0, "%s", err.message);
}

static inline void bench_open(struct bench *bench)
{
    char hex[40] = "";
    *bench = (struct bench){.path = "/tmp/regla-store-XXXXXX"};
    cr_assert(mkdtemp(bench->path) != NULL);
    bench->engine = open_golden("hybrid_regla", false);
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", engine_fingerprint(bench->engine)[i]);
    snprintf(bench->folder, sizeof bench->folder, "%s/%s", bench->path, hex);
    pthread_mutex_init(&bench->mutex, NULL);
    pthread_cond_init(&bench->woken, NULL);
    reopen(bench, BUDGET);
}

static inline void bench_close(struct bench *bench)
{
    char command[128];
    store_close(bench->store);
    engine_close(bench->engine);
    snprintf(command, sizeof command, "rm -r %s", bench->path);
    cr_assert(system(command) == 0);
}

/* Until all operations have ended and been told. */
static inline void drain(struct bench *bench)
{
    int seen = 0;
    while (store_poll(bench->store)) {
        pthread_mutex_lock(&bench->mutex);
        while (bench->wakes == seen)
            pthread_cond_wait(&bench->woken, &bench->mutex);
        seen = bench->wakes;
        pthread_mutex_unlock(&bench->mutex);
    }
}

/* A text's file, its buffers, and where they are read into again. */
struct item {
    union { /* the first member: what is under way */
        struct store_op op;
        struct store_commit commit;
        struct store_delete deletion;
        struct store_use use;
        struct store_put put;
        struct store_get get;
        struct store_remove removal;
    };
    enum store_kind kind;
    const char *name, *meta, *turns;
    const int32_t *text; /* [count] */
    int64_t count, from, position, turns_length, used_ns;
    bool fresh;
    void (*told)(struct store_op *op);
    char own_name[STORE_NAME_SIZE];
    char *image, *image_out;
    int32_t tokens[200];
    float logits[275], logits_out[275];
    int *done;
};

static inline void on_done(struct store_op *op)
{
    struct item *item = (struct item *)op;
    (*item->done)++;
}

static inline struct item *new_item(struct bench *bench, enum store_kind kind, const char *name,
                                    int64_t position)
{
    struct item *item = calloc(1, sizeof *item);
    size_t bytes = state_image_bytes(bench->engine, position);
    item->image = text_image(bench->engine, 1, position);
    item->image_out = calloc(1, bytes);
    item->done = &bench->done;
    for (int i = 0; i < 200; i++)
        item->tokens[i] = text_token(bench->engine, 1, i);
    for (int i = 0; i < 275; i++)
        item->logits[i] = (float)i;
    item->kind = kind;
    item->fresh = kind == STORE_SESSION;
    item->meta = "{\"owner\": \"a\"}";
    item->text = item->tokens;
    item->count = item->position = position;
    item->told = on_done;
    snprintf(item->own_name, sizeof item->own_name, "%s", name);
    item->name = item->own_name;
    return item;
}

static inline const struct store_commit *commit_of(struct item *item)
{
    item->commit = (struct store_commit){.session.op.done = item->told,
                                         .meta = item->meta,
                                         .meta_length = strlen(item->meta),
                                         .tokens = item->text,
                                         .count = item->count,
                                         .from = item->from,
                                         .turns = item->turns,
                                         .turns_length = item->turns_length,
                                         .used_ns = item->used_ns,
                                         .fresh = item->fresh};
    snprintf(item->commit.session.name, STORE_NAME_SIZE, "%s", item->name);
    return &item->commit;
}

static inline void begin_write(struct store *store, struct item *item)
{
    if (item->kind == STORE_SESSION) {
        commit_of(item);
        store_commit(store, &item->commit);
        return;
    }
    item->put = (struct store_put){.blob.op.done = item->told,
                                   .meta = item->meta,
                                   .meta_length = strlen(item->meta),
                                   .tokens = item->text,
                                   .count = item->count,
                                   .position = item->position,
                                   .image = item->image,
                                   .logits = item->logits};
    snprintf(item->put.blob.name, STORE_NAME_SIZE, "%s", item->name);
    store_put(store, &item->put);
}

static inline void begin_read(struct store *store, struct item *item)
{
    item->get = (struct store_get){.blob.op.done = item->told,
                                   .tokens = item->text,
                                   .count = item->count,
                                   .position = item->position,
                                   .image_out = item->image_out,
                                   .logits_out = item->logits_out};
    snprintf(item->get.blob.name, STORE_NAME_SIZE, "%s", item->name);
    store_get(store, &item->get);
}

static inline void begin_remove(struct store *store, struct item *item)
{
    if (item->kind == STORE_SESSION) {
        item->deletion = (struct store_delete){.session.op.done = item->told};
        snprintf(item->deletion.session.name, STORE_NAME_SIZE, "%s", item->name);
        store_delete(store, &item->deletion);
        return;
    }
    item->removal = (struct store_remove){.blob.op.done = item->told};
    snprintf(item->removal.blob.name, STORE_NAME_SIZE, "%s", item->name);
    store_remove(store, &item->removal);
}

static inline void begin_use(struct store *store, struct item *item)
{
    item->use = (struct store_use){.session.op.done = item->told, .used_ns = item->used_ns};
    snprintf(item->use.session.name, STORE_NAME_SIZE, "%s", item->name);
    cr_assert(store_use(store, &item->use));
}

static inline void free_item(struct item *item)
{
    free(item->image);
    free(item->image_out);
    free(item);
}

static inline void run_op(struct bench *bench, void (*begin)(struct store *, struct item *),
                          struct item *item)
{
    int done = bench->done;
    begin(bench->store, item);
    drain(bench);
    cr_assert(bench->done == done + 1);
}

/* The same, where the store wakes nobody. */
static inline void run_op_unwoken(struct bench *bench, void (*begin)(struct store *, struct item *),
                                  struct item *item)
{
    begin(bench->store, item);
    store_finish(bench->store);
}

/* Writes it, which must go well. */
static inline void write_item(struct bench *bench, struct item *item)
{
    run_op(bench, begin_write, item);
    cr_assert(item->op.error.code == ERROR_NONE, "%s", item->op.error.message);
}

static inline const char *path_of(const struct bench *bench, const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", bench->folder, name);
    return path;
}

static inline bool there(const struct bench *bench, const char *name)
{
    char path[512];
    struct stat status;
    return lstat(path_of(bench, name, path), &status) == 0;
}

static inline int64_t bytes_in(const struct bench *bench, const char *folder, int *files)
{
    char path[512], file[1024];
    int64_t bytes = 0;
    DIR *stream = opendir(path_of(bench, folder, path));
    if (stream == NULL) /* of the sessions of earlier versions: gone */
        return 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        struct stat status;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        cr_assert(stat(file, &status) == 0);
        if (!S_ISREG(status.st_mode))
            continue;
        bytes += status.st_size;
        *files += 1;
    }
    closedir(stream);
    return bytes;
}

static inline int64_t size_in(const struct bench *bench, const char *name)
{
    char path[512];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", bench->path, name);
    return stat(path, &status) == 0 ? status.st_size : 0;
}

/* Of the database once its pages have left its log, and of the log as it is. */
static inline int64_t database_bytes(const struct bench *bench)
{
    const int64_t file = size_in(bench, "sessions.db");
    const int64_t pages = 4096 * session_database_number(bench->path, "PRAGMA page_count");
    return (file > pages ? file : pages) + size_in(bench, "sessions.db-wal");
}

/* The report says what lies in the directory; of the files, `others` are not whole. */
static inline void expect_accounts(const struct bench *bench, int sessions, int checkpoints,
                                   int others)
{
    struct store_report report;
    int files = 0;
    int64_t bytes = 0;
    for (int tries = 0; tries < 400; tries++) { /* the database's log may just be emptied */
        files = 0;
        store_report(bench->store, &report);
        bytes = bytes_in(bench, "sessions", &files) + bytes_in(bench, "checkpoints", &files);
        bytes += database_bytes(bench);
        if (report.bytes == bytes)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    cr_expect(report.bytes == bytes, "%lld, %lld are there", (long long)report.bytes,
              (long long)bytes);
    cr_expect(files == checkpoints + others, "%d files", files);
    cr_expect(report.sessions == sessions && report.checkpoint_files == checkpoints,
              "%lld and %lld", (long long)report.sessions, (long long)report.checkpoint_files);
}

/* Changes a byte of a file, or makes it shorter when at is -1. */
static inline void damage(const struct bench *bench, const char *name, long at)
{
    char path[512];
    size_t size;
    char *bytes = read_whole(path_of(bench, name, path), &size);
    if (at >= 0)
        bytes[at] ^= 1;
    write_whole(bench->folder, name, bytes, at >= 0 ? size : size - 1);
    free(bytes);
}

#endif
