/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/checkpoint_files.h"

#include "lib/base/clock.h"
#include "server/log.h"
#include "server/states/checkpoint_file.h"
#include "server/states/checkpoint_meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WRITES = 4, MOST_READS = 4 };

static const int64_t MOST_BEHIND_NS = 60 * (int64_t)1000000000;

bool checkpoint_files_take_unplaced(struct checkpoint *checkpoint)
{
    bool unplaced = checkpoint->file && checkpoint->file->unplaced;
    if (unplaced)
        checkpoint->file->unplaced = false;
    return unplaced;
}

void checkpoint_files_await_gone(struct checkpoint_files *files, struct checkpoint_waiter *waiter)
{
    waiter->next = NULL;
    waiter->last = files->num_doomed;
    *files->last_waiter = waiter;
    files->last_waiter = &waiter->next;
    checkpoint_file_tell_waiters(files);
}

/* What an operation takes of memory. image: the checkpoint has none that could be lent. */
static int64_t bytes_of(const struct checkpoint_files *files, int64_t position, bool image)
{
    int64_t bytes = image ? (int64_t)state_image_bytes(files->tiers->engine, position) : 0;
    return bytes + position * (int64_t)sizeof(int32_t) + (int64_t)files->tiers->logits_size;
}

static bool has_memory(const struct checkpoint_files *files, int64_t bytes)
{
    return files->memory_bytes == 0 || bytes <= files->memory_bytes - files->copied_bytes;
}

bool checkpoint_files_fit(const struct checkpoint_files *files, int64_t position)
{
    return files->memory_bytes == 0 || bytes_of(files, position, true) <= files->memory_bytes;
}

bool checkpoint_files_take_memory(struct checkpoint_files *files, int64_t bytes)
{
    const int64_t most = files->memory_bytes / 2;
    if (!has_memory(files, bytes) || (most > 0 && bytes > most - files->lent_bytes))
        return false;
    files->copied_bytes += bytes;
    files->lent_bytes += bytes;
    return true;
}

void checkpoint_files_give_memory(struct checkpoint_files *files, int64_t bytes)
{
    files->copied_bytes -= bytes;
    files->lent_bytes -= bytes;
}

static void take_memory(struct checkpoint_file *file, int64_t bytes)
{
    file->copied = bytes;
    file->files->copied_bytes += bytes;
}

static void give_memory(struct checkpoint_file *file)
{
    file->files->copied_bytes -= file->copied;
    file->copied = 0;
}

/* Room on the disk. */

/* Whose file goes after that of `at` (NULL: first) when room is needed; NULL: none is left. */
static struct checkpoint *next_to_go(const struct checkpoint_files *files,
                                     const struct checkpoint *at)
{
    if (!at)
        return tiers_oldest(files->tiers, TIER_DISK);
    struct checkpoint *next = at->link[TIER_DISK].newer;
    if (!next && !at->held)
        next = files->tiers->lists[TIER_DISK][1].oldest;
    return next && next == files->tiers->pinned ? next_to_go(files, next) : next;
}

/* Whether the file of `at` is given up for one of `sake`, or (NULL) of a session. */
static bool gives_way(const struct checkpoint *at, const struct checkpoint *sake)
{
    return !sake || (at->held == sake->held ? at->used < sake->used : sake->held);
}

static void remove_oldest(struct checkpoint_files *files, size_t count)
{
    while (count-- > 0) {
        struct checkpoint *oldest = next_to_go(files, NULL);
        files->tiers->dropped += oldest->tier == TIER_DISK;
        checkpoint_file_discard(oldest->file);
        tiers_settle(files->tiers, oldest);
    }
}

/* Removes the least recently used files, so many that `bytes` more will fit the budget and the
 * disk, of which a session (no sake) leaves some to deletions; none if that cannot be reached. But
 * what is free on a disk others change too: a write that nothing is left to make room for had
 * better be tried. And what is under way counts with all that it may take, so for a session that
 * fits without it all files go. */
