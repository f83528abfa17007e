/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/shared_prefixes.h"

#include "engine/engine.h"
#include "lib/base/clock.h"
#include "server/log.h"
#include "server/states/checkpoint_meta.h"

#include <stdlib.h>
#include <string.h>

/* Fewer tokens are not worth the way. A write is of some size only, since it is in the way of
 * others. */
enum { WORTH_TOKENS = 256, MOST_BYTES = 64 << 20, MOST_ASKS = 16, MOST_WRITES = 2 };
/* Of a grid up to 2^59 tokens. */
enum { GRID_STEPS = 16, MOST_POSITIONS = 512, NOTED = 1024 };

static const double MOST_WAIT_S = 2; /* for an answer */
static const double PAUSE_S = 5;     /* after one that has failed, or not come */
static const double NOTED_S = 3600;  /* far less than a prefix lives in the store unused */

/* A move between the tree and the store. */
struct move {
    union { /* the first member: what is under way */
        struct store_op op;
        struct store_find find;
        struct store_put put;
        struct store_get get;
    };
    struct shared_prefixes *shared;
    struct move *next; /* of the asks */
    struct space *space;
    uint64_t number;
    double until; /* clock_seconds(): those who wait for it wait no longer */
    int64_t held; /* of the tree's memory */
    int32_t *tokens;
    char *meta; /* [meta_length] */
    size_t meta_length;
    void *image;
    size_t num_names;
    int64_t position;                            /* of the image */
    int64_t positions[MOST_POSITIONS];           /* [num_names], from the deepest */
    char names[MOST_POSITIONS][STORE_NAME_SIZE]; /* likewise */
};

struct shared_prefixes {
    struct engine *engine;
    struct state_tree *tree;
    struct store *store;
    struct move *asks;
    int num_asks, num_writes;
    uint64_t numbers;
    double paused_until; /* clock_seconds() */
    bool closing;
    /* Names that were written or read lately, by their first digits. */
    struct {
        char name[STORE_NAME_SIZE];
        double until; /* clock_seconds() */
    } noted[NOTED];
};

int shared_prefixes_create(struct shared_prefixes **out, struct engine *engine,
                           struct state_tree *tree, struct store *store, struct error *err)
{
    struct shared_prefixes *shared = calloc(1, sizeof *shared);
    if (!shared)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for shared prefixes");
    shared->engine = engine;
    shared->tree = tree;
    shared->store = store;
    *out = shared;
    return 0;
}

void shared_prefixes_free(struct shared_prefixes *shared)
{
    if (!shared)
        return;
    shared->closing = true;
    store_finish(shared->store);
    free(shared);
}

/* ---- the grid ---- */

static int64_t floor_steps(int64_t steps)
{
    int bits = 0;
    while (steps >> bits >= GRID_STEPS)
        bits++;
    return steps >> bits << bits;
}

static bool too_large(const struct shared_prefixes *shared, int64_t position)
{
    return (int64_t)state_image_bytes(shared->engine, position) > MOST_BYTES;
}

int64_t shared_prefixes_deepest(const struct shared_prefixes *shared, int64_t count)
{
    int64_t interval = state_tree_interval(shared->tree);
    int64_t steps = floor_steps(count / interval);
    while (steps > 0 && too_large(shared, steps * interval))
        steps = floor_steps(steps - 1);
    return steps * interval;
}

static bool on_grid(const struct shared_prefixes *shared, int64_t position)
{
    return position > 0 && position == shared_prefixes_deepest(shared, position);
}

/* ---- names ---- */

static double *noted(struct shared_prefixes *shared, const char *name)
{
    unsigned long at = 0;
    for (int i = 0; i < 4; i++)
        at = 16 * at + (unsigned long)(name[i] <= '9' ? name[i] - '0' : name[i] - 'a' + 10);
    if (strcmp(shared->noted[at % NOTED].name, name) != 0) {
        memcpy(shared->noted[at % NOTED].name, name, STORE_NAME_SIZE);
        shared->noted[at % NOTED].until = 0;
    }
    return &shared->noted[at % NOTED].until;
}

/* Names the positions [num_names] of the text. -1: no memory. */
static int name_positions(struct move *move, const int32_t *tokens)
{
    struct shared_prefixes *shared = move->shared;
    move->meta = checkpoint_meta_encode(shared->engine, move->space, &move->meta_length);
    return move->meta ? store_checkpoint_names(shared->store, move->meta, move->meta_length, tokens,
                                               move->positions, move->num_names, move->names)
                      : -1;
}

