/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_directory.h"

#include "engine/model/fingerprint.h"
#include "engine/model/model.h"
#include "server/log.h"
#include "server/store/store_codec.h"
#include "server/store/store_file.h"
#include "server/store/store_folder.h"
#include "server/store/store_migration.h"
#include "server/store/store_others.h"
#include "server/store/store_root.h"
#include "server/store/store_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_NAME_SIZE = STORE_NAME_SIZE + 32 };

static const char FOLDER[] = "checkpoints", SUFFIX[] = ".state";

struct store_place {
    struct store_root root;
    struct engine *engine;
    struct store_accounts *accounts;
    struct store_rows rows;
    struct store_batch batch;   /* of what is to be done in one commit */
    bool keeps_files;           /* store_options */
    int model, folder;          /* open folders: of the model, of its checkpoints */
    int trouble;                /* of the last checkpoint: 0, or the errno that was logged */
    struct store_others others; /* the scan's, then of whoever writes */
};

/* ---- opening ---- */

/* Opens the folder `name` below `parent`, and makes it if need be. */
static int open_folder(const struct store_place *place, int parent, const char *name, int *out,
                       struct error *err)
{
    if (mkdirat(parent, name, 0700) != 0 && errno != EEXIST)
        return store_root_cannot(&place->root, "make", name, err);
    *out = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out < 0 ? store_root_cannot(&place->root, "open", name, err) : 0;
}

/* The folder of a model. */
static const char *model_name(const struct engine *engine, char name[2 * FINGERPRINT_BYTES + 1])
{
    for (size_t i = 0; i < FINGERPRINT_BYTES; i++)
        snprintf(name + 2 * i, 3, "%02x", engine_fingerprint(engine)[i]);
    return name;
}

static void directory_close(struct store_place *place)
{
    store_rows_close(&place->rows);
    if (place->folder >= 0)
        close(place->folder);
    if (place->model >= 0)
        close(place->model);
    store_others_clear(&place->others);
    store_root_close(&place->root);
    free(place);
}

static int open_folders(struct store_place *place, const struct store_options *options,
                        struct error *err)
{
    char name[2 * FINGERPRINT_BYTES + 1];
    if (options->database_bytes > 0)
        store_database_limit_memory(options->database_bytes);
    if (store_root_open(&place->root, options->location, NULL, err) != 0)
        return -1;
    model_name(place->engine, name);
    if (open_folder(place, place->root.fd, name, &place->model, err) != 0 ||
        open_folder(place, place->model, FOLDER, &place->folder, err) != 0 ||
        store_rows_open(&place->rows, &place->root, place->accounts,
                        engine_fingerprint(place->engine), engine_model(place->engine)->vocab_size,
                        err) != 0)
        return -1;
    if (fsync(place->root.fd) != 0 || fsync(place->model) != 0)
        return store_root_cannot(&place->root, "write", name, err);
    place->accounts->report.disk_free = store_root_free_bytes(&place->root);
    return 0;
}

static int directory_open(struct store_place **out, struct engine *engine,
                          const struct store_options *options, struct store_accounts *accounts,
                          struct error *err)
{
    struct store_place *place = malloc(sizeof *place);
    if (place == NULL)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", options->location);
    *place = (struct store_place){.engine = engine,
                                  .accounts = accounts,
                                  .keeps_files = options->keeps_files,
                                  .root = {.fd = -1, .lock = -1},
                                  .model = -1,
                                  .folder = -1};
    if (open_folders(place, options, err) != 0) {
        directory_close(place);
        return -1;
    }
    *out = place;
    return 0;
}

static const unsigned char *directory_secret(const struct store_place *place)
{
    return place->root.secret;
}

/* ---- names ---- */

static const char *file_name(const struct store_blob_op *blob, char name[FILE_NAME_SIZE])
{
    snprintf(name, FILE_NAME_SIZE, "%s%s", blob->name, SUFFIX);
    return name;
}

/* ---- the scan ---- */

/* Removes a file that must not be read: its state can be computed again, and it had better take no
 * room from others. The bytes that this gives back; -1: it is still there. */
