/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one line each whatever goes in, and JSON that parses. */
#include "server/log.h"
#include "server/log_writer.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char written[8192];
static int saved, reader;

/* Puts a pipe where stderr is. */
static void capture(void)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    reader = ends[0];
    fcntl(reader, F_SETFL, O_NONBLOCK);
}

static void release(void)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t got = read(reader, written, sizeof written - 1);
    written[got > 0 ? got : 0] = 0;
    close(reader);
}

static const char HOSTILE[] = "a\"b\\c\n\x1b[31m\xff"
                              "d e";

static void hostile_line(void)
{
    struct log_line line;
    capture();
    log_begin(&line, LOG_LEVEL_INFO, "request");
    log_text(&line, "id", HOSTILE);
    log_text(&line, "absent", NULL);
    log_int(&line, "status", -5);
    log_ms(&line, "ms", 1.5);
    log_ms(&line, "never", NAN);
    log_end(&line);
    release();
}

Test(log, a_hostile_value_stays_in_its_json_string)
{
    log_configure(LOG_LEVEL_INFO, true);
    hostile_line();
    cr_assert_eq(strchr(written, '\n'), written + strlen(written) - 1);
    json_error_t error;
    json_t *object = json_loads(written, 0, &error);
    cr_assert_not_null(object, "%s: %s", error.text, written);
    cr_assert_str_eq(json_string_value(json_object_get(object, "event")), "request");
    cr_assert_str_eq(json_string_value(json_object_get(object, "level")), "info");
    cr_assert_str_eq(json_string_value(json_object_get(object, "id")),
                     "a\"b\\c\n\x1b[31m\xEF\xBF\xBD"
                     "d e");
    cr_assert_eq(json_integer_value(json_object_get(object, "status")), -5);
    cr_assert_eq(json_object_size(object), 6);
    json_decref(object);
}

Test(log, text_lines_show_no_control_characters)
{
    log_configure(LOG_LEVEL_INFO, false);
    hostile_line();
    size_t length = strlen(written);
    cr_assert_gt(length, 0);
    for (size_t i = 0; i + 1 < length; i++)
        cr_assert_geq((unsigned char)written[i], 0x20);
    cr_assert(strstr(written, " status=-5 ms=1.50\n"), "%s", written);
    cr_assert_null(strstr(written, "absent"));
}

/* U+009B begins a terminal's command, in UTF-8 and as a byte by itself. */
Test(log, c1_controls_are_not_written)
{
    for (int json = 0; json < 2; json++) {
        struct log_line line;
        log_configure(LOG_LEVEL_INFO, json);
        capture();
        log_begin(&line, LOG_LEVEL_INFO, "request");
        log_text(&line, "id",
                 "a\xC2\x9B"
                 "31mb\x9B"
                 "c\xC2\xA0");
        log_end(&line);
        log_message(LOG_LEVEL_INFO, "d\xC2\x9B"
                                    "e\x9B"
                                    "f");
        release();
        for (const char *c = written; *c; c++)
            cr_assert((unsigned char)*c < 0x80 || (unsigned char)*c >= 0xA0, "%s", written);
        cr_assert_null(strstr(written, "\xC2\x9B"));
        cr_assert(strstr(written, "a\\u009b31mb\xEF\xBF\xBD"
                                  "c\xC2\xA0"),
                  "%s", written);
        cr_assert(json || strstr(written, "d??e?f"), "%s", written);
    }
}

Test(log, levels)
{
    log_configure(log_level_named("warn"), false);
    capture();
    log_message(LOG_LEVEL_INFO, "quiet");
    log_message(LOG_LEVEL_WARN, "loud %d\n", 7);
    release();
    cr_assert_null(strstr(written, "quiet"));
    cr_assert(strstr(written, "warn  loud 7?\n"), "%s", written);
    log_configure(log_level_named("off"), false);
    capture();
    log_message(LOG_LEVEL_ERROR, "nothing");
    release();
    cr_assert_str_empty(written);
}

