/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the header of a GGUF file, versions 2 and 3: metadata (key, type, value), and where each
 * tensor lies (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 *
 * Everything is checked as it is read: no count, length or dimension is believed before the file
 * has the bytes for it. What a type of tensor means, its readers know. */
#ifndef LIB_BASE_GGUF_H
#define LIB_BASE_GGUF_H

#include "lib/base/arena.h"
#include "lib/base/error.h"
#include "lib/base/fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_MAX_RANK = 4, GGUF_MAX_NAME = 64, GGUF_ALIGNMENT = 32 };

enum gguf_type { /* as numbered in files */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STRING,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64,
                 GGUF_NUM_TYPES
};

/* Bytes of the file, with no NUL behind them; perhaps not UTF-8. */
struct gguf_text {
    const char *bytes;
    size_t length;
};

struct gguf_entry {
    const char *key;
    enum gguf_type type;       /* of a value, or of each of the array's */
    bool array;                /* of values; there are no arrays of arrays */
    uint64_t count;            /* of values; 1 without an array */
    const unsigned char *data; /* the first; a string is its length in 8 bytes, and its bytes */
};

struct gguf_tensor {
    const char *name;
    uint32_t type; /* ggml's number */
    int rank;
    int64_t shape[GGUF_MAX_RANK]; /* the slowest dimension first, unlike in the file */
    uint64_t offset;              /* in the data */
};

struct gguf {
    const char *file;           /* for messages */
    struct gguf_entry *entries; /* [num_entries], sorted by key */
    size_t num_entries;
    struct gguf_tensor *tensors; /* [num_tensors], in the file's order */
    size_t num_tensors;
    size_t alignment;
    const unsigned char *data; /* [data_bytes]: what offsets count from, to the file's end */
    size_t data_bytes;
    struct arena arena;
};

/* Whether a regular file begins as one does. */
bool gguf_is_file(const char *path);

/* file becomes the GGUF file at `path`: that file itself, or the only one of a folder without
 * *.safetensors, where of a split one only the first counts and a projector (mmproj*) does not.
 * "": there is none. Several in a folder are an error. */
enum { GGUF_PATH_SIZE = 4096 };
int gguf_path(char file[GGUF_PATH_SIZE], const char *path, struct error *err);

/* Reads bytes [size], borrowed until gguf_clear, of the file that messages call `file`. */
int gguf_read(struct gguf *gguf, const void *bytes, size_t size, const char *file,
              struct error *err);
void gguf_clear(struct gguf *gguf);

const struct gguf_entry *gguf_find(const struct gguf *gguf, const char *key); /* NULL: none */

/* Sets an error `file: key: ...`; returns -1. */
int gguf_bad(const struct gguf *gguf, const char *key, struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Each reads one value, as fields.h does: an optional key that is absent leaves *value unchanged.
 */
int gguf_text(const struct gguf *gguf, const char *key, enum field_need need,
              struct gguf_text *value, struct error *err);
int gguf_int(const struct gguf *gguf, const char *key, enum field_need need, int64_t min,
             int64_t max, int64_t *value, struct error *err);
int gguf_bool(const struct gguf *gguf, const char *key, enum field_need need, bool *value,
              struct error *err);
/* The id of a token; *id is -1 where there is none, as writers say by leaving the key out, by -1,
 * and by 2^32 - 1. */
int gguf_id(const struct gguf *gguf, const char *key, int64_t *id, struct error *err);
/* An array of one of two types: text, or numbers. *value is NULL when the key is absent. */
int gguf_array(const struct gguf *gguf, const char *key, enum field_need need, enum gguf_type type,
               const struct gguf_entry **value, struct error *err);

/* The string at *at, which moves behind it: strings of an array are read one after the other. */
struct gguf_text gguf_next_text(const unsigned char **at);
/* Value i of integers, or of numbers; out of the entry's type. */
int64_t gguf_int_at(const struct gguf_entry *entry, uint64_t i);
double gguf_number_at(const struct gguf_entry *entry, uint64_t i);

bool gguf_type_is_int(enum gguf_type type);
bool gguf_type_is_float(enum gguf_type type);

/* "a string", "an array of F32": for messages. */
const char *gguf_kind(const struct gguf_entry *entry, char text[40]);

#endif
