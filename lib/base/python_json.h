/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as Python's json module writes and reads it, which is more than JSON: Infinity, -Infinity
 * and NaN, and numbers of any size. */
#ifndef LIB_BASE_PYTHON_JSON_H
#define LIB_BASE_PYTHON_JSON_H

#include "lib/base/error.h"

#include <jansson.h>
#include <stddef.h>

/* As fields_parse. A number that is not finite becomes {"__float__": "Infinity"}, which is how
 * transformers 5 writes it in JSON; so no reader of fields takes it for a number. An integer beyond
 * 64 bits becomes a real number. */
int python_json_parse(json_t **document, const char *file, const char *text, size_t length,
                      struct error *err);

#endif
