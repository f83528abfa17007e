/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/tiers.h"

#include "engine/base/clock.h"
#include "server/states/checkpoint_files.h"

#include <stdlib.h>
#include <string.h>

/* What they cost is the tokens on their way. */
enum { MAX_TOMBSTONES = 4096, MAX_TOMBSTONE_TOKENS = 16 << 20 };

static struct tier_list *list_of(struct state_tree *tree, const struct checkpoint *checkpoint,
                                 enum tier tier)
{
    return &tree->lists[tier][checkpoint->held];
}

/* Files are written behind, at the end those of what was used last first: each takes its place
 * among the files by its use. Elsewhere what comes has been used last, or comes in that order. */
static struct checkpoint *place_after(const struct tier_list *list,
                                      const struct checkpoint *checkpoint, enum tier tier)
{
    struct checkpoint *older = list->newest;
    while (tier == TIER_DISK && older && older->used > checkpoint->used)
        older = older->link[tier].older;
    return older;
}

static void list_add(struct state_tree *tree, struct checkpoint *checkpoint, enum tier tier)
{
    struct tier_list *list = list_of(tree, checkpoint, tier);
    struct checkpoint *older = place_after(list, checkpoint, tier);
    struct checkpoint *newer = older ? older->link[tier].newer : list->oldest;
    checkpoint->link[tier] = (struct tier_link){.older = older, .newer = newer, .listed = true};
    *(older ? &older->link[tier].newer : &list->oldest) = checkpoint;
    *(newer ? &newer->link[tier].older : &list->newest) = checkpoint;
}

static void list_remove(struct state_tree *tree, struct checkpoint *checkpoint, enum tier tier)
{
    struct tier_list *list = list_of(tree, checkpoint, tier);
    struct tier_link *link = &checkpoint->link[tier];
    if (link->older)
        link->older->link[tier].newer = link->newer;
    else
        list->oldest = link->newer;
    if (link->newer)
        link->newer->link[tier].older = link->older;
    else
        list->newest = link->older;
    *link = (struct tier_link){0};
}

struct checkpoint *checkpoint_oldest(const struct state_tree *tree, enum tier tier)
{
    for (int held = 0; held < 2; held++) {
        struct checkpoint *oldest = tree->lists[tier][held].oldest;
        if (oldest && oldest == tree->pinned)
            oldest = oldest->link[tier].newer;
        if (oldest)
            return oldest;
    }
    return NULL;
}

/* The order holds where the clock jumps back. */
void checkpoint_touch_at(struct state_tree *tree, struct checkpoint *checkpoint, int64_t nanos)
{
    tree->last_use = nanos > tree->last_use ? nanos : tree->last_use + 1;
    checkpoint->used = tree->last_use;
    for (enum tier tier = TIER_DISK; tier < NUM_TIERS; tier++)
        if (checkpoint->link[tier].listed) {
            list_remove(tree, checkpoint, tier);
            list_add(tree, checkpoint, tier);
        }
}

void checkpoint_touch(struct state_tree *tree, struct checkpoint *checkpoint)
{
    checkpoint_touch_at(tree, checkpoint, clock_nanos(CLOCK_REALTIME));
    checkpoint_files_used(tree, checkpoint);
}

void checkpoint_set_held(struct state_tree *tree, struct checkpoint *checkpoint, bool held)
{
    if (checkpoint->held == held)
        return;
    bool listed[NUM_TIERS];
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++) {
        listed[tier] = checkpoint->link[tier].listed;
        if (listed[tier])
            list_remove(tree, checkpoint, tier);
    }
    checkpoint->held = held;
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++)
        if (listed[tier])
            list_add(tree, checkpoint, tier);
}

static void set_place(struct state_tree *tree, struct checkpoint *checkpoint, enum tier tier,
                      bool there)
{
    if (there && !checkpoint->link[tier].listed)
        list_add(tree, checkpoint, tier);
    else if (!there && checkpoint->link[tier].listed)
        list_remove(tree, checkpoint, tier);
}

