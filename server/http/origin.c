/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/origin.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* A Host, taken apart. */
struct host {
    const char *name; /* [length]; of an address of version 6 without its brackets */
    size_t length;
    bool address;
    const char *port; /* digits, perhaps none, and a NUL; NULL: there is no colon */
};

static bool is_address(int family, const char *text, size_t length)
{
    char copy[INET6_ADDRSTRLEN];
    unsigned char address[16];
    if (length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    return inet_pton(family, copy, address) == 1;
}

static bool is_port(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return text[digits] == 0 && digits <= 5 && strtol(text, NULL, 10) <= 65535;
}

/* "name", "name:80", "127.0.0.1:80", "[::1]:80" (RFC 9110, section 7.2). Nothing is unescaped, and
 * no name in use has other characters: browsers send those of other scripts in ASCII. */
static bool parse(const char *text, struct host *host)
{
    static const char NAME[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    bool bracket = *text == '[';
    *host = (struct host){.name = text + bracket};
    host->length = strspn(host->name, bracket ? "0123456789abcdefABCDEF:." : NAME);
    const char *rest = host->name + host->length;
    host->address = is_address(bracket ? AF_INET6 : AF_INET, host->name, host->length);
    if (host->length == 0 || (bracket && (!host->address || *rest++ != ']')))
        return false;
    if (*rest == ':')
        host->port = rest + 1;
    return host->port ? is_port(host->port) : *rest == 0;
}

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

int origin_add_own(struct names *own, const struct names *listening, struct error *err)
{
    char name[HOST_NAME_MAX + 1] = "", local[HOST_NAME_MAX + sizeof ".local"];
    if (gethostname(name, sizeof name - 1) != 0)
        *name = 0; /* it has none */
    size_t first = strcspn(name, ".");
    int local_length = snprintf(local, sizeof local, "%.*s.local", (int)first, name);
    if (names_add(own, name, strlen(name), err) ||
        (name[first] && names_add(own, name, first, err)) ||
        (first && names_add(own, local, (size_t)local_length, err)))
        return -1;
    for (size_t i = 0; i < listening->count; i++) {
        const char *given = listening->items[i];
        struct host host;
        if (parse(given, &host) && !host.address && !host.port &&
            names_add(own, given, host.length, err))
            return -1;
    }
    return 0;
}

const char *origin_allowed(const struct origin_rules *rules, const char *origin)
{
    if (!origin)
        return NULL;
    if (is_item(&rules->origins, "*", 1))
        return "*";
    return is_item(&rules->origins, origin, strlen(origin)) ? origin : NULL;
}

static long port_of(const struct host *host, long usual)
{
    return host->port && *host->port ? strtol(host->port, NULL, 10) : usual;
}

/* Whether a page of this origin came from here: which scheme it came by only the proxy in front
 * knows. */
static bool is_own(const char *origin, const char *text)
{
    static const char PLAIN[] = "http://", SECURE[] = "https://";
    bool plain = strncasecmp(origin, PLAIN, sizeof PLAIN - 1) == 0;
    struct host page, host;
    if (!plain && strncasecmp(origin, SECURE, sizeof SECURE - 1) != 0)
        return false;
    if (!text || !parse(origin + (plain ? sizeof PLAIN : sizeof SECURE) - 1, &page) ||
        !parse(text, &host))
        return false;
    long usual = plain ? 80 : 443;
    return page.length == host.length && strncasecmp(page.name, host.name, host.length) == 0 &&
           port_of(&page, usual) == port_of(&host, usual);
}

bool origin_may_change(const struct origin_rules *rules, const char *origin, const char *site,
                       const char *host)
{
    if (origin_allowed(rules, origin ? origin : "null"))
        return true;
    if (site) /* no page can forge it; over plain HTTP browsers send it to this machine only */
        return strcasecmp(site, "same-origin") == 0 || strcasecmp(site, "none") == 0;
    return !origin || is_own(origin, host);
}

bool origin_host_valid(const char *host)
{
    struct host parts;
    return !host || !*host || parse(host, &parts);
}

/* Addresses are no attacker's to give; nor is a name without a dot, but where servers of a network
 * have such names. */
bool origin_host_allowed(const struct origin_rules *rules, const char *text)
{
    struct host host;
    if (!rules->checks_host || !text || !*text)
        return true;
    if (!parse(text, &host))
        return false;
    if (host.address || is_below(".localhost", host.name, host.length) ||
        (!rules->strict && !memchr(host.name, '.', host.length)) ||
        is_item(&rules->own, host.name, host.length))
        return true;
    for (size_t i = 0; i < rules->hosts.count; i++)
        if (*rules->hosts.items[i] == '.' &&
            is_below(rules->hosts.items[i], host.name, host.length))
            return true;
    return is_item(&rules->hosts, "*", 1) || is_item(&rules->hosts, host.name, host.length);
}
