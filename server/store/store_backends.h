/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all backends of a store. */
#ifndef SERVER_STORE_STORE_BACKENDS_H
#define SERVER_STORE_STORE_BACKENDS_H

#include "server/store/store_backend.h"

/* The backend that takes a location: the first that takes it, else the directory. */
const struct store_backend *store_backends_find(const char *location);

/* Runs operations on sessions and replies [first, by `next`]: begins each and ends
 * them. As store_sessions.end. */
struct store_op *store_backend_run(const struct store_backend *backend, struct store_place *place,
                                   struct store_op *first);

/* Whether it is the path of a directory, as --state-dir takes it; else --store takes it. */
bool store_location_is_path(const char *location);
/* Whether it is reached by TLS. */
bool store_location_has_tls(const char *location);
/* For people: without a password. */
void store_location_name(const char *location, char *name, size_t size);

#endif
