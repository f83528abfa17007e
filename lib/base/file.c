/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Opens a regular file; returns the descriptor, or -1. O_NONBLOCK: a FIFO must not hang us. */
static int open_regular(const char *path, size_t *size, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat status;
    if (fstat(fd, &status) != 0) {
        error_set(err, ERROR_IO, "%s: cannot stat: %s", path, strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        error_set(err, ERROR_IO, "%s: expected a file, got %s", path,
                  S_ISDIR(status.st_mode) ? "a directory" : "something else");
    } else {
        *size = (size_t)status.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

static int read_all(int fd, const char *path, char *bytes, size_t size, struct error *err)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(fd, bytes + done, size - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(err, ERROR_IO, "%s: cannot read: %s", path, strerror(errno));
        if (got == 0)
            return error_set(err, ERROR_IO, "%s: ended after %zu of %zu bytes", path, done, size);
        done += (size_t)got;
    }
    return 0;
}

int file_read(const char *path, size_t max_bytes, char **bytes, size_t *size, struct error *err)
{
    *bytes = NULL;
    int fd = open_regular(path, size, err);
    if (fd < 0)
        return -1;
    int result = -1;
    if (*size > max_bytes)
        error_set(err, ERROR_INVALID, "%s: expected at most %zu bytes, got %zu", path, max_bytes,
                  *size);
    else if (!(*bytes = malloc(*size + 1)))
        error_set(err, ERROR_NO_MEMORY, "%s: out of memory: %zu bytes", path, *size);
    else
        result = read_all(fd, path, *bytes, *size, err);
    close(fd);
    if (result == 0) {
        (*bytes)[*size] = 0;
    } else {
        free(*bytes);
        *bytes = NULL;
    }
    return result;
}

int file_map_open(struct file_map *map, const char *path, struct error *err)
{
    *map = (struct file_map){0};
    size_t size = 0;
    int fd = open_regular(path, &size, err);
    if (fd < 0)
        return -1;
    if (size > 0) {
        void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            error_set(err, ERROR_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(errno));
        else
            *map = (struct file_map){.bytes = bytes, .size = size};
    }
    close(fd);
    return size > 0 && !map->bytes ? -1 : 0;
}

void file_map_close(struct file_map *map)
{
    if (map->bytes)
        munmap((void *)map->bytes, map->size);
    *map = (struct file_map){0};
}

void file_release(const void *bytes, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)bytes;
    uintptr_t from = (start + page - 1) / page * page, to = (start + size) / page * page;
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

void file_ahead(const void *bytes, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)bytes;
    uintptr_t from = start / page * page;
    madvise((void *)from, start + size - from, MADV_WILLNEED);
}
