/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of strings that are enforced. */
#ifndef LIB_GRAMMAR_SCHEMA_FORMAT_H
#define LIB_GRAMMAR_SCHEMA_FORMAT_H

#include "lib/grammar/dfa.h"
#include "lib/grammar/schema_pattern.h"

bool schema_format_known(const char *name);
/* Of a format that is known. place: of the schema with "format": name. NULL: failed, as of
 * schema_pattern. */
const struct dfa *schema_format(const struct schema_document *document,
                                const struct schema_place *place, const char *name);

#endif
