/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/checkpoint_files.h"

#include "engine/base/clock.h"
#include "server/log.h"
#include "server/states/checkpoint_meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { MOST_WRITES = 4, MOST_READS = 4 };

static const int64_t MOST_BEHIND_NS = 60 * (int64_t)1000000000;

enum file_phase { FILE_WANTED, FILE_WRITING, FILE_READING, FILE_WHOLE, FILE_REMOVING };

struct wanted {
    struct checkpoint_file *first, *last;
};

struct checkpoint_file {
    struct store_op op; /* the first member */
    struct state_tree *tree;
    struct checkpoint *checkpoint; /* NULL: it has let go of the file */
    enum file_phase phase;
    bool logits;   /* are in the file */
    bool unplaced; /* it was read, and there was room for it nowhere */
    int64_t bytes;
    int64_t modified_ns; /* the file's time, as far as is known */
    char name[STORE_NAME_SIZE];
    struct wanted *list; /* NULL, or where it waits to be written */
    struct checkpoint_file *before, *after;

    /* While an operation runs; freed after it. */
    char *meta;
    int32_t *tokens;
    void *image;        /* NULL: the checkpoint's is borrowed */
    float *some_logits; /* a copy */
};

struct checkpoint_files {
    struct store *store;
    struct wanted soon, later;
    int writes, reads; /* under way */
    bool closing;      /* files outlive their checkpoints */
};

static struct checkpoint_files *files_of(const struct checkpoint_file *file)
{
    return file->tree->files;
}

bool checkpoint_files_whole(const struct checkpoint *checkpoint)
{
    const struct checkpoint_file *file = checkpoint->file;
    return file && (file->phase == FILE_WHOLE || file->phase == FILE_READING);
}

bool checkpoint_files_logits(const struct checkpoint *checkpoint)
{
    return checkpoint_files_whole(checkpoint) && checkpoint->file->logits;
}

bool checkpoint_files_take_unplaced(struct checkpoint *checkpoint)
{
    bool unplaced = checkpoint->file && checkpoint->file->unplaced;
    if (unplaced)
        checkpoint->file->unplaced = false;
    return unplaced;
}

bool checkpoint_files_busy(const struct checkpoint *checkpoint)
{
    const struct checkpoint_file *file = checkpoint->file;
    return file && (file->phase == FILE_WRITING || file->phase == FILE_READING);
}

bool checkpoint_files_borrow(const struct checkpoint *checkpoint)
{
    const struct checkpoint_file *file = checkpoint->file;
    return file && file->phase == FILE_WRITING && !file->image;
}

int checkpoint_files_create(struct checkpoint_files **out, struct state_tree *tree,
                            struct error *err)
{
    *out = NULL;
    if (!tree->options.store)
        return 0;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the files of states");
    (*out)->store = tree->options.store;
    return 0;
}

/* What is wanted. */

static void unlist(struct checkpoint_file *file)
{
    struct wanted *list = file->list;
    if (!list)
        return;
    if (file->before)
        file->before->after = file->after;
    else
        list->first = file->after;
    if (file->after)
        file->after->before = file->before;
    else
        list->last = file->before;
    file->before = file->after = NULL;
    file->list = NULL;
}

static void enlist(struct wanted *list, struct checkpoint_file *file)
{
    unlist(file);
    file->list = list;
    file->before = list->last;
    if (list->last)
        list->last->after = file;
    else
        list->first = file;
    list->last = file;
}

static void file_clear(struct checkpoint_file *file)
{
    free(file->meta);
    free(file->tokens);
    free(file->image);
    free(file->some_logits);
    file->meta = NULL;
    file->tokens = NULL;
    file->image = NULL;
    file->some_logits = NULL;
}

static void file_free(struct checkpoint_file *file)
{
    unlist(file);
    if (file->checkpoint)
        file->checkpoint->file = NULL;
    file_clear(file);
    free(file);
}

