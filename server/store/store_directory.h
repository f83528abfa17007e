/* SPDX-License-Identifier: Apache-2.0 */
/* The store in a local directory, --state-dir: the backend that takes every path.
 *
 *   DIR/lock                              held (flock) by the one server that uses the directory
 *   DIR/secret                            16 random bytes, mode 0600: see store_owner_tag
 *   DIR/<model fingerprint>/sessions/<name>.session      tokens and META, no state
 *   DIR/<model fingerprint>/checkpoints/<name>.state     tokens and a state
 *   ... *.tmp        a write that did not end: the scan removes it
 *   ... *.rejected   a session's file that was corrupt, torn or foreign: kept, never read
 *
 * A file appears whole: it is written under a temporary name, fsynced if it is durable, and
 * renamed; then the folder is fsynced.
 *
 * The budget is that of the whole directory. Sessions of other models count; their checkpoints are
 * removed when room is short (store_others.h). */
#ifndef SERVER_STORE_STORE_DIRECTORY_H
#define SERVER_STORE_STORE_DIRECTORY_H

#include "server/store/store_backend.h"

extern const struct store_backend store_directory;

#endif
