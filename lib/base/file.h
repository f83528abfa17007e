/* SPDX-License-Identifier: Apache-2.0 */
/* Reads whole files: small ones into memory, large ones through a mapping. */
#ifndef LIB_BASE_FILE_H
#define LIB_BASE_FILE_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>

bool file_exists(const char *path);

/* Reads the regular file at `path`, of at most max_bytes, into *bytes (malloc'd, with a NUL after
 * the last byte; the caller frees it). */
int file_read(const char *path, size_t max_bytes, char **bytes, size_t *size, struct error *err);

/* A read-only mapping of a regular file. The file must not shrink while it is mapped: to replace a
 * model in use, write a new file and rename it. An empty file maps to no bytes. */
struct file_map {
    const unsigned char *bytes; /* [size] */
    size_t size;
};

int file_map_open(struct file_map *map, const char *path, struct error *err);
void file_map_close(struct file_map *map);

/* Gives the whole pages of [bytes, bytes + size) back to the system. Pages of a file are read again
 * on the next access; other pages become zeros. */
void file_release(const void *bytes, size_t size);
/* Has the system read pages of a mapped file, which will be needed soon, and does not wait. */
void file_ahead(const void *bytes, size_t size);

#endif
