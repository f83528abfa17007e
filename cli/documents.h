/* SPDX-License-Identifier: Apache-2.0 */
/* The documents of a file: plain text is one, JSONL is one per line, in the field "text". */
#ifndef CLI_DOCUMENTS_H
#define CLI_DOCUMENTS_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct documents { /* zero-initialise */
    FILE *file;
    const char *name; /* borrowed */
    bool jsonl, done;
    char *line; /* getline's */
    size_t line_capacity, line_number;
};

/* path: "-" is standard input. format: "text", "jsonl", or "auto": JSONL when the name ends in
 * .jsonl, or when standard input begins with {. Compressed files are refused: decompress them
 * into a pipe. */
int documents_open(struct documents *documents, const char *path, const char *format,
                   struct error *err);
void documents_close(struct documents *documents);

/* Returns 1 with the next document in *text (malloc'd, [*length], NUL after it), 0 when there is
 * none, -1 with *err. Blank lines of JSONL are skipped. */
int documents_next(struct documents *documents, char **text, size_t *length, struct error *err);

#endif
