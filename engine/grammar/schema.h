/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schemas as rules. grammar.md says which keywords there are, and what they mean here. */
#ifndef ENGINE_GRAMMAR_SCHEMA_H
#define ENGINE_GRAMMAR_SCHEMA_H

#include "engine/grammar/builder.h"

#include <jansson.h>

/* Adds the rules to a builder that has those of json_rules.h. *root is the rule of a whole text.
 * The spec is borrowed for the call. */
int schema_compile(struct builder *builder, const json_t *spec, uint32_t *root);

#endif
