/* SPDX-License-Identifier: Apache-2.0 */
/* What other models have left in --state-dir. Their sessions belong to somebody, and stay. Their
 * checkpoints can be computed again: when the budget is short they go, the oldest first, before any
 * checkpoint of the model that is served. */
#ifndef SERVER_STORE_STORE_OTHERS_H
#define SERVER_STORE_STORE_OTHERS_H

#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct other_file {
    char *path; /* below the root */
    int64_t bytes, modified_ns;
};

struct store_others {
    int root;                 /* the open directory; borrowed */
    struct other_file *files; /* [count]: checkpoints; those before `next` have been removed */
    size_t count, capacity, next;
    int64_t bytes; /* of these */
    int64_t kept;  /* of everything else */
};

/* Looks into each folder of `root` that is named like a model's, except `own`. */
int store_others_scan(struct store_others *others, int root, const char *own, struct error *err);
void store_others_clear(struct store_others *others);
/* Removes checkpoints until at most so many bytes of them are left. */
void store_others_trim(struct store_others *others, int64_t most_bytes);

#endif
