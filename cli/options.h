/* SPDX-License-Identifier: Apache-2.0 */
/* Command-line flags from one table: parses them and the environment, sets defaults, prints --help.
 *
 * Each flag is also an environment variable (--max-queue: REGLA_MAX_QUEUE); the flag wins. Values
 * are written into a plain struct of the command, at each option's offset. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
    OPTION_TEXT, /* const char *: borrowed from argv or the environment; NULL: not given */
    OPTION_LIST, /* struct option_list: the flag may be given several times, and adds one each time
                  */
    OPTION_FLAG, /* bool: --name, --name=false, --no-name */
    OPTION_INTEGER, /* int64_t in [min, max] */
    OPTION_NUMBER,  /* double in [min, max] */
    OPTION_BYTES,   /* int64_t in [min, max]: 1048576, 512K, 64M, 1.5G */
    OPTION_SECONDS, /* double in [min, max]: 30, 0.5, 500ms, 30s, 5m, 1h */
    OPTION_CHOICE   /* const char *: one of `choices` */
};

struct option_list {
    const char **items; /* [count], each borrowed like an OPTION_TEXT */
    size_t count;
};

struct option {
    const char *name; /* without the dashes */
    enum option_type type;
    size_t offset;       /* offsetof(struct of the command, field) */
    const char *unit;    /* of the value, for --help: "tokens", "PATH" */
    const char *value;   /* the default, as typed; NULL: none */
    double min, max;     /* INTEGER, NUMBER, BYTES, SECONDS */
    const char *choices; /* CHOICE: "text|json"; "cuda[:N]": cuda, cuda:0, cuda:1, ... */
    const char *help;
};

struct options {
    const char *usage;          /* "regla serve --model DIR [options]" */
    const char *summary;        /* what the command does; may be NULL */
    const struct option *items; /* [count] */
    size_t count;
};

/* The arguments that are no flags. */
struct option_arguments {
    const char **items; /* [capacity], the caller's */
    int capacity;
    int count;
};

/* Fills *values from defaults, then the environment, then argv[1 .. argc), and `arguments` (NULL:
 * none are allowed). Returns 0; 1 for --help (it prints nothing); -1 with *err, an ERROR_INVALID
 * that names flag, expected and got. The caller calls options_clear in every case. */
int options_parse(const struct options *options, void *values, int argc, char **argv,
                  struct option_arguments *arguments, struct error *err);
void options_clear(const struct options *options, void *values);

/* Prints the usage, then one entry per flag with unit, default and environment variable. */
void options_help(const struct options *options, FILE *out);

/* Finds the string most like `name`, for "did you mean"; NULL when none is near. names: count
 * structs, stride bytes apart, whose first member is a const char *. */
const char *options_nearest(const char *name, const void *names, size_t count, size_t stride);

#endif
