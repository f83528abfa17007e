/* SPDX-License-Identifier: Apache-2.0 */
/* Turns operations into state files (engine/state_file.h) and back, for backends of a store: all of
 * them keep the same bytes. */
#ifndef SERVER_STORE_STORE_CODEC_H
#define SERVER_STORE_STORE_CODEC_H

#include "engine/state_file.h"
#include "server/store/blob_op.h"

/* What a write puts into the file; borrows what the operation points to. */
struct state_file_source store_codec_source(const struct store_put *put);
/* Whether a parsed file is a whole one of this model and of this kind. */
int store_codec_check(const struct state_file *file, const struct engine *engine,
                      enum store_kind kind, struct error *err);
/* Fills the buffers of a read from the file's bytes [size], which have to be what the operation
 * says that they are. */
int store_codec_take(const struct store_get *get, const struct engine *engine, const void *bytes,
                     size_t size, struct error *err);
/* Completes *found from a checked file, and calls options->found. */
int store_codec_tell(const struct store_options *options, const struct state_file *file,
                     struct store_found *found, struct error *err);

#endif
