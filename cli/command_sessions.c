/* SPDX-License-Identifier: Apache-2.0 */
/* regla sessions: looks after the sessions of a --state-dir, a --store, or a server. */
#include "cli/command.h"

#include "api/sessions.h"
#include "cli/client.h"
#include "cli/command_model.h"
#include "cli/sessions_remote.h"
#include "cli/sessions_shelf.h"
#include "server/http/auth.h"
#include "server/states/session_orphans.h"
#include "server/store/store_backends.h"

#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct sessions_options, field)

static const struct option items[] = {
    {"state-dir", OPTION_TEXT, AT(state_dir), "DIR", NULL, 0, 0, NULL,
     "in place of PLACE: a server's --state-dir"},
    {"store", OPTION_TEXT, AT(store), "URL", NULL, 0, 0, NULL,
     "in place of PLACE: the store that servers share, redis://..., rediss://... with TLS,\n"
     "      redis+sentinel://..., or unix:PATH, as of `regla serve`"},
    {"store-ca", OPTION_TEXT, AT(store_tls.ca), "PATH", NULL, 0, 0, NULL,
     "of rediss://...: the CAs, in PEM, of which one has signed the store's certificate; without\n"
     "      it those of the system"},
    {"store-cert", OPTION_TEXT, AT(store_tls.certificate), "PATH", NULL, 0, 0, NULL,
     "the same: certificate chain in PEM that the store is shown"},
    {"store-key", OPTION_TEXT, AT(store_tls.key), "PATH", NULL, 0, 0, NULL,
     "private key of --store-cert in PEM, not encrypted"},
    {"store-replicas", OPTION_INTEGER, AT(store_replicas), "replicas", "0", 0, 64, NULL,
     "of a store: how many of its own replicas are to have each change before the next; fewer:\n"
     "      the command ends, and nothing is removed where it was"},
    {"url", OPTION_TEXT, AT(url), "URL", NULL, 0, 0, NULL,
     "in place of PLACE: a server that runs, http://HOST:PORT or unix:PATH; for list, show,\n"
     "      export, import and delete"},
    {"to", OPTION_TEXT, AT(to), "PLACE", NULL, 0, 0, NULL,
     "copy, move: the other place; a directory is made if it is missing"},
    {"model", OPTION_TEXT, AT(directory), "PATH", NULL, 0, 0, NULL,
     "export, import, but with --url: the model's directory; formats and device as `regla serve`\n"
     "      has them, by its environment variables"},
    {"owner", OPTION_TEXT, AT(owner), "HEX", NULL, 0, 0, NULL,
     "list, show, copy, move, delete, but not of a server: only sessions whose owner begins so\n"
     "      (list shows it)"},
    {"fingerprint", OPTION_TEXT, AT(fingerprint), "HEX", NULL, 0, 0, NULL,
     "likewise: only sessions of the model whose fingerprint begins so"},
    {"api-key", OPTION_LIST, AT(api_keys), "KEY", NULL, 0, 0, NULL,
     "a key of the server; several: repeat it, or separate them with commas; with --url,\n"
     "      export and import the first is whose sessions are meant"},
    {"api-key-file", OPTION_TEXT, AT(api_key_file), "PATH", NULL, 0, 0, NULL,
     "file with one API key a line"},
    {"without-api-key", OPTION_FLAG, AT(without_api_key), NULL, "false", 0, 0, NULL,
     "orphans --remove: the server has no API keys; sessions of all former keys are removed"},
    {"remove", OPTION_FLAG, AT(remove), NULL, "false", 0, 0, NULL,
     "orphans: remove them; stop the server first"},
    {"replace", OPTION_FLAG, AT(replace), NULL, "false", 0, 0, NULL,
     "copy, move: in the place of sessions of the same name that are there"},
    {"json", OPTION_FLAG, AT(json), NULL, "false", 0, 0, NULL,
     "list, show, import, copy, move, repair: print JSON"},
};

const struct options command_sessions_options = {
    .usage = "regla sessions VERB PLACE [ID] [FILE] [options]",
    .summary =
        "Looks after sessions. PLACE is a --state-dir, a --store, or http://HOST:PORT of a "
        "server.\n\n"
        "list PLACE: all sessions, of all owners and models.\n"
        "show PLACE ID: one of them; --json: with its tokens.\n"
        "export PLACE ID FILE: its tokens, and a state that this server would compute the same.\n"
        "import PLACE ID FILE: a new session of such a file.\n"
        "copy PLACE --to PLACE: tokens, times and chats; states are computed again.\n"
        "move PLACE --to PLACE: the same, and removes them where they were.\n"
        "backup PLACE DIR: a copy in a new directory, while servers work.\n"
        "delete PLACE ID: removes one.\n"
        "repair PLACE: sets aside what is damaged; after it servers go on with an older copy of a "
        "store.\n"
        "orphans DIR: counts the sessions that belong to none of the keys.\n\n"
        "A directory that a server uses can be listed, shown, copied and backed up; what changes "
        "it is refused.\n"
        "In a store a session that a server works on is left alone.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_DIRECTORIES,
};

