/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/documents.h"

#include "lib/base/fields.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

int documents_open(struct documents *documents, const char *path, const char *format,
                   struct error *err)
{
    bool standard = strcmp(path, "-") == 0;
    *documents = (struct documents){.name = standard ? "standard input" : path};
    if (ends_with(path, ".xz") || ends_with(path, ".gz") || ends_with(path, ".zst"))
        return error_set(err, ERROR_INVALID,
                         "%s: expected text or JSONL, got a compressed file (decompress it into a "
                         "pipe, such as `xz -dc FILE | regla … -`)",
                         path);
    documents->file = standard ? stdin : fopen(path, "rb");
    if (!documents->file)
        return error_set(err, ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    int first = getc(documents->file);
    if (first != EOF)
        ungetc(first, documents->file);
    else if (ferror(documents->file))
        return error_set(err, ERROR_IO, "%s: cannot read: %s", documents->name, strerror(errno));
    if (strcmp(format, "auto") == 0)
        documents->jsonl = ends_with(path, ".jsonl") || (standard && first == '{');
    else
        documents->jsonl = strcmp(format, "jsonl") == 0;
    return 0;
}

void documents_close(struct documents *documents)
{
    if (documents->file && documents->file != stdin)
        fclose(documents->file);
    free(documents->line);
    *documents = (struct documents){0};
}

/* The rest of the file. */
static int read_text(struct documents *documents, char **text, size_t *length, struct error *err)
{
    size_t capacity = 0;
    *text = NULL;
    documents->done = true;
    for (*length = 0;;) {
        if (capacity - *length < 2) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *grown = realloc(*text, capacity);
            if (!grown) {
                free(*text);
                return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", documents->name);
            }
            *text = grown;
        }
        size_t got = fread(*text + *length, 1, capacity - *length - 1, documents->file);
        if (got == 0)
            break;
        *length += got;
    }
    (*text)[*length] = 0;
    if (ferror(documents->file)) {
        free(*text);
        return error_set(err, ERROR_IO, "%s: cannot read: %s", documents->name, strerror(errno));
    }
    return 1;
}

/* line_length: of the record, in documents->line. */
static int read_record(struct documents *documents, size_t line_length, char **text, size_t *length,
                       struct error *err)
{
    char place[128];
    snprintf(place, sizeof place, "%.90s, line %zu", documents->name, documents->line_number);
    json_t *record;
    struct fields fields;
    const char *value;
    if (fields_parse(&record, place, documents->line, line_length, err) != 0)
        return -1;
    int result = fields_root(&fields, record, place, err);
    if (result == 0)
        result = fields_string(&fields, "text", FIELD_REQUIRED, &value, err);
    if (result == 0) {
        *length = json_string_length(json_object_get(record, "text"));
        *text = strdup(value);
        result = *text ? 1 : error_set(err, ERROR_NO_MEMORY, "%s: out of memory", place);
    }
    json_decref(record);
    return result;
}

int documents_next(struct documents *documents, char **text, size_t *length, struct error *err)
{
    if (documents->done)
        return 0;
    if (!documents->jsonl)
        return read_text(documents, text, length, err);
    ssize_t got;
    while ((got = getline(&documents->line, &documents->line_capacity, documents->file)) >= 0) {
        documents->line_number++;
        if (strspn(documents->line, " \t\r\n") < (size_t)got)
            return read_record(documents, (size_t)got, text, length, err);
    }
    documents->done = true;
    if (ferror(documents->file))
        return error_set(err, ERROR_IO, "%s: cannot read: %s", documents->name, strerror(errno));
    return 0;
}
