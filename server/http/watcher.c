/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/watcher.h"

#include "lib/base/clock.h"
#include "server/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TICK_MS = 200, NUM_EVENTS = 64, LINGER_SLOTS = 64 };
enum { LINGER_SECONDS = 2, HALF_CLOSED_SECONDS = 1 };
/* LOOKS: at connections that seem idle, for one that has to go. */
enum { LOOKS = 64, TELL_SECONDS = 60 };

enum peer_phase { PEER_FREE, PEER_IDLE, PEER_RECEIVING, PEER_ANSWERING, PEER_CUT, PEER_LINGERING };

/* One connection. The generation tells an event of an earlier user of the slot. */
struct peer {
    int fd;
    enum peer_phase phase;
    uint32_t generation;
    bool half_closed; /* it sends nothing more */
    double half_closed_at;
    bool gone; /* it receives nothing more, either */
    bool timed_out;
    bool probes;    /* with a ticket: the ticket may be probed */
    bool spare;     /* it came when all places were at work, and has none of them */
    double since;   /* of the phase */
    uint64_t taken; /* bytes, when it became idle */
    struct ticket *ticket;
    int before, after; /* in the line of its phase; -1: none */
    int next_free;
};

/* Those of a phase, the longest in it first. */
struct line {
    int first, last; /* -1: none */
};

struct watcher {
    struct watcher_options options;
    pthread_t thread;
    int epoll_fd, wake_fd;

    pthread_mutex_t lock; /* of what follows */
    struct peer *peers;   /* [num_peers]: connections, then lingering sockets */
    int num_peers;
    int first_free, num_lingering;
    int num_open, num_spare; /* connections that have not been cut: with a place, and without */
    struct line idle, receiving;
    double told; /* that places are taken */
    bool closing;
};

static uint64_t tag(const struct watcher *watcher, int slot)
{
    return (uint64_t)watcher->peers[slot].generation << 32 | (uint32_t)slot;
}

/* Bytes that the connection has ever received. An event would not tell: libmicrohttpd may have read
 * the bytes before the watcher looks. */
static uint64_t bytes_received(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) ? 0 : info.tcpi_bytes_received;
}

/* Of these, what we have read: the rest begins the next request. */
static uint64_t bytes_taken(int fd)
{
    uint64_t received = bytes_received(fd);
    int unread = 0;
    return ioctl(fd, FIONREAD, &unread) || (uint64_t)unread > received
               ? received
               : received - (uint64_t)unread;
}

/* Called with the lock held, as everything below except watcher_main and the public functions. */
static struct line *line_of(struct watcher *watcher, enum peer_phase phase)
{
    return phase == PEER_IDLE        ? &watcher->idle
           : phase == PEER_RECEIVING ? &watcher->receiving
                                     : NULL;
}

static void leave_line(struct watcher *watcher, int slot)
{
    const struct peer *peer = &watcher->peers[slot];
    struct line *line = line_of(watcher, peer->phase);
    if (!line)
        return;
    *(peer->before < 0 ? &line->first : &watcher->peers[peer->before].after) = peer->after;
    *(peer->after < 0 ? &line->last : &watcher->peers[peer->after].before) = peer->before;
}

static void join_line(struct watcher *watcher, int slot)
{
    struct peer *peer = &watcher->peers[slot];
    struct line *line = line_of(watcher, peer->phase);
    if (!line)
        return;
    peer->before = line->last;
    peer->after = -1;
    *(line->last < 0 ? &line->first : &watcher->peers[line->last].after) = slot;
    line->last = slot;
}

static bool is_open(enum peer_phase phase)
{
    return phase == PEER_IDLE || phase == PEER_RECEIVING || phase == PEER_ANSWERING;
}

static void count(struct watcher *watcher, const struct peer *peer, int more)
{
    if (is_open(peer->phase))
        *(peer->spare ? &watcher->num_spare : &watcher->num_open) += more;
}

