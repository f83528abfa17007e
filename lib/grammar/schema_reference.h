/* SPDX-License-Identifier: Apache-2.0 */
/* What a $ref leads to: in its document, by a JSON pointer, an $anchor or an $id. */
#ifndef LIB_GRAMMAR_SCHEMA_REFERENCE_H
#define LIB_GRAMMAR_SCHEMA_REFERENCE_H

#include "lib/grammar/schema_document.h"

/* schema: one with a $ref that is a string. Refuses what leads nowhere, or out of the document. */
int schema_reference_find(const struct schema_document *document, const json_t *schema,
                          const struct schema_place *place, const json_t **target);

#endif
