/* SPDX-License-Identifier: Apache-2.0 */
/* Writes lines to a file descriptor from a thread of its own. Whoever logs never waits for whoever
 * reads: a pipe that nobody empties, a terminal after Ctrl-S, a full disk. Lines wait in a ring of
 * fixed size; a line that does not fit is dropped and counted, and when there is room again a line
 * says how many were. Lines that are still in the ring are lost if the process is killed. */
#ifndef SERVER_LOG_WRITER_H
#define SERVER_LOG_WRITER_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct log_writer;

enum { LOG_TOLD_BYTES = 256 };
/* Writes a line to text [LOG_TOLD_BYTES] that says how many were dropped since the start: then none
 * is forgotten if this line is dropped too. Returns its length. Any thread calls it. */
typedef size_t log_tell_dropped(uint64_t total, char *text);

/* fd is borrowed, and the writer there, until the process ends. bytes: of the ring, more than
 * LOG_TOLD_BYTES. */
int log_writer_start(struct log_writer **out, int fd, size_t bytes, log_tell_dropped *tell,
                     struct error *err);

/* Any thread may call these. */

/* The line ends with \n. */
void log_writer_put(struct log_writer *writer, const char *line, size_t length);
/* Lines that were dropped so far, for want of room or because the file could not be written. */
uint64_t log_writer_dropped(struct log_writer *writer);
/* Waits for at most so many seconds until all lines are written. False: whoever reads has not taken
 * them. */
bool log_writer_flush(struct log_writer *writer, double seconds);

#endif
