/* SPDX-License-Identifier: Apache-2.0 */
/* API keys: whether a request may come in, and as whom. */
#ifndef SERVER_HTTP_AUTH_H
#define SERVER_HTTP_AUTH_H

#include "engine/base/error.h"

#include <stddef.h>

struct auth {
    char **keys; /* [count]; none: every request is let in */
    size_t count;
};

/* lists: [count] texts, each of which may hold several keys parted by commas; file: one key a line,
 * `#` begins a comment; NULL: none. The caller clears *auth in every case. */
int auth_init(struct auth *auth, const char *const *lists, size_t count, const char *file,
              struct error *err);
void auth_clear(struct auth *auth);

/* authorization: the header's value, or NULL. Returns the key's index (0 when there are no keys),
 * or -1. Its time does not depend on how much of a key was right. */
int auth_check(const struct auth *auth, const char *authorization);

/* The first key of the same words: a key that is given twice is one owner. */
int auth_first(const struct auth *auth, int key);

#endif
