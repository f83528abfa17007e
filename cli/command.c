/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/command.h"

int command_options(const struct options *options, void *values, int argc, char **argv,
                    struct option_arguments *arguments, int *status)
{
    struct error err = ERROR_INIT;
    int got = options_parse(options, values, argc, argv, arguments, &err);
    if (got > 0) {
        options_help(options, stdout);
        *status = 0;
    } else if (got < 0) {
        fprintf(stderr, "regla %s: %s\n", argv[0], err.message);
        *status = 2;
    }
    return got == 0 ? 0 : -1;
}
