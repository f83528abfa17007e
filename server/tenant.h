/* SPDX-License-Identifier: Apache-2.0 */
/* Names who shares the server with others: a tenant is an API key or, where there are no keys, the
 * address of a client. Tenants have equal shares of the queue, the workers and the engine. */
#ifndef SERVER_TENANT_H
#define SERVER_TENANT_H

#include <stdint.h>

struct sockaddr;

/* key: its index. */
uint64_t tenant_of_key(int key);
/* Of an IPv6 address the first half counts, since one client may have all of the rest. NULL, or an
 * address of another kind: all of these are one tenant. */
uint64_t tenant_of_address(const struct sockaddr *address);

#endif
