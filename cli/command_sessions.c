/* SPDX-License-Identifier: Apache-2.0 */
/* regla sessions: looks after the sessions in a --state-dir. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "server/http/auth.h"
#include "server/states/session_orphans.h"
#include "server/store/store_copy.h"

#include <string.h>

struct sessions_options {
    struct option_list api_keys;
    const char *api_key_file;
    bool without_api_key, remove;
};

#define AT(field) offsetof(struct sessions_options, field)

static const struct option items[] = {
    {"api-key", OPTION_LIST, AT(api_keys), "KEY", NULL, 0, 0, NULL,
     "orphans: a key of the server; several: repeat it, or separate them with commas"},
    {"api-key-file", OPTION_TEXT, AT(api_key_file), "PATH", NULL, 0, 0, NULL,
     "orphans: file with one API key a line"},
    {"without-api-key", OPTION_FLAG, AT(without_api_key), NULL, "false", 0, 0, NULL,
     "orphans --remove: the server has no API keys; sessions of all former keys are removed"},
    {"remove", OPTION_FLAG, AT(remove), NULL, "false", 0, 0, NULL,
     "orphans: remove them; stop the server first"},
};

const struct options command_sessions_options = {
    .usage = "regla sessions backup DIR COPY | regla sessions orphans DIR [options]",
    .summary =
        "backup: copies the sessions of the --state-dir DIR, which a server may be using, "
        "into a new directory. orphans: counts the sessions that belong to none of the keys.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_DIRECTORIES,
};

/* With keys that were forgotten here all sessions would be orphans. */
static int check_keys(const struct sessions_options *options, size_t count, struct error *err)
{
    if (count > 0 && options->without_api_key)
        return error_set(err, ERROR_INVALID, "--without-api-key: expected no key, got %zu", count);
    if (count == 0 && options->remove && !options->without_api_key)
        return error_set(err, ERROR_INVALID,
                         "--remove: expected the server's keys (--api-key-file, REGLA_API_KEY), or "
                         "--without-api-key if it has none");
    return 0;
}

static int orphans(const char *directory, const struct sessions_options *options, int argc,
                   char **argv, struct error *err)
{
    struct names keys = {0};
    struct session_orphans found;
    int result = auth_read(&keys, options->api_keys.items, options->api_keys.count,
                           options->api_key_file, err);
    command_hide_api_keys(argc, argv);
    if (result == 0)
        result = check_keys(options, keys.count, err);
    if (result == 0)
        result =
            session_orphans_find(directory, keys.items, keys.count, options->remove, &found, err);
    names_clear(&keys);
    if (result != 0)
        return -1;
    printf("%lld sessions of %lld tokens belong to no key%s, %lld to one\n",
           (long long)found.sessions, (long long)found.tokens,
           options->remove ? " and were removed" : "", (long long)found.others);
    return 0;
}

static int backup(const char *directory, const char *copy, struct error *err)
{
    if (store_copy(directory, copy, err) != 0)
        return -1;
    printf("%s is a copy of the sessions of %s\n", copy, directory);
    return 0;
}

int command_sessions(int argc, char **argv)
{
    struct sessions_options options = {0};
    const char *words[3] = {NULL};
    struct option_arguments arguments = {.items = words, .capacity = 3};
    struct error err = ERROR_INIT;
    int status = 0, result = 0;
    if (command_options(&command_sessions_options, &options, argc, argv, &arguments, &status) ==
        0) {
        if (words[0] && strcmp(words[0], "backup") == 0 && words[2])
            result = backup(words[1], words[2], &err);
        else if (words[0] && strcmp(words[0], "orphans") == 0 && words[1] && !words[2])
            result = orphans(words[1], &options, argc, argv, &err);
        else {
            fprintf(stderr, "regla sessions: expected backup DIR COPY or orphans DIR; usage: %s\n",
                    command_sessions_options.usage);
            status = 2;
        }
        if (result != 0)
            status = command_failed(argv[0], &err);
    }
    options_clear(&command_sessions_options, &options);
    return status;
}
