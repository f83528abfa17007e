/* SPDX-License-Identifier: Apache-2.0 */
/* What other models have left in --state-dir. Their sessions are somebody's, and stay; their
 * checkpoints can be computed again, and go when the budget is short, those written first before
 * the others, and before any of the model that is served. */
#ifndef SERVER_STORE_STORE_OTHERS_H
#define SERVER_STORE_STORE_OTHERS_H

#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct other_file {
    char *path; /* below the root */
    int64_t bytes, modified_ns;
};

struct store_others {
    int root;                 /* the open directory; borrowed */
    struct other_file *files; /* [count]: checkpoints; from `next` on they are there */
    size_t count, capacity, next;
    int64_t bytes; /* of these */
    int64_t kept;  /* of all else */
};

/* Looks into the folders of `root` that are named like one of a model, but not into `own`. */
int store_others_scan(struct store_others *others, int root, const char *own, struct error *err);
void store_others_clear(struct store_others *others);
/* Removes checkpoints until at most so many bytes of them are left. */
void store_others_trim(struct store_others *others, int64_t most_bytes);

/* The names in an open directory, but for "." and "..", the file that was modified first before the
 * others, so that it may change while they are gone through: NULL-terminated, each malloc'd like
 * the whole. NULL: errno says why. */
char **store_names(int folder);
/* When a file was modified: nanoseconds since 1970, or the nearest that there is a number for. */
int64_t store_modified_ns(const struct stat *status);

#endif
