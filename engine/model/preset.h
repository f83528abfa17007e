/* SPDX-License-Identifier: Apache-2.0 */
/* Presets: the papers' systems at one shape, to measure them without a trained checkpoint.
 *
 * A preset is a file of models/presets/, built into the program: a config.json with `shapes`
 * (model-format.md). Its weights are random, with a fixed seed. They pass through the same loader
 * and checks as a file. */
#ifndef ENGINE_MODEL_PRESET_H
#define ENGINE_MODEL_PRESET_H

#include "engine/model/model.h"

struct preset {
    const char *name;   /* "regla-160m": the file's, without .json */
    const char *config; /* the file's text */
};

/* In the order of their names. */
extern const struct preset presets[];
extern const size_t num_presets;

const struct preset *preset_find(const char *name); /* NULL: there is none */

/* Makes a preset's model with its random weights. ERROR_INVALID for an unknown name; the message
 * lists the presets. The caller frees *out with model_close. */
int preset_open(struct model **out, const char *name, struct error *err);
/* The same for a given text of a preset. */
int preset_load(struct model **out, const char *name, const char *config, struct error *err);

#endif
