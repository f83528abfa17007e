/* SPDX-License-Identifier: Apache-2.0 */
/* A session of a place (shelf.h): what is told of it, which are meant, and lists of them. */
#ifndef SERVER_STATES_SHELF_SESSION_H
#define SERVER_STATES_SHELF_SESSION_H

#include "server/states/session_meta.h"

enum { SHELF_MODEL_SIZE = 33 };

/* SHELF_READ: a server may be using the directory. SHELF_CHANGE: none may. SHELF_REPAIR: and it may
 * be corrupt. SHELF_MAKE: and it is made if it is missing. To a store all are the same. */
enum shelf_use { SHELF_READ, SHELF_CHANGE, SHELF_REPAIR, SHELF_MAKE };

/* All is borrowed for the call. */
struct shelf_session {
    char model[SHELF_MODEL_SIZE]; /* fingerprint, in hex; "": it cannot be told */
    struct session_meta meta;     /* used: the last use that the place knows of */
    int64_t count;
    const int32_t *tokens;     /* [count]; NULL: damaged, or not asked for */
    const char *turns;         /* [meta.turns] of its chat; likewise */
    const char *damage;        /* what is wrong with it; NULL: nothing */
    char row[STORE_NAME_SIZE]; /* of a directory: name of the row */
    int64_t version;           /* of a store */
};

/* Why one was not put or removed, where that is no error. */
enum shelf_outcome {
    SHELF_DONE,
    SHELF_SAME,   /* it was there already, as it is */
    SHELF_OTHER,  /* another of its name is there; or it has changed meanwhile */
    SHELF_BUSY,   /* a server works on it */
    SHELF_DAMAGED /* what is there of its name is damaged */
};

/* Of tokens and turns: whether two sessions are the same. */
uint64_t shelf_session_sum(const struct shelf_session *session);

/* Which sessions are meant. A field that is NULL takes any; owner and model: how they begin. */
struct shelf_filter {
    const char *id, *owner, *model;
};

bool shelf_session_matches(const struct shelf_filter *filter, const struct shelf_session *session);

/* Sessions that were kept for later, with their tokens and damage, and without their turns. */
struct shelf_list {
    struct shelf_session *items; /* [count] */
    size_t count, capacity;
};

int shelf_list_add(struct shelf_list *list, const struct shelf_session *session, struct error *err);
void shelf_list_clear(struct shelf_list *list);

#endif
