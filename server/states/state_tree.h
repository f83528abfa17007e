/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of states: a radix tree over token ids (token_tree.h), one root per space (API key and
 * cache_salt), whose nodes may hold a checkpoint, that is, the state of a text after the tokens on
 * the way to it. Prefix reuse, sessions, fork, rewind, n > 1: all look for the deepest checkpoint
 * that is a prefix of what they want, and compute the rest.
 *
 * A checkpoint lies on the device (a struct state that shares its KV pages), in host memory (an
 * image), or in a file, or in several of them. Budgets are bytes: of the device, that of the engine
 * (--state-memory), where whatever running texts do not need belongs to the tree;
 * --host-state-memory;
 * --disk-state. Under pressure the least recently used moves down a tier; files are written behind,
 * by the store's thread, so that room can be made without waiting; what is in no lower tier in time
 * is dropped: it can be computed again. All functions are for the engine thread. */
#ifndef SERVER_STATES_STATE_TREE_H
#define SERVER_STATES_STATE_TREE_H

#include "api/states.h"
#include "server/store/store.h"

struct state_tree;
struct space;      /* who may share: an API key and a cache_salt */
struct checkpoint; /* valid until the next call that may make room */

struct state_tree_options {
    bool reuse; /* false: prompts are not matched, only sessions keep states */
    int64_t host_budget_bytes;
    int64_t interval_tokens; /* 0: from the model */
    struct store *store;     /* NULL: no disk */
};

int state_tree_create(struct state_tree **out, struct engine *engine,
                      const struct state_tree_options *options, struct error *err);
void state_tree_free(struct state_tree *tree);
/* Before the end: writes what is only in memory to disk, the most recently used first, within its
 * budget, until the deadline (clock_seconds()). */
void state_tree_save_all(struct state_tree *tree, double deadline);
/* Before a session's file is written: removes the least recently used files of checkpoints, so many
 * that the bytes will fit the budget of the disk and what is free on it. */
void state_tree_disk_room(struct state_tree *tree, int64_t bytes);
/* For store_options.found: enters a checkpoint file of an earlier run. */
void state_tree_found(struct state_tree *tree, const struct store_found *file);

int64_t state_tree_interval(const struct state_tree *tree);
bool state_tree_reuses(const struct state_tree *tree); /* options.reuse */
/* Whether a prompt's last logits can be kept, by the budget of the host. */
bool state_tree_keeps_logits(const struct state_tree *tree);
/* Whether `bytes` of the device are free, or would be without any checkpoint. */
bool state_tree_has_room(const struct state_tree *tree, size_t bytes);

/* The space of an owner's tag (store_owner_tag, or any text that names an API key) and a salt, with
 * a reference that state_tree_space_release gives back: one that is unused and empty goes. NULL: no
 * memory. */
struct space *state_tree_space(struct state_tree *tree, const char *owner, const char *salt,
                               size_t salt_length);
void state_tree_space_release(struct state_tree *tree, struct space *space); /* NULL is allowed */

struct state_match {
    struct checkpoint *checkpoint; /* NULL: nothing to reuse */
    int64_t position;              /* of the checkpoint; 0 */
    const float *logits; /* those after `position` tokens when position = count; else NULL */
    int64_t shared;      /* tokens that the tree knows, checkpoint or not: a branch point */
    enum miss_reason reason;
    enum tier tier;
};

/* Which checkpoint at position = count will do, from which no position can be computed any more. */
enum match_end { MATCH_NONE, MATCH_WITH_LOGITS, MATCH_ANY };

/* The deepest checkpoint of tokens [0, count) at a position < count, or at position = count one
 * that `end` says. Marks it as used. */
void state_tree_match(struct state_tree *tree, struct space *space, const int32_t *tokens,
                      int64_t count, enum match_end end, struct state_match *match);

/* A state of its own for a text that goes on from a match (checkpoint NULL: a new text), reserving
 * max_tokens; moves others down to make room. 0: done. 1: a file is being read; match again once
 * state_tree_poll has been called. -1: ERROR_NO_MEMORY (wait), ERROR_INVALID (never). */
int state_tree_start(struct state_tree *tree, const struct state_match *match, int64_t max_tokens,
                     struct state **out, struct error *err);

/* Keeps a checkpoint of `state`, which has taken tokens [0, position). `keep` clones it (a text
 * goes on), `give` takes it over (always: frees it if it cannot be kept, or is there already).
 * logits [vocab_size] or NULL. Without room for it there is no checkpoint: never an error. */
void state_tree_keep(struct state_tree *tree, struct space *space, const int32_t *tokens,
                     struct state *state, const float *logits);
void state_tree_give(struct state_tree *tree, struct space *space, const int32_t *tokens,
                     struct state *state, const float *logits);
/* The same of an image (an imported state): takes it over (malloc'd), as tier host. -1: no room. */
int state_tree_give_image(struct state_tree *tree, struct space *space, const int32_t *tokens,
                          int64_t position, void *image, struct error *err);

/* Copies a match's state into image [state_image_bytes(match->position)], where it is once
 * *saving, {0} before, has been waited for. 0, 1 or -1 as start. */
int state_tree_image(struct state_tree *tree, const struct state_match *match, void *image,
                     struct state_save *saving, struct error *err);

/* A session holds the tokens: its checkpoints on the way are evicted after those of others, and
 * survive in files as long as there is room. Counted: release undoes hold. */
int state_tree_hold(struct state_tree *tree, struct space *space, const int32_t *tokens,
                    int64_t count, struct error *err);
void state_tree_release(struct state_tree *tree, struct space *space, const int32_t *tokens,
                        int64_t count);

/* Removes the checkpoints on the way that nothing else goes through (a deleted session leaves
 * nothing behind in its own branch). */
void state_tree_forget(struct state_tree *tree, struct space *space, const int32_t *tokens,
                       int64_t count);
/* Checkpoints on the way, and the tier of the deepest (TIER_NONE: none). Marks nothing as used. */
int state_tree_checkpoints_of(struct state_tree *tree, struct space *space, const int32_t *tokens,
                              int64_t count, enum tier *deepest);

/* Once per turn of the engine thread: files that have ended, writing behind. */
void state_tree_poll(struct state_tree *tree);

struct state_tree_tier {
    int64_t checkpoints, bytes, budget_bytes;
};

struct state_tree_report {
    int64_t spaces, nodes, checkpoints, tokens;      /* tokens: kept in nodes */
    struct state_tree_tier tiers[NUM_TIERS];         /* by enum tier */
    int64_t recurrent_bytes, kv_bytes, logits_bytes; /* of checkpoints on the device and host */
    int64_t evictions, dropped;                      /* moved down a tier; lost */
};
void state_tree_report(const struct state_tree *tree, struct state_tree_report *report);

#endif
