/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/tiers.h"

#include "lib/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* What they cost is the tokens on their way. */
enum { MAX_TOMBSTONES = 4096, MAX_TOMBSTONE_TOKENS = 16 << 20 };

void tiers_init(struct tiers *tiers, struct engine *engine, int64_t host_budget_bytes)
{
    *tiers = (struct tiers){.engine = engine,
                            .host_budget_bytes = host_budget_bytes,
                            .logits_size = (size_t)engine_info(engine)->vocab_size * sizeof(float)};
}

void tiers_clear(struct tiers *tiers)
{
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++)
        for (int held = 0; held < 2; held++)
            while (tiers->lists[tier][held].oldest)
                tiers_drop(tiers, tiers->lists[tier][held].oldest);
    spaces_clear(&tiers->spaces);
}

/* Lists. */

static struct tier_list *list_of(struct tiers *tiers, const struct checkpoint *checkpoint,
                                 enum tier tier)
{
    return &tiers->lists[tier][checkpoint->held];
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

static void list_add(struct tiers *tiers, struct checkpoint *checkpoint, enum tier tier)
{
    struct tier_list *list = list_of(tiers, checkpoint, tier);
    struct checkpoint *older = place_after(list, checkpoint, tier);
    struct checkpoint *newer = older ? older->link[tier].newer : list->oldest;
    checkpoint->link[tier] = (struct tier_link){.older = older, .newer = newer, .listed = true};
    *(older ? &older->link[tier].newer : &list->oldest) = checkpoint;
    *(newer ? &newer->link[tier].older : &list->newest) = checkpoint;
}

static void list_remove(struct tiers *tiers, struct checkpoint *checkpoint, enum tier tier)
{
    struct tier_list *list = list_of(tiers, checkpoint, tier);
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

struct checkpoint *tiers_oldest(const struct tiers *tiers, enum tier tier)
{
    for (int held = 0; held < 2; held++) {
        struct checkpoint *oldest = tiers->lists[tier][held].oldest;
        if (oldest && oldest == tiers->pinned)
            oldest = oldest->link[tier].newer;
        if (oldest)
            return oldest;
    }
    return NULL;
}

/* The order holds where the clock jumps back. */
void tiers_touch_at(struct tiers *tiers, struct checkpoint *checkpoint, int64_t nanos)
{
    tiers->last_use = nanos > tiers->last_use ? nanos : tiers->last_use + 1;
    checkpoint->used = tiers->last_use;
    for (enum tier tier = TIER_DISK; tier < NUM_TIERS; tier++)
        if (checkpoint->link[tier].listed) {
            list_remove(tiers, checkpoint, tier);
            list_add(tiers, checkpoint, tier);
        }
}

void tiers_touch(struct tiers *tiers, struct checkpoint *checkpoint)
{
    tiers_touch_at(tiers, checkpoint, clock_nanos(CLOCK_REALTIME));
    if (tiers->events.used)
        tiers->events.used(tiers->events.context, checkpoint);
}

void tiers_set_held(struct tiers *tiers, struct checkpoint *checkpoint, bool held)
{
    if (checkpoint->held == held)
        return;
    bool listed[NUM_TIERS];
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++) {
        listed[tier] = checkpoint->link[tier].listed;
        if (listed[tier])
            list_remove(tiers, checkpoint, tier);
    }
    checkpoint->held = held;
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++)
        if (listed[tier])
            list_add(tiers, checkpoint, tier);
}

static void set_place(struct tiers *tiers, struct checkpoint *checkpoint, enum tier tier,
                      bool there)
{
    if (there && !checkpoint->link[tier].listed)
        list_add(tiers, checkpoint, tier);
    else if (!there && checkpoint->link[tier].listed)
        list_remove(tiers, checkpoint, tier);
}

/* But not the one that has just become one, which the caller goes on with. */
static void bound_tombstones(struct tiers *tiers, const struct checkpoint *last)
{
    const struct checkpoint *pinned = tiers->pinned;
    struct checkpoint *oldest;
    tiers->pinned = last;
    while ((tiers->counts[TIER_NONE] > MAX_TOMBSTONES ||
            tiers->spaces.totals.tokens > MAX_TOMBSTONE_TOKENS) &&
           (oldest = tiers_oldest(tiers, TIER_NONE)))
        tiers_drop(tiers, oldest);
    tiers->pinned = pinned;
}

