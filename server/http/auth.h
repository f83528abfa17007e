/* SPDX-License-Identifier: Apache-2.0 */
/* API keys: decides whether a request may come in, and as whom. They may be replaced while requests
 * come in. A key keeps its index after it is removed, so a request that came in before that still
 * has its owner. */
#ifndef SERVER_HTTP_AUTH_H
#define SERVER_HTTP_AUTH_H

#include "server/names.h"

#include <pthread.h>
#include <stdbool.h>

struct auth {
    pthread_rwlock_t lock;
    struct names keys; /* each text once; all that were ever known; none: every request is let in */
    bool *allowed;     /* [keys.count] */
};

/* Reads keys. lists: [count] strings, each with one key or several, separated by commas. file: one
 * key a line; lines that begin with # are comments; NULL: no file. The caller clears *keys in every
 * case. */
int auth_read(struct names *keys, const char *const *lists, size_t count, const char *file,
              struct error *err);

void auth_init(struct auth *auth);
void auth_clear(struct auth *auth);
/* Adds those keys that are not known yet. They are not let in before auth_allow. */
int auth_learn(struct auth *auth, const struct names *keys, struct error *err);
/* From now on these keys, which are known, are let in, and no others. */
void auth_allow(struct auth *auth, const struct names *keys);

/* authorization, api_key: the values of the headers Authorization ("Bearer KEY") and X-Api-Key
 * ("KEY"), or NULL; where both are there the first counts. Returns the key's index, 0 when there
 * are no keys, or -1. The time it takes does not tell how much of a key was right. */
int auth_check(struct auth *auth, const char *authorization, const char *api_key);

#endif
