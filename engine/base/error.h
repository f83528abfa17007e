/* SPDX-License-Identifier: Apache-2.0 */
/* One error: a code for programs and one sentence (place, expected, got) for people.
 *
 * Functions that can fail return 0, or -1 with *err set. The first failure wins: setting an error
 * that is already set keeps the older one, so the deepest cause survives unwinding. */
#ifndef ENGINE_BASE_ERROR_H
#define ENGINE_BASE_ERROR_H

#include <stdarg.h>

enum error_code {
    ERROR_NONE = 0,
    ERROR_INVALID,     /* a file, an option or an argument is not what it must be */
    ERROR_UNSUPPORTED, /* well formed, but a combination that is refused */
    ERROR_IO,          /* the operating system refused: open, read, map, thread, socket */
    ERROR_NO_MEMORY,   /* an allocation failed, or a budget is spent */
    ERROR_INTERNAL     /* our own mistake, or a device that failed */
};

struct error {
    enum error_code code;
    char message[512]; /* UTF-8, one sentence, no newline; cut at a character boundary */
};

#define ERROR_INIT     \
    {                  \
        ERROR_NONE, "" \
    }

/* Sets *err (may be NULL) unless it holds an error already. Returns -1, so that
 * `return error_set(err, ...)` is the whole failure path. Control characters and bytes that are
 * not UTF-8 in the formatted text are replaced, since it may quote a hostile file. */
int error_set(struct error *err, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the message of an error that is set; returns -1. */
int error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

void error_clear(struct error *err);

#endif
