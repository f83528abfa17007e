/* SPDX-License-Identifier: Apache-2.0 */
/* Writes log lines to stderr: text for people, or one JSON object a line. Lines of several threads
 * never mix, and hostile bytes are escaped. Prompts and generated text are never logged.
 *
 * After log_start nobody who logs waits for whoever reads the log (log_writer.h). The price: the
 * last lines are lost where the process does not end by itself. */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include "api/strbuf.h"
#include "lib/base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR, LOG_LEVEL_OFF };

/* name: "debug", "info", "warn", "error", "off"; anything else is info. Call both before the first
 * thread starts. */
enum log_level log_level_named(const char *name);
void log_configure(enum log_level level, bool json);

/* Call it when the signals that the process waits for are blocked. */
int log_start(struct error *err);
/* At the end of the process: waits for at most so many seconds until all lines are written. False:
 * nobody reads them. */
bool log_flush(double seconds);
/* Lines that were dropped so far. Any thread. */
uint64_t log_dropped(void);

bool log_enabled(enum log_level level);

/* A line of fields: call log_begin, add any number of fields, then log_end writes and frees it. A
 * line that is not enabled costs nothing. */
struct log_line {
    struct strbuf text;
    bool enabled;
};

void log_begin(struct log_line *line, enum log_level level, const char *event);
void log_text(struct log_line *line, const char *name, const char *value); /* NULL: left out */
/* Writes at most the first 128 bytes, for what clients may send at any length. */
void log_text_cut(struct log_line *line, const char *name, const char *value);
void log_int(struct log_line *line, const char *name, int64_t value);
void log_ms(struct log_line *line, const char *name, double value); /* not finite: left out */
void log_end(struct log_line *line);

/* Logs an event that is only a message. */
void log_message(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
