/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state_file.h"
#include "server/states/shelf_place.h"
#include "server/store/session_rows.h"
#include "server/store/store.h"
#include "server/store/store_file.h"
#include "server/store/store_folder.h"
#include "server/store/store_removal.h"
#include "server/store/store_salvage.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct directory {
    struct store_root root;
    struct store_database database;
    json_t *known;    /* "model owner id": [row, sum], of all sessions; NULL: not read yet */
    struct error why; /* SHELF_REPAIR: why the database could not be opened */
};

/* ---- opening ---- */

static int open_directory(struct shelf *shelf, enum shelf_use use, const unsigned char *secret,
                          struct error *err)
{
    struct directory *directory = shelf->place;
    struct stat status;
    char path[4096];
    const char *location = shelf->location;
    bool there = stat(location, &status) == 0;
    if (!there && errno != ENOENT)
        return error_set(err, ERROR_IO, "%s: %s", location, strerror(errno));
    if (there ? !S_ISDIR(status.st_mode) : use != SHELF_MAKE)
        return error_set(err, ERROR_INVALID, "%s: expected a directory%s", location,
                         there ? "" : ", got nothing");
    snprintf(path, sizeof path, "%s/" DATABASE_NAME, location);
    if (use != SHELF_MAKE && stat(path, &status) != 0)
        return errno != ENOENT
                   ? error_set(err, ERROR_IO, "%s: %s", path, strerror(errno))
                   : error_set(err, ERROR_INVALID,
                               "%s: expected a --state-dir, got no " DATABASE_NAME, location);
    if (use == SHELF_READ ? store_root_look(&directory->root, location, err) != 0
                          : store_root_open(&directory->root, location, secret, err) != 0 ||
                                store_database_settle(location, err) != 0)
        return -1;
    shelf->secret = directory->root.secret;
    if (store_database_open(&directory->database, location, DATABASE_NAME, err) == 0)
        return 0;
    if (err->code != ERROR_INVALID)
        return -1;
    if (use != SHELF_REPAIR)
        return error_prefix(err, "`regla sessions repair` may mend it");
    directory->why = *err;
    error_clear(err);
    return 0;
}

static void directory_close(struct shelf *shelf)
{
    struct directory *directory = shelf->place;
    json_decref(directory->known);
    store_database_close(&directory->database);
    store_root_close(&directory->root);
    free(directory);
}

static int directory_open(struct shelf *shelf, enum shelf_use use, const unsigned char *secret,
                          struct error *err)
{
    struct directory *directory = calloc(1, sizeof *directory);
    shelf->name = strdup(shelf->location);
    if (directory == NULL || shelf->name == NULL) {
        free(directory);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a place of sessions");
    }
    directory->root = (struct store_root){.fd = -1, .lock = -1};
    shelf->place = directory;
    return open_directory(shelf, use, secret, err);
}

/* ---- reading ---- */

struct reading {
    bool whole;
    shelf_each_function *each;
    void *context;
};

static int tell_row(void *context, struct session_row *row, struct error *err)
{
    const struct reading *reading = context;
    struct shelf_session session = {.count = row->count};
    const double touched = 1e-9 * (double)row->touched_ns;
    memcpy(session.row, row->name, sizeof session.row);
    for (size_t i = 0; i < SESSION_ROW_MODEL; i++)
        snprintf(session.model + 2 * i, 3, "%02x", row->model[i]);
    if (session_meta_parse(&session.meta, row->meta, row->meta_length) != 0 ||
        session.meta.owner[strspn(session.meta.owner, "0123456789abcdef")] != 0 ||
        session.meta.turns > row->turns_length) {
        session.meta = (struct session_meta){0};
        session.damage = "its META is none of a session";
    }
    if (session.meta.used < touched)
        session.meta.used = touched;
    if (reading->whole && session.damage == NULL) {
        session.tokens = row->tokens;
        session.turns = row->turns != NULL ? row->turns : "";
    }
    return reading->each(reading->context, &session, err);
}

static int directory_each(struct shelf *shelf, bool whole, shelf_each_function *each, void *context,
                          int64_t *damaged, struct error *err)
{
    struct directory *directory = shelf->place;
    struct reading reading = {whole, each, context};
    return session_rows_load(&directory->database, NULL, tell_row, &reading, damaged, err);
}

