/* SPDX-License-Identifier: Apache-2.0 */
/* The values that satisfy some schemas, where they are few: what can be told apart. */
#ifndef LIB_GRAMMAR_SCHEMA_FINITE_H
#define LIB_GRAMMAR_SCHEMA_FINITE_H

#include "lib/grammar/schema_compiler.h"

enum { SCHEMA_MOST_FINITE = 64 };

/* Adds them to the list, each once, in the order of the schemas. *finite: there are at most
 * SCHEMA_MOST_FINITE, and the list has all of them. */
int schema_finite(const struct schema_document *document, const struct schema_parts *parts,
                  json_t *list, bool *finite);

#endif