/* Begins an operation on the file. */
static void begin(struct checkpoint_file *file, enum file_phase phase,
                  void (*done)(struct store_op *op))
{
    file->phase = phase;
    file->op.done = done;
    file->op.kind = STORE_CHECKPOINT;
    file->op.durable = false; /* what is torn can be computed again, and checksums tell */
    memcpy(file->op.name, file->name, sizeof file->name);
}

/* What stays takes of the budget, and is found by the next server. */
static void removed(struct store_op *op)
{
    if (op->error.code != ERROR_NONE)
        log_message(LOG_LEVEL_WARN, "a checkpoint's file stays: %s", op->error.message);
    file_free((struct checkpoint_file *)op);
}

/* Nobody wants the file any more: removes it. */
static void discard(struct checkpoint_file *file)
{
    struct checkpoint_files *files = files_of(file);
    if (file->checkpoint)
        file->checkpoint->file = NULL;
    file->checkpoint = NULL;
    file_clear(file);
    begin(file, FILE_REMOVING, removed);
    file->op.bytes = file->bytes;
    store_remove(files->store, &file->op);
}

/* Room on the disk. */

/* Whose file goes after that of `at` (NULL: first) when room is needed; NULL: none is left. */
static struct checkpoint *next_to_go(const struct state_tree *tree, const struct checkpoint *at)
{
    if (!at)
        return checkpoint_oldest(tree, TIER_DISK);
    struct checkpoint *next = at->link[TIER_DISK].newer;
    if (!next && !at->held)
        next = tree->lists[TIER_DISK][1].oldest;
    return next && next == tree->pinned ? next_to_go(tree, next) : next;
}

/* Whether the file of `at` is given up for one of `sake`, or (NULL) of a session. */
static bool gives_way(const struct checkpoint *at, const struct checkpoint *sake)
{
    return !sake || (at->held == sake->held ? at->used < sake->used : sake->held);
}

static void remove_oldest(struct state_tree *tree, size_t count)
{
    while (count-- > 0) {
        struct checkpoint *oldest = next_to_go(tree, NULL);
        tree->dropped += oldest->tier == TIER_DISK;
        discard(oldest->file);
        checkpoint_settle(tree, oldest);
    }
}

/* Removes the least recently used files, so many that `bytes` more will fit the budget and the
 * disk; none if that cannot be reached. But what is free on a disk others change too: a write that
 * nothing is left to make room for had better be tried. */
static bool disk_room(struct state_tree *tree, int64_t bytes, const struct checkpoint *sake)
{
    enum { BLOCK_BYTES = 4096 }; /* a file takes whole ones of them */
    struct store_report report;
    store_report(tree->files->store, &report);
    int64_t budget = report.bytes + report.pending + bytes - report.budget_bytes;
    int64_t disk = report.pending + bytes + BLOCK_BYTES - report.disk_free;
    size_t count = 0;
    for (struct checkpoint *at = NULL; budget > 0 || disk > 0; count++) {
        at = next_to_go(tree, at);
        if (!at && budget <= 0 && (!sake || count == 0))
            break;
        if (!at || !gives_way(at, sake))
            return false;
        budget -= at->file->bytes;
        disk -= at->file->bytes;
    }
    remove_oldest(tree, count);
    return true;
}

void state_tree_disk_room(struct state_tree *tree, int64_t bytes)
{
    if (tree->files)
        disk_room(tree, bytes, NULL);
}

/* Times. */

static void touched(struct store_op *op)
{
    free(op); /* a use that was not noted costs its place in the order, no more */
}

/* The file's time becomes that of the checkpoint's last use. */
static void note_use(struct state_tree *tree, const struct checkpoint *checkpoint)
{
    struct checkpoint_file *file = checkpoint->file;
    struct store_op *op = calloc(1, sizeof *op);
    if (!op)
        return;
    op->done = touched;
    op->kind = STORE_CHECKPOINT;
    op->modified_ns = file->modified_ns = checkpoint->used;
    memcpy(op->name, file->name, sizeof file->name);
    store_touch(tree->files->store, op);
}

