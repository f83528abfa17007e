/* SPDX-License-Identifier: Apache-2.0 */
/* What `regla sessions` needs of a place that servers share besides the table of sessions
 * (store_backend.h): all models and owners, what stands beside the sessions, and repairs. All
 * functions return 0, or -1 with *err. */
#ifndef SERVER_STORE_STORE_UPKEEP_H
#define SERVER_STORE_STORE_UPKEEP_H

#include "server/store/store_accounts.h"

struct store_place;

/* What repair has found. */
struct store_repair {
    int64_t whole, damaged;
    int64_t leftovers; /* rows without a session, which are gone now */
    int64_t names;     /* in the lists of names, that were missing or too many */
    int64_t busy;      /* a server works on them or has changed them; left alone */
};

/* A session, as its key names it. */
typedef int store_each_function(void *context, const char *model, const char *owner, const char *id,
                                struct error *err);

struct store_upkeep {
    /* Opens options' location, tls and replicas for no model. secret: [SIPHASH_BYTES], what a place
     * without one gets; NULL: a new one. accounts: borrowed until the place is closed. */
    int (*open)(struct store_place **out, const struct store_options *options,
                const unsigned char *secret, struct store_accounts *accounts, struct error *err);
    /* Whether what is in the one is in the other. */
    int (*same)(struct store_place *, struct store_place *other, bool *same, struct error *err);
    /* Operations from now on are on sessions of the model, by its fingerprint in hex. */
    void (*model)(struct store_place *, const char *model);
    /* Calls `each` for every session of all models and owners. */
    int (*each)(struct store_place *, store_each_function *each, void *context, struct error *err);

    /* Of the owner's list, by whoever has the lease: nobody else can make it anew meanwhile. */
    int (*forget_name)(struct store_place *, const char *owner, const char *id, struct error *err);
    /* What the owner's sessions count is not known any more: a server counts them anew. */
    int (*forget_quota)(struct store_place *, const char *owner, struct error *err);

    /* That the session's name is in its owner's list, with its last use. */
    int (*mend_name)(struct store_place *, const char *owner, const char *id, int64_t used,
                     struct store_repair *repair, struct error *err);
    /* A session gets a new version, a row without one goes (version 0), what is damaged is set
     * aside: unless a server works on it, or has changed it meanwhile. */
    int (*mend)(struct store_place *, const char *owner, const char *id, int64_t version,
                bool damaged, struct store_repair *repair, struct error *err);
    /* All lists of names: none without a session. */
    int (*mend_lists)(struct store_place *, struct store_repair *repair, struct error *err);
};

#endif
