/* SPDX-License-Identifier: Apache-2.0 */
/* The files of checkpoints: written behind by the store's thread, read when they are needed,
 * removed when they take room that others need more. A few operations at a time, so that what they
 * hold in memory is bounded. */
#ifndef SERVER_STATES_CHECKPOINT_FILES_H
#define SERVER_STATES_CHECKPOINT_FILES_H

#include "server/states/tiers.h"

/* *out is NULL without a store. */
int checkpoint_files_create(struct checkpoint_files **out, struct state_tree *tree,
                            struct error *err);
/* Before the tree is freed: waits for what is under way; files now outlive their checkpoints. */
void checkpoint_files_close(struct state_tree *tree);

bool checkpoint_files_whole(const struct checkpoint *checkpoint);  /* has one that can be read */
bool checkpoint_files_logits(const struct checkpoint *checkpoint); /* and it holds logits */
/* Whether its file was read for nothing, since no tier had room; said once. */
bool checkpoint_files_take_unplaced(struct checkpoint *checkpoint);
bool checkpoint_files_busy(const struct checkpoint *checkpoint);   /* it is being written or read */
bool checkpoint_files_borrow(const struct checkpoint *checkpoint); /* its image is being written */

/* A file of it is wanted: soon, or when host memory runs short. */
void checkpoint_files_want(struct state_tree *tree, struct checkpoint *checkpoint, bool soon);
/* It is about to leave the device and has no room in host memory: a file may be written through a
 * copy that lives only so long. */
void checkpoint_files_write_through(struct state_tree *tree, struct checkpoint *checkpoint);
/* It has been used: so that the order holds after a restart, its file's time says so, if it is
 * more than a minute behind. */
void checkpoint_files_used(struct state_tree *tree, const struct checkpoint *checkpoint);
/* Begins to read it (or goes on to) into host memory. -1: it cannot be. */
int checkpoint_files_read(struct state_tree *tree, struct checkpoint *checkpoint,
                          struct error *err);
/* The checkpoint goes, and its file with it. */
void checkpoint_files_drop(struct state_tree *tree, struct checkpoint *checkpoint);

#endif