static bool disk_room(struct checkpoint_files *files, int64_t bytes, const struct checkpoint *sake)
{
    enum { BLOCK_BYTES = 4096 }; /* a file takes whole ones of them */
    struct store_report report;
    store_report(files->store, &report);
    int64_t budget = report.bytes + report.pending + bytes - report.budget_bytes;
    int64_t reserve = sake ? BLOCK_BYTES : BLOCK_BYTES + STORE_RESERVE_BYTES;
    int64_t disk = report.pending + bytes + reserve - report.disk_free;
    size_t count = 0;
    for (struct checkpoint *at = NULL; budget > 0 || disk > 0; count++) {
        at = next_to_go(files, at);
        if (!at && (budget <= 0 || (!sake && budget <= report.pending)) && (!sake || count == 0))
            break;
        if (!at || !gives_way(at, sake))
            return false;
        budget -= at->file->bytes;
        disk -= at->file->bytes;
    }
    remove_oldest(files, count);
    return true;
}

void checkpoint_files_make_room(struct checkpoint_files *files, int64_t bytes)
{
    disk_room(files, bytes, NULL);
}

/* Times. */

static void touched(struct store_op *op)
{
    free(op); /* a use that was not noted costs its place in the order, no more */
}

/* The file's time becomes that of the checkpoint's last use. */
static void note_use(struct checkpoint_files *files, const struct checkpoint *checkpoint)
{
    struct checkpoint_file *file = checkpoint->file;
    struct store_touch *touch = calloc(1, sizeof *touch);
    if (!touch)
        return;
    touch->blob.op.done = touched;
    touch->used_ns = file->modified_ns = checkpoint->used;
    memcpy(touch->blob.name, file->name, sizeof file->name);
    store_touch(files->store, touch);
}

/* So that the order of use outlives a restart, the file's time follows it, a minute behind at most.
 */
static void on_used(void *context, const struct checkpoint *checkpoint)
{
    struct checkpoint_files *files = context;
    if (checkpoint_in_file(checkpoint) &&
        checkpoint->used - checkpoint->file->modified_ns > MOST_BEHIND_NS)
        note_use(files, checkpoint);
}

/* Those of all files, so that a server that begins now has the same order. */
static void note_uses(struct checkpoint_files *files)
{
    for (int held = 0; held < 2; held++)
        for (const struct checkpoint *at = files->tiers->lists[TIER_DISK][held].oldest; at;
             at = at->link[TIER_DISK].newer)
            if (at->file->modified_ns != at->used)
                note_use(files, at);
}

/* Writing. */

static void written(struct store_op *op)
{
    struct checkpoint_file *file = (struct checkpoint_file *)op;
    struct checkpoint_files *files = file->files;
    struct checkpoint *checkpoint = file->checkpoint;
    bool failed = file->op.error.code != ERROR_NONE;
    files->writes--;
    give_memory(file);
    checkpoint_file_clear(file);
    file->phase = FILE_WHOLE;
    file->modified_ns = clock_nanos(CLOCK_REALTIME);
    if (failed) {
        log_message(LOG_LEVEL_DEBUG, "a checkpoint was not written: %s", file->op.error.message);
        checkpoint_file_free(file);
    } else if (!checkpoint) {
        checkpoint_file_discard(file);
    }
    if (!checkpoint)
        return;
    if (checkpoint->state)
        tiers_set_image(files->tiers, checkpoint, NULL);
    tiers_settle(files->tiers, checkpoint);
}

/* All but the image, for which there is memory then. */
static int fill_write(struct checkpoint_files *files, struct checkpoint_file *file)
{
    struct checkpoint *checkpoint = file->checkpoint;
    file->put = (struct store_put){0};
    file->meta =
        checkpoint_meta_encode(files->tiers->engine, checkpoint->space, &file->put.meta_length);
    file->tokens = checkpoint_tokens(checkpoint);
    if (checkpoint->logits)
        file->some_logits = malloc(files->tiers->logits_size);
    if (!checkpoint->image)
        file->image = malloc(state_image_bytes(files->tiers->engine, checkpoint->position));
    if (!file->meta || !file->tokens || (checkpoint->logits && !file->some_logits) ||
        (!checkpoint->image && !file->image))
        return -1;
    if (file->some_logits)
        memcpy(file->some_logits, checkpoint->logits, files->tiers->logits_size);
    if (files->by_name)
        store_checkpoint_name(files->store, file->meta, file->put.meta_length, file->tokens,
                              checkpoint->position, file->name);
    file->put.meta = file->meta;
    file->put.tokens = file->tokens;
    file->put.count = file->put.position = checkpoint->position;
    file->put.logits = file->some_logits;
    return 0;
}

/* The checkpoint's image, or one that its state is on its way to. The store's thread waits for it;
 * if the device fails before, there is no file. */
