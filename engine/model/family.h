/* SPDX-License-Identifier: Apache-2.0 */
/* Families of models: what config.json's model_type names.
 *
 * A family is a file of its own, family_NAME.c, and a row in family.c. It says how its config.json
 * and its tensors become the one description of model.h; nothing else in the program knows it. */
#ifndef ENGINE_MODEL_FAMILY_H
#define ENGINE_MODEL_FAMILY_H

#include "engine/model/config.h"
#include "engine/model/gguf_config.h"
#include "engine/model/random_list.h"
#include "engine/model/weights.h"
#include "lib/base/fields.h"

struct family {
    const char *name; /* model_type */
    /* Fills config from config.json's outermost object. */
    int (*parse)(struct config *config, const struct fields *root, struct error *err);
    /* Fills model's norms, matrices and layers [config->num_layers] from the tensors. */
    int (*bind)(struct model *model, const struct config *config, struct weights *weights,
                struct error *err);
    /* Lists the tensors of a preset; NULL: the family has no presets. */
    void (*random)(struct random_list *list);
    /* What its GGUF files call things; NULL: it has none. */
    const struct gguf_names *gguf;
};

/* Parses config.json (text: [length] bytes) of any family. arena must outlive *config. */
int family_parse(struct config *config, struct arena *arena, const char *text, size_t length,
                 struct error *err);

/* The same from a GGUF file of the family that general.architecture names. Gives the tensors of it
 * the names that the family's binder looks for. */
int family_parse_gguf(struct config *config, struct arena *arena, const struct gguf *gguf,
                      struct tensors *tensors, struct error *err);

/* "regla or gpt_neox": the families with presets, into text [size]; returns text. */
const char *family_names_random(char *text, size_t size);

#endif
