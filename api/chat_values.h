/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of calls as the tools' schemas ask for them, however the model has spelled them: "5" or
 * 5.0 is the integer 5, "True" is true, "['a']" is a list, 5 is the string "5". Only a value that
 * the schema does not allow changes, and only if it is one of those that it does. */
#ifndef API_CHAT_VALUES_H
#define API_CHAT_VALUES_H

#include "api/chat_call.h"
#include "api/chat_types.h"
#include "api/strbuf.h"

/* Appends a value, as it is written as JSON, of one of the kinds (a set of enum chat_kind; 0: any)
 * if it can be. Returns whether it is another one now. */
bool chat_values_put(struct strbuf *out, const char *value, size_t length, unsigned kinds);
/* Whether that value, of which the first byte is known, stays as it is written. */
bool chat_values_stays(char first, unsigned kinds);
/* Returns whether any argument is another one now; then
 * `out` has all of them, the others as they were written. */
bool chat_values_fit(struct strbuf *out, const struct chat_call *call,
                     const struct chat_types *types);

#endif
