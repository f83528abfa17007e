/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the safetensors format: named arrays in one file, or in shards that an index lists.
 *
 * A file begins with 8 bytes, the length of its header. The header is JSON: name -> dtype, shape,
 * data_offsets. The data follow; the tensors cover them without holes or overlaps
 * (https://github.com/huggingface/safetensors, "Format"). All of this is checked when the file is
 * opened. */
#ifndef ENGINE_MODEL_SAFETENSORS_H
#define ENGINE_MODEL_SAFETENSORS_H

#include "engine/model/tensors.h"

/* Opens `directory`/model.safetensors or, without that, the shards that
 * `directory`/model.safetensors.index.json lists. The caller closes *out. */
int safetensors_open(struct tensors **out, const char *directory, struct error *err);

/* Opens one file, `directory`/`file`. */
int safetensors_open_file(struct tensors **out, const char *directory, const char *file,
                          struct error *err);

/* One file from memory: bytes [size], borrowed until tensors_close. */
int safetensors_load(struct tensors **out, const void *bytes, size_t size, const char *file,
                     struct error *err);

#endif
