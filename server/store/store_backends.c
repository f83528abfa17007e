/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_backends.h"

#include "server/store/store_directory.h"

#include <string.h>

/* The last one takes what no other does. */
static const struct store_backend *const backends[] = {&store_directory};

static bool takes(const struct store_backend *backend, const char *location)
{
    if (backend->scheme == NULL)
        return true;
    size_t length = strlen(backend->scheme);
    return strncmp(location, backend->scheme, length) == 0 &&
           strncmp(location + length, "://", 3) == 0;
}

const struct store_backend *store_backends_find(const char *location)
{
    size_t last = sizeof backends / sizeof *backends - 1, i = 0;
    while (i < last && !takes(backends[i], location))
        i++;
    return backends[i];
}