static struct move *create_move(struct shared_prefixes *shared, struct space *space)
{
    struct move *move = calloc(1, sizeof *move);
    if (!move)
        return NULL;
    move->shared = shared;
    move->space = space;
    space->references++;
    return move;
}

static void free_move(struct move *move)
{
    if (move->held)
        state_tree_give_memory(move->shared->tree, move->held);
    state_tree_space_release(move->shared->tree, move->space);
    free(move->tokens);
    free(move->meta);
    free(move->image);
    free(move);
}

/* Takes the image of the state at that position, with nothing in it, and the tokens before. False:
 * there is no memory, or it is too large. */
static bool take_buffers(struct move *move, const int32_t *tokens, int64_t position)
{
    int64_t image = (int64_t)state_image_bytes(move->shared->engine, position);
    size_t bytes = (size_t)position * sizeof *tokens;
    if (!state_tree_take_memory(move->shared->tree, image + (int64_t)bytes))
        return false;
    move->held = image + (int64_t)bytes;
    move->image = malloc((size_t)image);
    move->tokens = malloc(bytes);
    if (!move->image || !move->tokens)
        return false;
    memcpy(move->tokens, tokens, bytes);
    move->position = position;
    return true;
}

/* ---- asking ---- */

static void end_ask(struct move *move, bool failed)
{
    struct shared_prefixes *shared = move->shared;
    struct move **at = &shared->asks;
    while (*at != move)
        at = &(*at)->next;
    *at = move->next;
    shared->num_asks--;
    if (failed) {
        log_message(LOG_LEVEL_DEBUG, "a shared prefix was not read: %s", move->op.error.message);
        shared->paused_until = clock_seconds() + PAUSE_S;
    }
    free_move(move);
}

static void touched(struct store_op *op)
{
    free(op); /* without it the prefix lives from its last use that was noted */
}

/* It is used: it lives on in the store. */
static void note_use(struct shared_prefixes *shared, const char *name)
{
    double *until = noted(shared, name), now = clock_seconds();
    struct store_touch *touch = now < *until || shared->closing ? NULL : calloc(1, sizeof *touch);
    if (!touch)
        return;
    *until = now + NOTED_S;
    touch->blob.op.done = touched;
    touch->blob.prefix = true;
    memcpy(touch->blob.name, name, sizeof touch->blob.name);
    store_touch(shared->store, touch);
}

static void was_read(struct store_op *op)
{
    struct move *move = (struct move *)op;
    struct shared_prefixes *shared = move->shared;
    const bool failed = op->error.code != ERROR_NONE;
    const bool dropped = op->refusal == STORE_GONE;
    if (failed && !dropped && op->error.code == ERROR_INVALID)
        log_message(LOG_LEVEL_WARN, "a shared prefix cannot be read: %s", op->error.message);
    if (!failed && !shared->closing) {
        struct error ignored = ERROR_INIT; /* without room it is computed */
        void *image = move->image;
        move->image = NULL;
        if (state_tree_give_image(shared->tree, move->space, move->tokens, move->position, image,
                                  &ignored) == 0)
            note_use(shared, move->get.blob.name);
    }
    end_ask(move, failed && !dropped && op->error.code != ERROR_INVALID);
}

static void was_found(struct store_op *op)
{
    struct move *move = (struct move *)op;
    struct shared_prefixes *shared = move->shared;
    const bool failed = op->error.code != ERROR_NONE;
    int32_t *tokens = move->tokens;
    size_t which = move->find.which;
    if (failed || which == move->num_names || shared->closing || clock_seconds() >= move->until) {
        end_ask(move, failed);
        return;
    }
    move->tokens = NULL;
    bool ready = take_buffers(move, tokens, move->positions[which]);
    free(tokens);
    if (!ready) {
        end_ask(move, false);
        return;
    }
    move->get = (struct store_get){.blob = {.op.done = was_read, .prefix = true},
                                   .meta = move->meta,
                                   .meta_length = move->meta_length,
                                   .tokens = move->tokens,
                                   .count = move->position,
                                   .position = move->position,
                                   .image_out = move->image};
    memcpy(move->get.blob.name, move->names[which], sizeof move->get.blob.name);
    store_get(shared->store, &move->get);
}

