/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars in Lark's notation, of custom tools, as regular expressions: whatever has no rule that
 * comes to itself again is one.
 *
 * Supported: rules and terminals, alternatives, groups, [optional], ? * + ~n ~n..m, "strings" also
 * with the flag i, "a".."z", /expressions/ without flags, %import of common's terminals, comments.
 * Not: recursion, templates, %ignore and other directives, other modules. */
#ifndef API_LARK_H
#define API_LARK_H

#include "api/strbuf.h"
#include "lib/base/error.h"
#include "lib/grammar/work.h"

#include <stddef.h>

/* Appends an expression of the texts that rule `start` describes. text: [length] bytes of UTF-8.
 * ERROR_UNSUPPORTED: it is not one of those, or it is no grammar, and the message names the line;
 * or it takes too much work, what work has done before counted in. */
int lark_to_regex(struct strbuf *out, const char *text, size_t length, struct work *work,
                  struct error *err);

#endif
