/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a past call, as a client sends them: JSON in a string, which another model may
 * have left broken. */
#ifndef API_CHAT_ARGUMENTS_H
#define API_CHAT_ARGUMENTS_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>

/* Reads text [length]. *whole: it is a JSON object. Else *object is what can be read of one: with
 * keys that come again, literals of Python's, new lines in strings, brackets too many at the end,
 * or without the end. NULL: nothing can, or *err says that no memory is left. */
json_t *chat_arguments_load(const char *text, size_t length, bool *whole, struct api_error *err);

#endif