void checkpoint_files_used(struct state_tree *tree, const struct checkpoint *checkpoint)
{
    if (checkpoint_files_whole(checkpoint) &&
        checkpoint->used - checkpoint->file->modified_ns > MOST_BEHIND_NS)
        note_use(tree, checkpoint);
}

/* Those of all files, so that a server that begins now has the same order. */
static void note_uses(struct state_tree *tree)
{
    for (int held = 0; held < 2; held++)
        for (const struct checkpoint *at = tree->lists[TIER_DISK][held].oldest; at;
             at = at->link[TIER_DISK].newer)
            if (at->file->modified_ns != at->used)
                note_use(tree, at);
}

/* Writing. */

static void written(struct store_op *op)
{
    struct checkpoint_file *file = (struct checkpoint_file *)op;
    struct checkpoint_files *files = files_of(file);
    struct state_tree *tree = file->tree;
    struct checkpoint *checkpoint = file->checkpoint;
    bool failed = file->op.error.code != ERROR_NONE;
    files->writes--;
    file_clear(file);
    file->phase = FILE_WHOLE;
    file->modified_ns = clock_nanos(CLOCK_REALTIME);
    if (failed) {
        log_message(LOG_LEVEL_DEBUG, "a checkpoint was not written: %s", file->op.error.message);
        file_free(file);
    } else if (!checkpoint) {
        discard(file);
    }
    if (!checkpoint)
        return;
    if (checkpoint->state)
        checkpoint_set_image(tree, checkpoint, NULL);
    checkpoint_settle(tree, checkpoint);
}

/* The tokens on the way to the checkpoint. */
static int32_t *tokens_of(const struct checkpoint *checkpoint)
{
    int32_t *tokens = malloc((size_t)checkpoint->position * sizeof *tokens);
    for (const struct token_node *at = checkpoint->node; tokens && at->parent; at = at->parent)
        memcpy(tokens + at->position - at->count, at->tokens, (size_t)at->count * sizeof *tokens);
    return tokens;
}

/* All but the image, for which there is memory then. */
static int fill_write(struct state_tree *tree, struct checkpoint_file *file)
{
    struct checkpoint *checkpoint = file->checkpoint;
    file->meta = checkpoint_meta_encode(tree->engine, checkpoint->space, &file->op.meta_length);
    file->tokens = tokens_of(checkpoint);
    if (checkpoint->logits)
        file->some_logits = malloc(tree->logits_size);
    if (!checkpoint->image)
        file->image = malloc(state_image_bytes(tree->engine, checkpoint->position));
    if (!file->meta || !file->tokens || (checkpoint->logits && !file->some_logits) ||
        (!checkpoint->image && !file->image))
        return -1;
    if (file->some_logits)
        memcpy(file->some_logits, checkpoint->logits, tree->logits_size);
    file->op.meta = file->meta;
    file->op.tokens = file->tokens;
    file->op.count = file->op.position = checkpoint->position;
    file->op.logits = file->some_logits;
    return 0;
}

/* The checkpoint's image, or one that its state is on its way to. The store's thread waits for it;
 * if the device fails before, there is no file. */
static void fill_image(struct checkpoint_file *file)
{
    const struct checkpoint *checkpoint = file->checkpoint;
    file->op.image = file->image ? file->image : checkpoint->image;
    file->op.saving =
        file->image ? state_save_begin(checkpoint->state, file->image) : checkpoint->saving;
}

/* Begins to write the file of a checkpoint that is in memory. */
static void begin_write(struct state_tree *tree, struct checkpoint_file *file)
{
    struct checkpoint_files *files = tree->files;
    struct checkpoint *checkpoint = file->checkpoint;
    unlist(file);
    if ((!checkpoint->state && !checkpoint->image) || fill_write(tree, file)) {
        file_free(file);
        return;
    }
    file->logits = file->some_logits != NULL;
    file->bytes = store_file_bytes(files->store, file->op.position, file->op.count, true,
                                   file->logits, file->op.meta_length);
    if (!disk_room(tree, file->bytes, checkpoint)) {
        file_free(file);
        return;
    }
    files->writes++;
    fill_image(file);
    begin(file, FILE_WRITING, written);
    store_write(files->store, &file->op);
    checkpoint_settle(tree, checkpoint);
}

