/* SPDX-License-Identifier: Apache-2.0 */
/* What each error reply of a Redis, a Valkey, a cluster or a Sentinel means here, in one table. A
 * refused command was not carried out, but for those that say that they are in doubt. */
#ifndef SERVER_STORE_REDIS_REFUSALS_H
#define SERVER_STORE_REDIS_REFUSALS_H

#include "lib/base/error.h"

#include <stdbool.h>

/* STAY: another connection would not help. AGAIN: another server may have its role by now, so the
 * connection is closed, the master looked for again, and the command sent once more. LEAVE: the
 * same, and no connection to such a server is of use. */
enum redis_outcome { REDIS_STAY, REDIS_AGAIN, REDIS_LEAVE };

struct redis_refusal {
    const char *begins;   /* the reply */
    enum error_code code; /* ERROR_IO: the store is away for now; see redis_link.h */
    enum redis_outcome outcome;
    bool passes;       /* a start waits for its end */
    const char *words; /* for /ready: what the store is; NULL: it is not away for that */
};

/* Of the text of an error reply, also where a script met it. Never NULL. */
const struct redis_refusal *redis_refusals_of(const char *text);
/* Sets the error that the reply means. name: of the server, for people. */
void redis_refusals_set(const char *name, const char *text, struct error *err);
/* What such an error was made of. NULL: of none; the server did not answer. */
const struct redis_refusal *redis_refusals_behind(const struct error *err);

/* What the store is instead, with an error that says that it is away. Words that stay. */
const char *redis_refusals_words(const struct error *err);

#endif
