/* SPDX-License-Identifier: Apache-2.0 */
/* Copies what cannot be computed again of a --state-dir, sessions, replies and the secret, while a
 * server may be using it. */
#ifndef SERVER_STORE_STORE_COPY_H
#define SERVER_STORE_STORE_COPY_H

#include "lib/base/error.h"

/* Makes the directory `copy`, which may not exist: as of one moment, and a --state-dir itself. */
int store_copy(const char *directory, const char *copy, struct error *err);

#endif
