/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the manual pages, in troff's man macros, from the commands' tables of options. */
#ifndef CLI_MANUAL_H
#define CLI_MANUAL_H

#include <stdbool.h>
#include <stdio.h>

/* program: "regla" or "regla-plot". False: another program; nothing is printed. */
bool manual_print(FILE *out, const char *program);

#endif
