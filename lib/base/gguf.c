/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/gguf.h"

#include "lib/base/bytes.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_KEY_BYTES = 65535,
    MIN_ENTRY_BYTES = 8 + 4 + 1,              /* an empty key, a type, a byte */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* a name, a rank, a dimension, a type, an offset */
    MAX_ALIGNMENT = 1 << 20,
};

static const struct {
    const char *name;
    size_t bytes; /* of a value; a string has at least those of its length */
} types[GGUF_NUM_TYPES] = {
    [GGUF_U8] = {"U8", 1},       [GGUF_I8] = {"I8", 1},     [GGUF_U16] = {"U16", 2},
    [GGUF_I16] = {"I16", 2},     [GGUF_U32] = {"U32", 4},   [GGUF_I32] = {"I32", 4},
    [GGUF_F32] = {"F32", 4},     [GGUF_BOOL] = {"BOOL", 1}, [GGUF_STRING] = {"STRING", 8},
    [GGUF_U64] = {"U64", 8},     [GGUF_I64] = {"I64", 8},   [GGUF_F64] = {"F64", 8},
    [GGUF_ARRAY] = {"ARRAY", 0},
};

/* The header being read. */
struct reader {
    struct gguf *out;
    const unsigned char *at, *start, *end;
};

static size_t left(const struct reader *r)
{
    return (size_t)(r->end - r->at);
}

static int bad(const struct reader *r, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* An error at the byte where the reader stands. */
static int bad(const struct reader *r, struct error *err, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, ERROR_INVALID, "%s: byte %zu: %s", r->out->file,
                     (size_t)(r->at - r->start), text);
}

/* Goes over n bytes of what. NULL: the file ends before. */
static const unsigned char *take(struct reader *r, size_t n, const char *what, struct error *err)
{
    const unsigned char *at = r->at;
    if (n > left(r)) {
        bad(r, err, "%s: expected %zu bytes, got %zu until the file's end", what, n, left(r));
        return NULL;
    }
    r->at += n;
    return at;
}

static int take_u32(struct reader *r, const char *what, uint32_t *value, struct error *err)
{
    const unsigned char *at = take(r, 4, what, err);
    *value = at ? read_u32(at) : 0;
    return at ? 0 : -1;
}

static int take_u64(struct reader *r, const char *what, uint64_t *value, struct error *err)
{
    const unsigned char *at = take(r, 8, what, err);
    *value = at ? read_u64(at) : 0;
    return at ? 0 : -1;
}

static int take_text(struct reader *r, const char *what, struct gguf_text *text, struct error *err)
{
    uint64_t length;
    if (take_u64(r, what, &length, err) != 0)
        return -1;
    if (length > left(r)) {
        bad(r, err, "%s: expected a string of %" PRIu64 " bytes, got %zu until the file's end",
            what, length, left(r));
        return -1;
    }
    *text = (struct gguf_text){(const char *)r->at, (size_t)length};
    r->at += length;
    return 0;
}

/* A key or a tensor's name: of 1 to most bytes, without a NUL. */
static const char *take_name(struct reader *r, const char *what, size_t most, struct error *err)
{
    struct gguf_text text;
    if (take_text(r, what, &text, err) != 0)
        return NULL;
    if (text.length < 1 || text.length > most || memchr(text.bytes, 0, text.length)) {
        bad(r, err, "%s: expected 1 to %zu bytes without NUL, got %zu bytes", what, most,
            text.length);
        return NULL;
    }
    char *copy = arena_alloc(&r->out->arena, text.length + 1, 1, err);
    if (copy)
        memcpy(copy, text.bytes, text.length);
    return copy;
}

static int take_type(struct reader *r, const char *key, enum gguf_type *type, struct error *err)
{
    uint32_t number;
    if (take_u32(r, key, &number, err) != 0)
        return -1;
    if (number >= GGUF_NUM_TYPES)
        return bad(r, err, "%.60s: expected a type of 0 to %d, got %" PRIu32, key,
                   GGUF_NUM_TYPES - 1, number);
    *type = (enum gguf_type)number;
    return 0;
}

/* Goes over the values of an entry, whose type and count are known. */
static int take_values(struct reader *r, struct gguf_entry *entry, struct error *err)
{
    const size_t size = types[entry->type].bytes;
    if (entry->count > left(r) / size)
        return bad(r, err,
                   "%.60s: expected %" PRIu64 " values of %s, got %zu bytes until the file's end",
                   entry->key, entry->count, types[entry->type].name, left(r));
    entry->data = r->at;
    if (entry->type != GGUF_STRING) {
        r->at += entry->count * size;
        for (uint64_t i = 0; entry->type == GGUF_BOOL && i < entry->count; i++)
            if (entry->data[i] > 1)
                return bad(r, err, "%.60s: expected a BOOL of 0 or 1, got %d", entry->key,
                           entry->data[i]);
        return 0;
    }
    struct gguf_text text;
    for (uint64_t i = 0; i < entry->count; i++)
        if (take_text(r, entry->key, &text, err) != 0)
            return -1;
    return 0;
}

