/* SPDX-License-Identifier: Apache-2.0 */
/* Where a $ref leads within its document. */
#ifndef LIB_GRAMMAR_SCHEMA_POINTER_H
#define LIB_GRAMMAR_SCHEMA_POINTER_H

#include <jansson.h>

/* ref: "#" or "#/...", a JSON pointer in a URI. Borrowed. NULL: it is none, or nothing is there. */
const json_t *schema_pointer(const json_t *root, const char *ref);

#endif