/* ---- orphans ---- */

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

static int orphans(const struct sessions_call *call, struct error *err)
{
    struct session_orphans found;
    const bool remove = call->options->remove;
    if (check_keys(call->options, call->keys.count, err) != 0 ||
        session_orphans_find(call->location, call->keys.items, call->keys.count, remove, &found,
                             err) != 0)
        return -1;
    printf("%lld sessions of %lld tokens belong to no key%s, %lld to one\n",
           (long long)found.sessions, (long long)found.tokens, remove ? " and were removed" : "",
           (long long)found.others);
    return 0;
}

/* ---- verbs ---- */

/* Options that not every verb has a use for. */
enum { FILTER = 1, REPLACE = 2, REMOVE = 4, JSON = 8, TO = 16 };

typedef int verb_function(const struct sessions_call *call, struct error *err);

static const struct verb {
    const char *name;
    int words;                          /* operands behind the place */
    const char *operands;               /* what they are */
    verb_function *shelf, *remote;      /* of a place, of a server; or NULL */
    unsigned shelf_takes, remote_takes; /* FILTER ... */
} verbs[] = {
    {"list", 0, "", sessions_shelf_list, sessions_remote_list, FILTER | JSON, JSON},
    {"show", 1, " ID", sessions_shelf_show, sessions_remote_show, FILTER | JSON, JSON},
    {"export", 2, " ID FILE", sessions_remote_export, sessions_remote_export, 0, 0},
    {"import", 2, " ID FILE", sessions_remote_import, sessions_remote_import, JSON, JSON},
    {"copy", 0, "", sessions_shelf_copy, NULL, TO | FILTER | REPLACE | JSON, 0},
    {"move", 0, "", sessions_shelf_move, NULL, TO | FILTER | REPLACE | JSON, 0},
    {"backup", 1, " DIR", sessions_shelf_backup, NULL, 0, 0},
    {"delete", 1, " ID", sessions_shelf_delete, sessions_remote_delete, FILTER, 0},
    {"repair", 0, "", sessions_shelf_repair, NULL, JSON, 0},
    {"orphans", 0, "", orphans, NULL, REMOVE, 0},
};

