/* SPDX-License-Identifier: Apache-2.0 */
/* Where a Redis or Valkey is, as --store says it. */
#ifndef SERVER_STORE_REDIS_ADDRESS_H
#define SERVER_STORE_REDIS_ADDRESS_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct redis_trust;

/* redis://[[user][:password]@]host[:port][/database], rediss:// for TLS, or unix:PATH. With
 * Sentinel redis+sentinel:// or rediss+sentinel://, and host[:port][,host[:port]...]/MASTER behind
 * it, where the host is not known until a Sentinel has said it. */
struct redis_address {
    char host[256], path[108]; /* one of them */
    int port, database;
    char sentinels[400], master[64]; /* "host:port,host:port", and the master's name; "": none */
    char user[128], password[256];   /* "": none */
    char name[500];                  /* for people: without user and password */
    bool tls;
    const struct redis_trust *trust; /* with TLS: whom to believe; borrowed */
};

/* Of a location that redis_location takes. An error does not quote the password. */
int redis_address_parse(struct redis_address *address, const char *location, struct error *err);
bool redis_location(const char *location);
bool redis_location_tls(const char *location);
/* How many Sentinels there are, and the one of this index: an address without a password. */
unsigned redis_address_sentinels(const struct redis_address *address);
int redis_address_sentinel(const struct redis_address *address, unsigned index,
                           struct redis_address *sentinel, struct error *err);
/* Another node of the same cluster, or another master: host and port change. host: [length]. -1: it
 * is none. */
int redis_address_move(struct redis_address *address, const char *host, size_t length, int port);

#endif
