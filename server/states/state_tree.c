/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/state_tree.h"

#include "server/states/checkpoint_files.h"

#include <stdlib.h>
#include <string.h>

/* Cutting chunks of prompts more often than once in so many tokens would slow them down. */
enum { LEAST_INTERVAL = 512, MOST_INTERVAL = 4096 };

struct state_tree {
    struct tiers tiers;
    struct checkpoint_files *files; /* NULL: no store */
    struct state_tree_options options;
    int64_t interval;
};

/* So many tokens that a checkpoint costs no more than the KV it stands for. */
static int64_t interval_of(const struct engine_info *info)
{
    int64_t page = info->kv_page_tokens, per_token = (int64_t)info->kv_bytes_per_token;
    if (per_token == 0)
        return LEAST_INTERVAL;
    int64_t tokens = ((int64_t)info->recurrent_bytes_per_text + per_token - 1) / per_token;
    tokens = (tokens + page - 1) / page * page;
    return tokens < LEAST_INTERVAL  ? LEAST_INTERVAL
           : tokens > MOST_INTERVAL ? MOST_INTERVAL
                                    : tokens;
}

int state_tree_create(struct state_tree **out, struct engine *engine,
                      const struct state_tree_options *options, struct error *err)
{
    struct state_tree *tree = calloc(1, sizeof *tree);
    if (!tree)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the state tree");
    tiers_init(&tree->tiers, engine, options->host_budget_bytes);
    tree->tiers.texts_budget_bytes = options->texts_bytes;
    tree->options = *options;
    tree->interval =
        options->interval_tokens ? options->interval_tokens : interval_of(engine_info(engine));
    if (options->store && checkpoint_files_create(&tree->files, &tree->tiers, options->store,
                                                  options->files_bytes, err)) {
        free(tree);
        return -1;
    }
    *out = tree;
    return 0;
}

void state_tree_free(struct state_tree *tree)
{
    if (!tree)
        return;
    if (tree->files)
        checkpoint_files_close(tree->files);
    tiers_clear(&tree->tiers);
    checkpoint_files_free(tree->files);
    free(tree);
}

/* Files. */

void state_tree_save_all(struct state_tree *tree, double deadline)
{
    if (tree->files)
        checkpoint_files_save_all(tree->files, deadline);
}

void state_tree_disk_room(struct state_tree *tree, int64_t bytes)
{
    if (tree->files)
        checkpoint_files_make_room(tree->files, bytes);
}

void state_tree_await_gone(struct state_tree *tree, struct checkpoint_waiter *waiter)
{
    if (tree->files)
        checkpoint_files_await_gone(tree->files, waiter);
    else
        waiter->then(waiter->context);
}

void state_tree_found(struct state_tree *tree, const struct store_found *file)
{
    checkpoint_files_found(tree->files, file);
    tiers_bound_texts(&tree->tiers);
}

void state_tree_poll(struct state_tree *tree)
{
    if (tree->files)
        checkpoint_files_poll(tree->files);
}

bool state_tree_take_memory(struct state_tree *tree, int64_t bytes)
{
    return tree->files && checkpoint_files_take_memory(tree->files, bytes);
}

void state_tree_give_memory(struct state_tree *tree, int64_t bytes)
{
    checkpoint_files_give_memory(tree->files, bytes);
}

static void want_file(struct state_tree *tree, struct checkpoint *checkpoint, bool soon)
{
    if (tree->files)
        checkpoint_files_want(tree->files, checkpoint, soon);
}

/* What it was made for. */

int64_t state_tree_interval(const struct state_tree *tree)
{
    return tree->interval;
}

bool state_tree_reuses(const struct state_tree *tree)
{
    return tree->options.reuse;
}

bool state_tree_keeps_logits(const struct state_tree *tree)
{
    return (int64_t)tree->tiers.logits_size <= tree->options.host_budget_bytes;
}

bool state_tree_has_room(const struct state_tree *tree, size_t bytes)
{
    return tiers_has_room(&tree->tiers, bytes);
}

/* Spaces. */

struct space *state_tree_space(struct state_tree *tree, const char *owner, const char *salt,
                               size_t salt_length)
{
    return spaces_take(&tree->tiers.spaces, owner, salt, salt_length);
}

