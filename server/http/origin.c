/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/origin.h"

#include <string.h>
#include <strings.h>

static bool is_item(const struct names *names, const char *text, size_t length)
{
    for (size_t i = 0; i < names->count; i++)
        if (strlen(names->items[i]) == length && strncasecmp(names->items[i], text, length) == 0)
            return true;
    return false;
}

/* A name that begins with a dot is that of the name behind it, and of all below. */
static bool is_below(const char *dotted, const char *host, size_t length)
{
    size_t tail = strlen(dotted);
    return (tail == length + 1 && strncasecmp(dotted + 1, host, length) == 0) ||
           (tail < length && strncasecmp(dotted, host + length - tail, tail) == 0);
}

const char *origin_allowed(const struct origin_rules *rules, const char *origin)
{
    if (!origin)
        return NULL;
    if (is_item(&rules->origins, "*", 1))
        return "*";
    return is_item(&rules->origins, origin, strlen(origin)) ? origin : NULL;
}

bool origin_host_allowed(const struct origin_rules *rules, const char *host)
{
    if (!rules->checks_host || !host || *host == '[') /* an address of version 6 */
        return true;
    size_t length = strcspn(host, ":");
    if (!memchr(host, '.', length) || strspn(host, "0123456789.") == length ||
        is_below(".localhost", host, length))
        return true;
    for (size_t i = 0; i < rules->hosts.count; i++)
        if (*rules->hosts.items[i] == '.' && is_below(rules->hosts.items[i], host, length))
            return true;
    return is_item(&rules->hosts, "*", 1) || is_item(&rules->hosts, host, length);
}
