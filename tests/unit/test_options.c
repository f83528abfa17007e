/* SPDX-License-Identifier: Apache-2.0 */
/* Flags: defaults, environment, command line, and what each refusal says. */
#include "cli/options.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct values {
    const char *name, *prompt;
    struct option_list keys;
    bool fast, safe;
    int64_t port, memory;
    double timeout;
    const char *format;
};

#define FIELD(member) offsetof(struct values, member)

static const struct option ITEMS[] = {
    {"name", OPTION_TEXT, FIELD(name), "NAME", NULL, 0, 0, NULL, "a name"},
    {"key", OPTION_LIST, FIELD(keys), "KEY", NULL, 0, 0, NULL, "a key"},
    {"fast", OPTION_FLAG, FIELD(fast), NULL, "false", 0, 0, NULL, "go fast"},
    {"port", OPTION_INTEGER, FIELD(port), "PORT", "8000", 0, 65535, NULL, "a port"},
    {"memory-limit", OPTION_BYTES, FIELD(memory), "bytes", "8M", 1, 1e12, NULL, "memory"},
    {"timeout", OPTION_SECONDS, FIELD(timeout), "seconds", "30", 0.1, 7200, NULL, "patience"},
    {"format", OPTION_CHOICE, FIELD(format), "format", "text", 0, 0, "text|json[:N]", "a format"},
    {"safe", OPTION_FLAG, FIELD(safe), NULL, "true", 0, 0, NULL, "go safely"},
    {"prompt", OPTION_TEXT, FIELD(prompt), "TEXT", NULL, 0, 0, NULL, "what blanks belong to"},
};
static const struct options OPTIONS = {
    .usage = "regla test [options]", .items = ITEMS, .count = sizeof ITEMS / sizeof *ITEMS};

/* Parses argv (NULL-terminated, its first entry the command's name). */
static int parse(struct values *values, char **argv, struct error *err)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    *values = (struct values){0};
    error_clear(err);
    return options_parse(&OPTIONS, values, argc, argv, NULL, err);
}

#define PARSE(values, err, ...) \
    parse(values, (char *[]){"test", __VA_ARGS__ __VA_OPT__(, ) NULL}, err)

static void clean_environment(void)
{
    unsetenv("REGLA_PROMPT");
    unsetenv("REGLA_FORMAT");
    unsetenv("REGLA_TIMEOUT");
    unsetenv("REGLA_NAME");
    unsetenv("REGLA_KEY");
    unsetenv("REGLA_FAST");
    unsetenv("REGLA_PORT");
    unsetenv("REGLA_MEMORY_LIMIT");
}

TestSuite(options, .init = clean_environment);

Test(options, defaults)
{
    struct values values;
    struct error err = ERROR_INIT;
    cr_assert_eq(PARSE(&values, &err, ), 0, "%s", err.message);
    cr_assert_null(values.name);
    cr_assert_eq(values.keys.count, 0);
    cr_assert_not(values.fast);
    cr_assert_eq(values.port, 8000);
    cr_assert_eq(values.memory, 8 * 1024 * 1024);
    cr_assert_eq(values.timeout, 30.0);
    cr_assert_str_eq(values.format, "text");
}

Test(options, every_way_to_give_a_value)
{
    struct values values;
    struct error err = ERROR_INIT;
    cr_assert_eq(PARSE(&values, &err, "--port=1", "--name", "--odd", "--fast", "--key", "a",
                       "--key=b", "--memory-limit", "1.5G", "--timeout", "250ms", "--format",
                       "json"),
                 0, "%s", err.message);
    cr_assert_eq(values.port, 1);
    cr_assert_str_eq(values.name, "--odd");
    cr_assert(values.fast);
    cr_assert_eq(values.keys.count, 2);
    cr_assert_str_eq(values.keys.items[1], "b");
    cr_assert_eq(values.memory, 1536LL * 1024 * 1024);
    cr_assert_eq(values.timeout, 0.25);
    cr_assert_str_eq(values.format, "json");
    options_clear(&OPTIONS, &values);
    cr_assert_eq(PARSE(&values, &err, "--fast", "--no-fast", "--timeout", "2h"), 0);
    cr_assert_not(values.fast);
    cr_assert_eq(values.timeout, 7200.0);
}

Test(options, a_choice_may_have_a_number)
{
    struct values values;
    struct error err = ERROR_INIT;
    cr_assert_eq(PARSE(&values, &err, "--format", "json:17"), 0, "%s", err.message);
    cr_assert_str_eq(values.format, "json:17");
    static char *const wrong[] = {"json:", "json:x", "json:1x",  "json:-1", "json1",
                                  "jso",   "text:1", "json[:N]", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(PARSE(&values, &err, "--format", wrong[i]), -1, "%s", wrong[i]);
        cr_assert(strstr(err.message, "expected text|json[:N], got"), "%s", err.message);
    }
}