static const struct verb *find_verb(const char *name, struct error *err)
{
    const size_t count = sizeof verbs / sizeof *verbs;
    for (size_t i = 0; i < count; i++)
        if (name && strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    const char *nearest = name ? options_nearest(name, verbs, count, sizeof *verbs) : NULL;
    error_set(err, ERROR_INVALID,
              "expected list, show, export, import, copy, move, backup, delete, "
              "repair or orphans, got %s%s%s%s%s",
              name ? "\"" : "nothing", name ? name : "", name ? "\"" : "",
              nearest ? "; did you mean " : "", nearest ? nearest : "");
    return NULL;
}

/* The place that a flag names; NULL: none does. */
static const char *flagged(const struct sessions_options *options, struct error *err)
{
    const char *const places[] = {options->state_dir, options->store, options->url};
    const char *found = NULL;
    for (size_t i = 0; i < 3; i++) {
        if (!places[i] || !*places[i])
            continue;
        if (found)
            error_set(err, ERROR_INVALID,
                      "expected one of --state-dir, --store and --url (or their environment "
                      "variables), got two");
        found = places[i];
    }
    return found;
}

/* A flag that stands in the command line; the environment may name a place that is not meant. */
static const char *typed_flag(const struct sessions_options *options)
{
    return options->state_dir && options->state_dir != getenv("REGLA_STATE_DIR") ? "--state-dir"
           : options->store && options->store != getenv("REGLA_STORE")           ? "--store"
           : options->url && options->url != getenv("REGLA_URL")                 ? "--url"
                                                                                 : NULL;
}

static bool is_url(const char *place)
{
    return strncmp(place, "http", 4) == 0 && strstr(place, "://") != NULL;
}

/* An operand is meant as it stands; without one a flag or the environment has the place. */
static int find_place(struct sessions_call *call, const struct verb *verb, const char **words,
                      int count, struct error *err)
{
    const struct sessions_options *options = call->options;
    const bool operand = count > verb->words;
    const char *place = operand ? words[0] : flagged(options, err), *flag = typed_flag(options);
    if (err->code != ERROR_NONE)
        return -1;
    if (count - operand != verb->words || !place)
        return error_set(err, ERROR_INVALID, "%s: expected PLACE%s, got %d operand%s", verb->name,
                         verb->operands, count, count == 1 ? "" : "s");
    if (!*place)
        return error_set(err, ERROR_INVALID, "%s: expected PLACE, got an empty one", verb->name);
    if (operand && flag)
        return error_set(err, ERROR_INVALID, "%s: expected one place, got an operand and %s",
                         verb->name, flag);
    for (int i = 0; i < verb->words; i++)
        call->words[i] = words[i + operand];
    if (operand ? is_url(place) : place == options->url)
        call->url = place;
    else
        call->location = place;
    return 0;
}

/* An empty one, as of a variable that is not set, would mean all. */
static int check_filter(const char *name, const char *digits, struct error *err)
{
    if (!digits || (*digits && !digits[strspn(digits, "0123456789abcdef")]))
        return 0;
    return error_set(err, ERROR_INVALID, "--%s: expected digits 0-9 a-f, got \"%.40s\"", name,
                     digits);
}

/* A flag that would change nothing is refused: it may have been meant to spare what is there. */
static int check_options(const struct sessions_call *call, const struct verb *verb,
                         struct error *err)
{
    const struct sessions_options *options = call->options;
    const unsigned takes = call->url ? verb->remote_takes : verb->shelf_takes;
    const struct {
        unsigned of;
        bool given;
        const char *name;
    } flags[] = {
        {TO, options->to != NULL, "to PLACE"},
        {FILTER, options->owner != NULL, "owner"},
        {FILTER, options->fingerprint != NULL, "fingerprint"},
        {REPLACE, options->replace, "replace"},
        {REMOVE, options->remove, "remove"},
        {REMOVE, options->without_api_key, "without-api-key"},
        {JSON, options->json, "json"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].given && !(takes & flags[i].of))
            return error_set(err, ERROR_INVALID, "%s%s: expected no --%s", verb->name,
                             call->url ? " of a server" : "", flags[i].name);
    if (check_filter("owner", options->owner, err) != 0 ||
        check_filter("fingerprint", options->fingerprint, err) != 0)
        return -1;
    if (!(takes & TO))
        return 0;
    if (!options->to || !*options->to)
        return error_set(err, ERROR_INVALID, "%s: expected --to PLACE", verb->name);
    return !is_url(options->to)
               ? 0
               : error_set(err, ERROR_UNSUPPORTED,
                           "--to: expected a directory or a store, got the URL of a server");
}

static int check_place(const struct sessions_call *call, const struct verb *verb, struct error *err)
{
    const struct sessions_options *options = call->options;
    if (call->url && !verb->remote)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: expected a directory%s, got the URL of a server", verb->name,
                         verb->shelf == orphans ? "" : " or a store");
    if (call->url && !client_url(call->url))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: expected http:// or unix:; for https:// ask with curl", call->url);
    if (call->location && call->location == options->store &&
        store_location_is_path(call->location))
        return error_set(err, ERROR_INVALID, "--store: expected redis://... or unix:PATH");
    if (call->location && verb->shelf == orphans && !store_location_is_path(call->location))
        return error_set(err, ERROR_UNSUPPORTED, "orphans: expected a directory, got a store");
    if (strncmp(verb->operands, " ID", 3) == 0 &&
        !session_id_valid(call->words[0], strlen(call->words[0])))
        return error_set(err, ERROR_INVALID,
                         "%s: expected the name of a session, 1 to 128 of A-Z a-z 0-9 . _ -, got "
                         "\"%.130s\"",
                         verb->name, call->words[0]);
    return 0;
}

int command_sessions(int argc, char **argv)
{
    enum { MOST_WORDS = 4 };
    struct sessions_options options = {0};
    struct sessions_call call = {.options = &options};
    const char *words[MOST_WORDS] = {NULL};
    struct option_arguments arguments = {.items = words, .capacity = MOST_WORDS};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_sessions_options, &options, argc, argv, &arguments, &status) ==
        0) {
        const struct verb *verb = find_verb(words[0], &err);
        if (!verb || find_place(&call, verb, words + 1, arguments.count - 1, &err) != 0 ||
            check_place(&call, verb, &err) != 0 || check_options(&call, verb, &err) != 0) {
            status = command_misused(argv[0], &err);
        } else if (auth_read(&call.keys, options.api_keys.items, options.api_keys.count,
                             options.api_key_file, &err) != 0) {
            status = command_failed(argv[0], &err);
        } else {
            command_hide_api_keys(argc, argv);
            if ((call.url ? verb->remote : verb->shelf)(&call, &err) != 0)
                status = command_failed(argv[0], &err);
        }
    }
    names_wipe(&call.keys);
    options_clear(&command_sessions_options, &options);
    return status;
}
