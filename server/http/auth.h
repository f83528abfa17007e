/* SPDX-License-Identifier: Apache-2.0 */
/* API keys: decides whether a request may come in, and as whom. */
#ifndef SERVER_HTTP_AUTH_H
#define SERVER_HTTP_AUTH_H

#include "server/names.h"

struct auth {
    struct names keys; /* none: every request is let in */
};

/* lists: [count] strings, each with one key or several, separated by commas. file: one key a line;
 * lines that begin with # are comments; NULL: no file. The caller clears *auth in every case. */
int auth_init(struct auth *auth, const char *const *lists, size_t count, const char *file,
              struct error *err);
void auth_clear(struct auth *auth);

/* authorization, api_key: the values of the headers Authorization ("Bearer KEY") and X-Api-Key
 * ("KEY"), or NULL; where both are there the first counts. Returns the key's index, 0 when there
 * are no keys, or -1. The time it takes does not tell how much of a key was right. */
int auth_check(const struct auth *auth, const char *authorization, const char *api_key);

/* The index of the first key with the same text: a key that is given twice is one owner. */
int auth_first(const struct auth *auth, int key);

#endif
