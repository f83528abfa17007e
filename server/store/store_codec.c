/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_codec.h"

#include <stdlib.h>
#include <string.h>

struct state_file_source store_codec_source(const struct store_put *put)
{
    return (struct state_file_source){.position = put->image != NULL ? put->position : 0,
                                      .num_tokens = put->count,
                                      .tokens = put->tokens,
                                      .image = put->image,
                                      .logits = put->logits,
                                      .meta = put->meta,
                                      .meta_bytes = put->meta_length};
}

int store_codec_check(const struct state_file *file, const struct engine *engine,
                      enum store_kind kind, struct error *err)
{
    if (state_file_check(file, engine, err) != 0)
        return -1;
    if (kind == STORE_SESSION && file->state.present)
        return error_set(err, ERROR_INVALID, "expected a session without a state, got one");
    if (kind == STORE_CHECKPOINT && !file->state.present)
        return error_set(err, ERROR_INVALID, "expected a state, got none");
    return 0;
}

int store_codec_take(const struct store_get *get, const struct engine *engine, const void *bytes,
                     size_t size, struct error *err)
{
    struct state_file file;
    if (state_file_parse(&file, bytes, size, err) != 0 ||
        store_codec_check(&file, engine, STORE_CHECKPOINT, err) != 0)
        return -1;
    if (file.position != get->position || file.num_tokens != get->count)
        return error_set(err, ERROR_INVALID,
                         "expected position %lld of %lld tokens, got %lld of %lld",
                         (long long)get->position, (long long)get->count, (long long)file.position,
                         (long long)file.num_tokens);
    if (get->tokens != NULL && memcmp(get->tokens, file.tokens.bytes, file.tokens.size) != 0)
        return error_set(err, ERROR_INVALID, "its tokens are others");
    if (get->blob.prefix && (file.meta.size != get->meta_length ||
                             memcmp(get->meta, file.meta.bytes, get->meta_length) != 0))
        return error_set(err, ERROR_INVALID, "it is of other bits or another space");
    if (get->logits_out != NULL && !file.logits.present)
        return error_set(err, ERROR_INVALID, "expected logits, got none");
    if (get->image_out != NULL && file.state.present)
        state_file_image(&file, engine, get->image_out);
    if (get->logits_out != NULL)
        state_file_logits(&file, get->logits_out);
    return 0;
}

int store_codec_tell(const struct store_options *options, const struct state_file *file,
                     struct store_found *found, struct error *err)
{
    int32_t *tokens = malloc(file->tokens.size + 1);
    if (tokens == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for its tokens");
    state_file_tokens(file, tokens);
    found->meta = (const char *)file->meta.bytes;
    found->meta_length = file->meta.size;
    found->tokens = tokens;
    found->count = file->num_tokens;
    found->position = file->position;
    found->logits = file->logits.present;
    if (options->found != NULL)
        options->found(options->found_context, found);
    free(tokens);
    return 0;
}
