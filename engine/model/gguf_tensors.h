/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a GGUF file, or of all files of a split one, under the names that they have there.
 *
 * They must lie one after the other from the data's first byte on, each at a multiple of the file's
 * alignment, as llama.cpp wants them. Types that no matrix here has are refused by name. */
#ifndef ENGINE_MODEL_GGUF_TENSORS_H
#define ENGINE_MODEL_GGUF_TENSORS_H

#include "engine/model/tensors.h"
#include "lib/base/gguf.h"

/* Opens `directory`/`name` and, where split.count says so, the others of NAME-00001-of-0000N.gguf.
 * The metadata, *gguf, are those of the first, and use its memory. The caller frees *out with
 * tensors_close and *gguf with gguf_clear. */
int gguf_tensors_open(struct tensors **out, struct gguf *gguf, const char *directory,
                      const char *name, struct error *err);

/* One file from memory: bytes [size], borrowed until tensors_close. */
int gguf_tensors_load(struct tensors **out, struct gguf *gguf, const void *bytes, size_t size,
                      const char *name, struct error *err);

#endif
