/* SPDX-License-Identifier: Apache-2.0 */
/* What regla info --program prints: the operations of a step, a line each, with what they read and
 * write and what they cost for a text's first token (engine/README.md reads one with you). */
#ifndef CLI_INFO_PROGRAM_H
#define CLI_INFO_PROGRAM_H

#include "engine/engine.h"

#include <jansson.h>

int info_program_print(const struct engine *engine, struct error *err);

/* A list with an object for each operation; NULL: no memory. */
json_t *info_program_json(const struct engine *engine);

#endif
