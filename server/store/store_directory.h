/* SPDX-License-Identifier: Apache-2.0 */
/* The files of --state-dir and the accounts of them: what the I/O thread of store.c does, and
 * the scan at the start. */
#ifndef SERVER_STORE_STORE_DIRECTORY_H
#define SERVER_STORE_STORE_DIRECTORY_H

#include "server/store/store.h"
#include "server/store/store_others.h"
#include "server/store/store_root.h"

#include <pthread.h>

struct store_directory {
    struct store_root root;
    struct engine *engine;
    int model, kinds[2];        /* open directories; kinds by enum store_kind */
    int trouble;                /* of the last checkpoint: 0, or the errno that was logged */
    pthread_mutex_t mutex;      /* guards report */
    struct store_report report; /* changed by whoever runs operations */
    struct store_others others; /* the scan's, then of who writes */
};

/* Creates what is missing and takes the lock. On an error the caller still closes it. */
int store_directory_open(struct store_directory *directory, struct engine *engine,
                         const struct store_options *options, struct error *err);
void store_directory_close(struct store_directory *directory);

/* Removes temporary files, sets aside what is no whole file of this model, tells `found` of the
 * others, and counts. */
int store_directory_scan(struct store_directory *directory, const struct store_options *options,
                         struct error *err);

int store_directory_write(struct store_directory *directory, const struct store_op *op,
                          struct error *err);
int store_directory_read(struct store_directory *directory, const struct store_op *op,
                         struct error *err);
int store_directory_remove(struct store_directory *directory, const struct store_op *op,
                           struct error *err);
int store_directory_touch(struct store_directory *directory, const struct store_op *op,
                          struct error *err);

#endif
