/* SPDX-License-Identifier: Apache-2.0 */
/* One file of a checkpoint, from its name until it is gone, and who waits for that. What these
 * functions share with checkpoint_files.c, which decides when they run, is `struct
 * checkpoint_files`. */
#ifndef SERVER_STATES_CHECKPOINT_FILE_H
#define SERVER_STATES_CHECKPOINT_FILE_H

#include "server/states/tiers.h"
#include "server/store/store.h"

/* Files that wait to be written, in the order in which they were wanted. */
struct checkpoint_wanted {
    struct checkpoint_file *first, *last;
};

struct checkpoint_files {
    struct tiers *tiers;
    struct store *store;
    struct checkpoint_wanted soon, later;
    struct checkpoint_wanted doomed; /* that nobody wants, and that may still be there */
    uint64_t num_doomed;             /* so far */
    struct checkpoint_waiter *waiters, **last_waiter;
    int writes, reads;                  /* under way */
    int64_t memory_bytes, copied_bytes; /* for what is under way, and of that taken; 0: any */
    int64_t lent_bytes;                 /* of copied_bytes: checkpoint_files_take_memory */
    bool by_name;                       /* store_finds_by_name */
    bool closing;                       /* files outlive their checkpoints */
};

/* A file with a name that no other has; checkpoint: or NULL. NULL: no memory. */
struct checkpoint_file *checkpoint_file_create(struct checkpoint_files *files,
                                               struct checkpoint *checkpoint);
/* The checkpoint, if any, has none then. */
void checkpoint_file_free(struct checkpoint_file *file);
/* Frees what an operation had. */
void checkpoint_file_clear(struct checkpoint_file *file);

/* Puts it at the end of a list; it leaves the one that it is in. */
void checkpoint_file_enlist(struct checkpoint_wanted *list, struct checkpoint_file *file);
void checkpoint_file_unlist(struct checkpoint_file *file);

/* Prepares an operation on the file. */
void checkpoint_file_begin(struct checkpoint_file *file, enum file_phase phase,
                           void (*done)(struct store_op *op));
/* Nobody wants it any more: it is to go as soon as it can. */
void checkpoint_file_doom(struct checkpoint_file *file);
/* The same where no operation runs: removes it, and frees it after that. */
void checkpoint_file_discard(struct checkpoint_file *file);
/* Calls those who have waited for files of which none is left. */
void checkpoint_file_tell_waiters(struct checkpoint_files *files);

#endif
