/* SPDX-License-Identifier: Apache-2.0 */
/* The store in a local directory, --state-dir: the backend that takes every path.
 *
 *   DIR/lock                              held (flock), as DIR itself, by the one server that uses
 * it DIR/secret                            16 random bytes, mode 0600: see store_owner_tag
 *   DIR/sessions.db, -wal, -shm           the database: sessions of all models, replies
 *   DIR/<model fingerprint>/checkpoints/<name>.state     tokens and a state
 *   ... *.tmp        a write that did not end: the scan removes it
 *   ... *.rejected   a database that was corrupt: kept, never read
 *   DIR/<model fingerprint>/sessions/     of regla 0.2 and before: see store_migration.h
 *
 * A checkpoint's file appears whole: it is written under a temporary name, and renamed.
 *
 * The budget is that of the whole directory. Sessions of other models count; their checkpoints are
 * removed when room is short (store_others.h). */
#ifndef SERVER_STORE_STORE_DIRECTORY_H
#define SERVER_STORE_STORE_DIRECTORY_H

#include "server/store/store_backend.h"

extern const struct store_backend store_directory;

#endif