static void set_phase(struct watcher *watcher, int slot, enum peer_phase phase)
{
    struct peer *peer = &watcher->peers[slot];
    leave_line(watcher, slot);
    count(watcher, peer, -1);
    peer->phase = phase;
    peer->since = clock_seconds();
    count(watcher, peer, 1);
    join_line(watcher, slot);
}

static void set_spare(struct watcher *watcher, int slot, bool spare)
{
    struct peer *peer = &watcher->peers[slot];
    count(watcher, peer, -1);
    peer->spare = spare;
    count(watcher, peer, 1);
}

static int take_slot(struct watcher *watcher, int fd, enum peer_phase phase)
{
    int slot = watcher->first_free;
    if (slot < 0)
        return -1;
    struct peer *peer = &watcher->peers[slot];
    watcher->first_free = peer->next_free;
    *peer = (struct peer){.fd = fd, .phase = PEER_FREE, .generation = peer->generation + 1};
    set_phase(watcher, slot, phase);
    struct epoll_event event = {.events = phase == PEER_LINGERING ? EPOLLIN : EPOLLRDHUP | EPOLLET,
                                .data.u64 = tag(watcher, slot)};
    if (epoll_ctl(watcher->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return slot;
    set_phase(watcher, slot, PEER_FREE);
    peer->next_free = watcher->first_free;
    watcher->first_free = slot;
    return -1;
}

static void give_slot(struct watcher *watcher, int slot)
{
    struct peer *peer = &watcher->peers[slot];
    epoll_ctl(watcher->epoll_fd, EPOLL_CTL_DEL, peer->fd, NULL);
    set_phase(watcher, slot, PEER_FREE);
    peer->next_free = watcher->first_free;
    watcher->first_free = slot;
}

static void end_linger(struct watcher *watcher, int slot)
{
    int fd = watcher->peers[slot].fd;
    give_slot(watcher, slot);
    close(fd);
    watcher->num_lingering--;
}

static void discard(struct watcher *watcher, int slot)
{
    char bytes[16384];
    /* Bounded, so that one fast sender does not keep the lock. The rest is read at the next
     * tick. */
    for (int i = 0; i < 64; i++) {
        ssize_t got = recv(watcher->peers[slot].fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            end_linger(watcher, slot);
            return;
        }
    }
}

/* Returns whether a ticket was cancelled. */
static bool peer_left(struct peer *peer)
{
    peer->gone = true;
    return peer->ticket && ticket_cancel(peer->ticket, CANCEL_GONE);
}

/* A client may close its half when its request is out, and still wait for the reply (RFC 9112,
 * section 9.6). Returns whether a ticket was cancelled. */
static bool peer_half_closed(struct peer *peer)
{
    if (!peer->half_closed)
        peer->half_closed_at = clock_seconds();
    peer->half_closed = true;
    if (peer->ticket == NULL)
        return false;
    if (!peer->probes)
        return peer_left(peer);
    ticket_probe(peer->ticket);
    return false;
}

static bool handle_event(struct watcher *watcher, const struct epoll_event *event)
{
    int slot = (int)(uint32_t)event->data.u64;
    struct peer *peer = &watcher->peers[slot];
    if (event->data.u64 != tag(watcher, slot) || peer->phase == PEER_FREE)
        return false;
    if (peer->phase == PEER_LINGERING) {
        discard(watcher, slot);
        return false;
    }
    if (event->events & (EPOLLHUP | EPOLLERR))
        return peer_left(peer);
    return (event->events & EPOLLRDHUP) && !peer->half_closed ? peer_half_closed(peer) : false;
}

/* libmicrohttpd sees the end of both directions and closes the connection. */
static void cut(struct watcher *watcher, int slot)
{
    shutdown(watcher->peers[slot].fd, SHUT_RDWR);
    set_phase(watcher, slot, PEER_CUT);
}

static bool has_begun(const struct peer *peer)
{
    int unread = 0;
    return bytes_received(peer->fd) > peer->taken ||
           (ioctl(peer->fd, FIONREAD, &unread) == 0 && unread > 0);
}

/* The first of a line but the newcomer. There are few spare ones; where others look for one of
 * these, the lines have no others. */
static int first_of(const struct watcher *watcher, const struct line *line, int newcomer,
                    bool spare)
{
    int slot = line->first;
    while (slot >= 0 && (slot == newcomer || watcher->peers[slot].spare != spare))
        slot = watcher->peers[slot].after;
    return slot;
}

/* Which connection goes for the newcomer; -1: all are at work. */
static int next_to_go(struct watcher *watcher, int newcomer, bool spare)
{
    const struct peer *peers = watcher->peers;
    int receiving = -1;
    for (int i = 0; i < LOOKS; i++) {
        int idle = first_of(watcher, &watcher->idle, newcomer, spare);
        receiving = first_of(watcher, &watcher->receiving, newcomer, spare);
        if (idle >= 0 && has_begun(&peers[idle]))
            set_phase(watcher, idle, PEER_RECEIVING);
        else
            return idle >= 0 && (receiving < 0 || peers[idle].since <= peers[receiving].since)
                       ? idle
                       : receiving;
    }
    return receiving;
}

static bool cut_one(struct watcher *watcher, int newcomer, bool spare)
{
    int slot = next_to_go(watcher, newcomer, spare);
    if (slot < 0)
        return false;
    watcher->peers[slot].timed_out = watcher->peers[slot].phase == PEER_RECEIVING;
    cut(watcher, slot);
    return true;
}

/* Gives a connection a place, for which another one may have to go. False: all are at work. */
static bool take_place(struct watcher *watcher, int slot)
{
    set_spare(watcher, slot, false);
    while (watcher->num_open > watcher->options.max_connections)
        if (!cut_one(watcher, slot, false)) {
            set_spare(watcher, slot, true);
            return false;
        }
    return true;
}

/* Half of the spare places are for those that begin; the others for those that end. */
static void bound_spare(struct watcher *watcher, int newcomer)
{
    while (watcher->num_spare > WATCHER_SPARE_PLACES / 2)
        if (!cut_one(watcher, newcomer, true))
            return;
}

/* libmicrohttpd takes 128 events at a time. After exactly 128 it waits for more before it serves
 * any, as long as connections may idle. When SO_RCVLOWAT is set, Linux reports unread bytes once
 * more, and that is an event. Of a Unix socket it does not; there it reports room to write when
 * SO_SNDBUF is set, here to what it is (Linux doubles what it is given). */
static void remind_of_bytes(int fd)
{
    int unread = 0, least = 1, domain = 0, room = 0;
    socklen_t size = sizeof domain, room_size = sizeof room;
    if (ioctl(fd, FIONREAD, &unread) || unread == 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) || domain != AF_UNIX) {
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    } else if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &room_size) == 0) {
        room /= 2;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    }
}

