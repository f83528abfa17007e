/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings: sentences about a file that was read, though something in it is likely not as meant.
 *
 * Whoever reads a file collects them; whoever asked for the file prints them. */
#ifndef LIB_BASE_WARNINGS_H
#define LIB_BASE_WARNINGS_H

#include <stddef.h>

enum { WARNINGS_MOST = 16, WARNING_BYTES = 384 };

struct warnings { /* zero-initialise */
    char texts[WARNINGS_MOST][WARNING_BYTES];
    size_t count; /* of all; texts has the first WARNINGS_MOST */
};

/* One sentence: place, what is there, what is made of it. As in an error, bytes of a hostile file
 * that are not text are replaced. */
void warnings_add(struct warnings *warnings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds those of `more`. */
void warnings_add_all(struct warnings *warnings, const struct warnings *more);

/* The i-th sentence; the last says whether there was no room for more. NULL past it. */
const char *warnings_at(const struct warnings *warnings, size_t i);

#endif