void state_tree_space_release(struct state_tree *tree, struct space *space)
{
    spaces_release(&tree->tiers.spaces, space);
}

/* Looking up. */

/* Whether it will do for a text of `count` tokens. */
static bool usable(const struct state_tree *tree, const struct checkpoint *checkpoint,
                   int64_t count, enum match_end end)
{
    if (checkpoint->tier == TIER_NONE ||
        (checkpoint->tier == TIER_DISK && !checkpoint_files_fit(tree->files, checkpoint->position)))
        return false;
    if (checkpoint->position < count || end == MATCH_ANY)
        return true;
    /* Logits that are still in the file come with the state. */
    return end == MATCH_WITH_LOGITS && (checkpoint->logits || (checkpoint->tier == TIER_DISK &&
                                                               checkpoint_file_logits(checkpoint)));
}

static enum miss_reason reason_of(const struct state_match *match, int64_t count, bool evicted)
{
    if (match->position >= count - 1)
        return MISS_NONE;
    /* The last token of a generation was drawn but never computed: no state is missing there. */
    if (match->shared > match->position + 1)
        return evicted ? MISS_EVICTED : MISS_NO_CHECKPOINT;
    if (match->position == 0)
        return MISS_NO_CHECKPOINT;
    return match->parts ? MISS_DIVERGED : MISS_NONE;
}

void state_tree_match(struct state_tree *tree, struct space *space, const int32_t *tokens,
                      int64_t count, enum match_end end, struct state_match *match)
{
    *match = (struct state_match){0};
    bool evicted = false;
    struct token_node *known = token_tree_find(&space->tokens, tokens, count, &match->shared);
    for (struct token_node *at = known; at->parent; at = at->parent) {
        struct checkpoint *checkpoint = at->value;
        if (checkpoint && usable(tree, checkpoint, count, end)) {
            match->checkpoint = checkpoint;
            match->position = checkpoint->position;
            match->tier = checkpoint->tier;
            if (match->position == count)
                match->logits = checkpoint->logits;
            tiers_touch(&tree->tiers, checkpoint);
            break;
        }
        evicted = evicted || (checkpoint && checkpoint->tier == TIER_NONE);
    }
    /* known: the deepest node on the way */
    match->parts = match->shared > 0 && match->shared < count &&
                   (known->num_children || known->position < match->shared);
    match->reason = reason_of(match, count, evicted);
}

int state_tree_checkpoints_of(struct state_tree *tree, struct space *space, const int32_t *tokens,
                              int64_t count, enum tier *deepest)
{
    (void)tree;
    int checkpoints = 0;
    int64_t shared;
    *deepest = TIER_NONE;
    for (struct token_node *at = token_tree_find(&space->tokens, tokens, count, &shared);
         at->parent; at = at->parent) {
        const struct checkpoint *checkpoint = at->value;
        if (!checkpoint || checkpoint->tier == TIER_NONE)
            continue;
        if (checkpoints++ == 0)
            *deepest = checkpoint->tier;
    }
    return checkpoints;
}

const void *state_tree_mark(struct space *space, const int32_t *tokens, int64_t count,
                            const void *mark, int64_t *position)
{
    int64_t shared;
    struct token_node *at = token_tree_find(&space->tokens, tokens, count, &shared);
    while (at->parent && !at->mark) {
        at->mark = mark;
        at = at->parent;
    }
    *position = at->position;
    return at->mark;
}

void state_tree_unmark(struct space *space, const int32_t *tokens, int64_t count)
{
    int64_t shared;
    struct token_node *at = token_tree_find(&space->tokens, tokens, count, &shared);
    for (; at->parent && at->mark; at = at->parent)
        at->mark = NULL;
}

/* Starting a text. */

static int try_start(struct state_tree *tree, struct checkpoint *from, int64_t max_tokens,
                     struct state **out, struct error *err)
{
    if (from && from->state)
        return state_clone(out, from->state, max_tokens, err);
    if (from && checkpoint_await_image(from, err))
        return -1;
    if (from)
        return state_restore(out, tree->tiers.engine, from->image, from->position, max_tokens, err);
    return state_create(out, tree->tiers.engine, max_tokens, err);
}

