/* SPDX-License-Identifier: Apache-2.0 */
/* The META section of a session's file: its owner, its name, its times. Lines of `key value`. */
#ifndef SERVER_STATES_SESSION_META_H
#define SERVER_STATES_SESSION_META_H

#include "server/store/store_op.h"

enum {
    SESSION_ID_SIZE = STORE_ID_SIZE,
    SESSION_SPACE_SIZE = STORE_NAME_SIZE,
    SESSION_META_SIZE = 384
};

struct session_meta {
    char owner[STORE_OWNER_SIZE], id[SESSION_ID_SIZE];
    char space[SESSION_SPACE_SIZE]; /* salt of its space in the tree; "": that of all prompts */
    double created, used;           /* seconds since 1970 */
    int64_t turns;                  /* bytes of its chat's turns (chat_turns.h) */
};

/* Writes to text [SESSION_META_SIZE]. Returns the length. */
size_t session_meta_encode(const struct session_meta *meta, char *text);
/* text [length] may hold anything. -1: it is not a session's. */
int session_meta_parse(struct session_meta *meta, const char *text, size_t length);

#endif
