/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    char *name;
    int64_t modified_ns;
};

int64_t store_folder_modified_ns(const struct stat *status)
{
    const int64_t second = 1000000000, most = INT64_MAX / second - 1;
    int64_t seconds = (int64_t)status->st_mtim.tv_sec;
    seconds = seconds < 0 ? 0 : seconds > most ? most : seconds;
    return seconds * second + (int64_t)status->st_mtim.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
    const struct entry *one = a, *other = b;
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

/* Sorts by the time of the files; false: no memory. */
static bool sort_names(int folder, char **names, size_t count)
{
    struct entry *entries = calloc(count + 1, sizeof *entries);
    if (entries == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct stat status;
        entries[i].name = names[i];
        if (fstatat(folder, names[i], &status, AT_SYMLINK_NOFOLLOW) == 0)
            entries[i].modified_ns = store_folder_modified_ns(&status);
    }
    qsort(entries, count, sizeof *entries, by_time);
    for (size_t i = 0; i < count; i++)
        names[i] = entries[i].name;
    free(entries);
    return true;
}

char **store_folder_names(int folder)
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
