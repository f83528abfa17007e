/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_leases.h"

#include "server/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often within its time a lease is renewed. */
enum { RENEWALS = 3 };

static void count(struct store_leases *leases, int64_t *number, int64_t change)
{
    store_accounts_count(leases->accounts, number, change);
}

/* Whether it was held. */
static bool drop(struct store_leases *leases, const char *holder)
{
    pthread_mutex_lock(&leases->mutex);
    struct store_held **link = &leases->first;
    while (*link != NULL && strcmp((*link)->holder, holder) != 0)
        link = &(*link)->next;
    struct store_held *held = *link;
    if (held != NULL)
        *link = held->next;
    pthread_mutex_unlock(&leases->mutex);
    if (held != NULL)
        count(leases, &leases->accounts->report.leases, -1);
    free(held);
    return held != NULL;
}

static void hold(struct store_leases *leases, const struct store_held *taken, const char *request)
{
    struct store_held *held = malloc(sizeof *held + taken->request_length);
    if (held == NULL)
        return;
    *held = *taken;
    if (taken->request_length > 0)
        memcpy(held->request, request, taken->request_length);
    pthread_mutex_lock(&leases->mutex);
    held->next = leases->first;
    leases->first = held;
    pthread_mutex_unlock(&leases->mutex);
    count(leases, &leases->accounts->report.leases, 1);
}

void store_leases_before(struct store_leases *leases, const struct store_op *op)
{
    if (!leases->started)
        return;
    if (op->what == STORE_COMMIT || op->what == STORE_GIVE)
        drop(leases, ((const struct store_session_op *)op)->lease.holder);
    else if (op->what == STORE_KEEP || op->what == STORE_DROP)
        drop(leases, ((const struct store_reply_op *)op)->holder);
}

void store_leases_after(struct store_leases *leases, const struct store_op *op)
{
    const struct store_session_op *session = (const struct store_session_op *)op;
    const struct store_claim *claim = (const struct store_claim *)op;
    struct store_held held = {.kind = op->kind};
    if (!leases->started)
        return;
    if (op->what == STORE_TAKE && op->error.code == ERROR_NONE) {
        snprintf(held.owner, sizeof held.owner, "%s", session->owner);
        snprintf(held.id, sizeof held.id, "%s", session->id);
        snprintf(held.holder, sizeof held.holder, "%s", session->lease.holder);
        hold(leases, &held, NULL);
    } else if (op->what == STORE_CLAIM && store_claim_holds(claim)) {
        held.unsure = op->error.code != ERROR_NONE;
        snprintf(held.holder, sizeof held.holder, "%s", claim->request.holder);
        held.request_length = claim->request.reply->name_length;
        hold(leases, &held, claim->request.reply->name);
    }
}

/* ---- the thread ---- */

/* A copy of the list, in the same order. NULL: it is empty, or there is no memory. */
static struct store_held *copy_of(const struct store_held *first)
{
    struct store_held *copies = NULL, **last = &copies;
    for (const struct store_held *at = first; at != NULL; at = at->next) {
        const size_t size = sizeof *at + at->request_length;
        struct store_held *copy = malloc(size);
        if (copy == NULL)
            break;
        memcpy(copy, at, size);
        copy->next = NULL;
        *last = copy;
        last = &copy->next;
    }
    return copies;
}

/* Without the mutex: the place may take its time. */
static void renew_all(struct store_leases *leases, struct store_held *first)
{
    struct error err = ERROR_INIT;
    int64_t failures = leases->backend->sessions->renew(leases->place, first, &err);
    for (struct store_held *at = first, *next; at != NULL; at = next) {
        next = at->next;
        if (at->lost && drop(leases, at->holder) && !at->unsure)
            count(leases, &leases->accounts->report.leases_lost, 1);
        free(at);
    }
    if (failures > 0)
        log_message(LOG_LEVEL_WARN, "%lld leases were not renewed, one since: %s",
                    (long long)failures, err.message);
}

static void *leases_main(void *context)
{
    struct store_leases *leases = context;
    const int64_t second = 1000000000;
    pthread_setname_np(pthread_self(), "regla-leases");
    pthread_mutex_lock(&leases->mutex);
    while (!leases->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t nanos = until.tv_nsec + (int64_t)(leases->lease_s / RENEWALS * (double)second);
        until.tv_sec += nanos / second;
        until.tv_nsec = nanos % second;
        while (!leases->closing &&
               pthread_cond_timedwait(&leases->changed, &leases->mutex, &until) == 0)
            ;
        struct store_held *held = leases->closing ? NULL : copy_of(leases->first);
        pthread_mutex_unlock(&leases->mutex);
        if (held != NULL)
            renew_all(leases, held);
        pthread_mutex_lock(&leases->mutex);
    }
    pthread_mutex_unlock(&leases->mutex);
    return NULL;
}

int store_leases_start(struct store_leases *leases, const struct store_backend *backend,
                       struct store_place *place, double lease_s, struct store_accounts *accounts,
                       struct error *err)
{
    pthread_condattr_t monotonic;
    *leases = (struct store_leases){
        .backend = backend, .place = place, .accounts = accounts, .lease_s = lease_s};
    pthread_mutex_init(&leases->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&leases->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int code = pthread_create(&leases->thread, NULL, leases_main, leases);
    leases->started = code == 0;
    if (code == 0)
        return 0;
    pthread_mutex_destroy(&leases->mutex);
    pthread_cond_destroy(&leases->changed);
    return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
}

void store_leases_stop(struct store_leases *leases)
{
    if (!leases->started)
        return;
    pthread_mutex_lock(&leases->mutex);
    leases->closing = true;
    pthread_cond_signal(&leases->changed);
    pthread_mutex_unlock(&leases->mutex);
    pthread_join(leases->thread, NULL);
    pthread_mutex_destroy(&leases->mutex);
    pthread_cond_destroy(&leases->changed);
    for (struct store_held *at = leases->first, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
}
