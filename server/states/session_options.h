/* SPDX-License-Identifier: Apache-2.0 */
/* What sessions need: the engine, the tree and the store, their limits, and the clocks. */
#ifndef SERVER_STATES_SESSION_OPTIONS_H
#define SERVER_STATES_SESSION_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct state_tree;
struct store;

/* A moment, by two clocks. Times to live go by the first. The second is for replies and the store,
 * whose times have to mean the same after a restart. */
struct session_clock {
    double running_s; /* never jumps; continues while the machine sleeps */
    double wall_s;    /* since 1970; may jump */
};

struct sessions_options {
    struct engine *engine;
    struct state_tree *tree;
    struct store *store;   /* NULL: in memory only */
    bool memory_only;      /* the store has changes later than their clients are told of them */
    double ttl_s;          /* unused for so long: deleted; 0: never */
    double response_ttl_s; /* the same of kept responses */
    int64_t quota_bytes;   /* of an owner's sessions; 0: any */
    int64_t texts_bytes;   /* of memory, for the tokens of sessions and checkpoints; 0: any */
    void (*read_clock)(struct session_clock *now); /* NULL: the machine's */
};

#endif
