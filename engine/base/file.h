/* SPDX-License-Identifier: Apache-2.0 */
/* Files read whole: small ones into memory, large ones by a mapping. */
#ifndef ENGINE_BASE_FILE_H
#define ENGINE_BASE_FILE_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>

bool file_exists(const char *path);

/* Reads the regular file at `path`, at most max_bytes long, into *bytes (malloc'd, a NUL after the
 * last byte; the caller frees). */
int file_read(const char *path, size_t max_bytes, char **bytes, size_t *size, struct error *err);

/* A read-only mapping of a regular file. It must not shrink while mapped: whoever replaces a model
 * in use writes a new file and renames it. An empty file maps to no bytes. */
struct file_map {
    const unsigned char *bytes; /* [size] */
    size_t size;
};

int file_map_open(struct file_map *map, const char *path, struct error *err);
void file_map_close(struct file_map *map);

/* Gives whole pages of [bytes, bytes + size) back to the system: a file's are read again when they
 * are looked at; what is no file's is zeros from now on. */
void file_release(const void *bytes, size_t size);

#endif
