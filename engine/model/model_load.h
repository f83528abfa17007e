/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a model: a directory in the Hugging Face layout, a GGUF file, or the former from memory.
 *
 * All of it is validated, whatever family it is of (family.h); the tensors stay where they are in
 * the file. model-format.md says what is read. */
#ifndef ENGINE_MODEL_MODEL_LOAD_H
#define ENGINE_MODEL_MODEL_LOAD_H

#include "engine/model/model.h"
#include "lib/base/file.h"

/* Reads the model at `path`: config.json, generation_config.json and every tensor header of a
 * directory, or a GGUF file (gguf.md), the first of a split one, or the only one of a folder. The
 * caller frees *out with model_close. Errors name file, place, expected and got. */
int model_open(struct model **out, const char *path, struct error *err);
/* The same from memory: config.json's text and a single safetensors file, which is borrowed until
 * model_close. */
int model_load(struct model **out, const char *config_json, size_t config_length,
               const void *weights, size_t weights_size, struct error *err);
/* The same with a mapping that becomes the model's: *weights is empty then. */
int model_load_map(struct model **out, const char *name, const char *config_json,
                   size_t config_length, struct file_map *weights, struct error *err);

#endif
