/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/safetensors.h"

#include "tests/unit/checkpoint.h"

#include <unistd.h>

/* A file: the length of header, header, then data_bytes bytes counting up. */
static unsigned char *build(const char *header, size_t data_bytes, size_t *size)
{
    uint64_t length = strlen(header);
    *size = 8 + (size_t)length + data_bytes;
    unsigned char *bytes = malloc(*size);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, (size_t)length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + (size_t)length + i] = (unsigned char)i;
    return bytes;
}

static void expect_bytes(const char *what, const void *bytes, size_t size, const char *message)
{
    struct tensors *file;
    struct error err = ERROR_INIT;
    int result = safetensors_load(&file, bytes, size, "f", &err);
    if (message) {
        cr_expect(result == -1, "%s: accepted", what);
        cr_expect_str_eq(err.message, message, "%s:\n got %s\nwant %s", what, err.message, message);
    } else {
        cr_expect(result == 0, "%s: %s", what, err.message);
    }
    tensors_close(file);
}

Test(safetensors, headers)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *message; /* NULL: accepted */
    } cases[] = {
        {"{}", 0, NULL},
        {"{}       ", 0, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[0,0]}}", 0, NULL},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         7, NULL},
        {"[]", 0, "f: header: expected JSON that begins with {"},
        {" {}", 0, "f: header: expected JSON that begins with {"},
        {"{", 0, "f: header: line 1, column 1 (byte 1): string or '}' expected near end of file"},
        {"{\"\xff\":1}", 0,
         "f: header: line 1, column 2 (byte 2): unable to decode byte 0xff near '\"'"},
        {"{\"__metadata__\":null}", 0, NULL},
        {"{\"__metadata__\":[]}", 0, "f: __metadata__: expected an object, got a list"},
        {"{\"__metadata__\":{\"n\":1}}", 0,
         "f: __metadata__: \"n\": expected a string, got a number"},
        {"{\"a\":7}", 0, "f: tensor \"a\": expected an object, got a number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":0}}", 4,
         "f: tensor \"a\": unknown key \"x\" (known: dtype, shape, data_offsets)"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4,
         "f: tensor \"a\": dtype: expected a string, got nothing"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
         "f: tensor \"a\": unknown dtype \"F4\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4,
         "f: tensor \"a\": shape: expected a list, got a number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
         "f: tensor \"a\": shape[0]: expected an integer >= 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4,
         "f: tensor \"a\": shape[0]: expected an integer >= 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         "f: tensor \"a\": shape: expected at most 8 dimensions, got 9"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "f: tensor \"a\": shape [4294967296, 4294967296] overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         "f: tensor \"a\": shape [4611686018427387904] overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
         "f: tensor \"a\": data_offsets: expected two integers, got a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 4,
         "f: tensor \"a\": data_offsets [4, 8] are not inside the file's 4 bytes of data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
         "f: tensor \"a\": data_offsets [4, 0] are not inside the file's 4 bytes of data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4,
         "f: tensor \"a\": data_offsets [-4, 0] are not inside the file's 4 bytes of data"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[0,2]}}", 4,
         "f: tensor \"a\": data_offsets: expected 4 bytes for F16 [1, 2], got 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5,
         "f: expected 4 bytes of data, as its tensors cover, got 5"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 5,
         "f: tensor \"a\": starts at byte 1 of the data, but 0 is the first that no tensor has: no "
         "holes are allowed"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, "f: tensor \"b\": its data overlaps that of \"a\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "f: header: line 1, column 56 (byte 56): duplicate object key near '\"a\"'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size;
        unsigned char *bytes = build(cases[i].header, cases[i].data_bytes, &size);
        expect_bytes(cases[i].header, bytes, size, cases[i].message);
        free(bytes);
    }
}

