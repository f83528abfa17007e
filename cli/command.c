/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/command.h"

#include "server/log.h"

#include <math.h>
#include <string.h>

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

json_t *command_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

int command_print_json(json_t *json, size_t flags, struct error *err)
{
    bool printed = json && json_dumpf(json, stdout, flags) == 0;
    json_decref(json);
    if (!printed)
        return error_set(err, ERROR_INVALID, "cannot print these figures as JSON");
    putchar('\n');
    return 0;
}

void command_hide_api_keys(int argc, char **argv)
{
    static const char FLAG[] = "--api-key";
    bool hidden = false;
    for (int i = 1; i < argc; i++) {
        char *key = NULL;
        if (strcmp(argv[i], FLAG) == 0 && i + 1 < argc)
            key = argv[++i];
        else if (strncmp(argv[i], "--api-key=", sizeof FLAG) == 0)
            key = argv[i] + sizeof FLAG;
        if (key)
            memset(key, 'x', strlen(key));
        hidden |= key != NULL;
    }
    if (hidden)
        log_message(LOG_LEVEL_WARN,
                    "--api-key: until now other users of this machine could see the keys in the "
                    "process list; use --api-key-file or REGLA_API_KEY instead");
}
