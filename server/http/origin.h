/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what web pages may do (CORS), and under which names the server may be reached.
 *
 * A page of any site can make a browser send requests to this machine. Three rules keep it out of a
 * server that asks for no key. What comes from a page of another origin may change nothing, with or
 * without a body: browsers say whose it is. Without --allowed-origins no reply tells the browser to
 * hand it to a page. And a page whose own name the attacker lets point here (DNS rebinding) is
 * refused by the Host that the browser sends: that name. */
#ifndef SERVER_HTTP_ORIGIN_H
#define SERVER_HTTP_ORIGIN_H

#include "server/names.h"

#include <stdbool.h>

/* Of a Host: the longest name of DNS, and a port. */
enum { ORIGIN_HOST_SIZE = 272 };

struct origin_rules {
    struct names origins; /* "https://page.example", or "*" */
    struct names hosts;   /* "name", ".name" for it and all below, or "*" */
    struct names own;     /* what the server itself knows of its names */
    bool checks_host;     /* else any Host may come */
    bool strict;          /* a name without a dot has to be one of these, too */
};

/* Adds the names that the server has without being told: this machine's, and those of `listening`,
 * as --host has them. */
int origin_add_own(struct names *own, const struct names *listening, struct error *err);

/* The value of Access-Control-Allow-Origin for a page of this origin; NULL: it may not read the
 * reply. */
const char *origin_allowed(const struct origin_rules *rules, const char *origin);

/* Whether a request that changes something may come from where it does. origin, site, host: its
 * headers Origin, Sec-Fetch-Site and Host, or NULL. Who is no browser sends neither of the first
 * two, and may. */
bool origin_may_change(const struct origin_rules *rules, const char *origin, const char *site,
                       const char *host);

/* Whether this is a name or an address, perhaps with a port, and nothing else. */
bool origin_host_valid(const char *host);

/* Whether a request may name this Host; NULL or empty: none was sent, so no browser did. */
bool origin_host_allowed(const struct origin_rules *rules, const char *host);

#endif
