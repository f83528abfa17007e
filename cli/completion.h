/* SPDX-License-Identifier: Apache-2.0 */
/* Completion in bash of commands, flags and values, from the commands' tables of options. */
#ifndef CLI_COMPLETION_H
#define CLI_COMPLETION_H

#include <stdio.h>

/* Prints a script for bash to source. It needs nothing but bash itself. */
void completion_print(FILE *out);

#endif
