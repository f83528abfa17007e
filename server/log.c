/* SPDX-License-Identifier: Apache-2.0 */
#include "server/log.h"

#include "lib/text/unicode.h"
#include "server/log_writer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const LEVELS[] = {"debug", "info", "warn", "error", "off"};

enum { RING_BYTES = 1 << 20 }; /* some thousand lines */

/* The one setting of the process, written before the first thread starts. */
static struct {
    enum log_level level;
    bool json;
    struct log_writer *writer; /* NULL: lines are written at once */
} config = {LOG_LEVEL_INFO, false, NULL};

enum log_level log_level_named(const char *name)
{
    for (int i = 0; i <= LOG_LEVEL_OFF; i++)
        if (strcmp(name, LEVELS[i]) == 0)
            return (enum log_level)i;
    return LOG_LEVEL_INFO;
}

void log_configure(enum log_level level, bool json)
{
    config.level = level;
    config.json = json;
}

/* Begins a line's text. */
static void begin_text(struct strbuf *text, enum log_level level, const char *event)
{
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    int ms = (int)(now.tv_nsec / 1000000);
    if (config.json)
        strbuf_printf(text, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"event\":", date, ms,
                      LEVELS[level]);
    else
        strbuf_printf(text, "%s.%03dZ %-5s ", date, ms, LEVELS[level]);
    if (config.json)
        strbuf_json_cstring(text, event);
    else
        strbuf_puts(text, event);
}

/* The line that says how many were dropped so far; without its time if there is no memory. */
static size_t tell_dropped(uint64_t total, char *text)
{
    static const char EVENT[] = "log_lines_dropped";
    struct strbuf begun = {0};
    begin_text(&begun, LOG_LEVEL_WARN, EVENT);
    const char *json =
        begun.failed ? "{\"event\":\"%.*s\",\"total\":%llu}\n" : "%.*s,\"total\":%llu}\n";
    int length = snprintf(text, LOG_TOLD_BYTES, config.json ? json : "%.*s total=%llu\n",
                          begun.failed ? (int)strlen(EVENT) : (int)begun.length,
                          begun.failed ? EVENT : begun.data, (unsigned long long)total);
    strbuf_clear(&begun);
    return (size_t)length;
}

int log_start(struct error *err)
{
    return log_writer_start(&config.writer, STDERR_FILENO, RING_BYTES, tell_dropped, err);
}

bool log_flush(double seconds)
{
    return config.writer == NULL || log_writer_flush(config.writer, seconds);
}

uint64_t log_dropped(void)
{
    return config.writer != NULL ? log_writer_dropped(config.writer) : 0;
}

bool log_enabled(enum log_level level)
{
    return level >= config.level && level < LOG_LEVEL_OFF;
}

void log_begin(struct log_line *line, enum log_level level, const char *event)
{
    *line = (struct log_line){.enabled = log_enabled(level)};
    if (line->enabled)
        begin_text(&line->text, level, event);
}

static void name_of(struct log_line *line, const char *name)
{
    strbuf_printf(&line->text, config.json ? ",\"%s\":" : " %s=", name);
}

static bool plain(const char *value)
{
    return *value && strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789._:/-") == strlen(value);
}

void log_text(struct log_line *line, const char *name, const char *value)
{
    if (!line->enabled || !value)
        return;
    name_of(line, name);
    if (!config.json && plain(value))
        strbuf_puts(&line->text, value);
    else
        strbuf_json_cstring(&line->text, value);
}

void log_text_cut(struct log_line *line, const char *name, const char *value)
{
    char start[129];
    if (!line->enabled || !value)
        return;
    snprintf(start, sizeof start, "%s", value);
    log_text(line, name, start);
}

void log_int(struct log_line *line, const char *name, int64_t value)
{
    if (!line->enabled)
        return;
    name_of(line, name);
    strbuf_json_int(&line->text, value);
}

void log_ms(struct log_line *line, const char *name, double value)
{
    if (!line->enabled || !isfinite(value))
        return;
    name_of(line, name);
    strbuf_printf(&line->text, "%.2f", value);
}

static void put_line(const char *text, size_t length)
{
    if (config.writer != NULL)
        log_writer_put(config.writer, text, length);
    else if (write(STDERR_FILENO, text, length) < 0)
        return; /* a log that cannot be written is no reason to fail */
}

void log_end(struct log_line *line)
{
    if (line->enabled) {
        strbuf_puts(&line->text, config.json ? "}\n" : "\n");
        if (!line->text.failed)
            put_line(line->text.data, line->text.length);
    }
    strbuf_clear(&line->text);
}

/* What would do more than be seen on a terminal becomes '?'. */
static void show_only(char *text)
{
    size_t length = strlen(text), used;
    for (size_t i = 0; i < length; i += used) {
        unsigned char byte = (unsigned char)text[i];
        bool valid = utf8_next(text + i, length - i, &used) == UTF8_VALID;
        if (!valid || byte < 0x20 || byte == 0x7F ||
            (byte == 0xC2 && (unsigned char)text[i + 1] < 0xA0))
            memset(text + i, '?', used);
    }
}

void log_message(enum log_level level, const char *format, ...)
{
    if (!log_enabled(level))
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct log_line line;
    if (config.json) {
        log_begin(&line, level, "message");
        log_text(&line, "text", text);
    } else {
        show_only(text);
        log_begin(&line, level, text);
    }
    log_end(&line);
}
