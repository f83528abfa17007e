/* SPDX-License-Identifier: Apache-2.0 */
/* The two kinds of places behind shelf.h, each a table of functions. */
#ifndef SERVER_STATES_SHELF_PLACE_H
#define SERVER_STATES_SHELF_PLACE_H

#include "server/states/shelf_session.h"
#include "server/store/store_upkeep.h"

struct shelf;

typedef int shelf_each_function(void *context, const struct shelf_session *session,
                                struct error *err);

struct shelf_kind {
    int (*open)(struct shelf *shelf, enum shelf_use use, const unsigned char *secret,
                struct error *err);
    int (*each)(struct shelf *shelf, bool whole, shelf_each_function *each, void *context,
                int64_t *damaged, struct error *err);
    int (*put)(struct shelf *shelf, const struct shelf_session *session, bool replace,
               enum shelf_outcome *outcome, struct error *err);
    int (*remove)(struct shelf *shelf, const struct shelf_session *sessions, size_t count,
                  enum shelf_outcome *outcomes, struct error *err);
    int (*repair)(struct shelf *shelf, struct store_repair *repair, struct error *err);
    void (*close)(struct shelf *shelf);
};

struct shelf {
    const struct shelf_kind *kind;
    char *location, *name; /* name: for people, without a password */
    struct store_tls tls;  /* of a store */
    int replicas;          /* the same: as struct store_place has it */
    void *place;           /* the kind's own; NULL: not open */
    const unsigned char *secret;
};

extern const struct shelf_kind shelf_directory, shelf_store;

/* Of two open stores: whether they are one, whatever their names. */
int shelf_store_is(struct shelf *shelf, struct shelf *other, bool *same, struct error *err);

#endif
