/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_root.h"

#include "server/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int store_root_cannot(const struct store_root *root, const char *what, const char *name,
                      struct error *err)
{
    return error_set(err, ERROR_IO, "%s%s%s: cannot %s: %s", root->path, name[0] != 0 ? "/" : "",
                     name, what, strerror(errno));
}

/* The directory itself is locked, too: that lock nobody can remove. Where a file system locks no
 * directories (NFS), the file's has to do. */
static int take_lock(struct store_root *root, struct error *err)
{
    char owner[24] = "";
    root->lock = openat(root->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (root->lock < 0)
        return store_root_cannot(root, "open", "lock", err);
    bool directory = flock(root->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (!directory || flock(root->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return store_root_cannot(root, "lock", "lock", err);
        ssize_t length = pread(root->lock, owner, sizeof owner - 1, 0);
        owner[length > 0 ? strcspn(owner, "\n") : 0] = 0;
        return error_set(err, ERROR_IO, "%s: another server uses it (process %s)", root->path,
                         owner);
    }
    int length = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
    if (ftruncate(root->lock, 0) != 0 || pwrite(root->lock, owner, (size_t)length, 0) != length)
        return store_root_cannot(root, "write", "lock", err);
    return 0;
}

/* 0: there is none. -1: it cannot be read. */
static int find_secret(struct store_root *root, struct error *err)
{
    unsigned char more[SIPHASH_BYTES + 1];
    int fd = openat(root->fd, "secret", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : store_root_cannot(root, "open", "secret", err);
    ssize_t size = read(fd, more, sizeof more);
    close(fd);
    if (size != SIPHASH_BYTES)
        return error_set(err, ERROR_INVALID, "%s/secret: expected %d bytes, got %s", root->path,
                         SIPHASH_BYTES, size < SIPHASH_BYTES ? "less" : "more");
    memcpy(root->secret, more, SIPHASH_BYTES);
    return 1;
}

/* Reads the secret, or makes one that is whole or not there. */
static int read_secret(struct store_root *root, const unsigned char *first, struct error *err)
{
    unsigned char *secret = root->secret;
    int found = find_secret(root, err);
    if (found != 0)
        return found > 0 ? 0 : -1;
    if (first != NULL)
        memcpy(secret, first, SIPHASH_BYTES);
    else if (getrandom(secret, SIPHASH_BYTES, 0) != SIPHASH_BYTES)
        return store_root_cannot(root, "make", "secret", err);
    int fd = openat(root->fd, "secret.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return store_root_cannot(root, "make", "secret.tmp", err);
    bool written = write(fd, secret, SIPHASH_BYTES) == SIPHASH_BYTES && fsync(fd) == 0;
    written = close(fd) == 0 && written;
    if (!written || renameat(root->fd, "secret.tmp", root->fd, "secret") != 0 ||
        fsync(root->fd) != 0)
        return store_root_cannot(root, "write", "secret", err);
    return 0;
}

/* The directory's own name is on the disk, too; where that cannot be asked for it is left to the
 * system. */
static void sync_parent(const struct store_root *root)
{
    int parent = openat(root->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0)
        return;
    if (fsync(parent) != 0)
        log_message(LOG_LEVEL_WARN, "%s: cannot fsync the directory above it: %s", root->path,
                    strerror(errno));
    close(parent);
}

static int begin(struct store_root *root, const char *path, struct error *err)
{
    *root = (struct store_root){.path = strdup(path), .fd = -1, .lock = -1};
    return root->path != NULL ? 0 : error_set(err, ERROR_NO_MEMORY, "%s: no memory", path);
}

static int open_root(struct store_root *root, struct error *err)
{
    root->fd = open(root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return root->fd >= 0 ? 0 : store_root_cannot(root, "open", "", err);
}

int store_root_open(struct store_root *root, const char *path, const unsigned char *secret,
                    struct error *err)
{
    if (begin(root, path, err) != 0)
        return -1;
    bool made = mkdir(path, 0700) == 0;
    if (!made && errno != EEXIST)
        return store_root_cannot(root, "make", "", err);
    if (open_root(root, err) != 0)
        return -1;
    if (made)
        sync_parent(root);
    return take_lock(root, err) != 0 || read_secret(root, secret, err) != 0 ? -1 : 0;
}

int store_root_look(struct store_root *root, const char *path, struct error *err)
{
    if (begin(root, path, err) != 0 || open_root(root, err) != 0)
        return -1;
    int found = find_secret(root, err);
    return found > 0    ? 0
           : found == 0 ? error_set(err, ERROR_INVALID, "%s: expected a --state-dir, got no secret",
                                    root->path)
                        : -1;
}

void store_root_owner_tag(const unsigned char *secret, const char *api_key,
                          char tag[2 * SIPHASH_BYTES + 1])
{
    unsigned char hash[SIPHASH_BYTES];
    siphash(secret, api_key, strlen(api_key), hash);
    for (size_t i = 0; i < sizeof hash; i++)
        snprintf(tag + 2 * i, 3, "%02x", hash[i]);
}

int64_t store_root_free_bytes(const struct store_root *root)
{
    struct statvfs disk;
    if (fstatvfs(root->fd, &disk) != 0 ||
        disk.f_bavail > (fsblkcnt_t)INT64_MAX / (disk.f_frsize + 1))
        return INT64_MAX;
    return (int64_t)(disk.f_bavail * disk.f_frsize);
}

void store_root_close(struct store_root *root)
{
    if (root->lock >= 0)
        close(root->lock);
    if (root->fd >= 0)
        close(root->fd);
    free(root->path);
    *root = (struct store_root){.fd = -1, .lock = -1};
}
