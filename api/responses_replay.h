/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a kept response as the events of its stream, with their numbers. Its turn
 * (responses_turns.h) says how each item was told: [bytes of each delta], or of a call that was cut
 * off, which is in no object, {called, tool, arguments, deltas}. tool: as responses_echo_make's. */
#ifndef API_RESPONSES_REPLAY_H
#define API_RESPONSES_REPLAY_H

#include "api/errors.h"
#include "api/strbuf.h"

/* Appends the events behind number `after` (-1: all) of the last of these turns. One that had no
 * stream is told in a delta an item. The events are those of the stream but for log-probabilities,
 * warnings, and what was said while nothing else came. */
int responses_replay(struct strbuf *out, const char *turns, size_t length, int64_t after,
                     struct api_error *err);
/* Takes so many of the events from `from` of the buffer on away, the first ones. */
void responses_drop_events(struct strbuf *out, size_t from, int64_t count);
/* What that takes, about: of an object of so many bytes, and so many events. */
size_t responses_replay_bytes(size_t object_length, int64_t events);

#endif