static void fill_image(struct checkpoint_file *file)
{
    const struct checkpoint *checkpoint = file->checkpoint;
    file->put.image = file->image ? file->image : checkpoint->image;
    file->put.saving =
        file->image ? state_save_begin(checkpoint->state, file->image) : checkpoint->saving;
}

/* Begins to write the file of a checkpoint that is in memory. */
static void begin_write(struct checkpoint_files *files, struct checkpoint_file *file)
{
    struct checkpoint *checkpoint = file->checkpoint;
    int64_t memory = bytes_of(files, checkpoint->position, !checkpoint->image);
    checkpoint_file_unlist(file);
    if ((!checkpoint->state && !checkpoint->image) || !has_memory(files, memory) ||
        fill_write(files, file)) {
        checkpoint_file_free(file);
        return;
    }
    file->logits = file->some_logits != NULL;
    file->bytes = store_file_bytes(files->store, file->put.position, file->put.count, true,
                                   file->logits, file->put.meta_length);
    if (!disk_room(files, file->bytes, checkpoint)) {
        checkpoint_file_free(file);
        return;
    }
    files->writes++;
    take_memory(file, memory);
    fill_image(file);
    checkpoint_file_begin(file, FILE_WRITING, written);
    store_put(files->store, &file->put);
    tiers_settle(files->tiers, checkpoint);
}

/* Whether there will be memory to write it once something else has been. */
static bool must_wait(const struct checkpoint_files *files, const struct checkpoint *checkpoint)
{
    return files->copied_bytes > 0 &&
           !has_memory(files, bytes_of(files, checkpoint->position, !checkpoint->image));
}

/* Writes what is wanted, as far as that may go on at once. */
static void pump(struct checkpoint_files *files)
{
    while (files->writes < MOST_WRITES) {
        bool scarce = files->tiers->host_bytes > files->tiers->host_budget_bytes / 2;
        struct checkpoint_file *file = files->soon.first;
        if (!file && scarce)
            file = files->later.first;
        /* begin_write takes the file out of its list, which the analyzer does not follow. */
        if (!file || must_wait(files, file->checkpoint)) // NOLINT(clang-analyzer-unix.Malloc)
            return;
        begin_write(files, file); // NOLINT(clang-analyzer-unix.Malloc)
    }
}

void checkpoint_files_want(struct checkpoint_files *files, struct checkpoint *checkpoint, bool soon)
{
    struct checkpoint_file *file = checkpoint->file;
    /* The row of a session says where its state is: nobody would find other files. */
    if ((file && file->phase != FILE_WANTED) || (files->by_name && !soon))
        return;
    if (!file)
        file = checkpoint_file_create(files, checkpoint);
    if (!file)
        return;
    checkpoint_file_enlist(soon ? &files->soon : &files->later, file);
    pump(files);
}

/* Writes it at once, if it has no file and not too many are written already. One that is on the
 * device only is written through a copy, which lives until the write has ended. */
static void write_through(struct checkpoint_files *files, struct checkpoint *checkpoint)
{
    struct checkpoint_file *file = checkpoint->file;
    if ((file && file->phase != FILE_WANTED) || files->writes >= MOST_WRITES ||
        (files->by_name && !file))
        return;
    if (!file)
        file = checkpoint_file_create(files, checkpoint);
    if (file)
        begin_write(files, file);
}

static void on_leaves(void *context, struct checkpoint *checkpoint)
{
    write_through(context, checkpoint);
}

static void on_left(void *context, struct checkpoint *checkpoint)
{
    checkpoint_files_want(context, checkpoint, false);
}

/* Reading. */

/* The image has come: to host memory, without room there to the device; without that either the
 * file is read again when there is. */
static void take_image(struct checkpoint_files *files, struct checkpoint *checkpoint, void *image)
{
    int64_t bytes = (int64_t)state_image_bytes(files->tiers->engine, checkpoint->position);
    bool room = tiers_host_room(files->tiers, bytes);
    tiers_set_image(files->tiers, checkpoint, image);
    checkpoint->file->unplaced = !room && !tiers_promote(files->tiers, checkpoint, NULL, true);
    if (checkpoint->file->unplaced)
        tiers_set_image(files->tiers, checkpoint, NULL);
    tiers_settle(files->tiers, checkpoint);
}

/* A store may not have it yet, or no longer: that is as it should be. Whether it is away it tells
 * itself. */
