/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint: the state of a text after its first `position` tokens, so that a text which
 * continues from there need not compute it again. It lies on the device (a state), in host memory
 * (an image), in a file, or in several of these. With none of them it is a tombstone: it says that
 * there was one. */
#ifndef SERVER_STATES_CHECKPOINT_H
#define SERVER_STATES_CHECKPOINT_H

#include "api/states.h"
#include "engine/state_save.h"
#include "server/states/spaces.h"
#include "server/store/blob_op.h"

/* Its place in the list of a tier, by last use (tiers.h). */
struct tier_link {
    struct checkpoint *older, *newer;
    bool listed;
};

struct checkpoint {
    struct space *space;
    struct token_node *node;
    int64_t position; /* tokens: of its node */
    struct state *state;
    void *image;
    struct state_save saving; /* of the image, while the device still copies it */
    float *logits;            /* after its last token; in host memory */
    int64_t used;             /* when last: nanoseconds since 1970, no two the same */
    bool held;                /* a session's tokens go through here */
    enum tier tier;           /* the highest it lies in; as counted */
    struct tier_link link[NUM_TIERS];
    struct checkpoint_file *file; /* NULL: it has none, and wants none */
};

enum file_phase { FILE_WANTED, FILE_WRITING, FILE_READING, FILE_WHOLE, FILE_REMOVING };

/* The file of a checkpoint. What happens to it is in checkpoint_files.c and checkpoint_file.c. */
struct checkpoint_file {
    union { /* the first member: what is under way */
        struct store_op op;
        struct store_blob_op blob;
        struct store_put put;
        struct store_get get;
        struct store_remove removal;
    };
    struct checkpoint_files *files;
    struct checkpoint *checkpoint; /* NULL: it has let go of the file */
    enum file_phase phase;
    bool logits;    /* the file has them */
    bool unplaced;  /* it was read, and no tier had room for the state */
    int64_t copied; /* bytes of memory, while an operation runs */
    int64_t bytes;
    int64_t modified_ns; /* the file's time, as far as known */
    char name[STORE_NAME_SIZE];
    struct checkpoint_wanted *list; /* NULL, or where it waits to be written, or to be gone */
    uint64_t doomed;                /* the number of those that nobody wants any more; 0: wanted */
    struct checkpoint_file *before, *after;

    /* While an operation runs; freed after it. */
    char *meta;
    int32_t *tokens;
    void *image;        /* NULL: the checkpoint's is borrowed */
    float *some_logits; /* a copy */
};

/* Somebody who waits until files are gone. */
struct checkpoint_waiter {
    void (*then)(void *context);
    void *context;
    struct checkpoint_waiter *next; /* the files' */
    uint64_t last;
};

bool checkpoint_in_file(const struct checkpoint *checkpoint);     /* in one that can be read */
bool checkpoint_file_logits(const struct checkpoint *checkpoint); /* and logits with it */
bool checkpoint_file_busy(const struct checkpoint *checkpoint);   /* it is being written or read */
/* Its image is being written to its file, and must stay where it is. */
bool checkpoint_lends_image(const struct checkpoint *checkpoint);

/* Waits until its image can be read. -1: it is lost, the device failed. */
int checkpoint_await_image(struct checkpoint *checkpoint, struct error *err);
/* The tokens on the path to it, malloc'd. NULL: no memory. */
int32_t *checkpoint_tokens(const struct checkpoint *checkpoint);

#endif