/* Sessions have copies of their tokens, for which three eighths of the budget are left. */
static bool texts_fit(const struct tiers *tiers)
{
    enum { SESSIONS_PART = 3, PARTS = 8 };
    const int64_t each =
        sizeof(struct token_node) + sizeof(struct checkpoint) + sizeof(struct checkpoint_file);
    int64_t bytes =
        tiers->spaces.totals.nodes * each + tiers->spaces.totals.tokens * (int64_t)sizeof(int32_t);
    int64_t budget = tiers->texts_budget_bytes;
    return budget == 0 || bytes <= budget - budget / PARTS * SESSIONS_PART;
}

void tiers_bound_texts(struct tiers *tiers)
{
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++)
        while (!texts_fit(tiers) && tiers->lists[tier][0].oldest) {
            struct checkpoint *oldest = tiers->lists[tier][0].oldest;
            tiers->dropped += oldest->tier != TIER_NONE;
            tiers_drop(tiers, oldest);
        }
}

void tiers_settle(struct tiers *tiers, struct checkpoint *checkpoint)
{
    bool whole = checkpoint_in_file(checkpoint), busy = checkpoint_file_busy(checkpoint);
    enum tier tier = checkpoint->state   ? TIER_DEVICE
                     : checkpoint->image ? TIER_HOST
                     : whole             ? TIER_DISK
                                         : TIER_NONE;
    tiers->counts[checkpoint->tier]--;
    tiers->counts[tier]++;
    checkpoint->tier = tier;
    set_place(tiers, checkpoint, TIER_DEVICE, checkpoint->state);
    /* What is being written cannot be freed. */
    set_place(tiers, checkpoint, TIER_HOST,
              (checkpoint->image || checkpoint->logits) && !checkpoint_lends_image(checkpoint));
    set_place(tiers, checkpoint, TIER_DISK, whole && !busy);
    set_place(tiers, checkpoint, TIER_NONE, tier == TIER_NONE && !busy);
    if (tier == TIER_NONE)
        bound_tombstones(tiers, checkpoint);
}

static void count_image(struct tiers *tiers, const struct checkpoint *checkpoint, int change)
{
    int64_t bytes = (int64_t)state_image_bytes(tiers->engine, checkpoint->position);
    int64_t kv = bytes - (int64_t)engine_info(tiers->engine)->recurrent_bytes_per_text;
    tiers->host_bytes += change * bytes;
    tiers->host_kv_bytes += change * kv;
}

void tiers_set_image(struct tiers *tiers, struct checkpoint *checkpoint, void *image)
{
    count_image(tiers, checkpoint, (image != NULL) - (checkpoint->image != NULL));
    state_save_wait(&checkpoint->saving, NULL); /* or it would be written when it is freed */
    checkpoint->saving = (struct state_save){0};
    free(checkpoint->image);
    checkpoint->image = image;
}

void *tiers_take_image(struct tiers *tiers, struct checkpoint *checkpoint)
{
    void *image = checkpoint->image;
    count_image(tiers, checkpoint, -1);
    checkpoint->image = NULL;
    checkpoint->saving = (struct state_save){0};
    return image;
}

static void set_logits(struct tiers *tiers, struct checkpoint *checkpoint, float *logits)
{
    int change = (logits != NULL) - (checkpoint->logits != NULL);
    tiers->host_bytes += change * (int64_t)tiers->logits_size;
    tiers->host_logits_bytes += change * (int64_t)tiers->logits_size;
    free(checkpoint->logits);
    checkpoint->logits = logits;
}

void tiers_keep_logits(struct tiers *tiers, struct checkpoint *checkpoint, const float *logits)
{
    if (!logits || checkpoint->logits)
        return;
    const struct checkpoint *pinned = tiers->pinned;
    tiers->pinned = checkpoint;
    float *copy =
        tiers_host_room(tiers, (int64_t)tiers->logits_size) ? malloc(tiers->logits_size) : NULL;
    tiers->pinned = pinned;
    if (!copy)
        return;
    memcpy(copy, logits, tiers->logits_size);
    set_logits(tiers, checkpoint, copy);
    tiers_settle(tiers, checkpoint);
}

struct checkpoint *tiers_at(struct tiers *tiers, struct space *space, const int32_t *tokens,
                            int64_t position)
{
    struct token_node *node = token_tree_insert(&space->tokens, tokens, position);
    if (!node)
        return NULL;
    if (node->value)
        return node->value;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint) {
        spaces_trim(&tiers->spaces, space, node);
        return NULL;
    }
    checkpoint->space = space;
    checkpoint->node = node;
    checkpoint->position = position;
    checkpoint->held = node->holds > 0;
    node->value = checkpoint;
    tiers->counts[TIER_NONE]++;
    return checkpoint;
}

