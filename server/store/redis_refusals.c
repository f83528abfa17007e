/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_refusals.h"

#include <stdio.h>
#include <string.h>

static const char REPLICA[] = "a replica", PASSWORD[] = "closed to this password";

static const struct redis_refusal ALL[] = {
    {"READONLY", ERROR_IO, REDIS_LEAVE, true, REPLICA},
    {"MASTERDOWN", ERROR_IO, REDIS_LEAVE, true, "a replica that has lost its master"},
    {"LOADING", ERROR_IO, REDIS_LEAVE, true, "loading its data"},
    /* To WAIT: what it waited for is in doubt, as its caller says. */
    {"UNBLOCKED", ERROR_IO, REDIS_LEAVE, true, REPLICA},
    {"ERR WAIT cannot be used with replica", ERROR_IO, REDIS_LEAVE, true, REPLICA},
    /* It may also be a master that the others have left behind. */
    {"NOREPLICAS", ERROR_IO, REDIS_AGAIN, true, "short of replicas"},
    {"CLUSTERDOWN", ERROR_IO, REDIS_STAY, true, "a cluster that is down"},
    {"TRYAGAIN", ERROR_IO, REDIS_STAY, true, "moving a slot"},
    {"BUSY ", ERROR_IO, REDIS_STAY, true, "busy with a script"},
    {"MISCONF", ERROR_IO, REDIS_STAY, true, "unable to write its disk"},
    {"ERR max number of clients", ERROR_IO, REDIS_LEAVE, true, "full of clients"},
    /* Of a Sentinel. */
    {"IDONTKNOW", ERROR_IO, REDIS_STAY, true, "without a master that Sentinel knows"},
    /* Whoever set another password can set ours again; a start ends. */
    {"NOAUTH", ERROR_IO, REDIS_LEAVE, false, PASSWORD},
    {"WRONGPASS", ERROR_IO, REDIS_LEAVE, false, PASSWORD},
    {"OOM command not allowed", ERROR_NO_MEMORY, REDIS_STAY, false, NULL},
    {"WRONGTYPE", ERROR_INVALID, REDIS_STAY, false, NULL},
    {"MOVED ", ERROR_UNSUPPORTED, REDIS_STAY, false, NULL},
    {"ASK ", ERROR_UNSUPPORTED, REDIS_STAY, false, NULL},
    {"CROSSSLOT", ERROR_UNSUPPORTED, REDIS_STAY, false, NULL},
    /* What no waiting mends: a user without a right, a transaction, of which we have none, a script
     * that is not there though it was just sent. */
    {"NOPERM", ERROR_INTERNAL, REDIS_STAY, false, NULL},
    {"EXECABORT", ERROR_INTERNAL, REDIS_STAY, false, NULL},
    {"NOSCRIPT", ERROR_INTERNAL, REDIS_STAY, false, NULL},
};
static const struct redis_refusal DAMAGE = {"", ERROR_INVALID, REDIS_STAY, false, NULL},
                                  OTHER = {"", ERROR_INTERNAL, REDIS_STAY, false, NULL};

static bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static const struct redis_refusal *find(const char *text)
{
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (begins(text, ALL[i].begins))
            return &ALL[i];
    return NULL;
}

/* A script's error is quoted behind its place: "...user_script:12: user_script: 12: -OOM command
 * ...", in Redis 7 at the beginning. Without a word of the table a script met what is no number. */
const struct redis_refusal *redis_refusals_of(const char *text)
{
    const struct redis_refusal *found = find(text);
    const char *script = strstr(text, "user_script");
    for (const char *at = script; at != NULL && found == NULL; at = strchr(at + 1, ':'))
        if (at[0] == ':' && at[1] == ' ')
            found = find(at + 2 + (at[2] == '-'));
    if (found == NULL && script != NULL && strstr(text, "attempt to ") != NULL)
        found = &DAMAGE;
    return found != NULL ? found : &OTHER;
}

static const char SAID[] = "it said \"";

void redis_refusals_set(const char *name, const char *text, struct error *err)
{
    const struct redis_refusal *refusal = redis_refusals_of(text);
    const char *what = refusal->code == ERROR_UNSUPPORTED
                           ? " is part of a cluster that does not say where its keys are"
                       : refusal->code == ERROR_NO_MEMORY ? " is full"
                                                          : " refused";
    error_set(err, refusal->code, "%s%s: %s%.200s\"", name, what, SAID, text);
}

const struct redis_refusal *redis_refusals_behind(const struct error *err)
{
    const char *said = strstr(err->message, SAID);
    return said != NULL ? redis_refusals_of(said + strlen(SAID)) : NULL;
}

const char *redis_refusals_words(const struct error *err)
{
    const struct redis_refusal *refusal = redis_refusals_behind(err);
    return refusal != NULL && refusal->words != NULL ? refusal->words : "out of reach";
}
