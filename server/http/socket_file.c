/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/socket_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_TRIES = 100, LOCK_PAUSE_MS = 50 };

/* The files of this process, which may end without closing them one by one. */
struct socket_file {
    struct socket_file *next;
    int fd;
    dev_t device;
    ino_t inode;
    struct sockaddr_un address;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct socket_file *files;

/* Two servers that start at once must not both find a file stale, and the second remove what the
 * first has made: who looks, removes and binds holds the lock of the folder. */
static int lock_folder(const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!folder)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (fd < 0)
        return error_set(err, ERROR_IO, "cannot open its folder: %s", strerror(errno));
    struct timespec pause = {0, LOCK_PAUSE_MS * 1000000L};
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (i == LOCK_TRIES || errno != EWOULDBLOCK) {
            int code = errno;
            close(fd);
            return error_set(err, ERROR_IO, "cannot lock its folder: %s",
                             code == EWOULDBLOCK ? "another process holds the lock"
                                                 : strerror(code));
        }
        nanosleep(&pause, NULL);
    }
    return fd;
}

/* 0: nobody listens there; else what tells: an errno, or EADDRINUSE. */
static int who_listens(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int code = connect(fd, (const struct sockaddr *)address, sizeof *address) ? errno : EADDRINUSE;
    close(fd);
    /* EAGAIN: its line is full. EPROTOTYPE: a socket of another type, which is open. */
    return code == ECONNREFUSED || code == ENOENT ? 0
           : code == EAGAIN || code == EPROTOTYPE ? EADDRINUSE
                                                  : code;
}

static int make_room(const struct sockaddr_un *address, struct error *err)
{
    struct stat before, now;
    const char *path = address->sun_path;
    if (lstat(path, &before))
        return errno == ENOENT ? 0 : error_set(err, ERROR_IO, "%s", strerror(errno));
    if (!S_ISSOCK(before.st_mode))
        return error_set(err, ERROR_IO, "expected no file or a socket, got another file");
    int code = who_listens(address);
    if (code)
        return error_set(err, ERROR_IO, "%s",
                         code == EADDRINUSE ? "another process listens there" : strerror(code));
    if (lstat(path, &now) == 0 && now.st_dev == before.st_dev && now.st_ino == before.st_ino &&
        unlink(path))
        return error_set(err, ERROR_IO, "cannot remove what a dead server left: %s",
                         strerror(errno));
    return 0;
}

/* The file is never more open than `mode`, whatever the umask is. */
static int bind_and_listen(struct socket_file *file, mode_t mode, int backlog)
{
    const char *path = file->address.sun_path;
    struct stat made;
    if (fchmod(file->fd, S_IRUSR | S_IWUSR) ||
        bind(file->fd, (struct sockaddr *)&file->address, sizeof file->address))
        return -1;
    if (chmod(path, mode) || lstat(path, &made) || listen(file->fd, backlog)) {
        int code = errno;
        unlink(path);
        errno = code;
        return -1;
    }
    file->device = made.st_dev;
    file->inode = made.st_ino;
    return 0;
}

static int open_locked(struct socket_file *file, mode_t mode, int backlog, struct error *err)
{
    if (make_room(&file->address, err))
        return -1;
    file->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file->fd < 0)
        return error_set(err, ERROR_IO, "cannot make a socket: %s", strerror(errno));
    if (bind_and_listen(file, mode, backlog) == 0)
        return 0;
    error_set(err, ERROR_IO, "cannot listen: %s", strerror(errno));
    close(file->fd);
    return -1;
}

int socket_file_open(const char *path, mode_t mode, int backlog, struct error *err)
{
    struct socket_file *file = calloc(1, sizeof *file);
    if (!file)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    size_t length = strlen(path);
    int folder = -1, result = -1;
    file->address.sun_family = AF_UNIX;
    if (length == 0 || length >= sizeof file->address.sun_path) {
        error_set(err, ERROR_INVALID, "expected a path of 1 to %zu bytes, got %zu",
                  sizeof file->address.sun_path - 1, length);
    } else {
        memcpy(file->address.sun_path, path, length);
        folder = lock_folder(path, err);
        result = folder < 0 ? -1 : open_locked(file, mode, backlog, err);
    }
    if (folder >= 0)
        close(folder);
    if (result) {
        free(file);
        return -1;
    }
    pthread_mutex_lock(&lock);
    file->next = files;
    files = file;
    pthread_mutex_unlock(&lock);
    return file->fd;
}

/* While it is listened on, no other server of ours takes the path. */
static void remove_file(const struct socket_file *file)
{
    struct stat now;
    const char *path = file->address.sun_path;
    if (lstat(path, &now) == 0 && now.st_dev == file->device && now.st_ino == file->inode)
        unlink(path);
}

void socket_file_close(int fd)
{
    pthread_mutex_lock(&lock);
    struct socket_file **at = &files;
    while (*at && (*at)->fd != fd)
        at = &(*at)->next;
    struct socket_file *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    if (found)
        remove_file(found);
    free(found);
    close(fd);
}

void socket_file_remove_all(void)
{
    pthread_mutex_lock(&lock);
    for (const struct socket_file *file = files; file; file = file->next)
        remove_file(file);
    pthread_mutex_unlock(&lock);
}