/* One under way that is for the same prompt; NULL: there is none. */
static struct move *same_ask(const struct shared_prefixes *shared, const char *deepest)
{
    for (struct move *at = shared->asks; at; at = at->next)
        if (strcmp(at->names[0], deepest) == 0)
            return at;
    return NULL;
}

static bool may_ask(const struct shared_prefixes *shared)
{
    struct store_report report;
    if (shared->num_asks >= MOST_ASKS || clock_seconds() < shared->paused_until)
        return false;
    store_report(shared->store, &report);
    return !report.away;
}

uint64_t shared_prefixes_ask(struct shared_prefixes *shared, struct space *space,
                             const int32_t *tokens, int64_t count, int64_t have)
{
    int64_t deepest = shared_prefixes_deepest(shared, count);
    if (deepest < have + WORTH_TOKENS || !may_ask(shared))
        return 0;
    struct move *move = create_move(shared, space), *same = NULL;
    if (!move)
        return 0;
    for (int64_t at = deepest; at >= have + WORTH_TOKENS && move->num_names < MOST_POSITIONS;
         at = shared_prefixes_deepest(shared, at - 1))
        move->positions[move->num_names++] = at;
    move->tokens = malloc((size_t)deepest * sizeof *tokens);
    if (!move->tokens || name_positions(move, tokens) ||
        (same = same_ask(shared, move->names[0]))) {
        free_move(move);
        return same ? same->number : 0;
    }
    memcpy(move->tokens, tokens, (size_t)deepest * sizeof *tokens);
    move->find = (struct store_find){.op.done = was_found,
                                     .names = (const char(*)[STORE_NAME_SIZE])move->names,
                                     .num_names = move->num_names};
    move->number = ++shared->numbers;
    move->until = clock_seconds() + MOST_WAIT_S;
    move->next = shared->asks;
    shared->asks = move;
    shared->num_asks++;
    store_find(shared->store, &move->find);
    return move->number;
}

bool shared_prefixes_waits(const struct shared_prefixes *shared, uint64_t ask)
{
    for (const struct move *at = shared->asks; at && ask; at = at->next)
        if (at->number == ask)
            return clock_seconds() < at->until;
    return false;
}

bool shared_prefixes_poll(struct shared_prefixes *shared)
{
    bool late = false;
    double now = clock_seconds();
    for (struct move *at = shared->asks; at; at = at->next)
        if (at->until > 0 && now >= at->until) {
            at->until = 0;
            late = true;
        }
    if (late)
        shared->paused_until = now + PAUSE_S;
    return late;
}

/* ---- writing ---- */

static void written(struct store_op *op)
{
    struct move *move = (struct move *)op;
    move->shared->num_writes--;
    if (op->error.code != ERROR_NONE) {
        log_message(LOG_LEVEL_DEBUG, "a shared prefix was not written: %s", op->error.message);
        *noted(move->shared, move->names[0]) = 0;
    }
    free_move(move);
}

/* Fills in the state at the position. False: the tree does not have it in memory. */
static bool copy_state(struct move *move, const int32_t *tokens, int64_t position)
{
    struct state_match match;
    struct error ignored = ERROR_INIT;
    state_tree_match(move->shared->tree, move->space, tokens, position, MATCH_ANY, &match);
    if (match.position != position || match.tier < TIER_HOST ||
        !take_buffers(move, tokens, position) ||
        state_tree_image(move->shared->tree, &match, move->image, &move->put.saving, &ignored))
        return false;
    move->put.blob.prefix = true;
    move->put.meta = move->meta;
    move->put.meta_length = move->meta_length;
    move->put.tokens = move->tokens;
    move->put.count = move->put.position = position;
    move->put.image = move->image;
    return true;
}

void shared_prefixes_publish(struct shared_prefixes *shared, struct space *space,
                             const int32_t *tokens, int64_t position)
{
    struct store_report report;
    store_report(shared->store, &report);
    if (!on_grid(shared, position) || shared->num_writes >= MOST_WRITES || report.away)
        return;
    struct move *move = create_move(shared, space);
    if (!move)
        return;
    move->num_names = 1;
    move->positions[0] = position;
    double now = clock_seconds();
    if (name_positions(move, tokens) || now < *noted(shared, move->names[0]) ||
        !copy_state(move, tokens, position)) {
        free_move(move);
        return;
    }
    *noted(shared, move->names[0]) = now + NOTED_S;
    memcpy(move->put.blob.name, move->names[0], sizeof move->put.blob.name);
    move->op.done = written;
    shared->num_writes++;
    store_put(shared->store, &move->put);
}
