/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_copy.h"

#include "lib/base/siphash.h"
#include "server/store/store_database.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

static int cannot(const char *path, const char *what, struct error *err)
{
    return error_set(err, ERROR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

static int copy_secret(const char *directory, const char *copy, struct error *err)
{
    unsigned char secret[SIPHASH_BYTES];
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/secret", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return cannot(path, "open", err);
    ssize_t size = read(fd, secret, sizeof secret);
    close(fd);
    if (size != (ssize_t)sizeof secret)
        return error_set(err, ERROR_INVALID, "%s: expected %d bytes", path, SIPHASH_BYTES);
    snprintf(path, sizeof path, "%s/secret", copy);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return cannot(path, "make", err);
    int result = write(fd, secret, sizeof secret) == (ssize_t)sizeof secret && fsync(fd) == 0
                     ? 0
                     : cannot(path, "write", err);
    close(fd);
    return result;
}

static int sync_directory(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd >= 0 && fsync(fd) == 0 ? 0 : cannot(path, "write", err);
    if (fd >= 0)
        close(fd);
    return result;
}

int store_copy(const char *directory, const char *copy, struct error *err)
{
    char from[PATH_SIZE], to[PATH_SIZE];
    if (strlen(directory) + 32 > sizeof from || strlen(copy) + 32 > sizeof to)
        return error_set(err, ERROR_INVALID, "the name of a directory is too long");
    snprintf(from, sizeof from, "%s/" DATABASE_NAME, directory);
    if (access(from, R_OK) != 0)
        return cannot(from, "open", err);
    if (mkdir(copy, 0700) != 0)
        return cannot(copy, "make", err);
    snprintf(to, sizeof to, "%s/" DATABASE_NAME, copy);
    if (copy_secret(directory, copy, err) != 0 || store_database_copy(directory, to, err) != 0)
        return -1;
    return sync_directory(copy, err);
}