Test(options, sizes_by_all_their_names)
{
    static struct {
        char text[8];
        int64_t bytes;
    } sizes[] = {{"3K", 3 << 10},  {"3Ki", 3 << 10},          {"3KiB", 3 << 10},
                 {"3Mi", 3 << 20}, {"2Gi", INT64_C(2) << 30}, {"0.5Ti", INT64_C(1) << 39}};
    struct values values;
    struct error err = ERROR_INIT;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cr_assert_eq(PARSE(&values, &err, "--memory-limit", sizes[i].text), 0, "%s", err.message);
        cr_expect_eq(values.memory, sizes[i].bytes, "%s", sizes[i].text);
    }
    cr_expect_eq(PARSE(&values, &err, "--memory-limit", "3KB"), -1);
}

Test(options, environment_is_overridden_by_flags)
{
    struct values values;
    struct error err = ERROR_INIT;
    setenv("REGLA_PORT", "9000", 1);
    setenv("REGLA_MEMORY_LIMIT", "64K", 1);
    setenv("REGLA_FAST", "1", 1);
    setenv("REGLA_KEY", "from-environment", 1);
    cr_assert_eq(PARSE(&values, &err, "--port", "9001"), 0, "%s", err.message);
    cr_assert_eq(values.port, 9001);
    cr_assert_eq(values.memory, 65536);
    cr_assert(values.fast);
    cr_assert_eq(values.keys.count, 1);
    options_clear(&OPTIONS, &values);
    cr_assert_eq(PARSE(&values, &err, "--key", "flag"), 0);
    cr_assert_eq(values.keys.count, 1);
    cr_assert_str_eq(values.keys.items[0], "flag");
    options_clear(&OPTIONS, &values);
}

Test(options, kubernetes_service_variable_is_no_port)
{
    struct values values;
    struct error err = ERROR_INIT;
    setenv("REGLA_PORT", "tcp://10.0.0.1:8000", 1);
    cr_assert_eq(PARSE(&values, &err, ), 0, "%s", err.message);
    cr_assert_eq(values.port, 8000);
    setenv("REGLA_PORT", "many", 1);
    cr_assert_eq(PARSE(&values, &err, ), -1);
    cr_assert(strstr(err.message, "REGLA_PORT") && strstr(err.message, "many"), "%s", err.message);
}

Test(options, what_stands_around_a_variable_is_no_part_of_it)
{
    struct values values;
    struct error err = ERROR_INIT;
    setenv("REGLA_PORT", " 9000\r\n", 1);
    setenv("REGLA_MEMORY_LIMIT",
           "\xef\xbb\xbf"
           "64K\n",
           1);
    setenv("REGLA_FAST", "true\r", 1);
    setenv("REGLA_FORMAT", "\tjson:1 ", 1);
    setenv("REGLA_NAME", " a name\n", 1);
    setenv("REGLA_KEY", "\n one, two ", 1);
    setenv("REGLA_PROMPT", " as it is\n", 1);
    cr_assert_eq(PARSE(&values, &err, ), 0, "%s", err.message);
    cr_expect_eq(values.port, 9000);
    cr_expect_eq(values.memory, 65536);
    cr_expect(values.fast);
    cr_expect_str_eq(values.format, "json:1");
    cr_expect_str_eq(values.name, "a name");
    cr_expect_eq(values.name, getenv("REGLA_NAME"), "commands compare it with the variable");
    cr_expect_str_eq(values.keys.items[0], "one, two");
    cr_expect_str_eq(values.prompt, " as it is\n");
    options_clear(&OPTIONS, &values);
}

Test(options, an_empty_variable_is_none_or_an_empty_text)
{
    struct values values;
    struct error err = ERROR_INIT;
    static const char *const names[] = {"PORT", "MEMORY_LIMIT", "FAST", "FORMAT", "TIMEOUT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[32];
        snprintf(name, sizeof name, "REGLA_%s", names[i]);
        setenv(name, i % 2 ? " \n" : "", 1);
    }
    setenv("REGLA_NAME", "\n", 1);
    setenv("REGLA_KEY", "", 1);
    cr_assert_eq(PARSE(&values, &err, ), 0, "%s", err.message);
    cr_expect_eq(values.port, 8000);
    cr_expect_eq(values.memory, 8 << 20);
    cr_expect_not(values.fast);
    cr_expect_str_eq(values.format, "text");
    cr_expect_eq(values.timeout, 30);
    cr_expect_str_eq(values.name, "");
    cr_expect_eq(values.keys.count, 1, "whoever takes no empty key can say so");
    options_clear(&OPTIONS, &values);
}

static void expect_refusal(char **argv, const char *part, const char *other)
{
    struct values values;
    struct error err = ERROR_INIT;
    cr_assert_eq(parse(&values, argv, &err), -1, "%s %s was taken", argv[1], argv[2]);
    cr_assert(strstr(err.message, part), "no \"%s\" in: %s", part, err.message);
    cr_assert(strstr(err.message, other), "no \"%s\" in: %s", other, err.message);
    options_clear(&OPTIONS, &values);
}

