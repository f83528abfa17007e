/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_file.h"

#include "server/store/store_op.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool store_file_has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), tail = strlen(suffix);
    return length > tail && strcmp(name + length - tail, suffix) == 0;
}

int64_t store_file_size(int folder, const char *name)
{
    struct stat status;
    return fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 ? (int64_t)status.st_size : -1;
}

int store_file_read(int fd, void *bytes, size_t from, size_t to, struct error *err)
{
    while (from < to) {
        ssize_t got = pread(fd, (char *)bytes + from, to - from, (off_t)from);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, ERROR_IO, "cannot read: %s",
                             got == 0 ? "the file has become shorter" : strerror(errno));
        from += (size_t)got;
    }
    return 0;
}

int store_file_open(int folder, const char *name, struct stat *status, struct error *err)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, status) != 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        error_set(err, code == ELOOP ? ERROR_INVALID : ERROR_IO, "cannot open: %s", strerror(code));
        errno = code;
        return -1;
    }
    if (S_ISREG(status->st_mode))
        return fd;
    close(fd);
    return error_set(err, ERROR_INVALID, "it is no regular file");
}

static void *read_start(int fd, size_t size, struct state_file *file, struct error *err)
{
    size_t have = size < STATE_FILE_MAX_HEAD_BYTES ? size : STATE_FILE_MAX_HEAD_BYTES;
    char *bytes = malloc(have + 1);
    for (int pass = 0; bytes != NULL; pass++) {
        if (store_file_read(fd, bytes, pass == 0 ? 0 : STATE_FILE_MAX_HEAD_BYTES, have, err) != 0 ||
            state_file_parse_part(file, bytes, have, size, err) != 0)
            break;
        size_t wanted = file->state.present    ? file->state.offset
                        : file->logits.present ? file->logits.offset
                                               : size;
        if (wanted <= have)
            return bytes;
        char *more = realloc(bytes, wanted);
        if (more == NULL)
            break;
        bytes = more;
        have = wanted;
    }
    free(bytes);
    error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", size); /* if it is nothing else */
    return NULL;
}

void *store_file_start(int folder, const char *name, struct stat *status, struct state_file *file,
                       struct error *err)
{
    *status = (struct stat){0};
    int fd = store_file_open(folder, name, status, err);
    if (fd < 0)
        return NULL;
    void *bytes = read_start(fd, (size_t)status->st_size, file, err);
    close(fd);
    return bytes;
}

bool store_file_stem(const char *name, const char *suffix, char out[STORE_NAME_SIZE])
{
    size_t length = strlen(name) - strlen(suffix);
    if (length >= STORE_NAME_SIZE || name[0] == '.')
        return false;
    memcpy(out, name, length);
    out[length] = 0;
    return true;
}
