/* SPDX-License-Identifier: Apache-2.0 */
/* The files of checkpoints: the store writes them in the background, reads them when they are
 * needed, and removes them when their room is needed. Only a few operations run at a time, so the
 * memory that they hold is bounded. */
#ifndef SERVER_STATES_CHECKPOINT_FILES_H
#define SERVER_STATES_CHECKPOINT_FILES_H

#include "server/states/tiers.h"
#include "server/store/store.h"

struct checkpoint_files; /* checkpoint_file.h */

/* Hangs its callbacks into tiers->events. tiers and store are borrowed. memory_bytes: for states on
 * their way to and from files; 0: any. */
int checkpoint_files_create(struct checkpoint_files **out, struct tiers *tiers, struct store *store,
                            int64_t memory_bytes, struct error *err);
/* Waits for the operations under way. After it checkpoints are dropped without their files. */
void checkpoint_files_close(struct checkpoint_files *files);
/* After the last checkpoint has gone. NULL is allowed. */
void checkpoint_files_free(struct checkpoint_files *files);

/* Once per turn of the engine thread: begins the writes that are wanted. */
void checkpoint_files_poll(struct checkpoint_files *files);
/* Before the end: writes the checkpoints that have no file, the most recently used first, until the
 * deadline (clock_seconds()). */
void checkpoint_files_save_all(struct checkpoint_files *files, double deadline);
/* Enters a file of an earlier run, or removes it if it is of no use here. */
void checkpoint_files_found(struct checkpoint_files *files, const struct store_found *found);
/* Whether names say what is in a file (store_finds_by_name). Then one of these tokens may be there;
 * it is to go (checkpoint: that of these tokens, or NULL). */
bool checkpoint_files_by_name(const struct checkpoint_files *files);
void checkpoint_files_find_shared(struct checkpoint_files *files, struct space *space,
                                  const int32_t *tokens, int64_t position);
void checkpoint_files_drop_shared(struct checkpoint_files *files, const struct space *space,
                                  struct checkpoint *checkpoint, const int32_t *tokens,
                                  int64_t position);
/* Before a session's file is written: removes the least recently used files until `bytes` fit the
 * budget and what is free on the disk; none if that cannot be reached. */
void checkpoint_files_make_room(struct checkpoint_files *files, int64_t bytes);

/* Calls waiter->then, perhaps at once, when all files that nobody wants by now are gone from the
 * disk, or cannot be removed. */
void checkpoint_files_await_gone(struct checkpoint_files *files, struct checkpoint_waiter *waiter);

/* Whether there is memory to read the file of a checkpoint of so many tokens at all. */
bool checkpoint_files_fit(const struct checkpoint_files *files, int64_t position);

/* Of memory_bytes, for others that move states: they get half at most, so that files go on. False:
 * so much is not left. */
bool checkpoint_files_take_memory(struct checkpoint_files *files, int64_t bytes);
void checkpoint_files_give_memory(struct checkpoint_files *files, int64_t bytes);

/* Asks for a file of the checkpoint: soon, or when host memory runs short. */
void checkpoint_files_want(struct checkpoint_files *files, struct checkpoint *checkpoint,
                           bool soon);
/* Begins to read its file, if that is not being done yet, and if there is one and not too many are
 * read at once. -1: that cannot be. */
int checkpoint_files_read(struct checkpoint_files *files, struct checkpoint *checkpoint,
                          struct error *err);
/* Whether its file was read for nothing, since no tier had room. Says so once. */
bool checkpoint_files_take_unplaced(struct checkpoint *checkpoint);

#endif
