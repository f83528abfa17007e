/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include "lib/base/blanks.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 64 };

void option_environment(const struct option *option, char name[OPTION_NAME_SIZE])
{
    snprintf(name, OPTION_NAME_SIZE, "REGLA_%.*s", NAME_MAX_LENGTH, option->name);
    for (char *c = name; *c != 0; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

bool option_is_on(const struct option *option)
{
    return option->type == OPTION_FLAG && strcmp(option->value, "true") == 0;
}

void option_flag(const struct option *option, char flag[OPTION_NAME_SIZE])
{
    snprintf(flag, OPTION_NAME_SIZE, "--%s%.*s", option_is_on(option) ? "no-" : "", NAME_MAX_LENGTH,
             option->name);
}

const char *option_value(const struct option *option)
{
    if (option->type == OPTION_FLAG)
        return "";
    if (option->type == OPTION_CHOICE)
        return option->choices;
    return option->unit ? option->unit : "";
}

static const char AUTO[] = "auto";

bool option_default(const struct option *option, char text[OPTION_NAME_SIZE])
{
    /* "PORT" stands for the value itself, "tokens" says what it counts. */
    bool counts = option->type != OPTION_CHOICE && option->unit &&
                  islower((unsigned char)*option->unit) && option->value &&
                  strcmp(option->value, AUTO) != 0;
    if (option->value)
        snprintf(text, OPTION_NAME_SIZE, "%s%s%s", option->value, counts ? " " : "",
                 counts ? option->unit : "");
    return option->value != NULL;
}

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits (insert, delete, replace) from a to b, both cut at NAME_MAX_LENGTH. */
static int edit_distance(const char *a, const char *b)
{
    int row[NAME_MAX_LENGTH + 1];
    int la = (int)strnlen(a, NAME_MAX_LENGTH), lb = (int)strnlen(b, NAME_MAX_LENGTH);
    for (int j = 0; j <= lb; j++)
        row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = min3(row[j] + 1, row[j - 1] + 1, replaced);
        }
    }
    return row[lb];
}

const char *options_nearest(const char *name, const void *names, size_t count, size_t stride)
{
    const char *best = NULL;
    int best_distance = (int)strnlen(name, NAME_MAX_LENGTH) / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        const char *candidate = *(const char *const *)((const char *)names + i * stride);
        int distance = edit_distance(name, candidate);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best;
}

/* A number with a unit: scale per suffix letter is found in `suffixes` ("ms" before "m"). */
struct suffix {
    const char *text;
    double scale;
};

#define KIBI 1024.0
static const struct suffix BYTE_SUFFIXES[] = {{"", 1},
                                              {"K", KIBI},
                                              {"Ki", KIBI},
                                              {"KiB", KIBI},
                                              {"M", KIBI *KIBI},
                                              {"Mi", KIBI *KIBI},
                                              {"MiB", KIBI *KIBI},
                                              {"G", KIBI *KIBI *KIBI},
                                              {"Gi", KIBI *KIBI *KIBI},
                                              {"GiB", KIBI *KIBI *KIBI},
                                              {"T", KIBI *KIBI *KIBI *KIBI},
                                              {"Ti", KIBI *KIBI *KIBI *KIBI},
                                              {"TiB", KIBI *KIBI *KIBI *KIBI}};
static const struct suffix SECOND_SUFFIXES[] = {{"", 1},   {"s", 1},    {"ms", 1e-3},
                                                {"m", 60}, {"min", 60}, {"h", 3600}};
static const struct suffix NO_SUFFIX[] = {{"", 1}};

static int parse_number(const char *text, const struct suffix *suffixes, size_t count, double *out)
{
    /* strtod also takes blanks, signs, hexadecimal and "inf": only digits may start a value. */
    const char *digits = *text == '-' ? text + 1 : text;
    if (!isdigit((unsigned char)*digits) || strpbrk(text, "xXpP"))
        return -1;
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno == ERANGE || !isfinite(value))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (strcmp(end, suffixes[i].text) == 0) {
            *out = value * suffixes[i].scale;
            return 0;
        }
    return -1;
}

