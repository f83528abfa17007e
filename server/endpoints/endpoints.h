/* SPDX-License-Identifier: Apache-2.0 */
/* All endpoints: the tables that http_start is given one of. A new one is a row of it. */
#ifndef SERVER_ENDPOINTS_ENDPOINTS_H
#define SERVER_ENDPOINTS_ENDPOINTS_H

#include "server/http/routes.h"

extern const struct route_table endpoints;
extern const struct route_table endpoints_without_page; /* --no-page */

#endif
