/* SPDX-License-Identifier: Apache-2.0 */
/* The sampling that a model's author recommends: generation_config.json's of a folder, and
 * general.sampling's of a GGUF file. It is the default of requests that say nothing
 * (model-format.md). */
#ifndef ENGINE_MODEL_AUTHOR_SAMPLING_H
#define ENGINE_MODEL_AUTHOR_SAMPLING_H

#include "engine/model/sampling.h"
#include "lib/base/error.h"
#include "lib/base/warnings.h"

#include <stdbool.h>
#include <stddef.h>

struct author_sampling { /* zero-initialise: nothing is said */
    bool said[SAMPLING_COUNT];
    double values[SAMPLING_COUNT];
    const char *from; /* the file that says it: "generation_config.json" */
};

bool author_sampling_says(const struct author_sampling *sampling); /* anything */
/* The value, or the usual one where nothing is said. sampling NULL: nothing is. */
double author_sampling_value(const struct author_sampling *sampling, enum sampling_number number);

/* Reads what stands beside the weights of the model at `path` (a folder or a GGUF file; NULL: there
 * is none, and nothing is said). do_sample false of generation_config.json is temperature 0.
 * Without that file config.json's values count that are not transformers' own defaults. A value
 * that no request may have is a warning, and not taken. */
int author_sampling_open(struct author_sampling *sampling, const char *path,
                         struct warnings *warnings, struct error *err);

/* "temperature 0.6, top_k 20" into text [size]; returns text. */
const char *author_sampling_text(const struct author_sampling *sampling, char *text, size_t size);

#endif