/* Nothing else is left to make room with: the text takes the checkpoint's own state. */
static int take_over(struct state_tree *tree, struct checkpoint *from, int64_t max_tokens,
                     struct state **out, struct error *err)
{
    state_set_cached(from->state, false);
    if (state_reserve(from->state, max_tokens, err)) {
        state_set_cached(from->state, true);
        return -1;
    }
    *out = from->state;
    if (!from->image) /* one that a file is written from stays as it is */
        tiers_save(&tree->tiers, from);
    tiers_left_device(&tree->tiers, from);
    return 0;
}

static int start_from(struct state_tree *tree, struct checkpoint *from, int64_t max_tokens,
                      struct state **out, struct error *err)
{
    bool room = tiers_has_room(&tree->tiers, engine_state_bytes(tree->tiers.engine, max_tokens));
    int result;
    while ((result = try_start(tree, from, max_tokens, out, err)) && room &&
           err->code == ERROR_NO_MEMORY && tiers_evict(&tree->tiers))
        error_clear(err);
    if (result && room && err->code == ERROR_NO_MEMORY && from && from->state) {
        error_clear(err);
        return take_over(tree, from, max_tokens, out, err);
    }
    /* What has been used comes back to the device if its pages can be shared with the text that
     * goes on from it, or there is room anyway. */
    const struct engine_info *info = engine_info(tree->tiers.engine);
    if (result == 0 && from && !from->state)
        tiers_promote(&tree->tiers, from, *out,
                      info->kv_bytes_per_token && from->position >= info->kv_page_tokens);
    return result;
}

int state_tree_start(struct state_tree *tree, const struct state_match *match, int64_t max_tokens,
                     struct state **out, struct error *err)
{
    struct checkpoint *from = match->checkpoint;
    if (from && !from->state && !from->image)
        return checkpoint_files_read(tree->files, from, err) ? -1 : 1;
    tree->tiers.pinned = from;
    int result = start_from(tree, from, max_tokens, out, err);
    tree->tiers.pinned = NULL;
    return result;
}

int state_tree_grow(struct state_tree *tree, struct state *state, int64_t max_tokens,
                    struct error *err)
{
    size_t before = engine_state_bytes(tree->tiers.engine, state_reserved(state));
    size_t after = engine_state_bytes(tree->tiers.engine, max_tokens);
    bool room = after <= before || tiers_has_room(&tree->tiers, after - before);
    int result;
    while ((result = state_reserve(state, max_tokens, err)) && room &&
           err->code == ERROR_NO_MEMORY && tiers_evict(&tree->tiers))
        error_clear(err);
    return result;
}

/* Keeping. */

static struct checkpoint *existing(struct space *space, const int32_t *tokens, int64_t position)
{
    int64_t shared;
    struct token_node *node = token_tree_find(&space->tokens, tokens, position, &shared);
    return node->position == position ? node->value : NULL;
}

/* Hangs a state to its place in the tree: takes it over. */
static void hang(struct state_tree *tree, struct space *space, const int32_t *tokens,
                 struct state *state, const float *logits)
{
    struct checkpoint *checkpoint = tiers_at(&tree->tiers, space, tokens, state_position(state));
    if (!checkpoint || checkpoint->state) {
        state_free(state);
    } else {
        state_set_cached(state, true);
        checkpoint->state = state;
        if (!checkpoint_lends_image(checkpoint))
            tiers_set_image(&tree->tiers, checkpoint, NULL);
        tiers_settle(&tree->tiers, checkpoint);
    }
    if (!checkpoint)
        return;
    tiers_touch(&tree->tiers, checkpoint);
    tiers_keep_logits(&tree->tiers, checkpoint, logits);
    tiers_bound_texts(&tree->tiers);
}

