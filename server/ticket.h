/* SPDX-License-Identifier: Apache-2.0 */
/* Where an HTTP thread and the thread that works for it meet: a lock, a reason to give up, and a
 * way to wake the connection that waits. It is the first member of struct task.
 *
 * The HTTP request and the thread that works hold a reference each. The last one destroys it. */
#ifndef SERVER_TICKET_H
#define SERVER_TICKET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum cancel_reason {
    CANCEL_NONE,
    CANCEL_GONE,    /* the client has closed its connection */
    CANCEL_ASKED,   /* POST /v1/requests/{id}/cancel */
    CANCEL_SLOW,    /* the client reads too slowly */
    CANCEL_DRAINING /* the deadline of the drain has passed */
};

struct ticket {
    _Atomic int references;
    _Atomic int cancelled; /* enum cancel_reason; the first reason stays */
    _Atomic bool gone;     /* the client has left: nothing more can be sent */
    _Atomic double due;    /* clock_seconds(): if nothing is sent until then, it is probed; 0: no */
    bool runs_on;          /* the work continues when its client leaves; set before it is shared */
    pthread_mutex_t lock;  /* of everything below and of what the holders share */
    bool done;             /* nothing more comes */
    bool waiting;          /* the connection is suspended until wake */
    bool probed;           /* something is to be sent, to see whether the client is there */
    int readers; /* others that read what is made: without its client it runs on for them */
    void (*wake)(void *context);
    void *wake_context;
    void (*destroy)(struct ticket *ticket);
};

void ticket_init(struct ticket *ticket, void (*destroy)(struct ticket *ticket));
void ticket_clear(struct ticket *ticket); /* undoes ticket_init; `destroy` calls it */
void ticket_hold(struct ticket *ticket);
/* For who finds it in a list that it leaves when it is destroyed. False: that has begun. */
bool ticket_hold_alive(struct ticket *ticket);
void ticket_release(struct ticket *ticket);

void ticket_lock(struct ticket *ticket);
void ticket_unlock(struct ticket *ticket);

/* Both are called with the lock held. The HTTP thread calls ticket_wait after it has suspended the
 * connection; a thread that has something for the client calls ticket_wake. */
void ticket_wait(struct ticket *ticket);
void ticket_wake(struct ticket *ticket);

/* Gives the work a reason to stop; a client that has left is woken, too. One that is too slow is as
 * one that has left where others read. Returns whether it is the first reason, and the work was not
 * done. */
bool ticket_cancel(struct ticket *ticket, enum cancel_reason reason);
/* The client sends nothing more. It may wait for its reply, or have left: only an answer to what it
 * is sent tells. Wakes the connection for that. */
void ticket_probe(struct ticket *ticket);
/* The next sign of life of a stream: probes the ticket if nothing was sent for so many seconds from
 * now, and once. 0: never. */
void ticket_due(struct ticket *ticket, double seconds);
/* Probes it if that time is over. */
void ticket_check_due(struct ticket *ticket, double now);
/* Whether ticket_probe was called since the last call. With the lock held. */
bool ticket_probed(struct ticket *ticket);

/* Another reads what is made, until it leaves. Leaving, the last one cancels what has lost its
 * client: then it returns true. */
void ticket_join(struct ticket *ticket);
bool ticket_leave(struct ticket *ticket);

enum cancel_reason ticket_cancelled(const struct ticket *ticket);
bool ticket_gone(const struct ticket *ticket); /* whether the client has left */

#endif
