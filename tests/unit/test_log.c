/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one line each whatever goes in, and JSON that parses. */
#include "server/log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
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
