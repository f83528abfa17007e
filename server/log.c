/* SPDX-License-Identifier: Apache-2.0 */
#include "server/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const LEVELS[] = {"debug", "info", "warn", "error", "off"};

/* The one setting of the process, written before the first thread starts. */
static struct {
    enum log_level level;
    bool json;
} config = {LOG_LEVEL_INFO, false};

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

bool log_enabled(enum log_level level)
{
    return level >= config.level && level < LOG_LEVEL_OFF;
}

void log_begin(struct log_line *line, enum log_level level, const char *event)
{
    *line = (struct log_line){.enabled = log_enabled(level)};
    if (!line->enabled)
        return;
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    int ms = (int)(now.tv_nsec / 1000000);
    if (config.json)
        strbuf_printf(&line->text, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"event\":", date, ms,
                      LEVELS[level]);
    else
        strbuf_printf(&line->text, "%s.%03dZ %-5s ", date, ms, LEVELS[level]);
    if (config.json)
        strbuf_json_cstring(&line->text, event);
    else
        strbuf_puts(&line->text, event);
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

void log_end(struct log_line *line)
{
    if (line->enabled) {
        strbuf_puts(&line->text, config.json ? "}\n" : "\n");
        /* One write per line keeps lines of several threads apart. A log that cannot be written
         * is no reason to fail a request. */
        if (!line->text.failed && write(STDERR_FILENO, line->text.data, line->text.length) < 0)
            line->enabled = false;
    }
    strbuf_clear(&line->text);
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
        for (char *at = text; *at; at++)
            if ((unsigned char)*at < 0x20 || *at == 0x7F)
                *at = '?';
        log_begin(&line, level, text);
    }
    log_end(&line);
}
