/* SPDX-License-Identifier: Apache-2.0 */
/* What `regla sessions` was asked for, as its verbs share it. */
#ifndef CLI_SESSIONS_H
#define CLI_SESSIONS_H

#include "cli/options.h"
#include "server/names.h"
#include "server/store/store_op.h"

struct sessions_options {
    const char *state_dir, *store, *url, *to, *directory;
    struct store_tls store_tls;
    int64_t store_replicas;
    const char *owner, *fingerprint;
    struct option_list api_keys;
    const char *api_key_file;
    bool without_api_key, remove, replace, json;
};

struct sessions_call {
    const char *location; /* of a place: a directory, redis://..., unix:PATH; NULL: `url` */
    const char *url;      /* of a server (client.h); NULL: `location` */
    const char *words[2]; /* the operands behind the place */
    const struct sessions_options *options;
    struct names keys;
};

#endif
