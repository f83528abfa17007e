/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of states: finds the longest beginning of a text whose state has been kept, so that only
 * the rest must be computed. Prefix reuse, sessions, fork, rewind and n > 1 all go through it.
 *
 * It is a radix tree over token ids (token_tree.h), one for each space (API key and cache_salt). A
 * node may hold a checkpoint: the state of the text that leads to the node. Checkpoints lie in
 * tiers, each with a budget in bytes:
 *   device   --state-memory; the tree has what running texts do not need
 *   host     --host-state-memory
 *   disk     --disk-state
 * When a tier needs room, the least recently used checkpoints move down. The store's thread writes
 * files ahead of need, so making room waits for no disk. A checkpoint without a copy below is
 * dropped: it can be computed again.
 *
 * The layers below, from the top: checkpoint_files.h (files), tiers.h (moves), checkpoint.h (one),
 * spaces.h, token_tree.h. All functions are for the engine thread. */
#ifndef SERVER_STATES_STATE_TREE_H
#define SERVER_STATES_STATE_TREE_H

#include "api/states.h"
#include "server/store/store.h"

struct state_tree;
struct checkpoint_waiter;
struct space;      /* who may share: an API key and a cache_salt */
struct checkpoint; /* valid until the next call that may make room */

struct state_tree_options {
    bool reuse; /* false: prompts are not matched, only sessions keep states */
    int64_t host_budget_bytes;
    int64_t interval_tokens; /* 0: from the model */
    struct store *store;     /* NULL: no disk */
    int64_t soon_bytes;      /* the largest state of a session that is written after each request */
    int64_t files_bytes;     /* of memory, for states on their way to and from disk; 0: any */
    int64_t texts_bytes;     /* for tokens, and what hangs on them; 0: any */
};

int state_tree_create(struct state_tree **out, struct engine *engine,
                      const struct state_tree_options *options, struct error *err);
void state_tree_free(struct state_tree *tree);
/* Before the end: writes to disk what is only in memory, the most recently used first, within the
 * budget, until the deadline (clock_seconds()). */
void state_tree_save_all(struct state_tree *tree, double deadline);
/* Before a session's file is written: removes the least recently used files of checkpoints until
 * `bytes` fit the budget and what is free on the disk. */
void state_tree_disk_room(struct state_tree *tree, int64_t bytes);
/* Calls waiter->then (checkpoint.h), perhaps at once, when the files of what was forgotten so far
 * are gone. */
void state_tree_await_gone(struct state_tree *tree, struct checkpoint_waiter *waiter);
/* For store_options.found: enters a checkpoint's file of an earlier run. */
void state_tree_found(struct state_tree *tree, const struct store_found *file);

int64_t state_tree_interval(const struct state_tree *tree);
bool state_tree_reuses(const struct state_tree *tree); /* options.reuse */
/* Whether the host's budget has room for a prompt's last logits at all. */
bool state_tree_keeps_logits(const struct state_tree *tree);
/* Whether `bytes` of the device are free, or would be without any checkpoint. */
bool state_tree_has_room(const struct state_tree *tree, size_t bytes);

/* The space of an owner (the tag of store_owner_tag, or any string that names an API key) and a
 * salt, with a reference that state_tree_space_release gives back. NULL: no memory. */
struct space *state_tree_space(struct state_tree *tree, const char *owner, const char *salt,
                               size_t salt_length);
void state_tree_space_release(struct state_tree *tree, struct space *space); /* NULL is allowed */

struct state_match {
    struct checkpoint *checkpoint; /* NULL: nothing to reuse */
    int64_t position;              /* of the checkpoint; 0 */
    const float *logits; /* those after `position` tokens when position = count; else NULL */
    int64_t shared;      /* tokens that the tree knows, checkpoint or not: a branch point */
    bool parts;          /* there, texts that begin so continue with other tokens */
    enum miss_reason reason;
    enum tier tier;
};

/* Whether a checkpoint at position = count will do. It leaves no token to compute, so whoever needs
 * the logits there has to find them with it. */
enum match_end { MATCH_NONE, MATCH_WITH_LOGITS, MATCH_ANY };

/* Finds the deepest checkpoint of tokens [0, count) at a position < count, or = count as `end`
 * says. Marks it as used. */
