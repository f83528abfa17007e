/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the documents of a file. Plain text is one document; JSONL has one per line, in the field
 * "text". */
#ifndef CLI_DOCUMENTS_H
#define CLI_DOCUMENTS_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The entry of an options table for documents_open's format. */
#define DOCUMENTS_FORMAT_OPTION(offset)                                                       \
    {                                                                                         \
        "format", OPTION_CHOICE, (offset), NULL, "auto", 0, 0, "auto|text|jsonl",             \
            "text: the file is one document; jsonl: a document per line, in \"text\"; auto: " \
            "by its name"                                                                     \
    }

struct documents { /* zero-initialise */
    FILE *file;
    const char *name; /* borrowed */
    bool jsonl, done;
    char *line; /* getline's */
    size_t line_capacity, line_number;
};

/* path: a file, or "-" for standard input. format: "text", "jsonl" or "auto", which means JSONL
 * when the name ends in .jsonl or standard input begins with {. Compressed files are refused:
 * decompress them into a pipe. */
int documents_open(struct documents *documents, const char *path, const char *format,
                   struct error *err);
void documents_close(struct documents *documents);

/* Returns 1 with the next document in *text (malloc'd, [*length], with a NUL after it), 0 at the
 * end, -1 with *err. Skips blank lines of JSONL. */
int documents_next(struct documents *documents, char **text, size_t *length, struct error *err);

#endif
