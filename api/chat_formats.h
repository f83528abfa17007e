/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of tool calls: chat_calls_json.c, chat_calls_named.c, chat_calls_xml.c and
 * chat_calls_python.c. What they are spelled with is in reading->words, or scan->words.
 *
 * A scan returns CHAT_SCAN_CALL as soon as the body is complete, with scan->end. Where calls are
 * told in parts (chat_call.h) it tells what is certain. Else they are read when the body is
 * complete, which adds them; 0: it is none, 1: it is, -1: no memory. To read a body that is cut off
 * adds those that are there, the last with what there is of its arguments; -1: no memory. */
#ifndef API_CHAT_FORMATS_H
#define API_CHAT_FORMATS_H

#include "api/chat_call.h"
#include "api/chat_types.h"

/* Gives a call the values that its tool asks for, unless they then nest too deep. -1: no memory. */
int chat_calls_fit(struct chat_call *call, const struct chat_types *types);

enum chat_scan_result chat_calls_json_scan(struct chat_scan *scan,
                                           const struct chat_reading *reading, const char *body,
                                           size_t length);
/* Tells what is left of the open call, which is cut off at body[length]; -1: no memory. */
int chat_calls_json_cut(struct chat_scan *scan, const struct chat_reading *reading,
                        const char *body, size_t length);
/* The next member of an object, as it is written: body[*at] is the brace before the first, then
 * what follows a member. False: there is none. */
bool chat_calls_json_next(const char *body, size_t length, size_t *at, struct chat_part *key,
                          struct chat_part *value);
int chat_calls_json_read(struct chat_calls *calls, const char *body, size_t length);
int chat_calls_json_read_cut(struct chat_calls *calls, const char *body, size_t length);
/* Of this kind chat_calls_json_cut is good, too. */
enum chat_scan_result chat_calls_named_scan(struct chat_scan *scan,
                                            const struct chat_reading *reading, const char *body,
                                            size_t length);
int chat_calls_named_read(struct chat_calls *calls, const struct chat_words *words,
                          const char *body, size_t length);
int chat_calls_named_read_cut(struct chat_calls *calls, const struct chat_words *words,
                              const char *body, size_t length);
enum chat_scan_result chat_calls_xml_scan(struct chat_scan *scan,
                                          const struct chat_reading *reading, const char *body,
                                          size_t length);
/* As chat_calls_json_cut. */
int chat_calls_xml_cut(struct chat_scan *scan, const struct chat_reading *reading, const char *body,
                       size_t length);
int chat_calls_xml_read(struct chat_calls *calls, const struct chat_scan *scan, const char *body,
                        const struct chat_types *types);
int chat_calls_xml_read_cut(struct chat_calls *calls, const struct chat_scan *scan,
                            const char *body, size_t length, const struct chat_types *types);
/* chat_calls_find and chat_calls_alone of this kind. */
size_t chat_calls_xml_find(const struct chat_words *words, const char *text, size_t length,
                           struct chat_part within, const struct chat_types *types, bool *whole);
bool chat_calls_xml_alone(const struct chat_scan *scan, const char *body,
                          const struct chat_types *types);
/* last: nothing comes behind body[length]. */
enum chat_scan_result chat_calls_python_scan(struct chat_scan *scan,
                                             const struct chat_reading *reading, const char *body,
                                             size_t length, bool last);
int chat_calls_python_cut(struct chat_scan *scan, const struct chat_reading *reading,
                          const char *body, size_t length);
int chat_calls_python_read(struct chat_calls *calls, const struct chat_words *words,
                           const char *body, size_t length);
int chat_calls_python_read_cut(struct chat_calls *calls, const struct chat_words *words,
                               const char *body, size_t length);

#endif
