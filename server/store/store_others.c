/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_others.h"

#include "engine/model/fingerprint.h"
#include "server/log.h"
#include "server/store/store_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_time(const void *a, const void *b)
{
    const struct other_file *one = a, *other = b;
    return one->modified_ns < other->modified_ns ? -1 : one->modified_ns > other->modified_ns;
}

static bool is_model(const char *name)
{
    return strlen(name) == 2 * FINGERPRINT_BYTES &&
           strspn(name, "0123456789abcdef") == 2 * FINGERPRINT_BYTES;
}

static int add(struct store_others *others, const char *path, const struct stat *status)
{
    if (others->count == others->capacity) {
        size_t capacity = 2 * others->capacity + 64;
        struct other_file *files = realloc(others->files, capacity * sizeof *files);
        if (files == NULL)
            return -1;
        others->files = files;
        others->capacity = capacity;
    }
    char *copy = strdup(path);
    if (copy == NULL)
        return -1;
    others->files[others->count++] =
        (struct other_file){.path = copy,
                            .bytes = (int64_t)status->st_size,
                            .modified_ns = store_folder_modified_ns(status)};
    others->bytes += (int64_t)status->st_size;
    return 0;
}

static int scan_folder(struct store_others *others, const char *model, const char *kind)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", model, kind);
    int folder = openat(others->root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -1;
    char **names = store_folder_names(folder);
    int result = names == NULL ? -1 : 0;
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        struct stat status;
        const char *end = strrchr(names[i], '.');
        bool cached = strcmp(kind, "checkpoints") == 0 && end != NULL &&
                      (strcmp(end, ".state") == 0 || strcmp(end, ".tmp") == 0);
        int length = snprintf(path, sizeof path, "%s/%s/%s", model, kind, names[i]);
        if (length < (int)sizeof path && result == 0 &&
            fstatat(folder, names[i], &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(status.st_mode)) {
            if (cached)
                result = add(others, path, &status);
            else
                others->kept += (int64_t)status.st_size;
        }
        free(names[i]);
    }
    free(names);
    close(folder);
    return result;
}

int store_others_scan(struct store_others *others, int root, const char *own, struct error *err)
{
    *others = (struct store_others){.root = root};
    char **names = store_folder_names(root);
    int result = names == NULL ? -1 : 0;
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        if (result == 0 && is_model(names[i]) && strcmp(names[i], own) != 0 &&
            (scan_folder(others, names[i], "sessions") != 0 ||
             scan_folder(others, names[i], "checkpoints") != 0))
            result = -1;
        free(names[i]);
    }
    free(names);
    if (result != 0)
        return error_set(err, ERROR_IO, "cannot read the folders of other models: %s",
                         strerror(errno));
    if (others->count > 0)
        qsort(others->files, others->count, sizeof *others->files, by_time);
    return 0;
}

void store_others_clear(struct store_others *others)
{
    for (size_t i = 0; i < others->count; i++)
        free(others->files[i].path);
    free(others->files);
    *others = (struct store_others){0};
}

void store_others_trim(struct store_others *others, int64_t most_bytes)
{
    for (; others->bytes > most_bytes && others->next < others->count; others->next++) {
        const struct other_file *file = &others->files[others->next];
        others->bytes -= file->bytes;
        if (unlinkat(others->root, file->path, 0) != 0 && errno != ENOENT)
            log_message(LOG_LEVEL_WARN, "%s: cannot remove: %s", file->path, strerror(errno));
    }
}