static int take_entry(struct reader *r, struct gguf_entry *entry, struct error *err)
{
    entry->count = 1;
    if (!(entry->key = take_name(r, "a key", MAX_KEY_BYTES, err)) ||
        take_type(r, entry->key, &entry->type, err) != 0)
        return -1;
    if (entry->type == GGUF_ARRAY) {
        entry->array = true;
        if (take_type(r, entry->key, &entry->type, err) != 0 ||
            take_u64(r, entry->key, &entry->count, err) != 0)
            return -1;
        if (entry->type == GGUF_ARRAY)
            return bad(r, err, "%.60s: arrays of arrays are not supported", entry->key);
    }
    return take_values(r, entry, err);
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_entry *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int take_entries(struct reader *r, uint64_t count, struct error *err)
{
    struct gguf *out = r->out;
    if (count > left(r) / MIN_ENTRY_BYTES)
        return bad(r, err, "expected %" PRIu64 " keys, got %zu bytes until the file's end", count,
                   left(r));
    if (!(out->entries = arena_alloc(&out->arena, (size_t)count, sizeof *out->entries, err)))
        return -1;
    for (; out->num_entries < count; out->num_entries++)
        if (take_entry(r, &out->entries[out->num_entries], err) != 0)
            return -1;
    if (count > 0)
        qsort(out->entries, (size_t)count, sizeof *out->entries, by_key);
    for (size_t i = 1; i < count; i++)
        if (strcmp(out->entries[i - 1].key, out->entries[i].key) == 0)
            return error_set(err, ERROR_INVALID, "%s: %.100s: the key is there twice", out->file,
                             out->entries[i].key);
    return 0;
}

static int take_tensor(struct reader *r, struct gguf_tensor *tensor, struct error *err)
{
    uint32_t rank;
    if (!(tensor->name = take_name(r, "a tensor's name", GGUF_MAX_NAME, err)) ||
        take_u32(r, tensor->name, &rank, err) != 0)
        return -1;
    if (rank < 1 || rank > GGUF_MAX_RANK)
        return bad(r, err, "tensor \"%s\": expected 1 to %d dimensions, got %" PRIu32, tensor->name,
                   GGUF_MAX_RANK, rank);
    tensor->rank = (int)rank;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t size;
        if (take_u64(r, tensor->name, &size, err) != 0)
            return -1;
        if (size < 1 || size > INT64_MAX)
            return bad(r, err, "tensor \"%s\": expected a dimension of 1 or more, got %" PRIu64,
                       tensor->name, size);
        tensor->shape[rank - 1 - i] = (int64_t)size;
    }
    return take_u32(r, tensor->name, &tensor->type, err) == 0 &&
                   take_u64(r, tensor->name, &tensor->offset, err) == 0
               ? 0
               : -1;
}

static int take_tensors(struct reader *r, uint64_t count, struct error *err)
{
    struct gguf *out = r->out;
    if (count > left(r) / MIN_TENSOR_BYTES)
        return bad(r, err, "expected %" PRIu64 " tensors, got %zu bytes until the file's end",
                   count, left(r));
    if (!(out->tensors = arena_alloc(&out->arena, (size_t)count, sizeof *out->tensors, err)))
        return -1;
    for (; out->num_tensors < count; out->num_tensors++)
        if (take_tensor(r, &out->tensors[out->num_tensors], err) != 0)
            return -1;
    return 0;
}

static int check_start(struct reader *r, struct error *err)
{
    uint32_t version;
    const unsigned char *magic = take(r, 4, "the file's first bytes", err);
    if (!magic)
        return -1;
    if (memcmp(magic, "GGUF", 4) != 0)
        return error_set(err, ERROR_INVALID, "%s: expected a file that begins with GGUF",
                         r->out->file);
    if (take_u32(r, "the version", &version, err) != 0)
        return -1;
    if ((version & 0xffff) == 0 && version != 0)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: big-endian files are not supported: expected a little-endian one",
                         r->out->file);
    if (version != 2 && version != 3)
        return error_set(err, ERROR_UNSUPPORTED, "%s: version: expected 2 or 3, got %" PRIu32,
                         r->out->file, version);
    return 0;
}