static const char *expected(const struct option *option)
{
    switch (option->type) {
    case OPTION_INTEGER:
        return "an integer";
    case OPTION_NUMBER:
        return "a number";
    case OPTION_BYTES:
        return "a size in bytes (such as 512M)";
    case OPTION_SECONDS:
        return "a duration in seconds (such as 30 or 500ms)";
    case OPTION_FLAG:
        return "true or false";
    case OPTION_CHOICE:
        return option->choices;
    default:
        return "a text";
    }
}

static int set_number(const struct option *option, void *field, const char *text, const char *place,
                      struct error *err)
{
    const struct suffix *suffixes = NO_SUFFIX;
    size_t count = 1;
    if (option->type == OPTION_BYTES) {
        suffixes = BYTE_SUFFIXES;
        count = sizeof BYTE_SUFFIXES / sizeof *BYTE_SUFFIXES;
    } else if (option->type == OPTION_SECONDS) {
        suffixes = SECOND_SUFFIXES;
        count = sizeof SECOND_SUFFIXES / sizeof *SECOND_SUFFIXES;
    }
    double value;
    bool whole = option->type == OPTION_INTEGER || option->type == OPTION_BYTES;
    if (option->value && strcmp(option->value, AUTO) == 0 && strcmp(text, AUTO) == 0) {
        if (whole)
            *(int64_t *)field = option->min > OPTION_AUTO ? OPTION_AUTO : INT64_MIN;
        else
            *(double *)field = (double)NAN;
        return 0;
    }
    if (parse_number(text, suffixes, count, &value) ||
        (option->type == OPTION_INTEGER && value != floor(value)))
        return error_set(err, ERROR_INVALID, "%s: expected %s, got \"%s\"", place, expected(option),
                         text);
    if (value < option->min || value > option->max)
        return error_set(err, ERROR_INVALID, "%s: expected %s from %.15g to %.15g, got %s", place,
                         expected(option), option->min, option->max, text);
    if (whole)
        *(int64_t *)field = (int64_t)value;
    else
        *(double *)field = value;
    return 0;
}

static int set_flag(const struct option *option, bool *field, const char *text, const char *place,
                    struct error *err)
{
    static const char *const YES[] = {"true", "1", "yes", "on"};
    static const char *const NO[] = {"false", "0", "no", "off"};
    for (size_t i = 0; i < sizeof YES / sizeof *YES; i++) {
        if (strcmp(text, YES[i]) == 0) {
            *field = true;
            return 0;
        }
        if (strcmp(text, NO[i]) == 0) {
            *field = false;
            return 0;
        }
    }
    return error_set(err, ERROR_INVALID, "%s: expected %s, got \"%s\"", place, expected(option),
                     text);
}

/* Whether text is the choice of `size` characters; one that ends in [:N] may have a number. */
static bool is_choice(const char *choice, size_t size, const char *text)
{
    static const char number[] = "[:N]";
    const size_t ending = sizeof number - 1;
    bool numbered = size > ending && memcmp(choice + size - ending, number, ending) == 0;
    size_t name = numbered ? size - ending : size;
    if (strncmp(choice, text, name) != 0)
        return false;
    const char *rest = text + name;
    return *rest == 0 || (numbered && *rest == ':' && rest[1] != 0 &&
                          rest[1 + strspn(rest + 1, "0123456789")] == 0);
}

static int set_choice(const struct option *option, const char **field, const char *text,
                      const char *place, struct error *err)
{
    const char *at = option->choices;
    while (at) {
        const char *bar = strchr(at, '|');
        if (is_choice(at, bar ? (size_t)(bar - at) : strlen(at), text)) {
            *field = text;
            return 0;
        }
        at = bar ? bar + 1 : NULL;
    }
    return error_set(err, ERROR_INVALID, "%s: expected %s, got \"%s\"", place, option->choices,
                     text);
}

static int append(struct option_list *list, const char *text, struct error *err)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    list->items = items;
    items[list->count++] = text;
    return 0;
}

/* place: where the text came from: "--port" or "REGLA_PORT". */
static int set_value(const struct option *option, void *values, const char *text, const char *place,
                     struct error *err)
{
    void *field = (char *)values + option->offset;
    switch (option->type) {
    case OPTION_TEXT:
        *(const char **)field = text;
        return 0;
    case OPTION_LIST:
        return append(field, text, err);
    case OPTION_FLAG:
        return set_flag(option, field, text, place, err);
    case OPTION_CHOICE:
        return set_choice(option, field, text, place, err);
    default:
        return set_number(option, field, text, place, err);
    }
}