/* A file with a name that no other has; checkpoint: or NULL. NULL: no memory. */
static struct checkpoint_file *file_create(struct state_tree *tree, struct checkpoint *checkpoint)
{
    unsigned char random[(STORE_NAME_SIZE - 1) / 2];
    struct checkpoint_file *file = calloc(1, sizeof *file);
    if (!file || getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        free(file);
        return NULL;
    }
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(file->name + 2 * i, 3, "%02x", random[i]);
    file->tree = tree;
    file->checkpoint = checkpoint;
    file->phase = FILE_WANTED;
    if (checkpoint)
        checkpoint->file = file;
    return file;
}

/* Writes what is wanted, as far as that may go on at once. */
static void pump(struct state_tree *tree)
{
    struct checkpoint_files *files = tree->files;
    while (files->writes < MOST_WRITES) {
        bool scarce = tree->host_bytes > tree->options.host_budget_bytes / 2;
        struct checkpoint_file *file = files->soon.first;
        if (!file && scarce)
            file = files->later.first;
        if (!file)
            return;
        begin_write(tree, file);
    }
}

void checkpoint_files_want(struct state_tree *tree, struct checkpoint *checkpoint, bool soon)
{
    struct checkpoint_file *file = checkpoint->file;
    if (!tree->files || (file && file->phase != FILE_WANTED))
        return;
    if (!file)
        file = file_create(tree, checkpoint);
    if (!file)
        return;
    enlist(soon ? &tree->files->soon : &tree->files->later, file);
    pump(tree);
}

void checkpoint_files_write_through(struct state_tree *tree, struct checkpoint *checkpoint)
{
    struct checkpoint_file *file = checkpoint->file;
    if (!tree->files || (file && file->phase != FILE_WANTED) || tree->files->writes >= MOST_WRITES)
        return;
    if (!file)
        file = file_create(tree, checkpoint);
    if (file)
        begin_write(tree, file);
}

/* Reading. */

/* The image has come: to host memory, without room there to the device; without that either the
 * file is read again when there is. */
static void take_image(struct state_tree *tree, struct checkpoint *checkpoint, void *image)
{
    int64_t bytes = (int64_t)state_image_bytes(tree->engine, checkpoint->position);
    bool room = tiers_host_room(tree, bytes);
    checkpoint_set_image(tree, checkpoint, image);
    checkpoint->file->unplaced = !room && !tiers_promote(tree, checkpoint, NULL, true);
    if (checkpoint->file->unplaced)
        checkpoint_set_image(tree, checkpoint, NULL);
    checkpoint_settle(tree, checkpoint);
}

static void was_read(struct store_op *op)
{
    struct checkpoint_file *file = (struct checkpoint_file *)op;
    struct checkpoint *checkpoint = file->checkpoint;
    struct state_tree *tree = file->tree;
    void *image = file->image;
    tree->files->reads--;
    file->phase = FILE_WHOLE;
    if (file->op.error.code != ERROR_NONE) {
        log_message(LOG_LEVEL_WARN, "a checkpoint cannot be read: %s", file->op.error.message);
        tree->dropped += checkpoint && checkpoint->tier == TIER_DISK;
        discard(file);
    } else if (!checkpoint) {
        discard(file);
    } else if (!checkpoint->state && !checkpoint->image) {
        file->image = NULL;
        const struct checkpoint *pinned = tree->pinned;
        tree->pinned = checkpoint;
        take_image(tree, checkpoint, image);
        checkpoint_keep_logits(tree, checkpoint, file->some_logits);
        /* Without room for them the file is not read for them again: it might be for ever. */
        file->logits = file->logits && checkpoint->logits != NULL;
        tree->pinned = pinned;
        file_clear(file);
    } else {
        file_clear(file);
    }
    if (checkpoint)
        checkpoint_settle(tree, checkpoint);
}