/* The data begin at the next multiple of the alignment. */
static int find_data(struct reader *r, struct error *err)
{
    struct gguf *out = r->out;
    int64_t alignment = GGUF_ALIGNMENT;
    static const char key[] = "general.alignment";
    if (gguf_int(out, key, FIELD_OPTIONAL, 1, MAX_ALIGNMENT, &alignment, err) != 0)
        return -1;
    if ((alignment & (alignment - 1)) != 0)
        return gguf_bad(out, key, err, "expected a power of two, got %" PRId64, alignment);
    out->alignment = (size_t)alignment;
    const size_t header = (size_t)(r->at - r->start), over = header % out->alignment;
    const size_t padding = over > 0 ? out->alignment - over : 0;
    if (padding > left(r) && out->num_tensors > 0)
        return bad(r, err, "expected %zu bytes of padding before the data, got %zu", padding,
                   left(r));
    out->data = padding > left(r) ? r->end : r->at + padding;
    out->data_bytes = (size_t)(r->end - out->data);
    return 0;
}

int gguf_read(struct gguf *gguf, const void *bytes, size_t size, const char *file,
              struct error *err)
{
    static const unsigned char none[1];
    const unsigned char *start = size > 0 ? bytes : none;
    struct reader r = {gguf, start, start, start + size};
    uint64_t tensors, entries;
    *gguf = (struct gguf){.file = file};
    if (!(gguf->file = arena_string(&gguf->arena, file, err)) || check_start(&r, err) != 0 ||
        take_u64(&r, "the number of tensors", &tensors, err) != 0 ||
        take_u64(&r, "the number of keys", &entries, err) != 0 ||
        take_entries(&r, entries, err) != 0 || take_tensors(&r, tensors, err) != 0 ||
        find_data(&r, err) != 0) {
        gguf_clear(gguf);
        return -1;
    }
    return 0;
}

void gguf_clear(struct gguf *gguf)
{
    arena_clear(&gguf->arena);
    *gguf = (struct gguf){0};
}

bool gguf_is_file(const char *path)
{
    char magic[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool found = fd >= 0 && read(fd, magic, sizeof magic) == (ssize_t)sizeof magic &&
                 memcmp(magic, "GGUF", sizeof magic) == 0;
    if (fd >= 0)
        close(fd);
    return found;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), size = strlen(end);
    return length >= size && strcmp(name + length - size, end) == 0;
}

/* A file of a folder that may be the model: not a projector, and of a split model the first. */
static bool is_candidate(const char *name)
{
    const char *of = strstr(name, "-of-");
    const bool later = of && of - name >= 6 && strspn(of - 5, "0123456789") == 5 &&
                       strncmp(of - 5, "00001", 5) != 0;
    return ends_with(name, ".gguf") && strncmp(name, "mmproj", 6) != 0 && !later;
}

/* What a folder has: the first candidate by name, how many there are, and whether a safetensors
 * file is the model. */
struct found {
    char first[256];
    size_t count;
    bool safetensors;
};

static void look(struct found *found, DIR *folder)
{
    const struct dirent *entry;
    *found = (struct found){.count = 0};
    while ((entry = readdir(folder)) != NULL) {
        found->safetensors |= ends_with(entry->d_name, ".safetensors");
        if (is_candidate(entry->d_name) &&
            (found->count++ == 0 || strcmp(entry->d_name, found->first) < 0))
            snprintf(found->first, sizeof found->first, "%s", entry->d_name);
    }
}

int gguf_path(char file[GGUF_PATH_SIZE], const char *path, struct error *err)
{
    struct found found;
    *file = 0;
    if (gguf_is_file(path)) {
        if (snprintf(file, GGUF_PATH_SIZE, "%s", path) < GGUF_PATH_SIZE)
            return 0;
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", path);
    }
    DIR *folder = opendir(path);
    if (!folder)
        return 0; /* whoever opens it says why */
    look(&found, folder);
    closedir(folder);
    if (found.safetensors || found.count == 0)
        return 0;
    if (found.count > 1)
        return error_set(err, ERROR_INVALID,
                         "%s: expected one model, got %zu GGUF files, such as %.80s: name one",
                         path, found.count, found.first);
    if (snprintf(file, GGUF_PATH_SIZE, "%s/%s", path, found.first) < GGUF_PATH_SIZE)
        return 0;
    return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", path);
}

const struct gguf_entry *gguf_find(const struct gguf *gguf, const char *key)
{
    struct gguf_entry wanted = {.key = key};
    return gguf->num_entries == 0
               ? NULL
               : bsearch(&wanted, gguf->entries, gguf->num_entries, sizeof wanted, by_key);
}

int gguf_bad(const struct gguf *gguf, const char *key, struct error *err, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, ERROR_INVALID, "%s: %.100s: %s", gguf->file, key, text);
}

bool gguf_type_is_float(enum gguf_type type)
{
    return type == GGUF_F32 || type == GGUF_F64;
}

