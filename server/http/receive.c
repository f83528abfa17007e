/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/receive.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 1 << 20 };

/* By descriptor. A connection is read and closed by one thread only. */
static struct receiver *_Atomic *receivers;
static size_t num_receivers;

/* Not called by the name `recv` here: headers may have an inline function of that name. */
ssize_t receive_some(int fd, void *bytes, size_t size, int flags) __asm__("recv")
    __attribute__((visibility("default")));

int receive_start(struct error *err)
{
    long most = sysconf(_SC_OPEN_MAX);
    size_t count = most > 0 && most < MOST_DESCRIPTORS ? (size_t)most : MOST_DESCRIPTORS;
    if (dlsym(RTLD_DEFAULT, "recv") != (void *)receive_some)
        return error_set(err, ERROR_UNSUPPORTED,
                         "this build cannot look at what it receives: its recv is not exported");
    if (receivers == NULL)
        receivers = calloc(count, sizeof *receivers);
    if (receivers == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu descriptors", count);
    num_receivers = count;
    return 0;
}

int receive_watch(int fd, struct receiver *receiver)
{
    if (fd < 0 || (size_t)fd >= num_receivers)
        return -1;
    atomic_store(&receivers[fd], receiver);
    return 0;
}

void receive_forget(int fd)
{
    if (fd >= 0 && (size_t)fd < num_receivers)
        atomic_store(&receivers[fd], NULL);
}

static bool all_answered(const struct receiver *receiver)
{
    return receiver->answered >= receiver->wire.ended;
}

/* Whether libmicrohttpd is told that the connection has ended: it drops requests that it still
 * answers then. */
static bool ends(struct receiver *receiver, int fd)
{
    if (!all_answered(receiver))
        return false;
    if (receiver->error.code != API_OK && !receiver->refused) {
        receiver->refused = true;
        receiver->refuse(receiver, fd);
    }
    return receiver->refused || receiver->closed;
}

void receive_answered(int fd, struct receiver *receiver)
{
    receiver->answered++;
    if (ends(receiver, fd))
        shutdown(fd, SHUT_RDWR); /* an event for libmicrohttpd, which reads again */
}

ssize_t receive_some(int fd, void *bytes, size_t size, int flags)
{
    struct receiver *receiver =
        fd >= 0 && (size_t)fd < num_receivers ? atomic_load(&receivers[fd]) : NULL;
    if (receiver == NULL)
        return recvfrom(fd, bytes, size, flags, NULL, NULL);
    if (receiver->error.code == API_OK && !receiver->closed) {
        ssize_t got = recvfrom(fd, bytes, size, flags, NULL, NULL);
        if (got < 0)
            return got;
        receiver->closed = got == 0;
        size_t good = wire_read(&receiver->wire, bytes, (size_t)got, &receiver->error);
        if (good > 0 && (good == (size_t)got || !all_answered(receiver)))
            return (ssize_t)good;
    }
    if (ends(receiver, fd))
        return 0;
    errno = EAGAIN;
    return -1;
}
