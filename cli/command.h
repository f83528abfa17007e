/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `regla`. Each takes argv with its own name first, parses it with options.h,
 * prints errors to stderr and returns the exit status: 0, 1 (it failed), 2 (wrong usage). */
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

/* options_parse, with its help and its errors printed. Returns 0 to go on; otherwise *status is
 * the exit status to return (after options_clear). */
int command_options(const struct options *options, void *values, int argc, char **argv,
                    struct option_arguments *arguments, int *status);

#endif