static enum log_level level_of(const struct store_op *op)
{
    return op->refusal != STORE_ACCEPTED ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN;
}

static void was_read(struct store_op *op)
{
    struct checkpoint_file *file = (struct checkpoint_file *)op;
    struct checkpoint *checkpoint = file->checkpoint;
    struct checkpoint_files *files = file->files;
    void *image = file->image;
    files->reads--;
    give_memory(file);
    file->phase = FILE_WHOLE;
    if (file->op.error.code != ERROR_NONE) {
        log_message(level_of(&file->op), "a checkpoint cannot be read: %s", file->op.error.message);
        files->tiers->dropped += checkpoint && checkpoint->tier == TIER_DISK;
        checkpoint_file_discard(file);
    } else if (!checkpoint) {
        checkpoint_file_discard(file);
    } else if (!checkpoint->state && !checkpoint->image) {
        file->image = NULL;
        const struct checkpoint *pinned = files->tiers->pinned;
        files->tiers->pinned = checkpoint;
        take_image(files, checkpoint, image);
        tiers_keep_logits(files->tiers, checkpoint, file->some_logits);
        /* Without room for them the file is not read for them again: it might be for ever. */
        file->logits = file->logits && checkpoint->logits != NULL;
        files->tiers->pinned = pinned;
        checkpoint_file_clear(file);
    } else {
        checkpoint_file_clear(file);
    }
    if (checkpoint)
        tiers_settle(files->tiers, checkpoint);
}

int checkpoint_files_read(struct checkpoint_files *files, struct checkpoint *checkpoint,
                          struct error *err)
{
    struct checkpoint_file *file = checkpoint->file;
    int64_t memory = bytes_of(files, checkpoint->position, true);
    if (!file || file->phase == FILE_READING || files->reads >= MOST_READS ||
        !has_memory(files, memory))
        return 0;
    file->image = malloc(state_image_bytes(files->tiers->engine, checkpoint->position));
    file->tokens = checkpoint_tokens(checkpoint);
    if (file->logits)
        file->some_logits = malloc(files->tiers->logits_size);
    if (!file->image || !file->tokens || (file->logits && !file->some_logits)) {
        checkpoint_file_clear(file);
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a checkpoint of %lld tokens",
                         (long long)checkpoint->position);
    }
    file->get = (struct store_get){.tokens = file->tokens,
                                   .count = checkpoint->position,
                                   .position = checkpoint->position,
                                   .image_out = file->image,
                                   .logits_out = file->some_logits};
    files->reads++;
    take_memory(file, memory);
    checkpoint_file_begin(file, FILE_READING, was_read);
    store_get(files->store, &file->get);
    tiers_settle(files->tiers, checkpoint);
    return 0;
}

/* Beginning and end. */

/* The checkpoint goes, and its file with it. */
static void on_dropped(void *context, struct checkpoint *checkpoint)
{
    struct checkpoint_files *files = context;
    struct checkpoint_file *file = checkpoint->file;
    if (!file)
        return;
    if (checkpoint_lends_image(checkpoint))
        file->image = tiers_take_image(files->tiers, checkpoint);
    checkpoint->file = NULL;
    file->checkpoint = NULL;
    if (file->phase == FILE_WANTED || (files->closing && file->phase == FILE_WHOLE))
        checkpoint_file_free(file);
    else if (file->phase == FILE_WHOLE)
        checkpoint_file_discard(file);
    else
        checkpoint_file_doom(file); /* once it has been written or read */
}

int checkpoint_files_create(struct checkpoint_files **out, struct tiers *tiers, struct store *store,
                            int64_t memory_bytes, struct error *err)
{
    struct checkpoint_files *files = calloc(1, sizeof *files);
    if (!files)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the files of states");
    files->tiers = tiers;
    files->store = store;
    files->by_name = store_finds_by_name(store);
    files->last_waiter = &files->waiters;
    files->memory_bytes = memory_bytes;
    tiers->events = (struct tiers_events){.context = files,
                                          .used = on_used,
                                          .leaves = on_leaves,
                                          .left = on_left,
                                          .dropped = on_dropped};
    *out = files;
    return 0;
}

void checkpoint_files_free(struct checkpoint_files *files)
{
    free(files);
}

