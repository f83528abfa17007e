/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/checkpoint.h"

#include <stdlib.h>
#include <string.h>

bool checkpoint_in_file(const struct checkpoint *checkpoint)
{
    const struct checkpoint_file *file = checkpoint->file;
    return file && (file->phase == FILE_WHOLE || file->phase == FILE_READING);
}

bool checkpoint_file_logits(const struct checkpoint *checkpoint)
{
    return checkpoint_in_file(checkpoint) && checkpoint->file->logits;
}

bool checkpoint_file_busy(const struct checkpoint *checkpoint)
{
    const struct checkpoint_file *file = checkpoint->file;
    return file && (file->phase == FILE_WRITING || file->phase == FILE_READING);
}

bool checkpoint_lends_image(const struct checkpoint *checkpoint)
{
    const struct checkpoint_file *file = checkpoint->file;
    return file && file->phase == FILE_WRITING && !file->image;
}

int checkpoint_await_image(struct checkpoint *checkpoint, struct error *err)
{
    return state_save_wait(&checkpoint->saving, err);
}

int32_t *checkpoint_tokens(const struct checkpoint *checkpoint)
{
    int32_t *tokens = malloc((size_t)checkpoint->position * sizeof *tokens);
    for (const struct token_node *at = checkpoint->node; tokens && at->parent; at = at->parent)
        memcpy(tokens + at->position - at->count, at->tokens, (size_t)at->count * sizeof *tokens);
    return tokens;
}
