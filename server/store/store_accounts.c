/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_accounts.h"

#include "lib/base/clock.h"
#include "server/store/blob_op.h"

void store_accounts_init(struct store_accounts *accounts, int64_t budget_bytes)
{
    *accounts =
        (struct store_accounts){.report = {.budget_bytes = budget_bytes, .disk_free = INT64_MAX}};
    pthread_mutex_init(&accounts->mutex, NULL);
}

void store_accounts_clear(struct store_accounts *accounts)
{
    pthread_mutex_destroy(&accounts->mutex);
}

void store_accounts_copy(struct store_accounts *accounts, struct store_report *report)
{
    pthread_mutex_lock(&accounts->mutex);
    *report = accounts->report;
    pthread_mutex_unlock(&accounts->mutex);
}

void store_accounts_pend(struct store_accounts *accounts, int64_t bytes)
{
    pthread_mutex_lock(&accounts->mutex);
    accounts->report.pending += bytes;
    pthread_mutex_unlock(&accounts->mutex);
}

void store_accounts_add(struct store_accounts *accounts, enum store_kind kind, int64_t bytes,
                        int64_t count)
{
    pthread_mutex_lock(&accounts->mutex);
    accounts->report.bytes += bytes;
    /* What goes gives its room back; after a write the disk is asked. */
    if (bytes < 0 && accounts->report.disk_free < INT64_MAX / 2)
        accounts->report.disk_free -= bytes;
    *(kind == STORE_SESSION ? &accounts->report.sessions : &accounts->report.checkpoint_files) +=
        count;
    pthread_mutex_unlock(&accounts->mutex);
}

void store_accounts_count(struct store_accounts *accounts, int64_t *number, int64_t change)
{
    pthread_mutex_lock(&accounts->mutex);
    *number += change;
    pthread_mutex_unlock(&accounts->mutex);
}

void store_accounts_begin(struct store_accounts *accounts, struct store_op *op)
{
    op->begun = clock_seconds();
    store_accounts_count(accounts, &accounts->report.counts[op->kind].waiting, 1);
}

static enum store_end end_of(const struct store_op *op)
{
    if (op->error.code == ERROR_NONE)
        return STORE_END_DONE;
    switch (op->refusal) {
    case STORE_BUSY:
        return STORE_END_BUSY;
    case STORE_AWAY:
        return STORE_END_AWAY;
    case STORE_CONFLICT:
    case STORE_KEY_DONE:
    case STORE_KEY_OTHER:
        return STORE_END_CONFLICT;
    default:
        return STORE_END_FAILED;
    }
}

static void count_prefix(struct store_prefixes *prefixes, const struct store_op *op)
{
    const struct store_find *find = (const struct store_find *)op;
    const struct store_put *put = (const struct store_put *)op;
    if (op->what == STORE_FIND)
        *(find->which < find->num_names ? &prefixes->found : &prefixes->missing) += 1;
    if (op->what == STORE_PUT && put->blob.prefix && !put->skipped) {
        prefixes->written++;
        prefixes->bytes_written += op->bytes;
    }
    if (op->what == STORE_GET && ((const struct store_get *)op)->blob.prefix) {
        prefixes->read++;
        prefixes->bytes_read += op->bytes;
    }
}

void store_accounts_end(struct store_accounts *accounts, const struct store_op *op)
{
    struct store_report *report = &accounts->report;
    const bool done = op->error.code == ERROR_NONE;
    pthread_mutex_lock(&accounts->mutex);
    struct store_counts *counts = &report->counts[op->kind];
    counts->waiting--;
    counts->ended[end_of(op)]++;
    counts->seconds += clock_seconds() - op->begun;
    report->states_written += done && op->what == STORE_PUT;
    report->states_read += done && op->what == STORE_GET;
    report->states_gone += !done && op->what == STORE_GET && op->refusal != STORE_AWAY;
    if (done)
        count_prefix(&report->prefixes, op);
    pthread_mutex_unlock(&accounts->mutex);
}

void store_accounts_away(struct store_accounts *accounts, const char *why)
{
    const bool away = why != NULL;
    pthread_mutex_lock(&accounts->mutex);
    accounts->report.returns += accounts->report.away && !away;
    accounts->report.away = away;
    accounts->report.why = why;
    pthread_mutex_unlock(&accounts->mutex);
}

int store_accounts_fail(struct store_accounts *accounts)
{
    pthread_mutex_lock(&accounts->mutex);
    accounts->report.failures++;
    pthread_mutex_unlock(&accounts->mutex);
    return -1;
}

void store_accounts_wrote(struct store_accounts *accounts, enum store_kind kind,
                          enum store_outcome outcome, int64_t disk_free)
{
    pthread_mutex_lock(&accounts->mutex);
    if (disk_free >= 0)
        accounts->report.disk_free = disk_free;
    if (kind == STORE_SESSION) {
        accounts->report.full = outcome == STORE_NO_ROOM || outcome == STORE_OVER_BUDGET;
        if (outcome != STORE_OVER_BUDGET)
            accounts->report.failing = outcome != STORE_WRITTEN;
    }
    accounts->report.failures += outcome != STORE_WRITTEN;
    pthread_mutex_unlock(&accounts->mutex);
}
