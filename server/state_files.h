/* The files of checkpoints: written behind by the store's thread, read when they are needed. */
#ifndef SERVER_STATE_FILES_H
#define SERVER_STATE_FILES_H

#include "server/state_tiers.h"

bool files_has(const struct checkpoint *checkpoint);     /* a whole one that can be read */
bool files_writing(const struct checkpoint *checkpoint); /* it borrows the image and the logits */

/* Something has changed: may begin to write the file. */
void files_consider(struct state_tree *tree, struct checkpoint *checkpoint);
/* It is about to leave the device and has no room in host memory: perhaps a file can be written
 * through a copy that lives only so long. */
void files_write_through(struct state_tree *tree, struct checkpoint *checkpoint);
/* The checkpoint is dropped, and its file with it. True: an operation has not ended, which now owns
 * and frees it. */
bool files_drop(struct state_tree *tree, struct checkpoint *checkpoint);
/* Begins to read it (or goes on to) into host memory. -1: it cannot be. */
int files_read(struct state_tree *tree, struct checkpoint *checkpoint, struct error *err);

#endif