/* ---- changes ---- */

enum { KEY_SIZE = SHELF_MODEL_SIZE + STORE_OWNER_SIZE + SESSION_ID_SIZE };

static void key_of(const struct shelf_session *session, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "%s %s %s", session->model, session->meta.owner, session->meta.id);
}

static int note(struct directory *directory, const struct shelf_session *session, struct error *err)
{
    char key[KEY_SIZE];
    key_of(session, key);
    json_t *entry = json_pack("[sI]", session->row, (json_int_t)shelf_session_sum(session));
    return json_object_set_new(directory->known, key, entry) == 0
               ? 0
               : error_set(err, ERROR_NO_MEMORY, "no memory for the names of sessions");
}

static int note_one(void *context, const struct shelf_session *session, struct error *err)
{
    return session->damage != NULL ? 0 : note(context, session, err);
}

static int know_all(struct shelf *shelf, struct error *err)
{
    struct directory *directory = shelf->place;
    int64_t damaged = 0;
    if (directory->known != NULL)
        return 0;
    directory->known = json_object();
    if (directory->known == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the names of sessions");
    if (directory_each(shelf, true, note_one, directory, &damaged, err) == 0)
        return 0;
    json_decref(directory->known);
    directory->known = NULL;
    return -1;
}

static int put_row(struct directory *directory, const struct shelf_session *session,
                   struct error *err)
{
    struct session_row row = {.count = session->count,
                              .touched_ns = (int64_t)(1e9 * session->meta.used),
                              .tokens = (int32_t *)session->tokens, /* only read */
                              .turns = (char *)session->turns,
                              .turns_length = session->meta.turns};
    row.meta_length = session_meta_encode(&session->meta, row.meta);
    memcpy(row.name, session->row, sizeof row.name);
    for (size_t i = 0; i < SESSION_ROW_MODEL; i++) {
        unsigned byte;
        if (sscanf(session->model + 2 * i, "%2x", &byte) != 1)
            return error_set(err, ERROR_INVALID, "a model's fingerprint is none: \"%s\"",
                             session->model);
        row.model[i] = (unsigned char)byte;
    }
    if (store_database_begin(&directory->database, err) != 0)
        return -1;
    if (session_rows_put(&directory->database, &row, 0, 0, err) == 0)
        return store_database_commit(&directory->database, err);
    store_database_rollback(&directory->database);
    return -1;
}

_Static_assert((int)SESSION_META_SIZE <= (int)SESSION_ROW_META + 1, "META that is encoded fits");

static int directory_put(struct shelf *shelf, const struct shelf_session *session, bool replace,
                         enum shelf_outcome *outcome, struct error *err)
{
    struct directory *directory = shelf->place;
    struct shelf_session putting = *session;
    char key[KEY_SIZE];
    if (know_all(shelf, err) != 0)
        return -1;
    key_of(session, key);
    const json_t *entry = json_object_get(directory->known, key);
    if (entry != NULL) {
        bool same =
            (uint64_t)json_integer_value(json_array_get(entry, 1)) == shelf_session_sum(session);
        *outcome = same ? SHELF_SAME : SHELF_OTHER;
        if (same || !replace)
            return 0;
        snprintf(putting.row, sizeof putting.row, "%s",
                 json_string_value(json_array_get(entry, 0)));
    } else if (!store_random_name(putting.row)) {
        return error_set(err, ERROR_IO, "the system has no random numbers");
    }
    *outcome = SHELF_DONE;
    return put_row(directory, &putting, err) != 0 ? -1 : note(directory, &putting, err);
}

/* ---- removal ---- */

/* Whether the checkpoint is on the session's way, or goes on from its end, and of its owner. */
static bool is_of(const struct state_file *file, const struct shelf_session *session)
{
    const char *meta = (const char *)file->meta.bytes, *owner = session->meta.owner;
    const char *newline = file->meta.size > 0 ? memchr(meta, '\n', file->meta.size) : NULL;
    size_t length = strlen(owner);
    size_t rest = newline != NULL ? file->meta.size - (size_t)(newline + 1 - meta) : 0;
    int64_t common = file->num_tokens < session->count ? file->num_tokens : session->count;
    return rest > length && memcmp(newline + 1, owner, length) == 0 &&
           newline[1 + length] == '\n' &&
           memcmp(file->tokens.bytes, session->tokens, (size_t)common * sizeof *session->tokens) ==
               0;
}

/* Checkpoints hold tokens, too. What is removed too much can be computed again. */
static int remove_files(const struct directory *directory, const char *model,
                        const struct shelf_session *sessions, size_t count, struct error *err)
{
    char path[SHELF_MODEL_SIZE + 16];
    snprintf(path, sizeof path, "%s/checkpoints", model);
    int result = 0, folder = openat(directory->root.fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char **names = folder >= 0 ? store_folder_names(folder) : NULL;
    if (names == NULL && errno != ENOENT)
        result = store_root_cannot(&directory->root, "read", path, err);
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        struct stat status;
        struct state_file file;
        struct error unread = ERROR_INIT;
        void *bytes = store_file_start(folder, names[i], &status, &file, &unread);
        bool of = bytes == NULL; /* it is of no use to anybody */
        for (size_t at = 0; at < count && !of; at++)
            of = strcmp(sessions[at].model, model) == 0 && is_of(&file, &sessions[at]);
        free(bytes);
        if (of && result == 0 && unlinkat(folder, names[i], 0) != 0 && errno != ENOENT)
            result = store_root_cannot(&directory->root, "remove", names[i], err);
        free(names[i]);
    }
    free(names);
    if (folder >= 0)
        close(folder);
    return result;
}

static int drop_rows(struct directory *directory, const struct shelf_session *sessions,
                     size_t count, struct error *err)
{
    struct store_database *database = &directory->database;
    bool was;
    if (store_database_begin(database, err) != 0)
        return -1;
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++)
        result = store_removal_session(database, sessions[i].row, true, &was, err);
    if (result != 0 || store_removal_replies(database, err) != 0) {
        store_database_rollback(database);
        return -1;
    }
    return store_database_commit(database, err) != 0
               ? -1
               : store_database_checkpoint(database, true, DATABASE_WAIT_MS, err);
}

