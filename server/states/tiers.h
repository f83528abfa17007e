/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the tree of states that its files share: what a checkpoint and the tree are made
 * of, where checkpoints lie, and what moves when room is needed. */
#ifndef SERVER_STATES_TIERS_H
#define SERVER_STATES_TIERS_H

#include "server/states/state_tree.h"
#include "server/states/token_tree.h"

struct space {
    char *owner;
    char *salt; /* [salt_length] */
    size_t salt_length;
    int64_t references;
    struct token_tree tokens; /* values: struct checkpoint */
};

/* A place among those of a tier, by last use. */
struct tier_link {
    struct checkpoint *older, *newer;
    bool listed;
};

/* A state on the device or an image of it in host memory, or neither, and perhaps a file. One that
 * has nothing of these is a tombstone: it says that there was a checkpoint. */
struct checkpoint {
    struct space *space;
    struct token_node *node; /* NULL: dropped, but its file's operation has not ended */
    int64_t position;        /* tokens: of its node */
    struct state *state;
    void *image;
    struct state_save saving;         /* of the image, while that is on its way */
    float *logits;                    /* after its last token; host memory */
    int64_t used;                     /* when last: nanoseconds since 1970, no two the same */
    bool held;                        /* a session's tokens go through here */
    enum tier tier;                   /* the highest it lies in; as counted */
    struct tier_link link[NUM_TIERS]; /* HOST: also with logits alone; NONE: tombstones */

    struct checkpoint_file
        *file; /* checkpoint_files.h; NULL: it has none, and none is being made */
};

struct tier_list {
    struct checkpoint *oldest, *newest;
};

struct state_tree {
    struct engine *engine;
    struct state_tree_options options;
    int64_t interval;
    size_t logits_size;    /* bytes */
    struct space **spaces; /* [num_spaces], by owner and salt */
    size_t num_spaces, spaces_capacity;
    struct token_totals totals;
    int64_t last_use;                     /* the largest checkpoint.used so far */
    struct tier_list lists[NUM_TIERS][2]; /* of those that no session holds; of the others */
    int64_t counts[NUM_TIERS];
    int64_t host_bytes, host_kv_bytes, host_logits_bytes; /* images and logits */
    int64_t evictions, dropped;
    const struct checkpoint *pinned; /* room is being made for its sake */
    struct checkpoint_files *files;  /* NULL: no store */
};

/* The checkpoint of tokens [0, position); made without a state if need be. NULL: no memory. */
struct checkpoint *checkpoint_at(struct state_tree *tree, struct space *space,
                                 const int32_t *tokens, int64_t position);
/* After a change of where it lies: its places, the counts; too many tombstones go. */
void checkpoint_settle(struct state_tree *tree, struct checkpoint *checkpoint);
void checkpoint_touch(struct state_tree *tree, struct checkpoint *checkpoint);
/* It was used at that moment (of an earlier server), after all that have been told of. */
void checkpoint_touch_at(struct state_tree *tree, struct checkpoint *checkpoint, int64_t nanos);
void checkpoint_set_held(struct state_tree *tree, struct checkpoint *checkpoint, bool held);
/* Takes it out of all tiers and out of the tree. */
void checkpoint_drop(struct state_tree *tree, struct checkpoint *checkpoint);
/* The least recently used of a tier that is not pinned; those of sessions last. */
struct checkpoint *checkpoint_oldest(const struct state_tree *tree, enum tier tier);

/* The image and logits of a checkpoint; `image` [image bytes] is taken over, NULL frees. */
void checkpoint_set_image(struct state_tree *tree, struct checkpoint *checkpoint, void *image);
/* Waits until its image can be read. -1: it is lost, the device failed. */
int checkpoint_await_image(struct checkpoint *checkpoint, struct error *err);
void *checkpoint_take_image(struct state_tree *tree, struct checkpoint *checkpoint);
void checkpoint_set_logits(struct state_tree *tree, struct checkpoint *checkpoint, float *logits);
/* Copies them; without room for them there are none. */
void checkpoint_keep_logits(struct state_tree *tree, struct checkpoint *checkpoint,
                            const float *logits);

/* Makes room for so many bytes of host memory. */
bool tiers_host_room(struct state_tree *tree, int64_t bytes);
/* Sends its state on its way to host memory; false: there is no room. */
bool tiers_save(struct state_tree *tree, struct checkpoint *checkpoint);
/* Moves the least recently used state off the device; false: there is none. */
bool tiers_evict(struct state_tree *tree);
/* Brings its image to the device, out of `from` (a text that stands where it does; may share its
 * pages) or of itself; false: there is no room. */
bool tiers_promote(struct state_tree *tree, struct checkpoint *checkpoint, const struct state *from,
                   bool may_evict);
/* Its state has left the device. */
void tiers_left_device(struct state_tree *tree, struct checkpoint *checkpoint);

/* A node may have become useless: so may its space. */
void space_trim(struct state_tree *tree, struct space *space, struct token_node *node);

#endif
