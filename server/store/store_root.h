/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the root of --state-dir: makes it if it is missing, locks it for this server alone, and
 * reads its secret. */
#ifndef SERVER_STORE_STORE_ROOT_H
#define SERVER_STORE_STORE_ROOT_H

#include "lib/base/error.h"
#include "lib/base/siphash.h"

#include <stdint.h>

struct store_root {
    char *path;   /* as given */
    int fd, lock; /* the open directory; the locked file */
    unsigned char secret[SIPHASH_BYTES];
};

/* The caller closes it, on an error too. secret: [SIPHASH_BYTES], what a directory without one
 * gets; NULL: a new one. */
int store_root_open(struct store_root *root, const char *path, const unsigned char *secret,
                    struct error *err);
/* The same without the lock, for whoever only reads; makes nothing. */
int store_root_look(struct store_root *root, const char *path, struct error *err);
void store_root_close(struct store_root *root);
/* The owner's tag of an API key ("": none), in hex: see store_owner_tag. secret: [SIPHASH_BYTES].
 */
void store_root_owner_tag(const unsigned char *secret, const char *api_key,
                          char tag[2 * SIPHASH_BYTES + 1]);
/* Room on its file system; INT64_MAX: it does not say. */
int64_t store_root_free_bytes(const struct store_root *root);
/* Returns -1, with errno as an error of `name` ("": of the root itself). */
int store_root_cannot(const struct store_root *root, const char *what, const char *name,
                      struct error *err);

#endif
