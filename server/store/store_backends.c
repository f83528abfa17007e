/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_backends.h"

#include "server/store/store_directory.h"
#include "server/store/store_redis.h"

/* The last one takes what no other does. */
static const struct store_backend *const backends[] = {&store_redis, &store_directory};

const struct store_backend *store_backends_find(const char *location)
{
    size_t last = sizeof backends / sizeof *backends - 1, i = 0;
    while (i < last && !backends[i]->takes(location))
        i++;
    return backends[i];
}
