/* SPDX-License-Identifier: Apache-2.0 */
/* An error: a code for programs and one sentence (place, expected, got) for people.
 *
 * Functions that can fail return 0, or -1 with *err set. The first failure wins: setting an error
 * that is already set keeps the older one. So the deepest cause survives while callers return. */
#ifndef LIB_BASE_ERROR_H
#define LIB_BASE_ERROR_H

#include <stdarg.h>

enum error_code {
    ERROR_NONE = 0,
    ERROR_INVALID,     /* a file, an option or an argument is wrong */
    ERROR_UNSUPPORTED, /* well formed, but we refuse this combination */
    ERROR_IO,          /* the operating system refused to open, read, map, start a thread, ... */
    ERROR_NO_MEMORY,   /* an allocation failed, or a budget is used up */
    ERROR_INTERNAL     /* our own mistake, or a device that failed */
};

struct error {
    enum error_code code;
    char message[1024]; /* UTF-8, one sentence, no newline; cut at a character boundary */
};

#define ERROR_INIT     \
    {                  \
        ERROR_NONE, "" \
    }

/* Sets *err (may be NULL) unless it holds an error already. Returns -1, so that
 * `return error_set(err, ...)` is the whole failure path. The text may quote a hostile file, so
 * control characters and bytes that are not UTF-8 are replaced. */
int error_set(struct error *err, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the message of an error that is set. Returns -1. */
int error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

void error_clear(struct error *err);

#endif