void state_tree_keep(struct state_tree *tree, struct space *space, const int32_t *tokens,
                     struct state *state, const float *logits)
{
    int64_t position = state_position(state);
    struct checkpoint *checkpoint = position ? existing(space, tokens, position) : NULL;
    if (checkpoint && checkpoint->state) {
        tiers_touch(&tree->tiers, checkpoint);
        tiers_keep_logits(&tree->tiers, checkpoint, logits);
        return;
    }
    const struct engine_info *info = engine_info(tree->tiers.engine);
    size_t own =
        info->recurrent_bytes_per_text + info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    bool room = tiers_has_room(&tree->tiers, own);
    struct error err = ERROR_INIT;
    struct state *clone;
    int result = position ? 0 : -1;
    while (position && (result = state_clone(&clone, state, position, &err)) && room &&
           err.code == ERROR_NO_MEMORY && tiers_evict(&tree->tiers))
        error_clear(&err);
    if (result == 0)
        hang(tree, space, tokens, clone, logits);
}

void state_tree_give(struct state_tree *tree, struct space *space, const int32_t *tokens,
                     struct state *state, const float *logits)
{
    int64_t position = state_position(state);
    if (position == 0 || state_reserve(state, position, NULL))
        state_free(state);
    else
        hang(tree, space, tokens, state, logits);
}

int state_tree_give_image(struct state_tree *tree, struct space *space, const int32_t *tokens,
                          int64_t position, void *image, struct error *err)
{
    int64_t bytes = (int64_t)state_image_bytes(tree->tiers.engine, position);
    struct checkpoint *checkpoint = tiers_host_room(&tree->tiers, bytes)
                                        ? tiers_at(&tree->tiers, space, tokens, position)
                                        : NULL;
    if (!checkpoint) {
        free(image);
        return error_set(err, ERROR_NO_MEMORY,
                         "the state has %lld bytes, more than --host-state-memory has room for",
                         (long long)bytes);
    }
    if (checkpoint->state || checkpoint->image)
        free(image);
    else
        tiers_set_image(&tree->tiers, checkpoint, image);
    tiers_settle(&tree->tiers, checkpoint);
    tiers_touch(&tree->tiers, checkpoint);
    if (checkpoint->image)
        want_file(tree, checkpoint, false);
    tiers_bound_texts(&tree->tiers);
    return 0;
}

int state_tree_image(struct state_tree *tree, const struct state_match *match, void *image,
                     struct state_save *saving, struct error *err)
{
    struct checkpoint *from = match->checkpoint;
    if (!from->state && !from->image) {
        if (checkpoint_files_take_unplaced(from))
            return error_set(err, ERROR_NO_MEMORY, "no tier has room for the state");
        return checkpoint_files_read(tree->files, from, err) ? -1 : 1;
    }
    if (from->state) {
        *saving = state_save_begin(from->state, image);
        return 0;
    }
    if (checkpoint_await_image(from, err))
        return -1;
    memcpy(image, from->image, state_image_bytes(tree->tiers.engine, from->position));
    return 0;
}

/* Sessions. */

static void add_holds(struct state_tree *tree, struct token_node *node, int count)
{
    for (; node; node = node->parent) {
        node->holds += count;
        if (node->value)
            tiers_set_held(&tree->tiers, node->value, node->holds > 0);
    }
}

static bool is_written_soon(const struct state_tree *tree, const struct checkpoint *checkpoint)
{
    return (int64_t)state_image_bytes(tree->tiers.engine, checkpoint->position) <=
           tree->options.soon_bytes;
}

/* The deepest state of a session is soon on disk, unless it is so large that writing it after every
 * request would be felt: then when it leaves the device, or at the end. */
static void want_deepest(struct state_tree *tree, struct token_node *node)
{
    for (; node->parent; node = node->parent) {
        struct checkpoint *checkpoint = node->value;
        if (!checkpoint || checkpoint->tier == TIER_NONE)
            continue;
        if (checkpoint->tier != TIER_DISK && is_written_soon(tree, checkpoint))
            want_file(tree, checkpoint, true);
        return;
    }
}

int64_t state_tree_soon_stored(struct state_tree *tree, struct space *space, const int32_t *tokens,
                               int64_t count)
{
    int64_t shared;
    if (!tree->files || !checkpoint_files_by_name(tree->files) || count == 0)
        return 0;
    struct token_node *node = token_tree_find(&space->tokens, tokens, count, &shared);
    for (; node->parent; node = node->parent) {
        const struct checkpoint *checkpoint = node->value;
        if (checkpoint && checkpoint->tier != TIER_NONE)
            return is_written_soon(tree, checkpoint) ? checkpoint->position : 0;
    }
    return 0;
}