static const struct option *find(const struct options *options, const char *name, size_t length)
{
    for (size_t i = 0; i < options->count; i++)
        if (strlen(options->items[i].name) == length &&
            memcmp(options->items[i].name, name, length) == 0)
            return &options->items[i];
    return NULL;
}

static int unknown_flag(const struct options *options, const char *name, size_t length,
                        struct error *err)
{
    char flag[NAME_MAX_LENGTH + 1];
    snprintf(flag, sizeof flag, "%.*s", (int)(length < NAME_MAX_LENGTH ? length : NAME_MAX_LENGTH),
             name);
    const char *nearest =
        options_nearest(flag, options->items, options->count, sizeof *options->items);
    if (nearest)
        return error_set(err, ERROR_INVALID, "unknown flag --%s (did you mean --%s?)", flag,
                         nearest);
    return error_set(err, ERROR_INVALID, "unknown flag --%s (--help lists them)", flag);
}

/* argv[*index] is "--name", "--name=value" or "--no-name"; moves *index past a separate value. */
static int parse_flag(const struct options *options, void *values, int argc, char **argv,
                      int *index, struct error *err)
{
    const char *name = argv[*index] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *option = find(options, name, length);
    if (!option && strncmp(name, "no-", 3) == 0) {
        option = find(options, name + 3, length - 3);
        if (option && option->type == OPTION_FLAG && equals)
            return error_set(err, ERROR_INVALID, "--%.*s: expected no value, got \"%s\"",
                             (int)length, name, equals + 1);
        if (option && option->type == OPTION_FLAG)
            return set_value(option, values, "false", name, err);
        option = NULL;
    }
    if (!option)
        return unknown_flag(options, name, length, err);
    char place[NAME_MAX_LENGTH + 3];
    snprintf(place, sizeof place, "--%s", option->name);
    if (equals)
        return set_value(option, values, equals + 1, place, err);
    if (option->type == OPTION_FLAG)
        return set_value(option, values, "true", place, err);
    if (*index + 1 >= argc)
        return error_set(err, ERROR_INVALID, "%s: expected %s, got nothing", place,
                         expected(option));
    return set_value(option, values, argv[++*index], place, err);
}

/* Whether blanks around the value are a part of it. */
static bool is_verbatim(const struct option *option)
{
    return option->unit &&
           (strcmp(option->unit, "TEXT") == 0 || strcmp(option->unit, "REGEX") == 0);
}

/* Files from which others take a variable end with a line end, or begin with a mark. */
static int trim_variable(const char *name, struct error *err)
{
    const char *text = getenv(name), *value = text;
    size_t length = text ? blanks_trim(&value, strlen(text)) : 0;
    if (!text || (value == text && text[length] == 0))
        return 0;
    char *trimmed = strndup(value, length);
    int result = trimmed && setenv(name, trimmed, 1) == 0
                     ? 0
                     : error_set(err, ERROR_NO_MEMORY, "out of memory");
    free(trimmed);
    return result;
}

/* An empty text may be meant: who has no use for it says so. */
static bool may_be_empty(const struct option *option)
{
    return option->type == OPTION_TEXT || option->type == OPTION_LIST;
}

static int apply_environment(const struct options *options, void *values, struct error *err)
{
    for (size_t i = 0; i < options->count; i++) {
        const struct option *option = &options->items[i];
        char name[OPTION_NAME_SIZE];
        option_environment(option, name);
        if (!is_verbatim(option) && trim_variable(name, err))
            return -1;
        const char *text = getenv(name);
        /* Kubernetes gives every pod beside a service named "regla" REGLA_PORT=tcp://...; that is
         * not meant for us. */
        if (!text || (option->type == OPTION_INTEGER && strncmp(text, "tcp://", 6) == 0) ||
            (!*text && !may_be_empty(option)))
            continue;
        if (option->type == OPTION_LIST) /* without the default */
            ((struct option_list *)((char *)values + option->offset))->count = 0;
        if (set_value(option, values, text, name, err))
            return -1;
    }
    return 0;
}

