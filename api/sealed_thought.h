/* SPDX-License-Identifier: Apache-2.0 */
/* A thought as letters that say nothing to who reads them, and come back with the next request: of
 * clients that show no thoughts, or keep none. Any server reads them. */
#ifndef API_SEALED_THOUGHT_H
#define API_SEALED_THOUGHT_H

#include "api/strbuf.h"

#include <jansson.h>
#include <stdbool.h>

/* Appends the thought as a string with its quotes. */
void sealed_thought_write(struct strbuf *buf, const char *text, size_t length);
/* Appends the thought to *text. False: it was sealed elsewhere, or is damaged. */
bool sealed_thought_open(const json_t *sealed, struct strbuf *text);

#endif