void state_tree_find_shared(struct state_tree *tree, struct space *space, const int32_t *tokens,
                            int64_t position)
{
    if (!tree->files) /* it is computed again */
        return;
    checkpoint_files_find_shared(tree->files, space, tokens, position);
    tiers_bound_texts(&tree->tiers);
}

void state_tree_drop_shared(struct state_tree *tree, struct space *space, const int32_t *tokens,
                            int64_t position)
{
    int64_t shared;
    if (!tree->files || !checkpoint_files_by_name(tree->files) || position == 0)
        return;
    struct token_node *node = token_tree_find(&space->tokens, tokens, position, &shared);
    struct checkpoint *checkpoint = node->parent && node->position == position ? node->value : NULL;
    if (node->position == position && node->holds > 1)
        return; /* a fork's row names it, too */
    checkpoint_files_drop_shared(tree->files, space, checkpoint, tokens, position);
}

int state_tree_hold(struct state_tree *tree, struct space *space, const int32_t *tokens,
                    int64_t count, struct error *err)
{
    struct token_node *node = token_tree_insert(&space->tokens, tokens, count);
    if (!node)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the tokens of a session");
    add_holds(tree, node, 1);
    want_deepest(tree, node);
    return 0;
}

void state_tree_release(struct state_tree *tree, struct space *space, const int32_t *tokens,
                        int64_t count)
{
    int64_t shared;
    struct token_node *node = token_tree_find(&space->tokens, tokens, count, &shared);
    add_holds(tree, node, -1);
    spaces_trim(&tree->tiers.spaces, space, node);
}

void state_tree_forget(struct state_tree *tree, struct space *space, const int32_t *tokens,
                       int64_t count)
{
    int64_t shared;
    struct token_node *node = token_tree_find(&space->tokens, tokens, count, &shared);
    space->references++; /* it must outlive the loop */
    while (node->parent && !node->num_children && !node->holds) {
        /* Dropping trims the tree: what is above is looked for anew. */
        int64_t above = node->parent->position;
        if (!node->value)
            break;
        tiers_drop(&tree->tiers, node->value);
        node = token_tree_find(&space->tokens, tokens, above, &shared);
    }
    state_tree_space_release(tree, space);
}

void state_tree_report(const struct state_tree *tree, struct state_tree_report *report)
{
    struct engine_memory memory;
    engine_memory(tree->tiers.engine, &memory);
    int64_t recurrent = (int64_t)memory.recurrent_cached_bytes;
    int64_t kv = (int64_t)memory.kv_cached_bytes;
    *report = (struct state_tree_report){
        .spaces = (int64_t)tree->tiers.spaces.count,
        .nodes = tree->tiers.spaces.totals.nodes,
        .checkpoints = tree->tiers.counts[TIER_DISK] + tree->tiers.counts[TIER_HOST] +
                       tree->tiers.counts[TIER_DEVICE],
        .tokens = tree->tiers.spaces.totals.tokens,
        .recurrent_bytes = recurrent + tree->tiers.host_bytes - tree->tiers.host_kv_bytes -
                           tree->tiers.host_logits_bytes,
        .kv_bytes = kv + tree->tiers.host_kv_bytes,
        .logits_bytes = tree->tiers.host_logits_bytes,
        .evictions = tree->tiers.evictions,
        .dropped = tree->tiers.dropped,
    };
    for (enum tier tier = TIER_DISK; tier < NUM_TIERS; tier++)
        report->tiers[tier].checkpoints = tree->tiers.counts[tier];
    report->tiers[TIER_DEVICE].bytes = recurrent + kv;
    report->tiers[TIER_DEVICE].budget_bytes =
        (int64_t)engine_info(tree->tiers.engine)->state_memory_bytes;
    report->tiers[TIER_HOST].bytes = tree->tiers.host_bytes;
    report->tiers[TIER_HOST].budget_bytes = tree->options.host_budget_bytes;
    if (!tree->options.store)
        return;
    struct store_report store;
    store_report(tree->options.store, &store);
    report->tiers[TIER_DISK].bytes = store.bytes;
    report->tiers[TIER_DISK].budget_bytes = store.budget_bytes;
}
