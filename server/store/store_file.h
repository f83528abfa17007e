/* SPDX-License-Identifier: Apache-2.0 */
/* Reads state files in the folders of --state-dir, whatever lies there instead of them. */
#ifndef SERVER_STORE_STORE_FILE_H
#define SERVER_STORE_STORE_FILE_H

#include "engine/state_file.h"
#include "server/store/store_op.h"

#include <sys/stat.h>

bool store_file_has_suffix(const char *name, const char *suffix);
/* The name without its suffix. False: it is none of ours. */
bool store_file_stem(const char *name, const char *suffix, char out[STORE_NAME_SIZE]);
/* -1: there is no such file. */
int64_t store_file_size(int folder, const char *name);

/* Opens a regular file, and gets its status. -1: *err and errno say why. */
int store_file_open(int folder, const char *name, struct stat *status, struct error *err);
/* Fills bytes[from..to) from the same place of the file. */
int store_file_read(int fd, void *bytes, size_t from, size_t to, struct error *err);
/* A file's first bytes up to its state, malloc'd, and parsed; and its status, which is zero if it
 * could not be opened. NULL: *err says why. */
void *store_file_start(int folder, const char *name, struct stat *status, struct state_file *file,
                       struct error *err);

#endif
