/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_others.h"

#include "engine/model/fingerprint.h"
#include "server/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int64_t store_modified_ns(const struct stat *status)
{
    const int64_t second = 1000000000, most = INT64_MAX / second - 1;
    int64_t seconds = (int64_t)status->st_mtim.tv_sec;
    seconds = seconds < 0 ? 0 : seconds > most ? most : seconds;
    return seconds * second + (int64_t)status->st_mtim.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
    const struct other_file *one = a, *other = b;
    return one->modified_ns < other->modified_ns ? -1 : one->modified_ns > other->modified_ns;
}

static void free_names(char **names, size_t count)
{
    while (names != NULL && count > 0)
        free(names[--count]);
    free(names);
}

/* Adds a copy of the name; false: no memory. */
static bool add_name(char ***names, size_t *count, size_t *room, const char *name)
{
    if (*count + 2 > *room) {
        size_t more = 2 * *room + 64;
        char **grown = realloc(*names, more * sizeof *grown);
        if (grown == NULL)
            return false;
        *names = grown;
        *room = more;
    }
    (*names)[*count] = strdup(name);
    if ((*names)[*count] == NULL)
        return false;
    (*names)[++*count] = NULL;
    return true;
}

/* By the time of the files; false: no memory. */
static bool sort_names(int folder, char **names, size_t count)
{
    struct other_file *files = calloc(count + 1, sizeof *files);
    if (files == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct stat status;
        files[i].path = names[i];
        if (fstatat(folder, names[i], &status, AT_SYMLINK_NOFOLLOW) == 0)
            files[i].modified_ns = store_modified_ns(&status);
    }
    qsort(files, count, sizeof *files, by_time);
    for (size_t i = 0; i < count; i++)
        names[i] = files[i].path;
    free(files);
    return true;
}

char **store_names(int folder)
{
    size_t count = 0, room = 0;
    char **names = NULL;
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream == NULL) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    bool fine = true;
    struct dirent *entry;
    while (fine && (errno = 0, entry = readdir(stream)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            fine = add_name(&names, &count, &room, entry->d_name);
    if (names == NULL && fine && errno == 0)
        names = calloc(1, sizeof *names);
    int code = errno;
    closedir(stream);
    if (fine && code == 0 && sort_names(folder, names, count))
        return names;
    free_names(names, count);
    errno = code;
    return NULL;
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
    others->files[others->count++] = (struct other_file){
        .path = copy, .bytes = (int64_t)status->st_size, .modified_ns = store_modified_ns(status)};
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
    char **names = store_names(folder);
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
    char **names = store_names(root);
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