static size_t told(uint64_t dropped, char *text)
{
    return (size_t)snprintf(text, LOG_TOLD_BYTES, "dropped %d\n", (int)dropped);
}

/* Reads what comes until the writer has nothing left; returns how many bytes that is. */
static size_t drain(int from, struct log_writer *writer, char *to, size_t size)
{
    size_t length = 0;
    for (bool flushed = false;;) {
        ssize_t got = read(from, to + length, size - 1 - length);
        if (got < 0 && flushed)
            break;
        length += got > 0 ? (size_t)got : 0;
        flushed = log_writer_flush(writer, 0.01);
    }
    to[length] = 0;
    return length;
}

/* A pipe that nobody reads holds 64 KiB, the ring 4 KiB: the rest is dropped, nobody waits, and
 * the number is told where the lines are missing. */
Test(log, lines_that_do_not_fit_are_dropped_and_counted, .timeout = 60)
{
    enum { DROPPED = 1000 };
    static char all[1 << 18];
    struct error err = ERROR_INIT;
    struct log_writer *writer;
    int ends[2], next = 0, missing = 0, lines = 0;
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(log_writer_start(&writer, ends[1], 4096, told, &err), 0);
    for (int full = 0; full < DROPPED; lines++) {
        char line[64];
        int length = snprintf(line, sizeof line, "line %d, of some forty characters\n", lines);
        log_writer_put(writer, line, (size_t)length);
        if (full > 0 || !log_writer_flush(writer, 0.2)) /* as long as the pipe takes them */
            full++;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    size_t length = drain(ends[0], writer, all, sizeof all);
    log_writer_put(writer, "last\n", 5);
    drain(ends[0], writer, all + length, sizeof all - length);
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        int number;
        if (sscanf(line, "dropped %d", &number) == 1) /* since the start */
            next += number - missing, missing = number;
        else if (strcmp(line, "last") != 0)
            cr_assert(sscanf(line, "line %d, of some forty", &number) == 1 && number == next++,
                      "expected line %d, got %s", next - 1, line);
    }
    cr_assert_gt(missing, DROPPED / 2); /* the ring holds some hundred */
    cr_assert_eq(missing, (int)log_writer_dropped(writer));
    cr_assert_eq(next, lines);
}

Test(log, a_broken_pipe_counts_what_could_not_be_written, .timeout = 60)
{
    struct error err = ERROR_INIT;
    struct log_writer *writer;
    int ends[2];
    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(log_writer_start(&writer, ends[1], 4096, told, &err), 0);
    close(ends[0]);
    for (int i = 0; i < 3; i++)
        log_writer_put(writer, "line\n", 5);
    cr_assert(log_writer_flush(writer, 30));
    int dropped = (int)log_writer_dropped(writer); /* lines that tell of others are some, too */
    cr_assert(dropped >= 3 && dropped <= 5, "%d", dropped);
}

/* A full disk takes part of a line, and then has room again. */
Test(log, half_a_line_is_not_joined_to_the_next, .timeout = 60)
{
    struct error err = ERROR_INIT;
    struct log_writer *writer;
    char path[] = "/tmp/regla-log-XXXXXX", text[256] = "";
    int fd = mkstemp(path);
    struct rlimit before, limit;
    cr_assert_geq(fd, 0);
    unlink(path);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 10;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_eq(log_writer_start(&writer, fd, 4096, told, &err), 0);
    log_writer_put(writer, "first\n", 6);
    cr_assert(log_writer_flush(writer, 30));
    log_writer_put(writer, "second\n", 7);
    cr_assert(log_writer_flush(writer, 30));
    setrlimit(RLIMIT_FSIZE, &before);
    log_writer_put(writer, "third\n", 6);
    cr_assert(log_writer_flush(writer, 30));
    cr_assert_gt(pread(fd, text, sizeof text - 1, 0), 0);
    cr_assert(strncmp(text, "first\nseco\ndropped ", 19) == 0, "%s", text);
    cr_assert(strlen(text) > 6 && strcmp(text + strlen(text) - 6, "third\n") == 0, "%s", text);
    close(fd);
}