static void check_peer(struct watcher *watcher, int slot, double now)
{
    struct peer *peer = &watcher->peers[slot];
    if (peer->ticket)
        ticket_check_due(peer->ticket, now);
    if (peer->phase == PEER_IDLE && bytes_received(peer->fd) > peer->taken)
        set_phase(watcher, slot, PEER_RECEIVING);
    /* Idle, too: libmicrohttpd may have read the beginning of a request with the one before. */
    if (peer->phase == PEER_IDLE || peer->phase == PEER_RECEIVING)
        remind_of_bytes(peer->fd);
    if (peer->phase == PEER_LINGERING) {
        if (now - peer->since > LINGER_SECONDS)
            end_linger(watcher, slot);
        else
            discard(watcher, slot);
    } else if (peer->phase == PEER_RECEIVING &&
               now - peer->since > watcher->options.request_timeout_s) {
        peer->timed_out = true;
        cut(watcher, slot);
    } else if ((peer->gone || peer->half_closed) &&
               (peer->phase == PEER_IDLE || peer->phase == PEER_RECEIVING) &&
               now - peer->since > HALF_CLOSED_SECONDS &&
               (!peer->half_closed || now - peer->half_closed_at > HALF_CLOSED_SECONDS)) {
        /* Half a request has come, and nothing follows. A whole one would have been taken by
         * now. */
        cut(watcher, slot);
    }
}

