/* SPDX-License-Identifier: Apache-2.0 */
/* What regla info says of layers: what each is made of, and what it costs. */
#ifndef CLI_INFO_LAYERS_H
#define CLI_INFO_LAYERS_H

#include "engine/engine.h"

#include <jansson.h>

/* Layers of which there is the same to say are told of once. */
int info_layers_print(const struct engine *engine, struct error *err);

/* A list with an object for each layer (model-format.md). */
json_t *info_layers_json(const struct engine *engine);

#endif
