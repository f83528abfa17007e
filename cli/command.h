/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `regla`. Each gets argv with its own name first, parses it with options.h, prints
 * errors to stderr and returns the exit status: 0, 1 (it failed) or 2 (wrong usage). */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/options.h"

int command_serve(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_perplexity(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_info(int argc, char **argv);
int command_check(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_study(int argc, char **argv);

/* Calls options_parse, and prints its help and its errors. Returns 0 to continue. Otherwise the
 * command returns *status (after options_clear). */
int command_options(const struct options *options, void *values, int argc, char **argv,
                    struct option_arguments *arguments, int *status);

#endif