static int64_t reject(const struct store_place *place, const char *name, const char *why)
{
    int64_t size = store_file_size(place->folder, name);
    if (place->keeps_files) {
        log_message(LOG_LEVEL_WARN, "%s/%s is not accepted: %s", FOLDER, name, why);
        return -1;
    }
    bool gone = unlinkat(place->folder, name, 0) == 0;
    log_message(gone ? LOG_LEVEL_WARN : LOG_LEVEL_ERROR, "%s/%s is not accepted, and %s: %s",
                FOLDER, name, gone ? "was removed" : strerror(errno), why);
    return !gone ? -1 : size > 0 ? size : 0;
}

/* size: of the file, once that is known. */
static int scan_file(struct store_place *place, const struct store_options *options,
                     const char *name, int64_t *size, struct error *err)
{
    char stem[STORE_NAME_SIZE];
    struct state_file file;
    struct stat status;
    if (!store_file_has_suffix(name, SUFFIX) || !store_file_stem(name, SUFFIX, stem))
        return error_set(err, ERROR_INVALID, "it is none of this server's files");
    void *bytes = store_file_start(place->folder, name, &status, &file, err);
    if (status.st_size > 0)
        *size = (int64_t)status.st_size;
    if (bytes == NULL)
        return -1;
    struct store_found found = {.kind = STORE_CHECKPOINT,
                                .name = stem,
                                .bytes = (int64_t)status.st_size,
                                .modified_ns = store_folder_modified_ns(&status)};
    int result = store_codec_check(&file, place->engine, STORE_CHECKPOINT, err) != 0 ||
                         store_codec_tell(options, &file, &found, err) != 0
                     ? -1
                     : 0;
    free(bytes);
    return result;
}

static void scan_name(struct store_place *place, const struct store_options *options,
                      const char *name)
{
    struct error err = ERROR_INIT;
    if (store_file_has_suffix(name, ".tmp") || store_file_has_suffix(name, ".rejected")) {
        if (!place->keeps_files)
            unlinkat(place->folder, name, 0);
        return;
    }
    int64_t size = -1;
    bool whole = scan_file(place, options, name, &size, &err) == 0;
    if (size < 0)
        size = store_file_size(place->folder, name);
    store_accounts_add(place->accounts, STORE_CHECKPOINT, size > 0 ? size : 0, whole);
    if (err.code == ERROR_INVALID) {
        int64_t back = reject(place, name, err.message);
        store_accounts_add(place->accounts, STORE_CHECKPOINT, back > 0 ? -back : 0, 0);
        store_accounts_fail(place->accounts);
    } else if (err.code != ERROR_NONE) {
        /* it may be whole all the same: it stays where it is */
        log_message(LOG_LEVEL_ERROR, "%s/%s: %s", FOLDER, name, err.message);
        store_accounts_fail(place->accounts);
    }
}

/* What of other models cannot be given up counts like what is here. */
static void scan_others(struct store_place *place)
{
    char own[2 * FINGERPRINT_BYTES + 1];
    struct error err = ERROR_INIT;
    struct store_others *others = &place->others;
    if (store_others_scan(others, place->root.fd, model_name(place->engine, own), &err) != 0)
        log_message(LOG_LEVEL_WARN, "%s: %s", place->root.path, err.message);
    if (others->kept + others->bytes > 0)
        log_message(LOG_LEVEL_INFO,
                    "%s: other models have left %lld bytes of checkpoints and %lld of sessions",
                    place->root.path, (long long)others->bytes, (long long)others->kept);
    store_accounts_add(place->accounts, STORE_SESSION, others->kept, 0);
}

static int directory_scan(struct store_place *place, const struct store_options *options,
                          struct error *err)
{
    if (store_migration_run(&place->rows, place->model, place->engine, err) != 0 ||
        store_rows_scan(&place->rows, options, err) != 0)
        return -1;
    char **names = store_folder_names(place->folder);
    if (names == NULL)
        return store_root_cannot(&place->root, "read", FOLDER, err);
    for (size_t i = 0; names[i] != NULL; i++) {
        scan_name(place, options, names[i]);
        free(names[i]);
    }
    free(names);
    scan_others(place);
    return 0;
}

