/* SPDX-License-Identifier: Apache-2.0 */
/* Where a Redis or Valkey is, as --store says it. */
#ifndef SERVER_STORE_REDIS_ADDRESS_H
#define SERVER_STORE_REDIS_ADDRESS_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct redis_trust;

/* redis://[[user][:password]@]host[:port][/database], rediss:// for TLS, or unix:PATH. */
struct redis_address {
    char host[256], path[108]; /* one of them */
    int port, database;
    char user[128], password[256]; /* "": none */
    char name[400];                /* for people: without user and password */
    bool tls;
    const struct redis_trust *trust; /* with TLS: whom to believe; borrowed */
};

/* Of a location that redis_location takes. An error does not quote the password. */
int redis_address_parse(struct redis_address *address, const char *location, struct error *err);
bool redis_location(const char *location);
bool redis_location_tls(const char *location);
/* Another node of the same cluster: host and port change. host: [length]. -1: it is none. */
int redis_address_move(struct redis_address *address, const char *host, size_t length, int port);

#endif
