/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/acceptor.h"

#include "server/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* ACCEPTS: of one listener, before the others have their turn. */
enum { ACCEPTS = 32, PAUSE_MS = 100, BEGIN_MS = 1000 };

struct acceptor {
    struct acceptor_options options;
    pthread_t thread;
    int wake_fd;
    struct pollfd *polls; /* [1 + listeners]: wake_fd first */
    atomic_bool closing, full;
    atomic_llong begun, ended;

    /* The thread's. */
    long long accepted; /* but for those that never began */
    bool refused;       /* the last accept found no file, or no memory: a pause follows */
    bool told;
};

/* Those that were accepted and have not begun. */
static long long arriving(struct acceptor *acceptor)
{
    long long begun = atomic_load(&acceptor->begun);
    if (acceptor->accepted < begun) /* one was given up too early */
        acceptor->accepted = begun;
    return acceptor->accepted - begun;
}

/* libmicrohttpd closes in silence what it has no memory for: it never begins. */
static void give_up_arriving(struct acceptor *acceptor)
{
    acceptor->accepted -= arriving(acceptor);
}

static bool has_room(struct acceptor *acceptor)
{
    long long ended = atomic_load(&acceptor->ended);
    return arriving(acceptor) + atomic_load(&acceptor->begun) - ended <
           acceptor->options.max_connections;
}

/* If there is none, whoever ends a connection from now on wakes the thread. */
static bool find_room(struct acceptor *acceptor)
{
    if (has_room(acceptor))
        return true;
    atomic_store(&acceptor->full, true);
    return has_room(acceptor);
}

static void wake(struct acceptor *acceptor)
{
    uint64_t one = 1;
    if (write(acceptor->wake_fd, &one, sizeof one) < 0)
        errno = 0; /* it is full, so who reads it wakes up */
}

void acceptor_begun(struct acceptor *acceptor)
{
    atomic_fetch_add(&acceptor->begun, 1);
}

void acceptor_ended(struct acceptor *acceptor)
{
    atomic_fetch_add(&acceptor->ended, 1);
    if (atomic_exchange(&acceptor->full, false))
        wake(acceptor);
}

static void report_refused(struct acceptor *acceptor, int code)
{
    if (!acceptor->told)
        log_message(LOG_LEVEL_WARN, "connections wait, as none can be accepted: %s",
                    strerror(code));
    acceptor->refused = acceptor->told = true;
}

/* Returns whether there may be more. */
static bool accept_one(struct acceptor *acceptor, const struct listener *listener)
{
    struct sockaddr_storage from = {.ss_family = listener->is_file ? AF_UNIX : AF_UNSPEC};
    socklen_t length = sizeof from;
    int fd = accept4(listener->fd, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        bool lacking = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (lacking)
            report_refused(acceptor, errno);
        /* The client may have left again, which accept reports as an error of its own. */
        return !lacking && errno != EAGAIN && errno != EWOULDBLOCK;
    }
    acceptor->told = false;
    bool secure = acceptor->options.secure && !listener->is_file;
    struct MHD_Daemon *daemon = secure ? acceptor->options.secure : acceptor->options.plain;
    if (length < sizeof from.ss_family)
        length = sizeof from.ss_family;
    acceptor->accepted++;
    if (MHD_add_connection(daemon, fd, (struct sockaddr *)&from, length) != MHD_YES)
        acceptor->accepted--; /* it is closed */
    return true;
}

static void accept_some(struct acceptor *acceptor, const struct listener *listener)
{
    for (int i = 0; i < ACCEPTS && has_room(acceptor); i++)
        if (!accept_one(acceptor, listener))
            return;
}

static void take_wake(struct acceptor *acceptor)
{
    uint64_t count;
    if (read(acceptor->wake_fd, &count, sizeof count) < 0)
        errno = 0;
}

static void *acceptor_main(void *context)
{
    struct acceptor *acceptor = context;
    const struct listeners *listeners = acceptor->options.listeners;
    pthread_setname_np(pthread_self(), "regla-accept");
    while (!atomic_load(&acceptor->closing)) {
        bool room = find_room(acceptor), listening = room && !acceptor->refused;
        int timeout = acceptor->refused                 ? PAUSE_MS
                      : !room && arriving(acceptor) > 0 ? BEGIN_MS
                                                        : -1;
        int count = poll(acceptor->polls, listening ? 1 + listeners->count : 1, timeout);
        if (count == 0 && !room)
            give_up_arriving(acceptor);
        acceptor->refused = false;
        if (count > 0 && acceptor->polls[0].revents)
            take_wake(acceptor);
        for (size_t i = 0; listening && i < listeners->count && count > 0; i++)
            if (acceptor->polls[1 + i].revents)
                accept_some(acceptor, &listeners->items[i]);
    }
    return NULL;
}

int acceptor_start(struct acceptor **out, const struct acceptor_options *options, struct error *err)
{
    struct acceptor *acceptor = calloc(1, sizeof *acceptor);
    if (!acceptor)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for connections");
    acceptor->options = *options;
    acceptor->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    acceptor->polls = calloc(1 + options->listeners->count, sizeof *acceptor->polls);
    if (acceptor->wake_fd < 0 || !acceptor->polls) {
        acceptor_free(acceptor);
        return error_set(err, ERROR_IO, "cannot wait for connections: %s", strerror(errno));
    }
    acceptor->polls[0] = (struct pollfd){acceptor->wake_fd, POLLIN, 0};
    for (size_t i = 0; i < options->listeners->count; i++)
        acceptor->polls[1 + i] = (struct pollfd){options->listeners->items[i].fd, POLLIN, 0};
    *out = acceptor;
    int code = pthread_create(&acceptor->thread, NULL, acceptor_main, acceptor);
    if (code == 0)
        return 0;
    *out = NULL;
    acceptor_free(acceptor);
    return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
}

void acceptor_stop(struct acceptor *acceptor)
{
    atomic_store(&acceptor->closing, true);
    wake(acceptor);
    pthread_join(acceptor->thread, NULL);
}

void acceptor_free(struct acceptor *acceptor)
{
    if (!acceptor)
        return;
    if (acceptor->wake_fd >= 0)
        close(acceptor->wake_fd);
    free(acceptor->polls);
    free(acceptor);
}
