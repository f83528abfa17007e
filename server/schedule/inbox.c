/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/inbox.h"

#include "lib/base/clock.h"

#include <time.h>

void job_list_append(struct job_list *list, struct job *job)
{
    job->run.next = NULL;
    if (list->tail)
        list->tail->run.next = job;
    else
        list->head = job;
    list->tail = job;
}

bool job_list_remove(struct job_list *list, struct job *job)
{
    struct job *before = NULL;
    for (struct job *at = list->head; at; before = at, at = at->run.next) {
        if (at != job)
            continue;
        if (before)
            before->run.next = at->run.next;
        else
            list->head = at->run.next;
        if (list->tail == at)
            list->tail = before;
        return true;
    }
    return false;
}

void job_list_prepend(struct job_list *list, struct job_list *first)
{
    if (!first->head)
        return;
    first->tail->run.next = list->head;
    if (!list->tail)
        list->tail = first->tail;
    list->head = first->head;
    *first = (struct job_list){0};
}

void inbox_init(struct inbox *inbox)
{
    *inbox = (struct inbox){0};
    pthread_mutex_init(&inbox->lock, NULL);
    /* So a wall clock that goes back does not prolong the waits of inbox_take. */
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&inbox->filled, &attributes);
    pthread_condattr_destroy(&attributes);
}

void inbox_clear(struct inbox *inbox)
{
    pthread_cond_destroy(&inbox->filled);
    pthread_mutex_destroy(&inbox->lock);
}

void inbox_put_job(struct inbox *inbox, struct job *job)
{
    pthread_mutex_lock(&inbox->lock);
    job_list_append(&inbox->jobs, job);
    pthread_cond_signal(&inbox->filled);
    pthread_mutex_unlock(&inbox->lock);
}

/* Under the lock. */
static void append_work(struct inbox *inbox, struct work *work)
{
    if (inbox->work_tail)
        inbox->work_tail->next = work;
    else
        inbox->work_head = work;
    inbox->work_tail = work;
    pthread_cond_signal(&inbox->filled);
}

bool inbox_put_work(struct inbox *inbox, struct work *work)
{
    work->next = NULL;
    pthread_mutex_lock(&inbox->lock);
    bool ended = inbox->ended;
    if (!ended)
        append_work(inbox, work);
    pthread_mutex_unlock(&inbox->lock);
    return !ended;
}

void inbox_poke(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->poked = true;
    pthread_cond_signal(&inbox->filled);
    pthread_mutex_unlock(&inbox->lock);
}

void inbox_close(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->closing = true;
    pthread_cond_signal(&inbox->filled);
    pthread_mutex_unlock(&inbox->lock);
}

bool inbox_end(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->ended = !inbox->jobs.head && !inbox->work_head;
    bool ended = inbox->ended;
    pthread_mutex_unlock(&inbox->lock);
    return ended;
}

/* Under the lock. */
static bool empty(const struct inbox *inbox)
{
    return !inbox->jobs.head && !inbox->work_head && !inbox->poked;
}

bool inbox_pending(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    bool pending = !empty(inbox) || inbox->closing;
    pthread_mutex_unlock(&inbox->lock);
    return pending;
}

static struct timespec in_seconds(double seconds)
{
    const int64_t second = 1000000000;
    int64_t until = clock_nanos(CLOCK_MONOTONIC) + (int64_t)(seconds * (double)second);
    return (struct timespec){until / second, until % second};
}

void inbox_take(struct inbox *inbox, double wait_s, struct inbox_taken *taken)
{
    pthread_mutex_lock(&inbox->lock);
    if (wait_s < 0) {
        while (empty(inbox) && !inbox->closing)
            pthread_cond_wait(&inbox->filled, &inbox->lock);
    } else if (wait_s > 0 && empty(inbox) && !inbox->closing) {
        struct timespec until = in_seconds(wait_s);
        pthread_cond_timedwait(&inbox->filled, &inbox->lock, &until);
    }
    *taken = (struct inbox_taken){
        .jobs = inbox->jobs,
        .work = inbox->work_head,
        .poked = inbox->poked,
        .closing = inbox->closing,
    };
    inbox->jobs = (struct job_list){0};
    inbox->work_head = inbox->work_tail = NULL;
    inbox->poked = false;
    pthread_mutex_unlock(&inbox->lock);
}
