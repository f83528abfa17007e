/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all backends of a store. */
#ifndef SERVER_STORE_STORE_BACKENDS_H
#define SERVER_STORE_STORE_BACKENDS_H

#include "server/store/store_backend.h"

/* The backend that takes a location: the first that takes it, else the directory. */
const struct store_backend *store_backends_find(const char *location);

#endif