Test(safetensors, lengths)
{
    static const unsigned char huge[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    static const unsigned char zero[16] = {0};
    expect_bytes("nothing", zero, 0, "f: expected at least 8 bytes (the header's length), got 0");
    expect_bytes("short", zero, 7, "f: expected at least 8 bytes (the header's length), got 7");
    expect_bytes("no header", zero, 16, "f: header: expected JSON that begins with {");
    expect_bytes("huge", huge, 16,
                 "f: the header claims 18446744073709551615 bytes, but the file has only 8 left "
                 "(truncated, or not a safetensors file)");
}

Test(safetensors, every_truncation_is_refused)
{
    size_t size;
    struct parts parts = golden_parts("t5");
    char *bytes = parts_write(&parts, 0, &size);
    expect_bytes("whole", bytes, size, NULL);
    for (size_t cut = 0; cut < size; cut += cut < 4096 ? 1 : 997) {
        char *copy = malloc(cut + 1); /* so that a sanitizer sees reads beyond it */
        memcpy(copy, bytes, cut);
        struct tensors *file;
        struct error err = ERROR_INIT;
        cr_expect(safetensors_load(&file, copy, cut, "f", &err) == -1, "%zu bytes accepted", cut);
        cr_expect(strncmp(err.message, "f: ", 3) == 0, "%s", err.message);
        free(copy);
    }
    free(bytes);
    parts_free(&parts);
}

Test(safetensors, contents)
{
    size_t size;
    unsigned char *bytes = build("{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                                 7, &size);
    struct tensors *file;
    struct error err = ERROR_INIT;
    cr_assert(safetensors_load(&file, bytes, size, "f", &err) == 0, "%s", err.message);
    cr_expect_eq(tensors_count(file), 2);
    cr_expect_eq(tensors_file_bytes(file), 0, "of mapped files only");
    cr_expect_str_eq(tensors_at(file, 0)->name, "a");
    const struct tensor *b = tensors_find(file, "b");
    cr_assert(b);
    cr_expect(b->rank == 1 && b->shape[0] == 3 && b->bytes == 3 && b->elements == 3);
    cr_expect(b->data[0] == 4 && b->data[2] == 6);
    cr_expect_null(tensors_find(file, "c"));
    tensors_close(file);
    free(bytes);
}

static const char one[] = "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";

static void write_shard(const char *directory, const char *name, const char *tensor)
{
    char header[200];
    size_t size;
    snprintf(header, sizeof header, one, tensor);
    unsigned char *bytes = build(header, 2, &size);
    write_whole(directory, name, bytes, size);
    free(bytes);
}

Test(safetensors, shards)
{
    static const struct {
        const char *index;
        const char *message; /* NULL: accepted */
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", NULL},
        {"{\"metadata\":{\"total_size\":4},\"weight_map\":{\"a\":\"1.safetensors\","
         "\"b\":\"2.safetensors\"}}",
         NULL},
        {"{\"weight_map\":{\"a\":\"1.safetensors\"}}", NULL},
        {"{}", "model.safetensors.index.json: weight_map: expected an object, got nothing"},
        {"{\"weight_map\":{\"a\":3}}",
         "model.safetensors.index.json: weight_map: \"a\": expected the name of a file in this "
         "directory, got a number"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}",
         "model.safetensors.index.json: weight_map: \"a\": expected the name of a file in this "
         "directory, got ../1.safetensors"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
         "model.safetensors.index.json: weight_map: \"a\": expected the name of a file in this "
         "directory, got /etc/passwd"},
        {"{\"weight_map\":{\"a\":\"..\"}}",
         "model.safetensors.index.json: weight_map: \"a\": expected the name of a file in this "
         "directory, got .."},
        {"{\"weight_map\":{\"a\":\"\"}}",
         "model.safetensors.index.json: weight_map: \"a\": expected the name of a file in this "
         "directory, got "},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\"}}",
         "model.safetensors.index.json: weight_map: tensor \"b\" is not in 1.safetensors"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}",
         "tensor \"a\" is both in 1.safetensors and in 3.safetensors"},
        {"{\"weight_map\":{\"x\":\"1.safetensors\"}}",
         "model.safetensors.index.json: weight_map: tensor \"x\" is not in 1.safetensors"},
        {"{\"weight_map\":{\"a\":\"4.safetensors\"}}",
         "4.safetensors: cannot open: No such file or "
         "directory"},
    };
    char directory[] = "/tmp/regla-shards-XXXXXX";
    cr_assert(mkdtemp(directory));
    write_shard(directory, "1.safetensors", "a");
    write_shard(directory, "2.safetensors", "b");
    write_shard(directory, "3.safetensors", "a");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_whole(directory, "model.safetensors.index.json", cases[i].index,
                    strlen(cases[i].index));
        struct tensors *file;
        struct error err = ERROR_INIT;
        int result = safetensors_open(&file, directory, &err);
        cr_expect_eq(result, cases[i].message ? -1 : 0, "%s: %s", cases[i].index, err.message);
        if (cases[i].message) /* the last is prefixed by the directory, made up anew each time */
            cr_expect_str_eq(err.message + (err.message[0] == '/' ? strlen(directory) + 1 : 0),
                             cases[i].message);
        tensors_close(file);
    }
    struct error err = ERROR_INIT;
    struct tensors *file;
    write_shard(directory, "model.safetensors", "only");
    cr_assert(safetensors_open(&file, directory, &err) == 0, "%s", err.message);
    cr_expect(tensors_count(file) == 1 && tensors_find(file, "only"),
              "a single file goes before an index");
    tensors_close(file);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_expect_eq(system(command), 0);
}

Test(safetensors, a_tensor_missing_from_the_index_is_read_with_a_warning)
{
    char directory[] = "/tmp/regla-shards-XXXXXX";
    cr_assert(mkdtemp(directory));
    static const char index[] = "{\"weight_map\":{\"a\":\"s\"}}";
    size_t size;
    unsigned char *bytes = build("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                                 2, &size);
    write_whole(directory, "s", bytes, size);
    write_whole(directory, "model.safetensors.index.json", index, strlen(index));
    struct error err = ERROR_INIT;
    struct tensors *file;
    cr_assert(safetensors_open(&file, directory, &err) == 0, "%s", err.message);
    cr_expect(tensors_count(file) == 2 && tensors_find(file, "b"));
    cr_expect_str_eq(warnings_at(tensors_warnings(file), 0),
                     "s: tensor \"b\" is not in the weight_map of model.safetensors.index.json: "
                     "read as if in it");
    tensors_close(file);
    free(bytes);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_expect_eq(system(command), 0);
}
