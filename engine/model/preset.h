/* SPDX-License-Identifier: Apache-2.0 */
/* Presets: the papers' systems at one shape, for measuring them before anybody has trained one.
 *
 * Each is a file of models/presets/, built into the program: a config.json and `shapes`
 * (model-format.md). Its weights are random with a fixed seed, and pass through the same loader
 * and checks as a file's. */
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

/* A preset's model with its random weights. ERROR_INVALID that lists the presets when there is none
 * of that name. The caller frees *out with model_close. */
int preset_open(struct model **out, const char *name, struct error *err);
/* The same with another text in the place of the preset's. */
int preset_load(struct model **out, const char *name, const char *config, struct error *err);

#endif