static void wait_a_little(void)
{
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

void checkpoint_files_close(struct checkpoint_files *files)
{
    store_finish(files->store);
    files->closing = true;
}

void checkpoint_files_poll(struct checkpoint_files *files)
{
    pump(files);
}

/* Writes those of a list that have no file, the most recently used first. */
static void save_list(struct checkpoint_files *files, enum tier tier, bool held, double deadline)
{
    struct checkpoint *older;
    for (struct checkpoint *at = files->tiers->lists[tier][held].newest; at; at = older) {
        older = at->link[tier].older;
        while ((files->writes >= MOST_WRITES || must_wait(files, at)) &&
               clock_seconds() < deadline) {
            store_poll(files->store);
            wait_a_little();
        }
        if (clock_seconds() >= deadline)
            return;
        write_through(files, at);
    }
}

void checkpoint_files_save_all(struct checkpoint_files *files, double deadline)
{
    for (int held = 1; held >= 0; held--) {
        save_list(files, TIER_DEVICE, held, deadline);
        save_list(files, TIER_HOST, held, deadline);
    }
    while (files->writes && clock_seconds() < deadline) {
        store_poll(files->store);
        wait_a_little();
    }
    note_uses(files);
}

void checkpoint_files_found(struct checkpoint_files *files, const struct store_found *found)
{
    struct tiers *tiers = files->tiers;
    struct space *space = checkpoint_meta_space(tiers->engine, &tiers->spaces, found);
    struct checkpoint *checkpoint =
        space ? tiers_at(tiers, space, found->tokens, found->count) : NULL;
    bool wanted = checkpoint && !checkpoint->file;
    struct checkpoint_file *file = checkpoint_file_create(files, wanted ? checkpoint : NULL);
    if (file) {
        file->phase = FILE_WHOLE;
        file->logits = found->logits;
        file->bytes = found->bytes;
        file->modified_ns = found->modified_ns;
        snprintf(file->name, sizeof file->name, "%s", found->name);
        if (!wanted)
            checkpoint_file_discard(file);
    }
    /* Its use first: with it, it takes its place at the end of a list, without a search. */
    int64_t now = clock_nanos(CLOCK_REALTIME);
    if (wanted)
        tiers_touch_at(tiers, checkpoint, found->modified_ns < now ? found->modified_ns : now);
    if (checkpoint)
        tiers_settle(tiers, checkpoint);
    spaces_release(&tiers->spaces, space);
}

/* A file of these tokens with the name that all servers give it. NULL: no memory. */
static struct checkpoint_file *create_shared(struct checkpoint_files *files,
                                             const struct space *space,
                                             struct checkpoint *checkpoint, const int32_t *tokens,
                                             int64_t position)
{
    size_t length;
    char *meta = checkpoint_meta_encode(files->tiers->engine, space, &length);
    struct checkpoint_file *file = meta ? checkpoint_file_create(files, checkpoint) : NULL;
    if (file) {
        store_checkpoint_name(files->store, meta, length, tokens, position, file->name);
        file->phase = FILE_WHOLE;
        file->modified_ns = clock_nanos(CLOCK_REALTIME);
        file->bytes = store_file_bytes(files->store, position, position, true, false, length);
    }
    free(meta);
    return file;
}

bool checkpoint_files_by_name(const struct checkpoint_files *files)
{
    return files->by_name;
}

void checkpoint_files_find_shared(struct checkpoint_files *files, struct space *space,
                                  const int32_t *tokens, int64_t position)
{
    struct tiers *tiers = files->tiers;
    struct checkpoint *checkpoint = tiers_at(tiers, space, tokens, position);
    if (!checkpoint)
        return;
    if (!checkpoint->state && !checkpoint->image && !checkpoint->file &&
        create_shared(files, space, checkpoint, tokens, position))
        tiers_touch_at(tiers, checkpoint, clock_nanos(CLOCK_REALTIME));
    tiers_settle(tiers, checkpoint);
}

void checkpoint_files_drop_shared(struct checkpoint_files *files, const struct space *space,
                                  struct checkpoint *checkpoint, const int32_t *tokens,
                                  int64_t position)
{
    struct checkpoint_file *file = checkpoint ? checkpoint->file : NULL;
    if (file && file->phase == FILE_WANTED) {
        checkpoint_file_free(file);
        return;
    }
    if (file && file->phase != FILE_WHOLE)
        return; /* it is being written or read: it ends by itself */
    if (!file)
        file = create_shared(files, space, NULL, tokens, position);
    if (file)
        checkpoint_file_discard(file);
    if (checkpoint)
        tiers_settle(files->tiers, checkpoint);
}