int checkpoint_files_read(struct state_tree *tree, struct checkpoint *checkpoint, struct error *err)
{
    struct checkpoint_file *file = checkpoint->file;
    if (!file || file->phase == FILE_READING || tree->files->reads >= MOST_READS)
        return 0;
    file->image = malloc(state_image_bytes(tree->engine, checkpoint->position));
    file->tokens = tokens_of(checkpoint);
    if (file->logits)
        file->some_logits = malloc(tree->logits_size);
    if (!file->image || !file->tokens || (file->logits && !file->some_logits)) {
        file_clear(file);
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a checkpoint of %lld tokens",
                         (long long)checkpoint->position);
    }
    file->op.count = file->op.position = checkpoint->position;
    file->op.tokens = file->tokens;
    file->op.image_out = file->image;
    file->op.logits_out = file->some_logits;
    tree->files->reads++;
    begin(file, FILE_READING, was_read);
    store_read(tree->files->store, &file->op);
    checkpoint_settle(tree, checkpoint);
    return 0;
}

/* Ends. */

void checkpoint_files_drop(struct state_tree *tree, struct checkpoint *checkpoint)
{
    struct checkpoint_file *file = checkpoint->file;
    if (!file)
        return;
    if (checkpoint_files_borrow(checkpoint))
        file->image = checkpoint_take_image(tree, checkpoint);
    checkpoint->file = NULL;
    file->checkpoint = NULL;
    if (file->phase == FILE_WANTED || (tree->files->closing && file->phase == FILE_WHOLE))
        file_free(file);
    else if (file->phase == FILE_WHOLE)
        discard(file);
}

static void wait_a_little(void)
{
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

void checkpoint_files_close(struct state_tree *tree)
{
    struct checkpoint_files *files = tree->files;
    if (!files)
        return;
    store_finish(files->store);
    files->closing = true;
}

void state_tree_poll(struct state_tree *tree)
{
    if (tree->files)
        pump(tree);
}

/* Writes those of a list that have no file, the most recently used first. */
static void save_list(struct state_tree *tree, enum tier tier, bool held, double deadline)
{
    struct checkpoint_files *files = tree->files;
    struct checkpoint *older;
    for (struct checkpoint *at = tree->lists[tier][held].newest; at; at = older) {
        older = at->link[tier].older;
        while (files->writes >= MOST_WRITES && clock_seconds() < deadline) {
            store_poll(files->store);
            wait_a_little();
        }
        if (clock_seconds() >= deadline)
            return;
        checkpoint_files_write_through(tree, at);
    }
}

void state_tree_save_all(struct state_tree *tree, double deadline)
{
    struct checkpoint_files *files = tree->files;
    if (!files)
        return;
    for (int held = 1; held >= 0; held--) {
        save_list(tree, TIER_DEVICE, held, deadline);
        save_list(tree, TIER_HOST, held, deadline);
    }
    while (files->writes && clock_seconds() < deadline) {
        store_poll(files->store);
        wait_a_little();
    }
    note_uses(tree);
}

void state_tree_found(struct state_tree *tree, const struct store_found *found)
{
    struct space *space = checkpoint_meta_space(tree, found);
    struct checkpoint *checkpoint =
        space ? checkpoint_at(tree, space, found->tokens, found->count) : NULL;
    bool wanted = checkpoint && !checkpoint->file;
    struct checkpoint_file *file = file_create(tree, wanted ? checkpoint : NULL);
    if (file) {
        file->phase = FILE_WHOLE;
        file->logits = found->logits;
        file->bytes = found->bytes;
        file->modified_ns = found->modified_ns;
        snprintf(file->name, sizeof file->name, "%s", found->name);
        if (!wanted)
            discard(file);
    }
    if (checkpoint)
        checkpoint_settle(tree, checkpoint);
    int64_t now = clock_nanos(CLOCK_REALTIME);
    if (wanted)
        checkpoint_touch_at(tree, checkpoint, found->modified_ns < now ? found->modified_ns : now);
    state_tree_space_release(tree, space);
}
