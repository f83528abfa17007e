/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around a value that people wrote into a file or a variable, and is no part of it. */
#ifndef LIB_BASE_BLANKS_H
#define LIB_BASE_BLANKS_H

#include <stddef.h>

/* Moves *text past white space, line ends and byte order marks (of UTF-8, as editors put them
 * before a file). Returns the length without those at the end, too. */
size_t blanks_trim(const char **text, size_t length);

#endif
