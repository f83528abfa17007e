/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which web pages may read replies (CORS), and under which names the server may be reached.
 *
 * A page of any site can make a browser send requests to this machine. Three rules keep it out of a
 * server that asks for no key. Whatever changes something wants a body of application/json, or is a
 * PUT or DELETE: before these a browser asks (http.c, check_headers). Only a cancel does not, which
 * needs the id of a request. Without --allowed-origins no reply tells the browser to hand it to a
 * page. And a page whose own name the attacker lets point here (DNS rebinding) is refused by the
 * Host that the browser sends: that name. */
#ifndef SERVER_HTTP_ORIGIN_H
#define SERVER_HTTP_ORIGIN_H

#include "server/names.h"

#include <stdbool.h>

struct origin_rules {
    struct names origins; /* "https://page.example", or "*" */
    struct names hosts;   /* "name", ".name" for it and all below, or "*" */
    bool checks_host;     /* else any Host may come */
};

/* The value of Access-Control-Allow-Origin for a page of this origin; NULL: it may not read the
 * reply. */
const char *origin_allowed(const struct origin_rules *rules, const char *origin);

/* Whether a request may name this Host, which may have a port; NULL: none was sent. Addresses and
 * names without a dot are no attacker's to give. */
bool origin_host_allowed(const struct origin_rules *rules, const char *host);

#endif
