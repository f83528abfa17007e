/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of a --state-dir that belong to no API key: a key was taken away, or the secret was lost
 * by which owners are known. No server uses the directory meanwhile. */
#ifndef SERVER_STATES_SESSION_ORPHANS_H
#define SERVER_STATES_SESSION_ORPHANS_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session_orphans {
    int64_t sessions, tokens; /* of no key */
    int64_t others;           /* sessions that have an owner */
};

/* Counts them in all models, and removes them. keys: [count]; none: sessions without a key are not
 * orphans. */
int session_orphans_find(const char *directory, char *const *keys, size_t count, bool remove,
                         struct session_orphans *out, struct error *err);

#endif