static int apply_defaults(const struct options *options, void *values, struct error *err)
{
    for (size_t i = 0; i < options->count; i++)
        if (options->items[i].value &&
            set_value(&options->items[i], values, options->items[i].value, options->items[i].name,
                      err))
            return -1;
    return 0;
}

/* The flag at argv[*index], or NULL; moves *index past its separate value. */
static const struct option *next_flag(const struct options *options, int argc, char **argv,
                                      int *index)
{
    const char *name = argv[*index];
    if (strncmp(name, "--", 2) != 0)
        return NULL;
    size_t length = strcspn(name += 2, "=");
    const struct option *option = find(options, name, length);
    if (option && option->type != OPTION_FLAG && !name[length] && *index + 1 < argc)
        ++*index;
    return option;
}

/* A list given as flags replaces the environment's. */
static void forget_lists(const struct options *options, void *values, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct option *option = next_flag(options, argc, argv, &i);
        if (option && option->type == OPTION_LIST)
            ((struct option_list *)((char *)values + option->offset))->count = 0;
    }
}

/* Whatever else is wrong with the arguments. */
static bool asks_for_help(const struct options *options, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!next_flag(options, argc, argv, &i) &&
            (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0))
            return true;
    return false;
}

int options_parse(const struct options *options, void *values, int argc, char **argv,
                  struct option_arguments *arguments, struct error *err)
{
    if (asks_for_help(options, argc, argv))
        return 1;
    if (apply_defaults(options, values, err) || apply_environment(options, values, err))
        return -1;
    forget_lists(options, values, argc, argv);
    bool only_arguments = false;
    for (int i = 1; i < argc; i++) {
        if (!only_arguments && strcmp(argv[i], "--") == 0) {
            only_arguments = true;
        } else if (!only_arguments && strncmp(argv[i], "--", 2) == 0) {
            if (parse_flag(options, values, argc, argv, &i, err))
                return -1;
        } else if (!only_arguments && argv[i][0] == '-' && argv[i][1]) {
            return error_set(err, ERROR_INVALID, "unknown flag %s (flags begin with --)", argv[i]);
        } else if (!arguments || arguments->count == arguments->capacity) {
            return error_set(err, ERROR_INVALID, "unexpected argument \"%s\"; usage: %s", argv[i],
                             options->usage);
        } else {
            arguments->items[arguments->count++] = argv[i];
        }
    }
    return 0;
}

void options_clear(const struct options *options, void *values)
{
    for (size_t i = 0; i < options->count; i++)
        if (options->items[i].type == OPTION_LIST) {
            struct option_list *list = (void *)((char *)values + options->items[i].offset);
            free(list->items);
            *list = (struct option_list){0};
        }
}

static void help_of(const struct option *option, FILE *out)
{
    char flag[OPTION_NAME_SIZE], environment[OPTION_NAME_SIZE], text[OPTION_NAME_SIZE];
    option_flag(option, flag);
    option_environment(option, environment);
    if (option_is_on(option)) {
        /* Of what is on by itself the way to turn it off is of use. */
        fprintf(out, "  %s\n      do not %s\n      env %s=false\n", flag, option->help,
                environment);
        return;
    }
    fprintf(out, "  %s%s%s\n      %s\n      ", flag, option->type == OPTION_FLAG ? "" : " ",
            option_value(option), option->help);
    if (option_default(option, text))
        fprintf(out, "default %s; ", text);
    fprintf(out, "env %s\n", environment);
}

static bool any_of(const struct options *options, enum option_type type)
{
    for (size_t i = 0; i < options->count; i++)
        if (options->items[i].type == type)
            return true;
    return false;
}

void options_help(const struct options *options, FILE *out)
{
    fprintf(out, "usage: %s\n", options->usage);
    if (options->summary)
        fprintf(out, "\n%s\n", options->summary);
    if (options->count)
        fprintf(out, "\noptions:\n");
    for (size_t i = 0; i < options->count; i++)
        help_of(&options->items[i], out);
    if (any_of(options, OPTION_BYTES))
        fprintf(
            out,
            "\nA number of bytes may end in K, M, G or T (also Ki, KiB, ...): powers of 1024.\n");
    if (any_of(options, OPTION_SECONDS))
        fprintf(out, "A number of seconds may end in ms, s, m or h.\n");
}