bool gguf_type_is_int(enum gguf_type type)
{
    return !gguf_type_is_float(type) && type != GGUF_BOOL && type != GGUF_STRING &&
           type != GGUF_ARRAY;
}

const char *gguf_kind(const struct gguf_entry *entry, char text[40])
{
    if (!entry)
        return "nothing";
    snprintf(text, 40, "%s%s", entry->array ? "an array of " : "", types[entry->type].name);
    return text;
}

/* *entry: the key's, if `fits` is true of its type; NULL: there is none, and none is needed. */
static int find_value(const struct gguf *gguf, const char *key, enum field_need need, bool array,
                      bool (*fits)(enum gguf_type), const char *expected,
                      const struct gguf_entry **entry, struct error *err)
{
    char got[40];
    *entry = gguf_find(gguf, key);
    if (*entry ? (*entry)->array == array && fits((*entry)->type) : need != FIELD_REQUIRED)
        return 0;
    return gguf_bad(gguf, key, err, "expected %s, got %s", expected, gguf_kind(*entry, got));
}

static bool is_text(enum gguf_type type)
{
    return type == GGUF_STRING;
}

static bool is_bool(enum gguf_type type)
{
    return type == GGUF_BOOL;
}

int gguf_text(const struct gguf *gguf, const char *key, enum field_need need,
              struct gguf_text *value, struct error *err)
{
    const struct gguf_entry *entry;
    if (find_value(gguf, key, need, false, is_text, "a STRING", &entry, err) != 0)
        return -1;
    const unsigned char *at = entry ? entry->data : NULL;
    if (entry)
        *value = gguf_next_text(&at);
    return 0;
}

int gguf_bool(const struct gguf *gguf, const char *key, enum field_need need, bool *value,
              struct error *err)
{
    const struct gguf_entry *entry;
    if (find_value(gguf, key, need, false, is_bool, "a BOOL", &entry, err) != 0)
        return -1;
    if (entry)
        *value = entry->data[0] != 0;
    return 0;
}

int gguf_int(const struct gguf *gguf, const char *key, enum field_need need, int64_t min,
             int64_t max, int64_t *value, struct error *err)
{
    const struct gguf_entry *entry;
    if (find_value(gguf, key, need, false, gguf_type_is_int, "an integer", &entry, err) != 0)
        return -1;
    if (!entry)
        return 0;
    int64_t got = gguf_int_at(entry, 0);
    if (got < min || got > max)
        return gguf_bad(gguf, key, err,
                        "expected an integer in [%" PRId64 ", %" PRId64 "], got %" PRId64, min, max,
                        got);
    *value = got;
    return 0;
}

int gguf_id(const struct gguf *gguf, const char *key, int64_t *id, struct error *err)
{
    *id = -1;
    if (gguf_int(gguf, key, FIELD_OPTIONAL, -1, INT64_MAX, id, err) != 0)
        return -1;
    if (*id == UINT32_MAX || *id == INT64_MAX) /* -1 as a U32 and as a U64 */
        *id = -1;
    return 0;
}

int gguf_array(const struct gguf *gguf, const char *key, enum field_need need, enum gguf_type type,
               const struct gguf_entry **value, struct error *err)
{
    if (type == GGUF_STRING)
        return find_value(gguf, key, need, true, is_text, "an array of STRING", value, err);
    if (gguf_type_is_float(type))
        return find_value(gguf, key, need, true, gguf_type_is_float, "an array of F32", value, err);
    return find_value(gguf, key, need, true, gguf_type_is_int, "an array of integers", value, err);
}

struct gguf_text gguf_next_text(const unsigned char **at)
{
    struct gguf_text text = {(const char *)*at + 8, (size_t)read_u64(*at)};
    *at += 8 + text.length;
    return text;
}

int64_t gguf_int_at(const struct gguf_entry *entry, uint64_t i)
{
    const unsigned char *at = entry->data + i * types[entry->type].bytes;
    uint64_t large;
    switch (entry->type) {
    case GGUF_U8:
        return at[0];
    case GGUF_I8:
        return (int8_t)at[0];
    case GGUF_U16:
        return read_u16(at);
    case GGUF_I16:
        return (int16_t)read_u16(at);
    case GGUF_U32:
        return read_u32(at);
    case GGUF_I32:
        return (int32_t)read_u32(at);
    case GGUF_U64:
        large = read_u64(at);
        return large > INT64_MAX ? INT64_MAX : (int64_t)large;
    default:
        return (int64_t)read_u64(at);
    }
}

double gguf_number_at(const struct gguf_entry *entry, uint64_t i)
{
    const unsigned char *at = entry->data + i * types[entry->type].bytes;
    if (entry->type == GGUF_F32)
        return (double)float_of_bits(read_u32(at));
    const uint64_t bits = read_u64(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