/* But not the one that has just become one, which the caller goes on with. */
static void bound_tombstones(struct state_tree *tree, const struct checkpoint *last)
{
    const struct checkpoint *pinned = tree->pinned;
    struct checkpoint *oldest;
    tree->pinned = last;
    while (
        (tree->counts[TIER_NONE] > MAX_TOMBSTONES || tree->totals.tokens > MAX_TOMBSTONE_TOKENS) &&
        (oldest = checkpoint_oldest(tree, TIER_NONE)))
        checkpoint_drop(tree, oldest);
    tree->pinned = pinned;
}

void checkpoint_settle(struct state_tree *tree, struct checkpoint *checkpoint)
{
    bool whole = checkpoint_files_whole(checkpoint), busy = checkpoint_files_busy(checkpoint);
    enum tier tier = checkpoint->state   ? TIER_DEVICE
                     : checkpoint->image ? TIER_HOST
                     : whole             ? TIER_DISK
                                         : TIER_NONE;
    tree->counts[checkpoint->tier]--;
    tree->counts[tier]++;
    checkpoint->tier = tier;
    set_place(tree, checkpoint, TIER_DEVICE, checkpoint->state);
    /* What is being written cannot be freed. */
    set_place(tree, checkpoint, TIER_HOST,
              (checkpoint->image || checkpoint->logits) && !checkpoint_files_borrow(checkpoint));
    set_place(tree, checkpoint, TIER_DISK, whole && !busy);
    set_place(tree, checkpoint, TIER_NONE, tier == TIER_NONE && !busy);
    if (tier == TIER_NONE)
        bound_tombstones(tree, checkpoint);
}

static void count_image(struct state_tree *tree, const struct checkpoint *checkpoint, int change)
{
    int64_t bytes = (int64_t)state_image_bytes(tree->engine, checkpoint->position);
    int64_t kv = bytes - (int64_t)engine_info(tree->engine)->recurrent_bytes_per_text;
    tree->host_bytes += change * bytes;
    tree->host_kv_bytes += change * kv;
}

void checkpoint_set_image(struct state_tree *tree, struct checkpoint *checkpoint, void *image)
{
    count_image(tree, checkpoint, (image != NULL) - (checkpoint->image != NULL));
    state_save_wait(&checkpoint->saving, NULL); /* or it would be written when it is freed */
    checkpoint->saving = (struct state_save){0};
    free(checkpoint->image);
    checkpoint->image = image;
}

int checkpoint_await_image(struct checkpoint *checkpoint, struct error *err)
{
    return state_save_wait(&checkpoint->saving, err);
}

void *checkpoint_take_image(struct state_tree *tree, struct checkpoint *checkpoint)
{
    void *image = checkpoint->image;
    count_image(tree, checkpoint, -1);
    checkpoint->image = NULL;
    checkpoint->saving = (struct state_save){0};
    return image;
}

void checkpoint_set_logits(struct state_tree *tree, struct checkpoint *checkpoint, float *logits)
{
    int change = (logits != NULL) - (checkpoint->logits != NULL);
    tree->host_bytes += change * (int64_t)tree->logits_size;
    tree->host_logits_bytes += change * (int64_t)tree->logits_size;
    free(checkpoint->logits);
    checkpoint->logits = logits;
}

void checkpoint_keep_logits(struct state_tree *tree, struct checkpoint *checkpoint,
                            const float *logits)
{
    if (!logits || checkpoint->logits)
        return;
    const struct checkpoint *pinned = tree->pinned;
    tree->pinned = checkpoint;
    float *copy =
        tiers_host_room(tree, (int64_t)tree->logits_size) ? malloc(tree->logits_size) : NULL;
    tree->pinned = pinned;
    if (!copy)
        return;
    memcpy(copy, logits, tree->logits_size);
    checkpoint_set_logits(tree, checkpoint, copy);
    checkpoint_settle(tree, checkpoint);
}

