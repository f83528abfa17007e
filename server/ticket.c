/* SPDX-License-Identifier: Apache-2.0 */
#include "server/ticket.h"

#include "lib/base/clock.h"

void ticket_init(struct ticket *ticket, void (*destroy)(struct ticket *ticket))
{
    atomic_init(&ticket->references, 1);
    atomic_init(&ticket->cancelled, CANCEL_NONE);
    atomic_init(&ticket->gone, false);
    atomic_init(&ticket->due, 0);
    ticket->runs_on = false;
    pthread_mutex_init(&ticket->lock, NULL);
    ticket->done = false;
    ticket->waiting = false;
    ticket->probed = false;
    ticket->readers = 0;
    ticket->wake = NULL;
    ticket->wake_context = NULL;
    ticket->destroy = destroy;
}

void ticket_clear(struct ticket *ticket)
{
    pthread_mutex_destroy(&ticket->lock);
}

void ticket_hold(struct ticket *ticket)
{
    atomic_fetch_add(&ticket->references, 1);
}

bool ticket_hold_alive(struct ticket *ticket)
{
    int references = atomic_load(&ticket->references);
    while (references > 0 &&
           !atomic_compare_exchange_weak(&ticket->references, &references, references + 1))
        ;
    return references > 0;
}

void ticket_release(struct ticket *ticket)
{
    if (atomic_fetch_sub(&ticket->references, 1) == 1)
        ticket->destroy(ticket);
}

void ticket_lock(struct ticket *ticket)
{
    pthread_mutex_lock(&ticket->lock);
}

void ticket_unlock(struct ticket *ticket)
{
    pthread_mutex_unlock(&ticket->lock);
}

void ticket_wait(struct ticket *ticket)
{
    ticket->waiting = true;
}

void ticket_wake(struct ticket *ticket)
{
    if (!ticket->waiting)
        return;
    ticket->waiting = false;
    ticket->wake(ticket->wake_context);
}

bool ticket_cancel(struct ticket *ticket, enum cancel_reason reason)
{
    ticket_lock(ticket);
    int none = CANCEL_NONE;
    if (reason == CANCEL_SLOW && ticket->readers > 0)
        reason = CANCEL_GONE;
    bool heard = ticket->runs_on || ticket->readers > 0;
    bool spared = ticket->done || (reason == CANCEL_GONE && heard);
    bool first = !spared && atomic_compare_exchange_strong(&ticket->cancelled, &none, (int)reason);
    if (reason == CANCEL_GONE)
        atomic_store(&ticket->gone, true);
    /* A client that has left waits for nothing. After any other reason the worker tells the end. */
    if (reason == CANCEL_GONE)
        ticket_wake(ticket);
    ticket_unlock(ticket);
    return first;
}

void ticket_probe(struct ticket *ticket)
{
    ticket_lock(ticket);
    ticket->probed = true;
    ticket_wake(ticket);
    ticket_unlock(ticket);
}

void ticket_due(struct ticket *ticket, double seconds)
{
    atomic_store(&ticket->due, seconds > 0 ? clock_seconds() + seconds : 0);
}

void ticket_check_due(struct ticket *ticket, double now)
{
    double due = atomic_load(&ticket->due);
    if (due > 0 && now >= due && atomic_compare_exchange_strong(&ticket->due, &due, 0))
        ticket_probe(ticket);
}

bool ticket_probed(struct ticket *ticket)
{
    bool probed = ticket->probed;
    ticket->probed = false;
    return probed;
}

void ticket_join(struct ticket *ticket)
{
    ticket_lock(ticket);
    ticket->readers++;
    ticket_unlock(ticket);
}

bool ticket_leave(struct ticket *ticket)
{
    ticket_lock(ticket);
    bool last = --ticket->readers == 0;
    ticket_unlock(ticket);
    return last && ticket_gone(ticket) && ticket_cancel(ticket, CANCEL_GONE);
}

enum cancel_reason ticket_cancelled(const struct ticket *ticket)
{
    return (enum cancel_reason)atomic_load(&ticket->cancelled);
}

bool ticket_gone(const struct ticket *ticket)
{
    return atomic_load(&ticket->gone);
}
