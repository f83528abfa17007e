/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what is in a folder, the oldest first. */
#ifndef SERVER_STORE_STORE_FOLDER_H
#define SERVER_STORE_STORE_FOLDER_H

#include <stdint.h>
#include <sys/stat.h>

/* The names in an open folder, except "." and "..", by the time of their last change. The whole
 * list is read first, so the folder may change while the caller goes through it. Ends with NULL;
 * the list and each name are malloc'd. NULL: errno says why. */
char **store_folder_names(int folder);
/* When a file was last changed: nanoseconds since 1970, or the nearest that an int64_t holds. */
int64_t store_folder_modified_ns(const struct stat *status);

#endif
