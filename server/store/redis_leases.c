/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_leases.h"

#include "server/log.h"
#include "server/store/redis_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often within its time a lease is renewed. */
enum { RENEWALS = 3 };

static void send_renewal(struct redis_leases *leases, const struct redis_lease *lease)
{
    struct redis_command command;
    redis_scripts_begin(&command, lease->script, 1);
    redis_command_text(&command, lease->key);
    redis_command_text(&command, lease->holder);
    redis_command_number(&command, (int64_t)(leases->lease_s * 1e3));
    redis_link_send(&leases->link, &command);
}

static int take_renewal(struct redis_leases *leases, const struct redis_lease *lease,
                        struct error *err)
{
    redisReply *reply = redis_link_receive(&leases->link, err);
    if (reply != NULL && redis_rows_is(reply, 0, "lost") &&
        redis_leases_drop(leases, lease->holder)) {
        struct store_accounts *accounts = leases->accounts;
        store_accounts_count(accounts, &accounts->report.leases_lost, 1);
    }
    freeReplyObject(reply);
    return reply != NULL ? 0 : -1;
}

/* A copy of the list, in the same order. NULL: it is empty, or there is no memory. */
static struct redis_lease *copy_of(const struct redis_lease *first)
{
    struct redis_lease *copies = NULL, **last = &copies;
    for (const struct redis_lease *at = first; at != NULL; at = at->next) {
        struct redis_lease *copy = malloc(sizeof *copy);
        if (copy == NULL)
            break;
        *copy = *at;
        copy->next = NULL;
        *last = copy;
        last = &copy->next;
    }
    return copies;
}

/* Without the mutex: the store may take its time. */
static void renew_all(struct redis_leases *leases, struct redis_lease *first)
{
    struct error err = ERROR_INIT;
    int64_t failures = 0;
    bool open = redis_link_open(&leases->link, false, &err) == 0;
    for (const struct redis_lease *at = first; open && at != NULL; at = at->next)
        send_renewal(leases, at);
    for (struct redis_lease *at = first, *next; at != NULL; at = next) {
        struct error failed = ERROR_INIT;
        next = at->next;
        if (open && take_renewal(leases, at, &failed) != 0) {
            error_set(&err, failed.code, "%s", failed.message);
            failures++;
        }
        free(at);
    }
    if (failures > 0)
        log_message(LOG_LEVEL_WARN, "%lld leases were not renewed, one since: %s",
                    (long long)failures, err.message);
}

static void *leases_main(void *context)
{
    struct redis_leases *leases = context;
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
        struct redis_lease *held = leases->closing ? NULL : copy_of(leases->first);
        pthread_mutex_unlock(&leases->mutex);
        if (held != NULL)
            renew_all(leases, held);
        pthread_mutex_lock(&leases->mutex);
    }
    pthread_mutex_unlock(&leases->mutex);
    return NULL;
}

int redis_leases_start(struct redis_leases *leases, const struct redis_address *address,
                       double lease_s, double timeout_s, struct redis_away *away,
                       struct store_accounts *accounts, struct error *err)
{
    pthread_condattr_t monotonic;
    *leases = (struct redis_leases){.lease_s = lease_s, .accounts = accounts};
    redis_link_init(&leases->link, address, timeout_s);
    leases->link.away = away;
    /* Of a cluster any node may be away later. */
    if (redis_link_open(&leases->link, true, err) != 0)
        return -1;
    pthread_mutex_init(&leases->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&leases->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int code = pthread_create(&leases->thread, NULL, leases_main, leases);
    leases->started = code == 0;
    return code == 0 ? 0 : error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
}

void redis_leases_stop(struct redis_leases *leases)
{
    if (leases->started) {
        pthread_mutex_lock(&leases->mutex);
        leases->closing = true;
        pthread_cond_signal(&leases->changed);
        pthread_mutex_unlock(&leases->mutex);
        pthread_join(leases->thread, NULL);
        pthread_mutex_destroy(&leases->mutex);
        pthread_cond_destroy(&leases->changed);
    }
    for (struct redis_lease *at = leases->first, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    redis_link_close(&leases->link);
}

int redis_leases_add(struct redis_leases *leases, const char *key, const char *holder,
                     struct redis_script *script, struct error *err)
{
    struct redis_lease *lease = malloc(sizeof *lease);
    if (lease == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a lease");
    lease->script = script;
    snprintf(lease->key, sizeof lease->key, "%s", key);
    snprintf(lease->holder, sizeof lease->holder, "%s", holder);
    pthread_mutex_lock(&leases->mutex);
    lease->next = leases->first;
    leases->first = lease;
    pthread_mutex_unlock(&leases->mutex);
    store_accounts_count(leases->accounts, &leases->accounts->report.leases, 1);
    return 0;
}

bool redis_leases_drop(struct redis_leases *leases, const char *holder)
{
    pthread_mutex_lock(&leases->mutex);
    struct redis_lease **link = &leases->first;
    while (*link != NULL && strcmp((*link)->holder, holder) != 0)
        link = &(*link)->next;
    struct redis_lease *lease = *link;
    if (lease != NULL)
        *link = lease->next;
    pthread_mutex_unlock(&leases->mutex);
    if (lease == NULL)
        return false;
    store_accounts_count(leases->accounts, &leases->accounts->report.leases, -1);
    free(lease);
    return true;
}
