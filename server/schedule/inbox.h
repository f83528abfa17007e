/* SPDX-License-Identifier: Apache-2.0 */
/* Carries to the engine thread what other threads have for it: jobs that are ready to run, work to
 * do between steps, a reason to look around (a poke). */
#ifndef SERVER_SCHEDULE_INBOX_H
#define SERVER_SCHEDULE_INBOX_H

#include "server/schedule/job.h"

struct job_list { /* by job->run.next */
    struct job *head, *tail;
};

void job_list_append(struct job_list *list, struct job *job);
/* Returns whether the job was in the list. */
bool job_list_remove(struct job_list *list, struct job *job);
/* Moves all jobs of `first` to the front of `list`. */
void job_list_prepend(struct job_list *list, struct job_list *first);

struct inbox {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t filled;
    struct job_list jobs;
    struct work *work_head, *work_tail;
    bool poked, closing, ended;
};

void inbox_init(struct inbox *inbox);
void inbox_clear(struct inbox *inbox);

void inbox_put_job(struct inbox *inbox, struct job *job);
/* False: nobody takes any more. */
bool inbox_put_work(struct inbox *inbox, struct work *work);
void inbox_poke(struct inbox *inbox);
void inbox_close(struct inbox *inbox); /* nothing more will come from other threads */

struct inbox_taken {
    struct job_list jobs;
    struct work *work; /* by work->next */
    bool poked, closing;
};

/* Nobody takes any more. False: there is a job or work, so somebody must. */
bool inbox_end(struct inbox *inbox);

/* Whether there is something to take. */
bool inbox_pending(struct inbox *inbox);
/* Waits until something comes, but at most wait_s (< 0: without limit), then takes everything. */
void inbox_take(struct inbox *inbox, double wait_s, struct inbox_taken *taken);

#endif
