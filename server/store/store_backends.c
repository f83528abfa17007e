/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_backends.h"

#include "server/store/store_directory.h"
#include "server/store/store_redis.h"

#include <stdio.h>

/* The last one takes what no other does. */
static const struct store_backend *const backends[] = {&store_redis, &store_directory};

const struct store_backend *store_backends_find(const char *location)
{
    size_t last = sizeof backends / sizeof *backends - 1, i = 0;
    while (i < last && !backends[i]->takes(location))
        i++;
    return backends[i];
}

bool store_location_is_path(const char *location)
{
    return store_backends_find(location)->takes == NULL;
}

bool store_location_has_tls(const char *location)
{
    const struct store_backend *backend = store_backends_find(location);
    return backend->has_tls != NULL && backend->has_tls(location);
}

void store_location_name(const char *location, char *name, size_t size)
{
    const struct store_backend *backend = store_backends_find(location);
    if (backend->name != NULL)
        backend->name(location, name, size);
    else
        snprintf(name, size, "%s", location);
}