void state_tree_match(struct state_tree *tree, struct space *space, const int32_t *tokens,
                      int64_t count, enum match_end end, struct state_match *match);

/* Makes a state for a text that continues from a match (checkpoint NULL: a new text), and reserves
 * memory for max_tokens; moves other checkpoints down to make room. 0: done. 1: a file is being
 * read; match again once state_tree_poll has been called. -1: ERROR_NO_MEMORY (wait), ERROR_INVALID
 * (never). */
int state_tree_start(struct state_tree *tree, const struct state_match *match, int64_t max_tokens,
                     struct state **out, struct error *err);

/* Changes the reservation of a text that runs, and moves checkpoints down to make room for it.
 * Errors are those of state_create. */
int state_tree_grow(struct state_tree *tree, struct state *state, int64_t max_tokens,
                    struct error *err);

/* Keeps a checkpoint of `state`, which has taken tokens [0, position). `keep` clones the state, for
 * a text that continues. `give` takes it over, and frees it if it cannot be kept or is there
 * already. logits: [vocab_size] or NULL. Without room there is no checkpoint, which is not an
 * error. */
void state_tree_keep(struct state_tree *tree, struct space *space, const int32_t *tokens,
                     struct state *state, const float *logits);
void state_tree_give(struct state_tree *tree, struct space *space, const int32_t *tokens,
                     struct state *state, const float *logits);
/* Keeps a checkpoint of an image (an imported state) in host memory. Takes the image (malloc'd)
 * over. -1: no room. */
int state_tree_give_image(struct state_tree *tree, struct space *space, const int32_t *tokens,
                          int64_t position, void *image, struct error *err);

/* Copies a match's state into image [state_image_bytes(match->position)]. The copy is complete once
 * the caller has waited for *saving, which is {0} before. 0, 1 or -1 as state_tree_start. */
int state_tree_image(struct state_tree *tree, const struct state_match *match, void *image,
                     struct state_save *saving, struct error *err);

/* A session holds the tokens: checkpoints on their path are evicted after all others, and their
 * files removed after all others. Holds are counted: release undoes one. */
int state_tree_hold(struct state_tree *tree, struct space *space, const int32_t *tokens,
                    int64_t count, struct error *err);
void state_tree_release(struct state_tree *tree, struct space *space, const int32_t *tokens,
                        int64_t count);

/* Where servers share the store: the position of the deepest state on the path of the tokens, if a
 * session that holds them will have it in the store; 0. */
int64_t state_tree_soon_stored(struct state_tree *tree, struct space *space, const int32_t *tokens,
                               int64_t count);
/* There: the state at that position may be in the store; it is read if a text begins there. */
void state_tree_find_shared(struct state_tree *tree, struct space *space, const int32_t *tokens,
                            int64_t position);
/* There: nobody needs the state at that position in the store any more. 0: there is none. */
void state_tree_drop_shared(struct state_tree *tree, struct space *space, const int32_t *tokens,
                            int64_t position);

/* Drops the checkpoints on the path of the tokens that no other path needs, so that a deleted
 * session leaves nothing in its own branch. */
void state_tree_forget(struct state_tree *tree, struct space *space, const int32_t *tokens,
                       int64_t count);
/* Counts the checkpoints on the path; *deepest: the tier of the deepest (TIER_NONE: there is none).
 * Marks nothing as used. */
int state_tree_checkpoints_of(struct state_tree *tree, struct space *space, const int32_t *tokens,
                              int64_t count, enum tier *deepest);

/* For a pass over several texts, which finds what they share. Returns the deepest mark on the path
 * of the tokens and sets *position, the length of what both texts have; NULL, 0: there is none.
 * Then marks the rest of the path. At the end of the pass each text is unmarked. Nothing may change
 * the tree meanwhile. */
const void *state_tree_mark(struct space *space, const int32_t *tokens, int64_t count,
                            const void *mark, int64_t *position);
void state_tree_unmark(struct space *space, const int32_t *tokens, int64_t count);

/* Of the memory for states on their way to and from files, for others that move some. False: so
 * much is not left. */
bool state_tree_take_memory(struct state_tree *tree, int64_t bytes);
void state_tree_give_memory(struct state_tree *tree, int64_t bytes);

/* Once per turn of the engine thread: begins the writes of files that are wanted. */
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
