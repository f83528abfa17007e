/* SPDX-License-Identifier: Apache-2.0 */
/* Where checkpoints lie: on the device, in host memory, in files. Each tier lists its checkpoints
 * by last use. When a tier needs room, the least recently used move down; a checkpoint that moves
 * down without a copy below is dropped, since it can be computed again.
 *
 * The layer above, checkpoint_files.h, handles the files. It puts its callbacks into `events`. */
#ifndef SERVER_STATES_TIERS_H
#define SERVER_STATES_TIERS_H

#include "engine/engine.h"
#include "server/states/checkpoint.h"

struct tier_list {
    struct checkpoint *oldest, *newest;
};

/* What happens to checkpoints, for whoever keeps files of them. A callback may be NULL. */
struct tiers_events {
    void *context;
    void (*used)(void *context, const struct checkpoint *checkpoint);
    /* It is about to leave the device, and host memory has no room for it. */
    void (*leaves)(void *context, struct checkpoint *checkpoint);
    /* It has left the device; an image of it is in host memory. */
    void (*left)(void *context, struct checkpoint *checkpoint);
    void (*dropped)(void *context, struct checkpoint *checkpoint); /* it is freed next */
};

struct tiers {
    struct engine *engine; /* borrowed */
    int64_t host_budget_bytes;
    int64_t texts_budget_bytes; /* for tokens, and what hangs on them; 0: any */
    size_t logits_size;         /* bytes */
    struct tiers_events events;
    struct spaces spaces;
    /* Of those that no session holds; of the others. DISK: files that can be removed now. HOST:
     * also logits alone, but no image that is being written. NONE: tombstones. */
    struct tier_list lists[NUM_TIERS][2];
    int64_t counts[NUM_TIERS];                            /* by the highest tier that one lies in */
    int64_t last_use;                                     /* the largest checkpoint.used so far */
    int64_t host_bytes, host_kv_bytes, host_logits_bytes; /* images and logits */
    int64_t evictions, dropped;                           /* moved down a tier; lost */
    const struct checkpoint *pinned;                      /* it stays while room is made for it */
};

/* host_budget_bytes: --host-state-memory. */
void tiers_init(struct tiers *tiers, struct engine *engine, int64_t host_budget_bytes);
/* Drops all checkpoints and frees all spaces. */
void tiers_clear(struct tiers *tiers);

/* The checkpoint of tokens [0, position). If there is none, makes a tombstone. NULL: no memory. */
struct checkpoint *tiers_at(struct tiers *tiers, struct space *space, const int32_t *tokens,
                            int64_t position);
/* Takes it out of all tiers and out of the tree, and frees it. */
void tiers_drop(struct tiers *tiers, struct checkpoint *checkpoint);
/* To be called after each change of where a checkpoint lies: moves it between lists and counts, and
 * drops the oldest tombstones if there are too many. */
void tiers_settle(struct tiers *tiers, struct checkpoint *checkpoint);
/* Drops the least recently used, tombstones first, while tokens take more memory than they may.
 * Those that sessions hold stay. Pointers to checkpoints are not valid after it. */
void tiers_bound_texts(struct tiers *tiers);
/* The least recently used of a tier that is not pinned; those that sessions hold come last. */
struct checkpoint *tiers_oldest(const struct tiers *tiers, enum tier tier);

void tiers_touch(struct tiers *tiers, struct checkpoint *checkpoint); /* it is used now */
/* It was used at that moment, by an earlier server. */
void tiers_touch_at(struct tiers *tiers, struct checkpoint *checkpoint, int64_t nanos);
void tiers_set_held(struct tiers *tiers, struct checkpoint *checkpoint, bool held);

/* The image of a checkpoint: `image` [image bytes] is taken over; NULL frees the old one. */
void tiers_set_image(struct tiers *tiers, struct checkpoint *checkpoint, void *image);
/* Gives the image to the caller. */
void *tiers_take_image(struct tiers *tiers, struct checkpoint *checkpoint);
/* Copies logits, if the checkpoint has none and there is room. logits NULL: does nothing. */
void tiers_keep_logits(struct tiers *tiers, struct checkpoint *checkpoint, const float *logits);

/* Whether so many bytes of the device are free, or would be without any checkpoint. */
bool tiers_has_room(const struct tiers *tiers, size_t bytes);
/* Makes room for so many bytes of host memory. False: that cannot be. */
bool tiers_host_room(struct tiers *tiers, int64_t bytes);
/* Starts to copy its state to host memory. False: there is no room. */
bool tiers_save(struct tiers *tiers, struct checkpoint *checkpoint);
/* Its state has been taken from it: it is not on the device any more. */
void tiers_left_device(struct tiers *tiers, struct checkpoint *checkpoint);
/* Moves the least recently used state off the device. False: there is none. */
bool tiers_evict(struct tiers *tiers);
/* Brings it back to the device: as a clone of `from`, a text at the same position (which may share
 * its pages), or, if that is NULL, from its image. False: there is no room. */
bool tiers_promote(struct tiers *tiers, struct checkpoint *checkpoint, const struct state *from,
                   bool may_evict);

#endif
