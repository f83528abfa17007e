/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_orphans.h"

#include "server/states/session_meta.h"
#include "server/store/session_rows.h"
#include "server/store/store_removal.h"
#include "server/store/store_root.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct finding {
    char (*tags)[STORE_OWNER_SIZE]; /* [num_tags]: of the keys */
    size_t num_tags;
    char (*names)[STORE_NAME_SIZE]; /* [count]: of the orphans' rows */
    size_t count, capacity;
    struct session_orphans *out;
};

static int look_at(void *context, struct session_row *row, struct error *err)
{
    struct finding *finding = context;
    struct session_meta meta;
    bool known = session_meta_parse(&meta, row->meta, row->meta_length) != 0;
    for (size_t i = 0; i < finding->num_tags && !known; i++)
        known = strcmp(finding->tags[i], meta.owner) == 0;
    if (known) {
        finding->out->others++;
        return 0;
    }
    if (finding->count == finding->capacity) {
        size_t capacity = 2 * finding->capacity + 64;
        void *names = realloc(finding->names, capacity * sizeof *finding->names);
        if (!names)
            return error_set(err, ERROR_NO_MEMORY, "out of memory for the names of sessions");
        finding->names = names;
        finding->capacity = capacity;
    }
    memcpy(finding->names[finding->count++], row->name, sizeof row->name);
    finding->out->sessions++;
    finding->out->tokens += row->count;
    return 0;
}

static int remove_all(struct store_database *database, const struct finding *finding,
                      struct error *err)
{
    int result = store_database_begin(database, err);
    for (size_t i = 0; i < finding->count && result == 0; i++) {
        bool was;
        result = store_removal_session(database, finding->names[i], true, &was, err);
    }
    if (result == 0)
        result = store_removal_replies(database, err);
    if (result == 0)
        result = store_database_commit(database, err);
    else
        store_database_rollback(database);
    return result == 0 ? store_database_checkpoint(database, true, DATABASE_WAIT_MS, err) : -1;
}

static int find(struct finding *finding, const char *directory, bool remove, struct error *err)
{
    struct store_database database;
    int64_t damaged = 0;
    if (store_database_open(&database, directory, DATABASE_NAME, err))
        return -1;
    int result = session_rows_load(&database, NULL, look_at, finding, &damaged, err);
    if (result == 0 && remove && finding->count)
        result = remove_all(&database, finding, err);
    store_database_close(&database);
    return result;
}

int session_orphans_find(const char *directory, char *const *keys, size_t count, bool remove,
                         struct session_orphans *out, struct error *err)
{
    struct store_root root = {.fd = -1, .lock = -1};
    struct finding finding = {.num_tags = count ? count : 1, .out = out};
    struct stat status;
    char secret[PATH_MAX];
    *out = (struct session_orphans){0};
    if (stat(directory, &status) != 0 || !S_ISDIR(status.st_mode))
        return error_set(err, ERROR_INVALID, "%s: expected a directory", directory);
    /* A new one would make orphans of all. */
    snprintf(secret, sizeof secret, "%s/secret", directory);
    if (stat(secret, &status) != 0)
        return error_set(err, ERROR_INVALID, "%s: cannot read it, so no owner is known: %s", secret,
                         strerror(errno));
    finding.tags = calloc(finding.num_tags, sizeof *finding.tags);
    int result = finding.tags ? store_root_open(&root, directory, NULL, err)
                              : error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
    for (size_t i = 0; i < finding.num_tags && result == 0; i++)
        store_root_owner_tag(root.secret, count ? keys[i] : "", finding.tags[i]);
    if (result == 0)
        result = find(&finding, directory, remove, err);
    store_root_close(&root);
    free(finding.tags);
    free(finding.names);
    return result;
}