static void check_deadlines(struct watcher *watcher)
{
    double now = clock_seconds();
    for (int i = 0; i < watcher->num_peers; i++)
        if (watcher->peers[i].phase != PEER_FREE)
            check_peer(watcher, i, now);
}

static void *watcher_main(void *context)
{
    struct watcher *watcher = context;
    struct epoll_event events[NUM_EVENTS];
    pthread_setname_np(pthread_self(), "regla-watcher");
    double checked = clock_seconds();
    for (bool closing = false; !closing;) {
        int count = epoll_wait(watcher->epoll_fd, events, NUM_EVENTS, TICK_MS);
        bool cancelled = false;
        pthread_mutex_lock(&watcher->lock);
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 != UINT64_MAX)
                cancelled |= handle_event(watcher, &events[i]);
        if (clock_seconds() - checked >= TICK_MS / 1000.0) {
            check_deadlines(watcher);
            checked = clock_seconds();
        }
        closing = watcher->closing;
        pthread_mutex_unlock(&watcher->lock);
        if (cancelled)
            watcher->options.cancelled(watcher->options.context);
    }
    return NULL;
}

static void watcher_release(struct watcher *watcher)
{
    if (watcher->epoll_fd >= 0)
        close(watcher->epoll_fd);
    if (watcher->wake_fd >= 0)
        close(watcher->wake_fd);
    pthread_mutex_destroy(&watcher->lock);
    free(watcher->peers);
    free(watcher);
}

int watcher_create(struct watcher **out, const struct watcher_options *options, struct error *err)
{
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (!watcher)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the watcher");
    watcher->options = *options;
    pthread_mutex_init(&watcher->lock, NULL);
    watcher->num_peers = options->max_connections + WATCHER_SPARE_PLACES + LINGER_SLOTS;
    watcher->idle = watcher->receiving = (struct line){-1, -1};
    watcher->told = -TELL_SECONDS;
    watcher->peers = calloc((size_t)watcher->num_peers, sizeof *watcher->peers);
    watcher->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    watcher->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (!watcher->peers || watcher->epoll_fd < 0 || watcher->wake_fd < 0 ||
        epoll_ctl(watcher->epoll_fd, EPOLL_CTL_ADD, watcher->wake_fd, &wake)) {
        watcher_release(watcher);
        return error_set(err, ERROR_IO, "cannot watch sockets: %s", strerror(errno));
    }
    for (int i = 0; i < watcher->num_peers; i++)
        watcher->peers[i].next_free = i + 1 < watcher->num_peers ? i + 1 : -1;
    int code = pthread_create(&watcher->thread, NULL, watcher_main, watcher);
    if (code) {
        watcher_release(watcher);
        return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
    }
    *out = watcher;
    return 0;
}

void watcher_free(struct watcher *watcher)
{
    if (!watcher)
        return;
    pthread_mutex_lock(&watcher->lock);
    watcher->closing = true;
    pthread_mutex_unlock(&watcher->lock);
    uint64_t one = 1;
    if (write(watcher->wake_fd, &one, sizeof one) < 0)
        errno = 0; /* the next tick does it */
    pthread_join(watcher->thread, NULL);
    for (int i = 0; i < watcher->num_peers; i++)
        if (watcher->peers[i].phase == PEER_LINGERING)
            end_linger(watcher, i);
    watcher_release(watcher);
}

