/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/tenants.h"

#include <stdlib.h>

void tenants_clear(struct tenants *tenants)
{
    for (struct tenant *tenant = tenants->first, *next; tenant; tenant = next) {
        next = tenant->next;
        free(tenant);
    }
    tenants->first = NULL;
}

struct tenant *tenants_get(struct tenants *tenants, uint64_t name)
{
    for (struct tenant *tenant = tenants->first; tenant; tenant = tenant->next)
        if (tenant->name == name)
            return tenant;
    struct tenant *tenant = calloc(1, sizeof *tenant);
    if (!tenant)
        return NULL;
    tenant->name = name;
    tenant->served = tenant->seen = tenants->clock;
    tenant->next = tenants->first;
    tenants->first = tenant;
    return tenant;
}

/* Whether something of it is computed, or waits for room. What waits for its reader alone does not
 * count. */
static bool is_busy(const struct tenant *tenant)
{
    return tenant->waiting.head || tenant->open > tenant->places || tenant->served > tenant->seen;
}

void tenants_turn(struct tenants *tenants)
{
    int64_t least = INT64_MAX;
    for (struct tenant **link = &tenants->first; *link;) {
        struct tenant *tenant = *link;
        if (!tenant->waiting.head && tenant->open == 0) {
            *link = tenant->next;
            free(tenant);
            continue;
        }
        if (is_busy(tenant) && tenant->served < least)
            least = tenant->served;
        link = &tenant->next;
    }
    if (least < INT64_MAX && least > tenants->clock)
        tenants->clock = least;
    for (struct tenant *tenant = tenants->first; tenant; tenant = tenant->next) {
        if (tenant->served < tenants->clock)
            tenant->served = tenants->clock;
        tenant->seen = tenant->served;
        tenant->blocked = false;
    }
}
