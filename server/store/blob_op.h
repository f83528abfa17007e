/* SPDX-License-Identifier: Apache-2.0 */
/* What a store is asked of checkpoints: an own struct for each operation. A blob is a state file
 * (engine/state_file.h). What is borrowed is until `done`. */
#ifndef SERVER_STORE_BLOB_OP_H
#define SERVER_STORE_BLOB_OP_H

#include "server/store/store_op.h"

/* The first member of each operation on one file. */
struct store_blob_op {
    struct store_op op; /* the first member */
    char name[STORE_NAME_SIZE];
    bool prefix; /* of a prompt, for all servers (shared_prefixes.h) */
};

/* Writes the file whole or not at all, in the place of an older one of its name. A prefix that is
 * there is not written again, nor one that would leave too little room to sessions. */
struct store_put {
    struct store_blob_op blob; /* the first member */
    const char *meta;          /* [meta_length]; borrowed, as all of it */
    size_t meta_length;
    const int32_t *tokens; /* [count] */
    int64_t count, position;
    const void *image;        /* [state_image_bytes(position)]; NULL: no state (position 0) */
    struct state_save saving; /* of the image: the store waits for it before it writes */
    const float *logits;      /* [vocab_size], or NULL */
    bool skipped;             /* the place sets it: a prefix that it did not want */
};

/* Checks everything; the file has to be what the operation says. */
struct store_get {
    struct store_blob_op blob; /* the first member */
    const char *meta;          /* [meta_length]: of a prefix */
    size_t meta_length;
    const int32_t *tokens; /* [count]; NULL: they are not checked */
    int64_t count, position;
    void *image_out;   /* [state_image_bytes(position)] */
    float *logits_out; /* [vocab_size]; NULL: not wanted */
};

/* Which of these prefixes is there. */
struct store_find {
    struct store_op op;                   /* the first member */
    const char (*names)[STORE_NAME_SIZE]; /* [num_names] */
    size_t num_names;
    size_t which; /* the first that is there; num_names: none is */
};

/* What is missing is not an error. */
struct store_remove {
    struct store_blob_op blob; /* the first member */
};

/* Sets the time of its last use (store_found.modified_ns). What is missing is not an error. */
struct store_touch {
    struct store_blob_op blob; /* the first member */
    int64_t used_ns;           /* since 1970; 0: now */
};

#endif
