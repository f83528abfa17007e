/* SPDX-License-Identifier: Apache-2.0 */
/* The META of a session's file: whose it is, its name, its times. Lines of `key value`. */
#ifndef SERVER_STATES_SESSION_META_H
#define SERVER_STATES_SESSION_META_H

#include "server/states/sessions.h"

enum { SESSION_META_SIZE = 384 };

struct session_meta {
    char owner[STORE_OWNER_SIZE], id[SESSION_ID_SIZE];
    char space[SESSION_SPACE_SIZE]; /* salt of its space in the tree; "": that of all prompts */
    double created, used;           /* seconds since 1970 */
};

/* Its length in text [SESSION_META_SIZE]. */
size_t session_meta_encode(const struct session_meta *meta, char *text);
/* -1: not a session's. text [length] may hold anything. */
int session_meta_parse(struct session_meta *meta, const char *text, size_t length);

#endif
