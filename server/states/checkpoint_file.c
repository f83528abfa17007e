/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/checkpoint_file.h"

#include "server/log.h"

#include <stdlib.h>
#include <string.h>

struct checkpoint_file *checkpoint_file_create(struct checkpoint_files *files,
                                               struct checkpoint *checkpoint)
{
    struct checkpoint_file *file = calloc(1, sizeof *file);
    if (!file || !store_random_name(file->name)) {
        free(file);
        return NULL;
    }
    file->files = files;
    file->checkpoint = checkpoint;
    file->phase = FILE_WANTED;
    if (checkpoint)
        checkpoint->file = file;
    return file;
}

void checkpoint_file_unlist(struct checkpoint_file *file)
{
    struct checkpoint_wanted *list = file->list;
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

void checkpoint_file_enlist(struct checkpoint_wanted *list, struct checkpoint_file *file)
{
    checkpoint_file_unlist(file);
    file->list = list;
    file->before = list->last;
    if (list->last)
        list->last->after = file;
    else
        list->first = file;
    list->last = file;
}

void checkpoint_file_clear(struct checkpoint_file *file)
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

void checkpoint_file_tell_waiters(struct checkpoint_files *files)
{
    struct checkpoint_waiter *waiter;
    while ((waiter = files->waiters) != NULL &&
           (!files->doomed.first || files->doomed.first->doomed > waiter->last)) {
        files->waiters = waiter->next;
        if (!files->waiters)
            files->last_waiter = &files->waiters;
        waiter->then(waiter->context);
    }
}

void checkpoint_file_doom(struct checkpoint_file *file)
{
    if (file->doomed)
        return;
    file->doomed = ++file->files->num_doomed;
    checkpoint_file_enlist(&file->files->doomed, file);
}

void checkpoint_file_free(struct checkpoint_file *file)
{
    struct checkpoint_files *files = file->files;
    bool doomed = file->doomed != 0;
    checkpoint_file_unlist(file);
    if (file->checkpoint)
        file->checkpoint->file = NULL;
    checkpoint_file_clear(file);
    free(file);
    if (doomed)
        checkpoint_file_tell_waiters(files);
}

void checkpoint_file_begin(struct checkpoint_file *file, enum file_phase phase,
                           void (*done)(struct store_op *op))
{
    file->phase = phase;
    file->op.done = done;
    memcpy(file->blob.name, file->name, sizeof file->name);
}

/* What stays takes of the budget, and is found by the next server. */
static void removed(struct store_op *op)
{
    if (op->error.code != ERROR_NONE)
        log_message(LOG_LEVEL_WARN, "a checkpoint's file stays: %s", op->error.message);
    checkpoint_file_free((struct checkpoint_file *)op);
}

void checkpoint_file_discard(struct checkpoint_file *file)
{
    struct checkpoint_files *files = file->files;
    if (file->checkpoint)
        file->checkpoint->file = NULL;
    file->checkpoint = NULL;
    checkpoint_file_clear(file);
    checkpoint_file_doom(file);
    checkpoint_file_begin(file, FILE_REMOVING, removed);
    file->op.bytes = file->bytes;
    store_remove(files->store, &file->removal);
}