int watcher_add(struct watcher *watcher, int fd)
{
    pthread_mutex_lock(&watcher->lock);
    int slot = take_slot(watcher, fd, PEER_IDLE);
    bool full = slot >= 0 && watcher->num_open > watcher->options.max_connections;
    bool tells = full && clock_seconds() - watcher->told >= TELL_SECONDS;
    if (full && !take_place(watcher, slot))
        bound_spare(watcher, slot);
    if (tells)
        watcher->told = clock_seconds();
    pthread_mutex_unlock(&watcher->lock);
    if (tells)
        log_message(LOG_LEVEL_WARN,
                    "all %d connections that --max-connections allows are taken: those that are "
                    "idle, or have sent a part of a request, go for new ones",
                    watcher->options.max_connections);
    return slot;
}

bool watcher_has_place(struct watcher *watcher, int slot)
{
    if (slot < 0)
        return true;
    pthread_mutex_lock(&watcher->lock);
    bool has = !watcher->peers[slot].spare || take_place(watcher, slot);
    pthread_mutex_unlock(&watcher->lock);
    return has;
}

void watcher_remove(struct watcher *watcher, int slot, bool linger)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&watcher->lock);
    int fd = watcher->peers[slot].fd;
    linger = linger && !watcher->peers[slot].gone && watcher->num_lingering < LINGER_SLOTS;
    give_slot(watcher, slot);
    int copy = linger ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (copy >= 0) {
        shutdown(copy, SHUT_WR);
        if (take_slot(watcher, copy, PEER_LINGERING) >= 0)
            watcher->num_lingering++;
        else
            close(copy);
    }
    pthread_mutex_unlock(&watcher->lock);
}

/* False: it has been cut. */
static bool enter(struct watcher *watcher, int slot, enum peer_phase phase)
{
    if (slot < 0)
        return true;
    pthread_mutex_lock(&watcher->lock);
    struct peer *peer = &watcher->peers[slot];
    bool is_cut = peer->phase == PEER_CUT;
    if (!is_cut && peer->phase != phase) {
        set_phase(watcher, slot, phase);
        if (phase == PEER_IDLE)
            peer->taken = bytes_taken(peer->fd);
    }
    pthread_mutex_unlock(&watcher->lock);
    return !is_cut;
}

void watcher_receiving(struct watcher *watcher, int slot)
{
    enter(watcher, slot, PEER_RECEIVING);
}

bool watcher_answering(struct watcher *watcher, int slot)
{
    return enter(watcher, slot, PEER_ANSWERING);
}

void watcher_idle(struct watcher *watcher, int slot)
{
    enter(watcher, slot, PEER_IDLE);
}

void watcher_secured(struct watcher *watcher, int slot)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&watcher->lock);
    struct peer *peer = &watcher->peers[slot];
    if (peer->phase == PEER_IDLE || peer->phase == PEER_RECEIVING) {
        set_phase(watcher, slot, PEER_IDLE);
        peer->taken = bytes_taken(peer->fd);
    }
    pthread_mutex_unlock(&watcher->lock);
}

bool watcher_timed_out(struct watcher *watcher, int slot)
{
    if (slot < 0)
        return false;
    pthread_mutex_lock(&watcher->lock);
    bool timed_out = watcher->peers[slot].timed_out;
    pthread_mutex_unlock(&watcher->lock);
    return timed_out;
}

void watcher_attach(struct watcher *watcher, int slot, struct ticket *ticket, bool probes)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&watcher->lock);
    struct peer *peer = &watcher->peers[slot];
    peer->ticket = ticket;
    peer->probes = probes;
    bool cancelled = peer->gone          ? peer_left(peer)
                     : peer->half_closed ? peer_half_closed(peer)
                                         : false;
    pthread_mutex_unlock(&watcher->lock);
    if (cancelled)
        watcher->options.cancelled(watcher->options.context);
}

void watcher_detach(struct watcher *watcher, int slot)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&watcher->lock);
    watcher->peers[slot].ticket = NULL;
    pthread_mutex_unlock(&watcher->lock);
}