void tiers_drop(struct tiers *tiers, struct checkpoint *checkpoint)
{
    struct token_node *node = checkpoint->node;
    struct space *space = checkpoint->space;
    state_free(checkpoint->state);
    checkpoint->state = NULL;
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++)
        set_place(tiers, checkpoint, tier, false);
    tiers->counts[checkpoint->tier]--;
    if (tiers->events.dropped)
        tiers->events.dropped(tiers->events.context, checkpoint);
    tiers_set_image(tiers, checkpoint, NULL);
    set_logits(tiers, checkpoint, NULL);
    free(checkpoint);
    node->value = NULL;
    spaces_trim(&tiers->spaces, space, node);
}

/* Frees its host memory; a state on the device stays. */
static void evict_host(struct tiers *tiers, struct checkpoint *checkpoint)
{
    if (checkpoint->image) {
        if (checkpoint_in_file(checkpoint))
            tiers->evictions++;
        else
            tiers->dropped++;
    }
    tiers_set_image(tiers, checkpoint, NULL);
    set_logits(tiers, checkpoint, NULL);
    tiers_settle(tiers, checkpoint);
}

bool tiers_has_room(const struct tiers *tiers, size_t bytes)
{
    struct engine_memory memory;
    engine_memory(tiers->engine, &memory);
    size_t used = memory.recurrent_reserved_bytes + memory.kv_reserved_bytes -
                  memory.recurrent_cached_bytes - memory.kv_cached_bytes;
    return bytes <= engine_info(tiers->engine)->state_memory_bytes - used;
}

bool tiers_host_room(struct tiers *tiers, int64_t bytes)
{
    if (bytes > tiers->host_budget_bytes)
        return false;
    while (tiers->host_bytes > tiers->host_budget_bytes - bytes) {
        struct checkpoint *oldest = tiers_oldest(tiers, TIER_HOST);
        if (!oldest)
            return false;
        evict_host(tiers, oldest);
    }
    return true;
}

bool tiers_save(struct tiers *tiers, struct checkpoint *checkpoint)
{
    size_t bytes = state_image_bytes(tiers->engine, checkpoint->position);
    void *image = tiers_host_room(tiers, (int64_t)bytes) ? malloc(bytes) : NULL;
    if (!image)
        return false;
    tiers_set_image(tiers, checkpoint, image);
    checkpoint->saving = state_save_begin(checkpoint->state, image);
    return true;
}

void tiers_left_device(struct tiers *tiers, struct checkpoint *checkpoint)
{
    checkpoint->state = NULL;
    if (checkpoint->image || checkpoint_in_file(checkpoint) || checkpoint_file_busy(checkpoint))
        tiers->evictions++;
    else
        tiers->dropped++;
    if (!checkpoint->image)
        set_logits(tiers, checkpoint, NULL);
    tiers_settle(tiers, checkpoint);
    if (checkpoint->image && tiers->events.left)
        tiers->events.left(tiers->events.context, checkpoint);
}

bool tiers_evict(struct tiers *tiers)
{
    struct checkpoint *oldest = tiers_oldest(tiers, TIER_DEVICE);
    if (!oldest)
        return false;
    if (!oldest->image && !tiers_save(tiers, oldest) && tiers->events.leaves)
        tiers->events.leaves(tiers->events.context, oldest);
    state_free(oldest->state);
    tiers_left_device(tiers, oldest);
    return true;
}

/* Without `from` from its image. */
static int try_promote(struct tiers *tiers, struct checkpoint *checkpoint, const struct state *from,
                       struct state **out, struct error *err)
{
    int64_t position = checkpoint->position;
    if (from)
        return state_clone(out, from, position, err);
    if (checkpoint_await_image(checkpoint, err))
        return -1;
    return state_restore(out, tiers->engine, checkpoint->image, position, position, err);
}

bool tiers_promote(struct tiers *tiers, struct checkpoint *checkpoint, const struct state *from,
                   bool may_evict)
{
    const struct engine_info *info = engine_info(tiers->engine);
    size_t bytes = from ? info->recurrent_bytes_per_text +
                              info->kv_bytes_per_token * (size_t)info->kv_page_tokens
                        : engine_state_bytes(tiers->engine, checkpoint->position);
    bool evict = may_evict && tiers_has_room(tiers, bytes);
    struct error err = ERROR_INIT;
    struct state *state;
    while (try_promote(tiers, checkpoint, from, &state, &err)) {
        if (!evict || err.code != ERROR_NO_MEMORY || !tiers_evict(tiers))
            return false;
        error_clear(&err);
    }
    state_set_cached(state, true);
    checkpoint->state = state;
    if (!checkpoint_lends_image(checkpoint))
        tiers_set_image(tiers, checkpoint, NULL);
    tiers_settle(tiers, checkpoint);
    return true;
}
