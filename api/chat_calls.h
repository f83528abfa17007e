/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls as models write them: where a call ends in a text that grows, and what it says.
 *
 * A call stands between two markers (chat_syntax.h), and is spelled as chat_words.h has it. The
 * markers of XML may be missing if a tool has its name: models that write it leave them out.
 * All of it was written by a model: each byte is looked at once, nesting is bounded, and what is
 * not a call as a whole is none. */
#ifndef API_CHAT_CALLS_H
#define API_CHAT_CALLS_H

#include "api/chat_call.h"
#include "api/chat_types.h"

/* body [length]: what stands behind the opening marker so far, the same bytes as in the call before
 * and perhaps more; `last`: no more comes. Adds to reading->calls what is told in parts. */
enum chat_scan_result chat_scan_push(struct chat_scan *scan, const struct chat_reading *reading,
                                     const char *body, size_t length, bool last, size_t *used);

/* The end of a body whose calls were told in parts: the open one, if there is one, is whole, or cut
 * off at body[used]. -1: no memory. */
int chat_calls_told(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                    size_t used, bool whole);

/* Of bodies that are told as a whole. Adds the calls of one whose end was found, with values as the
 * tools ask for them. 0: it is none, nothing is added; 1: it is; -1: no memory. */
int chat_calls_read(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                    const struct chat_types *types);

/* Adds those of a body [length] that was cut off; the last one's arguments end where the text does.
 * -1: no memory. */
int chat_calls_read_cut(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                        size_t length, const struct chat_types *types);

/* Where in text [length], in that part of it, a call without a marker begins, or may begin if more
 * text comes; within.end: nowhere. *whole: it begins. */
size_t chat_calls_find(enum chat_calls_format format, const char *text, size_t length,
                       struct chat_part within, const struct chat_types *types, bool *whole);
/* Whether what was scanned is a call up to scan->end, without a closing marker. */
bool chat_calls_alone(const struct chat_scan *scan, const char *body,
                      const struct chat_types *types);

/* No more calls than so many are in the text. */
size_t chat_calls_most(enum chat_calls_format format, const char *text, size_t length);

#endif
