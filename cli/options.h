/* SPDX-License-Identifier: Apache-2.0 */
/* Command-line flags from one table: parses them and the environment, sets defaults, prints --help.
 *
 * Each flag is also an environment variable (--max-queue: REGLA_MAX_QUEUE); the flag wins. Blanks,
 * line ends and byte order marks around a variable count for nothing, but for what is a TEXT or a
 * REGEX; an empty one is as if it were not there, but for texts and lists, which may be empty.
 * Values are written into a plain struct of the command, at each option's offset. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
    OPTION_TEXT, /* const char *: borrowed from argv or the environment; NULL: not given */
    OPTION_LIST, /* struct option_list: the flag may be given several times, and adds one each time
                  */
    OPTION_FLAG, /* bool: --name, --name=false, --no-name */
    OPTION_INTEGER, /* int64_t in [min, max]; OPTION_AUTO where the default is "auto", or INT64_MIN
                     * where -1 is a value */
    OPTION_NUMBER,  /* double in [min, max]; NAN where the default is "auto" */
    OPTION_BYTES,   /* the same: 1048576, 512K, 64M, 1.5G */
    OPTION_SECONDS, /* double in [min, max]: 30, 0.5, 500ms, 30s, 5m, 1h */
    OPTION_CHOICE   /* const char *: one of `choices` */
};

enum { OPTION_AUTO = -1 };

struct option_list {
    const char **items; /* [count], each borrowed like an OPTION_TEXT */
    size_t count;
};

struct option {
    const char *name; /* without the dashes */
    enum option_type type;
    size_t offset;     /* offsetof(struct of the command, field) */
    const char *unit;  /* of the value, for --help: "tokens", "PATH" */
    const char *value; /* the default, as one would type it; NULL: none */
    double min, max;   /* INTEGER, NUMBER, BYTES, SECONDS */
    /* CHOICE: "text|json"; "cuda[:N]": cuda, cuda:0, cuda:1, ... TEXT: what completion offers, the
     * same way, or one of the names below; several by commas if the unit ends in ",...". */
    const char *choices;
    const char *help;
};

/* Of `choices`: names of presets; those that end in -6l, without that, several by commas. */
#define OPTION_PRESETS "<presets>"
#define OPTION_SYSTEMS "<systems>"

/* What is not a flag, for completion. */
enum option_operands { OPERANDS_NONE, OPERANDS_DIRECTORIES, OPERANDS_FILES };

struct options {
    const char *usage;          /* "regla serve --model PATH [options]" */
    const char *summary;        /* what the command does; may be NULL */
    const struct option *items; /* [count] */
    size_t count;
    enum option_operands operands;
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

/* How an option is typed ("--port", "--no-prefix-cache" of one that is on by itself), and its
 * environment variable ("REGLA_PORT"). */
enum { OPTION_NAME_SIZE = 80 };
void option_flag(const struct option *option, char flag[OPTION_NAME_SIZE]);
void option_environment(const struct option *option, char name[OPTION_NAME_SIZE]);
/* What stands for its value: "PORT", "text|json", "" of a flag. */
const char *option_value(const struct option *option);
/* Whether it is a flag that is on by itself, which one turns off. */
bool option_is_on(const struct option *option);
/* "8000", "512 tokens"; false: it has none. */
bool option_default(const struct option *option, char text[OPTION_NAME_SIZE]);

/* Of count strings (stride bytes apart, each a const char * first in its struct) the one most
 * like `name`, or NULL when none is near: for "did you mean". */
const char *options_nearest(const char *name, const void *names, size_t count, size_t stride);

#endif
