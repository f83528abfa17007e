/* SPDX-License-Identifier: Apache-2.0 */
/* API keys: decides whether a request may come in, and as whom. They may be replaced while requests
 * come in, of which none waits. Of a key only its hash is kept, under a secret of this process. A
 * key keeps its index after it is removed, so a request that came in before that still has its
 * owner. */
#ifndef SERVER_HTTP_AUTH_H
#define SERVER_HTTP_AUTH_H

#include "lib/base/siphash.h"
#include "server/names.h"

#include <pthread.h>
#include <stdbool.h>

enum { AUTH_KEY_BYTES = 4096 }; /* of the longest key */

struct auth {
    unsigned char secret[SIPHASH_BYTES];
    pthread_rwlock_t lock;    /* of the pointer; held for a look into the table */
    struct auth_table *table; /* all keys that were ever known; NULL: none, everybody is let in */
};

/* Reads keys. lists: [count] strings, each with one key or several, separated by commas. file: one
 * key a line; lines that begin with # are comments; NULL: no file. White space and a byte order
 * mark around keys count for nothing. The caller ends with names_wipe(keys) in every case. */
int auth_read(struct names *keys, const char *const *lists, size_t count, const char *file,
              struct error *err);

int auth_init(struct auth *auth, struct error *err);
void auth_clear(struct auth *auth);
/* How many keys were ever known. */
size_t auth_count(struct auth *auth);

/* One thread at a time. Adds those keys that are not known yet, and their texts, in the order of
 * their indices, to *fresh. They are not let in before auth_allow. */
int auth_learn(struct auth *auth, const struct names *keys, struct names *fresh, struct error *err);
/* One thread at a time. From now on these keys, which are known, are let in, and no others. */
int auth_allow(struct auth *auth, const struct names *keys, struct error *err);

/* authorization, api_key: the values of the headers Authorization ("Bearer KEY") and X-Api-Key
 * ("KEY"), or NULL; where both are there the first counts. Returns the key's index, 0 when there
 * are no keys, or -1. The time it takes tells nothing of the keys. */
int auth_check(struct auth *auth, const char *authorization, const char *api_key);

#endif