static int directory_remove(struct shelf *shelf, const struct shelf_session *sessions, size_t count,
                            enum shelf_outcome *outcomes, struct error *err)
{
    struct directory *directory = shelf->place;
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        bool done = false; /* the files of that model */
        for (size_t before = 0; before < i && !done; before++)
            done = strcmp(sessions[before].model, sessions[i].model) == 0;
        if (!done)
            result = remove_files(directory, sessions[i].model, sessions, count, err);
    }
    if (result == 0)
        result = drop_rows(directory, sessions, count, err);
    for (size_t i = 0; i < count; i++) {
        char key[KEY_SIZE];
        key_of(&sessions[i], key);
        json_object_del(directory->known, key);
        outcomes[i] = SHELF_DONE;
    }
    return result;
}

/* ---- repair ---- */

static int count_one(void *context, const struct shelf_session *session, struct error *err)
{
    (void)session;
    (void)err;
    ((struct store_repair *)context)->whole++;
    return 0;
}

/* What is damaged is left out of a new database, and the one before is set aside. */
static int directory_repair(struct shelf *shelf, struct store_repair *repair, struct error *err)
{
    struct directory *directory = shelf->place;
    struct store_accounts accounts;
    struct error why = directory->why;
    if (why.code == ERROR_NONE &&
        directory_each(shelf, false, count_one, repair, &repair->damaged, &why) != 0 &&
        why.code != ERROR_INVALID) {
        *err = why;
        return -1;
    }
    if (why.code == ERROR_NONE && repair->damaged == 0)
        return 0;
    if (why.code == ERROR_NONE)
        error_set(&why, ERROR_INVALID, "%s: %lld sessions are damaged", shelf->name,
                  (long long)repair->damaged);
    store_accounts_init(&accounts, INT64_MAX);
    int result =
        store_salvage_run(&directory->database, &directory->root, &accounts, why.message, err);
    store_accounts_clear(&accounts);
    repair->whole = 0;
    int64_t left = 0;
    return result != 0 ? -1 : directory_each(shelf, false, count_one, repair, &left, err);
}

const struct shelf_kind shelf_directory = {.open = directory_open,
                                           .each = directory_each,
                                           .put = directory_put,
                                           .remove = directory_remove,
                                           .repair = directory_repair,
                                           .close = directory_close};
