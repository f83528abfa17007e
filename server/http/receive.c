/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/receive.h"

#include <dlfcn.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 1 << 20 };

/* By descriptor. A connection is read and closed by one thread only. */
static struct receiver *_Atomic *receivers;
static size_t num_receivers;
static ssize_t (*record_recv)(gnutls_session_t session, void *bytes, size_t size);

/* Not called by the name `recv` here: headers may have an inline function of that name. */
ssize_t receive_some(int fd, void *bytes, size_t size, int flags) __asm__("recv")
    __attribute__((visibility("default")));

static const char RECORD_RECV[] = "gnutls_record_recv";

int receive_start(struct error *err)
{
    long most = sysconf(_SC_OPEN_MAX);
    size_t count = most > 0 && most < MOST_DESCRIPTORS ? (size_t)most : MOST_DESCRIPTORS;
    record_recv = (ssize_t(*)(gnutls_session_t, void *, size_t))dlsym(RTLD_NEXT, RECORD_RECV);
    if (dlsym(RTLD_DEFAULT, "recv") != (void *)receive_some || record_recv == NULL ||
        dlsym(RTLD_DEFAULT, RECORD_RECV) != (void *)gnutls_record_recv)
        return error_set(
            err, ERROR_UNSUPPORTED,
            "this build cannot look at what it receives: its recv or %s is not exported",
            RECORD_RECV);
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
static bool ends(struct receiver *receiver)
{
    if (!all_answered(receiver))
        return false;
    if (receiver->error.code != API_OK && !receiver->refused) {
        receiver->refused = true;
        receiver->refuse(receiver);
    }
    return receiver->refused || receiver->closed;
}

void receive_answered(int fd, struct receiver *receiver)
{
    receiver->answered++;
    if (ends(receiver))
        /* An event for libmicrohttpd, which reads again. Behind a refusal that is the client's end:
         * what it still sends is not to be answered with a reset, which takes the reply from it. */
        shutdown(fd, receiver->refused ? SHUT_WR : SHUT_RDWR);
}

static struct receiver *receiver_of(int fd, bool secure)
{
    struct receiver *receiver =
        fd >= 0 && (size_t)fd < num_receivers ? atomic_load(&receivers[fd]) : NULL;
    return receiver && receiver->secure == secure ? receiver : NULL;
}

static bool reads(const struct receiver *receiver)
{
    return receiver->error.code == API_OK && !receiver->closed;
}

/* How many of the bytes that were read (0: the end) libmicrohttpd gets. */
static size_t take(struct receiver *receiver, char *bytes, size_t got)
{
    receiver->closed = got == 0;
    size_t good = wire_read(&receiver->wire, bytes, got, &receiver->error);
    return good == got || !all_answered(receiver) ? good : 0;
}

ssize_t receive_some(int fd, void *bytes, size_t size, int flags)
{
    struct receiver *receiver = receiver_of(fd, false);
    if (receiver == NULL)
        return recvfrom(fd, bytes, size, flags, NULL, NULL);
    ssize_t got = reads(receiver) ? recvfrom(fd, bytes, size, flags, NULL, NULL) : 0;
    if (got < 0)
        return got;
    size_t taken = reads(receiver) ? take(receiver, bytes, (size_t)got) : 0;
    if (taken > 0 || ends(receiver))
        return (ssize_t)taken;
    errno = EAGAIN;
    return -1;
}

/* A client that closes its socket without saying so in TLS sends nothing more, either: wire.h knows
 * whether its request was whole. */
ssize_t gnutls_record_recv(gnutls_session_t session, void *bytes, size_t size)
{
    struct receiver *receiver = receiver_of(gnutls_transport_get_int(session), true);
    if (receiver == NULL)
        return record_recv(session, bytes, size);
    ssize_t got = reads(receiver) ? record_recv(session, bytes, size) : 0;
    if (got < 0 && got != GNUTLS_E_PREMATURE_TERMINATION)
        return got;
    size_t taken = reads(receiver) ? take(receiver, bytes, got < 0 ? 0 : (size_t)got) : 0;
    return taken > 0 || ends(receiver) ? (ssize_t)taken : GNUTLS_E_AGAIN;
}