void checkpoint_drop(struct state_tree *tree, struct checkpoint *checkpoint)
{
    struct token_node *node = checkpoint->node;
    struct space *space = checkpoint->space;
    state_free(checkpoint->state);
    checkpoint->state = NULL;
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++)
        set_place(tree, checkpoint, tier, false);
    tree->counts[checkpoint->tier]--;
    checkpoint_files_drop(tree, checkpoint);
    checkpoint_set_image(tree, checkpoint, NULL);
    checkpoint_set_logits(tree, checkpoint, NULL);
    free(checkpoint);
    node->value = NULL;
    space_trim(tree, space, node);
}

/* Frees its host memory; a state on the device stays. */
static void evict_host(struct state_tree *tree, struct checkpoint *checkpoint)
{
    if (checkpoint->image) {
        if (checkpoint_files_whole(checkpoint))
            tree->evictions++;
        else
            tree->dropped++;
    }
    checkpoint_set_image(tree, checkpoint, NULL);
    checkpoint_set_logits(tree, checkpoint, NULL);
    checkpoint_settle(tree, checkpoint);
}

bool tiers_host_room(struct state_tree *tree, int64_t bytes)
{
    if (bytes > tree->options.host_budget_bytes)
        return false;
    while (tree->host_bytes > tree->options.host_budget_bytes - bytes) {
        struct checkpoint *oldest = checkpoint_oldest(tree, TIER_HOST);
        if (!oldest)
            return false;
        evict_host(tree, oldest);
    }
    return true;
}

bool tiers_save(struct state_tree *tree, struct checkpoint *checkpoint)
{
    size_t bytes = state_image_bytes(tree->engine, checkpoint->position);
    void *image = tiers_host_room(tree, (int64_t)bytes) ? malloc(bytes) : NULL;
    if (!image)
        return false;
    checkpoint_set_image(tree, checkpoint, image);
    checkpoint->saving = state_save_begin(checkpoint->state, image);
    return true;
}

void tiers_left_device(struct state_tree *tree, struct checkpoint *checkpoint)
{
    checkpoint->state = NULL;
    if (checkpoint->image || checkpoint_files_whole(checkpoint) ||
        checkpoint_files_busy(checkpoint))
        tree->evictions++;
    else
        tree->dropped++;
    if (!checkpoint->image)
        checkpoint_set_logits(tree, checkpoint, NULL);
    checkpoint_settle(tree, checkpoint);
    if (checkpoint->image)
        checkpoint_files_want(tree, checkpoint, false);
}

bool tiers_evict(struct state_tree *tree)
{
    struct checkpoint *oldest = checkpoint_oldest(tree, TIER_DEVICE);
    if (!oldest)
        return false;
    if (!oldest->image && !tiers_save(tree, oldest))
        checkpoint_files_write_through(tree, oldest);
    state_free(oldest->state);
    tiers_left_device(tree, oldest);
    return true;
}

/* Without `from` from its image. */
static int try_promote(struct state_tree *tree, struct checkpoint *checkpoint,
                       const struct state *from, struct state **out, struct error *err)
{
    int64_t position = checkpoint->position;
    if (from)
        return state_clone(out, from, position, err);
    if (checkpoint_await_image(checkpoint, err))
        return -1;
    return state_restore(out, tree->engine, checkpoint->image, position, position, err);
}

bool tiers_promote(struct state_tree *tree, struct checkpoint *checkpoint, const struct state *from,
                   bool may_evict)
{
    const struct engine_info *info = engine_info(tree->engine);
    size_t bytes = from ? info->recurrent_bytes_per_text +
                              info->kv_bytes_per_token * (size_t)info->kv_page_tokens
                        : engine_state_bytes(tree->engine, checkpoint->position);
    bool evict = may_evict && state_tree_has_room(tree, bytes);
    struct error err = ERROR_INIT;
    struct state *state;
    while (try_promote(tree, checkpoint, from, &state, &err)) {
        if (!evict || err.code != ERROR_NO_MEMORY || !tiers_evict(tree))
            return false;
        error_clear(&err);
    }
    state_set_cached(state, true);
    checkpoint->state = state;
    if (!checkpoint_files_borrow(checkpoint))
        checkpoint_set_image(tree, checkpoint, NULL);
    checkpoint_settle(tree, checkpoint);
    return true;
}