Test(options, refusals_name_flag_expected_and_got)
{
    expect_refusal((char *[]){"test", "--prot", "1", NULL}, "--prot", "did you mean --port?");
    expect_refusal((char *[]){"test", "--zzzzzzzzz", "1", NULL}, "--zzzzzzzzz", "--help");
    expect_refusal((char *[]){"test", "--port", NULL}, "--port", "nothing");
    expect_refusal((char *[]){"test", "--port", "x", NULL}, "--port", "\"x\"");
    expect_refusal((char *[]){"test", "--port", "1.5", NULL}, "integer", "1.5");
    expect_refusal((char *[]){"test", "--port", "-1", NULL}, "from 0 to 65535", "-1");
    expect_refusal((char *[]){"test", "--port", "65536", NULL}, "--port", "65536");
    expect_refusal((char *[]){"test", "--port", "0x10", NULL}, "--port", "0x10");
    expect_refusal((char *[]){"test", "--port", " 1", NULL}, "--port", " 1");
    expect_refusal((char *[]){"test", "--port", "1e999", NULL}, "--port", "1e999");
    expect_refusal((char *[]){"test", "--memory-limit", "5X", NULL}, "--memory-limit", "5X");
    expect_refusal((char *[]){"test", "--timeout", "inf", NULL}, "--timeout", "inf");
    expect_refusal((char *[]){"test", "--timeout", "0.01", NULL}, "from 0.1", "0.01");
    expect_refusal((char *[]){"test", "--format", "xml", NULL}, "text|json", "xml");
    expect_refusal((char *[]){"test", "--format", "tex", NULL}, "text|json", "tex");
    expect_refusal((char *[]){"test", "--fast=maybe", NULL, NULL}, "--fast", "maybe");
    expect_refusal((char *[]){"test", "--no-safe=1", NULL, NULL}, "--no-safe: expected no",
                   "\"1\"");
    expect_refusal((char *[]){"test", "--no-port=1", NULL, NULL}, "flag --no-port", "--port?");
    expect_refusal((char *[]){"test", "-p", "1", NULL}, "-p", "--");
    expect_refusal((char *[]){"test", "stray", NULL, NULL}, "\"stray\"", "regla test [options]");
}

Test(options, arguments_beside_flags)
{
    struct values values = {0};
    struct error err = ERROR_INIT;
    const char *items[2];
    struct option_arguments arguments = {items, 2, 0};
    char *argv[] = {"test", "one", "--fast", "--", "--two", NULL};
    cr_assert_eq(options_parse(&OPTIONS, &values, 5, argv, &arguments, &err), 0, "%s", err.message);
    cr_assert_eq(arguments.count, 2);
    cr_assert_str_eq(items[0], "one");
    cr_assert_str_eq(items[1], "--two");
    char *many[] = {"test", "a", "b", "c", NULL};
    arguments.count = 0;
    cr_assert_eq(options_parse(&OPTIONS, &values, 4, many, &arguments, &err), -1);
}

Test(options, a_flags_value_may_look_like_a_flag)
{
    struct values values;
    struct error err = ERROR_INIT;
    cr_assert_eq(PARSE(&values, &err, "--name", "-h"), 0, "%s", err.message);
    cr_assert_str_eq(values.name, "-h");
    cr_assert_eq(PARSE(&values, &err, "--name", "--help"), 0, "%s", err.message);
    cr_assert_str_eq(values.name, "--help");
    cr_assert_eq(PARSE(&values, &err, "--name=x", "-h"), 1);
    cr_assert_eq(PARSE(&values, &err, "--fast", "-h"), 1);
    cr_assert_eq(PARSE(&values, &err, "--name", "--", "--help"), 1);
    /* A list of the environment stays, unless the flag itself is there. */
    setenv("REGLA_KEY", "one", 1);
    cr_assert_eq(PARSE(&values, &err, "--name", "--key"), 0, "%s", err.message);
    cr_assert_eq(values.keys.count, 1);
    options_clear(&OPTIONS, &values);
    cr_assert_eq(PARSE(&values, &err, "--key", "two", "--key=three"), 0, "%s", err.message);
    cr_assert_eq(values.keys.count, 2);
    options_clear(&OPTIONS, &values);
}

Test(options, help_comes_before_everything)
{
    struct values values;
    struct error err = ERROR_INIT;
    cr_assert_eq(PARSE(&values, &err, "--no-such-flag", "--help"), 1);
    char text[4096] = {0};
    FILE *out = fmemopen(text, sizeof text, "w");
    options_help(&OPTIONS, out);
    fclose(out);
    for (size_t i = 0; i < OPTIONS.count; i++)
        cr_assert(strstr(text, ITEMS[i].name) && strstr(text, ITEMS[i].help));
    cr_assert(strstr(text, "default 8000; env REGLA_PORT"), "%s", text);
    cr_assert(strstr(text, "default 8M bytes; env REGLA_MEMORY_LIMIT"), "%s", text);
    cr_assert(strstr(text, "--format text|json[:N]\n"), "%s", text);
    cr_assert(strstr(text, "default text; env REGLA_FORMAT"), "%s", text);
    cr_assert(strstr(text, "--fast\n") && strstr(text, "--no-safe\n"), "%s", text);
    cr_assert(strstr(text, "K, M, G") && strstr(text, "ms, s, m"), "what units there are: %s",
              text);
}