/* ---- operations ---- */

struct sink {
    int fd, code; /* code: the errno of the write that failed */
};

static int put(void *context, const void *bytes, size_t size, struct error *err)
{
    struct sink *sink = context;
    const char *from = bytes;
    while (size > 0) {
        ssize_t put = write(sink->fd, from, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0) {
            sink->code = errno;
            return error_set(err, ERROR_IO, "cannot write");
        }
        from += put;
        size -= (size_t)put;
    }
    return 0;
}

/* Writes the file under a temporary name to its end, and renames it. Returns 0 or an errno. */
static int write_whole(struct store_place *place, const struct state_file_source *source,
                       const char *name)
{
    char temporary[FILE_NAME_SIZE + 4];
    int folder = place->folder, code = 0;
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno;
    struct sink sink = {fd, ENOMEM};
    if (state_file_write(place->engine, source, put, &sink, NULL) != 0)
        code = sink.code;
    if (close(fd) != 0 && code == 0)
        code = errno;
    if (code == 0 && renameat(folder, temporary, folder, name) != 0)
        code = errno;
    if (code != 0)
        unlinkat(folder, temporary, 0);
    return code;
}

static bool is_no_room(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

/* Counts how a write ended (0, or an errno), and what it tells about the disk. */
static void count_write(struct store_place *place, int code)
{
    enum store_outcome outcome = code == 0          ? STORE_WRITTEN
                                 : is_no_room(code) ? STORE_NO_ROOM
                                                    : STORE_FAILED;
    int64_t left = code == 0                          ? store_root_free_bytes(&place->root)
                   : code == ENOSPC || code == EDQUOT ? 0
                                                      : -1;
    store_accounts_wrote(place->accounts, STORE_CHECKPOINT, outcome, left);
}

/* How the disk took a checkpoint: says so once when that is another way than before. */
static void tell_trouble(struct store_place *place, int code, const char *why)
{
    int trouble = is_no_room(code) ? ENOSPC : code;
    bool changed = place->trouble != trouble;
    place->trouble = trouble;
    if (changed && trouble == 0)
        log_message(LOG_LEVEL_INFO, "%s: checkpoints are written to disk again", place->root.path);
    else if (changed)
        log_message(LOG_LEVEL_ERROR, "%s: checkpoints are kept in memory only: %s",
                    place->root.path, why);
}

static int directory_put(struct store_place *place, struct store_put *put)
{
    struct error *err = &put->blob.op.error;
    char name[FILE_NAME_SIZE];
    int folder = place->folder;
    const struct state_file_source source = store_codec_source(put);
    int64_t bytes = (int64_t)state_file_bytes(place->engine, &source);
    const struct store_report *report = &place->accounts->report;
    file_name(&put->blob, name);
    if (bytes > report->budget_bytes - report->bytes) {
        return error_set(err, ERROR_NO_MEMORY,
                         "%s/%s: it has %lld bytes, of the budget's %lld are %lld taken", FOLDER,
                         name, (long long)bytes, (long long)report->budget_bytes,
                         (long long)report->bytes);
    }
    if (!place->keeps_files)
        store_others_trim(&place->others, report->disk_free < bytes
                                              ? 0
                                              : report->budget_bytes - report->bytes - bytes);
    int64_t old = store_file_size(folder, name);
    int code = write_whole(place, &source, name);
    if (code == 0)
        store_accounts_add(place->accounts, STORE_CHECKPOINT, bytes - (old > 0 ? old : 0), old < 0);
    if (code != 0)
        error_set(err, is_no_room(code) || code == ENOMEM ? ERROR_NO_MEMORY : ERROR_IO,
                  "%s/%s: cannot write %lld bytes: %s", FOLDER, name, (long long)bytes,
                  strerror(code));
    count_write(place, code);
    tell_trouble(place, code, code == 0 ? "" : err->message);
    return code == 0 ? 0 : -1;
}

static int directory_get(struct store_place *place, struct store_get *get)
{
    struct error *err = &get->blob.op.error;
    char name[FILE_NAME_SIZE];
    struct stat status;
    file_name(&get->blob, name);
    int fd = store_file_open(place->folder, name, &status, err);
    int result = -1;
    if (fd >= 0) {
        size_t size = (size_t)status.st_size;
        char *bytes = malloc(size + 1);
        if (bytes == NULL)
            error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", size);
        else if (store_file_read(fd, bytes, 0, size, err) == 0)
            result = store_codec_take(get, place->engine, bytes, size, err);
        free(bytes);
        close(fd);
    }
    if (result == 0)
        return 0;
    int64_t back = err->code == ERROR_INVALID ? reject(place, name, err->message) : -1;
    if (back >= 0)
        store_accounts_add(place->accounts, STORE_CHECKPOINT, -back, -1);
    error_prefix(err, "%s/%s", FOLDER, name);
    return store_accounts_fail(place->accounts);
}

static int directory_remove(struct store_place *place, struct store_remove *removal)
{
    struct error *err = &removal->blob.op.error;
    char name[FILE_NAME_SIZE];
    int folder = place->folder;
    if (place->keeps_files)
        return 0;
    file_name(&removal->blob, name);
    int64_t size = store_file_size(folder, name);
    if (unlinkat(folder, name, 0) == 0)
        store_accounts_add(place->accounts, STORE_CHECKPOINT, -(size > 0 ? size : 0), -1);
    else if (errno != ENOENT) {
        error_set(err, ERROR_IO, "%s/%s: cannot remove: %s", FOLDER, name, strerror(errno));
        return store_accounts_fail(place->accounts);
    }
    return 0;
}

static int directory_touch(struct store_place *place, struct store_touch *touch)
{
    struct error *err = &touch->blob.op.error;
    char name[FILE_NAME_SIZE];
    const int64_t second = 1000000000;
    const struct timespec then = {touch->used_ns / second, touch->used_ns % second};
    const struct timespec times[2] = {then, then};
    file_name(&touch->blob, name);
    if (utimensat(place->folder, name, touch->used_ns != 0 ? times : NULL, AT_SYMLINK_NOFOLLOW) ==
            0 ||
        errno == ENOENT)
        return 0;
    error_set(err, ERROR_IO, "%s/%s: cannot set its time: %s", FOLDER, name, strerror(errno));
    return store_accounts_fail(place->accounts);
}

/* ---- sessions ---- */

static void directory_commit(struct store_place *place, struct store_commit *commit)
{
    store_batch_add(&place->batch, &commit->session.op);
}

static void directory_delete(struct store_place *place, struct store_delete *deletion)
{
    store_batch_add(&place->batch, &deletion->session.op);
}

static void directory_use(struct store_place *place, struct store_use *use)
{
    store_batch_add(&place->batch, &use->session.op);
}

static void directory_keep(struct store_place *place, struct store_keep *keep)
{
    store_batch_add(&place->batch, &keep->request.op);
}

static void directory_drop(struct store_place *place, struct store_drop *drop)
{
    store_batch_add(&place->batch, &drop->request.op);
}

static struct store_op *directory_end(struct store_place *place)
{
    struct store_op *first = store_batch_take(&place->batch);
    store_rows_run(&place->rows, first);
    return first;
}

static void directory_tidy(struct store_place *place)
{
    store_rows_tidy(&place->rows);
}

static const struct store_sessions sessions = {.commit = directory_commit,
                                               .remove = directory_delete,
                                               .use = directory_use,
                                               .keep = directory_keep,
                                               .drop = directory_drop,
                                               .end = directory_end,
                                               .tidy = directory_tidy};

static const struct store_blobs blobs = {.put = directory_put,
                                         .get = directory_get,
                                         .remove = directory_remove,
                                         .touch = directory_touch};

const struct store_backend store_directory = {.open = directory_open,
                                              .scan = directory_scan,
                                              .secret = directory_secret,
                                              .close = directory_close,
                                              .sessions = &sessions,
                                              .blobs = &blobs};
