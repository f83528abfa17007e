/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/watcher.h"

#include "engine/base/clock.h"

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
    double since;   /* of the phase */
    uint64_t taken; /* bytes, when it became idle */
    struct ticket *ticket;
    int next_free;
};

struct watcher {
    struct watcher_options options;
    pthread_t thread;
    int epoll_fd, wake_fd;

    pthread_mutex_t lock; /* of what follows */
    struct peer *peers;   /* [num_peers]: connections, then lingering sockets */
    int num_peers;
    int first_free, num_lingering;
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
static int take_slot(struct watcher *watcher, int fd, enum peer_phase phase)
{
    int slot = watcher->first_free;
    if (slot < 0)
        return -1;
    struct peer *peer = &watcher->peers[slot];
    watcher->first_free = peer->next_free;
    *peer = (struct peer){
        .fd = fd, .phase = phase, .generation = peer->generation + 1, .since = clock_seconds()};
    struct epoll_event event = {.events = phase == PEER_LINGERING ? EPOLLIN : EPOLLRDHUP | EPOLLET,
                                .data.u64 = tag(watcher, slot)};
    if (epoll_ctl(watcher->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return slot;
    peer->phase = PEER_FREE;
    peer->next_free = watcher->first_free;
    watcher->first_free = slot;
    return -1;
}

static void give_slot(struct watcher *watcher, int slot)
{
    struct peer *peer = &watcher->peers[slot];
    epoll_ctl(watcher->epoll_fd, EPOLL_CTL_DEL, peer->fd, NULL);
    peer->phase = PEER_FREE;
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
static void cut(struct peer *peer)
{
    shutdown(peer->fd, SHUT_RDWR);
    peer->phase = PEER_CUT;
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
    if (peer->phase == PEER_IDLE && bytes_received(peer->fd) > peer->taken) {
        peer->phase = PEER_RECEIVING;
        peer->since = now;
    }
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
        cut(peer);
    } else if ((peer->gone || peer->half_closed) &&
               (peer->phase == PEER_IDLE || peer->phase == PEER_RECEIVING) &&
               now - peer->since > HALF_CLOSED_SECONDS &&
               (!peer->half_closed || now - peer->half_closed_at > HALF_CLOSED_SECONDS)) {
        /* Half a request has come, and nothing follows. A whole one would have been taken by
         * now. */
        cut(peer);
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
    watcher->num_peers = options->max_connections + LINGER_SLOTS;
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
    pthread_mutex_unlock(&watcher->lock);
    return slot;
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

static void enter(struct watcher *watcher, int slot, enum peer_phase phase)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&watcher->lock);
    struct peer *peer = &watcher->peers[slot];
    if (peer->phase != PEER_CUT && peer->phase != phase) {
        peer->phase = phase;
        peer->since = clock_seconds();
        if (phase == PEER_IDLE)
            peer->taken = bytes_taken(peer->fd);
    }
    pthread_mutex_unlock(&watcher->lock);
}

void watcher_receiving(struct watcher *watcher, int slot)
{
    enter(watcher, slot, PEER_RECEIVING);
}

void watcher_answering(struct watcher *watcher, int slot)
{
    enter(watcher, slot, PEER_ANSWERING);
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
        peer->phase = PEER_IDLE;
        peer->since = clock_seconds();
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
