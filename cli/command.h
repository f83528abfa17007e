/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `regla`. Each gets argv with its own name first, parses it with options.h, prints
 * errors to stderr and returns the exit status: 0, 1 (it failed) or 2 (wrong usage). */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/options.h"

#include <jansson.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    const struct options *options; /* what it parses: for --help, the manual and completion */
};

/* In the order of `regla --help`. */
extern const struct command commands[];
extern const int num_commands;

int command_serve(int argc, char **argv);
int command_sessions(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_perplexity(int argc, char **argv);
int command_compare(int argc, char **argv);
int command_quantize(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_info(int argc, char **argv);
int command_check(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_study(int argc, char **argv);

extern const struct options command_serve_options;
extern const struct options command_sessions_options;
extern const struct options command_generate_options;
extern const struct options command_chat_options;
extern const struct options command_perplexity_options;
extern const struct options command_compare_options;
extern const struct options command_quantize_options;
extern const struct options command_tokenize_options;
extern const struct options command_info_options;
extern const struct options command_check_options;
extern const struct options command_bench_options;
extern const struct options command_study_options;

/* options_parse, with its help and its errors printed. Returns 0 to go on; otherwise *status is
 * the exit status to return (after options_clear). */
int command_options(const struct options *options, void *values, int argc, char **argv,
                    struct option_arguments *arguments, int *status);

/* A figure: null where it is infinite or not defined. */
json_t *command_number(double value);
/* Prints a JSON document to standard output, and frees it; NULL: it could not be made. */
int command_print_json(json_t *json, size_t flags, struct error *err);

/* Whoever may run ps on this machine reads the command line: takes the values of --api-key out of
 * it, once they have been copied. */
void command_hide_api_keys(int argc, char **argv);

#endif
