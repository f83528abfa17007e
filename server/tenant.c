/* SPDX-License-Identifier: Apache-2.0 */
#include "server/tenant.h"

#include <netinet/in.h>
#include <string.h>

uint64_t tenant_of_key(int key)
{
    return (uint64_t)key;
}

/* Every kind of tenant that there can be in one server has numbers of its own. */
static uint64_t of_four_bytes(const void *bytes)
{
    uint32_t number;
    memcpy(&number, bytes, sizeof number);
    return (uint64_t)1 << 32 | number;
}

uint64_t tenant_of_address(const struct sockaddr *address)
{
    uint64_t half;
    if (address && address->sa_family == AF_INET)
        return of_four_bytes(&((const struct sockaddr_in *)address)->sin_addr);
    if (!address || address->sa_family != AF_INET6)
        return 0;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(six))
        return of_four_bytes(six->s6_addr + 12);
    memcpy(&half, six->s6_addr, sizeof half);
    return half;
}
