/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files: the header and its damages, blocks of numbers, split files, and models that compute
 * what the folder of the same model does. The files are make_gguf_fixtures.py's. */
#include "engine/engine.h"
#include "engine/model/gguf_tensors.h"
#include "engine/model/model_load.h"
#include "engine/model/quantized.h"
#include "engine/model/safetensors.h"
#include "engine/ops/packing.h"
#include "lib/base/half.h"

#include "tests/unit/gguf_models.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

/* Where the parts of the file below begin. */
enum {
    VERSION = 4,
    TENSORS = 8,
    KEYS = 16,
    KEY = 24,          /* the length of "general.alignment" */
    ALIGNMENT = 53,    /* its value */
    ARRAY_LENGTH = 57, /* of the key "a" */
    ARRAY_KEY = 65,    /* its letter */
    ARRAY = 66,        /* its type */
    ELEMENT = 70,      /* the type of its values */
    ARRAY_COUNT = 74,  /* of them */
    SECOND_TEXT = 91,  /* the length of the second */
    BOOL_KEY = 109,    /* the letter of "b" */
    BOOL = 114,        /* its value */
    NAME = 115,        /* the length of "t" */
    RANK = 124,
    DIMENSION = 128,
    TYPE = 144,
    OFFSET = 148,
    SECOND_NAME = 164, /* the letter of "u" */
    SECOND_DIMENSION = 169,
    SECOND_TYPE = 177,
    SECOND_OFFSET = 181,
    DATA_START = 192,
    WHOLE = 288,
};

static void put(unsigned char **at, const void *bytes, size_t size)
{
    memcpy(*at, bytes, size);
    *at += size;
}

static void put_number(unsigned char **at, uint64_t value, size_t size)
{
    put(at, &value, size);
}

static void put_text(unsigned char **at, const char *text)
{
    put_number(at, strlen(text), 8);
    put(at, text, strlen(text));
}

/* Three keys, the tensor t of [2, 4] in F32 and u of [32] in Q8_0. */
static void build(unsigned char bytes[WHOLE])
{
    unsigned char *at = bytes;
    memset(bytes, 0, WHOLE);
    put(&at, "GGUF", 4);
    put_number(&at, 3, 4);
    put_number(&at, 2, 8);
    put_number(&at, 3, 8);
    put_text(&at, "general.alignment");
    put_number(&at, GGUF_U32, 4);
    put_number(&at, 32, 4);
    put_text(&at, "a");
    put_number(&at, GGUF_ARRAY, 4);
    put_number(&at, GGUF_STRING, 4);
    put_number(&at, 2, 8);
    put_text(&at, "x");
    put_text(&at, "yz");
    put_text(&at, "b");
    put_number(&at, GGUF_BOOL, 4);
    put_number(&at, 1, 1);
    put_text(&at, "t");
    put_number(&at, 2, 4);
    put_number(&at, 4, 8);
    put_number(&at, 2, 8);
    put_number(&at, 0, 4); /* F32 */
    put_number(&at, 0, 8);
    put_text(&at, "u");
    put_number(&at, 1, 4);
    put_number(&at, 32, 8);
    put_number(&at, 8, 4); /* Q8_0 */
    put_number(&at, 32, 8);
    cr_assert_eq(at - bytes, 189);
}

static void expect_load(const char *what, const void *bytes, size_t size, const char *message)
{
    struct tensors *tensors;
    struct gguf gguf;
    struct error err = ERROR_INIT;
    int result = gguf_tensors_load(&tensors, &gguf, bytes, size, "f", &err);
    cr_expect_eq(result, message ? -1 : 0, "%s: %s", what, err.message);
    if (message)
        cr_expect_str_eq(err.message, message, "%s:\n got %s\nwant %s", what, err.message, message);
    if (result == 0)
        gguf_clear(&gguf);
    tensors_close(tensors);
}

Test(gguf, contents)
{
    unsigned char bytes[WHOLE];
    struct tensors *tensors;
    struct gguf gguf;
    struct error err = ERROR_INIT;
    build(bytes);
    cr_assert(gguf_tensors_load(&tensors, &gguf, bytes, WHOLE, "f", &err) == 0, "%s", err.message);
    const struct gguf_entry *array;
    cr_assert(gguf_array(&gguf, "a", FIELD_REQUIRED, GGUF_STRING, &array, &err) == 0);
    const unsigned char *at = array->data;
    cr_expect_eq(array->count, 2);
    cr_expect_eq(gguf_next_text(&at).length, 1);
    struct gguf_text text = gguf_next_text(&at);
    cr_expect(text.length == 2 && memcmp(text.bytes, "yz", 2) == 0);
    bool flag = false;
    cr_expect(gguf_bool(&gguf, "b", FIELD_REQUIRED, &flag, &err) == 0 && flag);
    cr_expect(gguf_bool(&gguf, "a", FIELD_REQUIRED, &flag, &err) == -1);
    cr_expect_str_eq(err.message, "f: a: expected a BOOL, got an array of STRING");
    const struct tensor *t = tensors_find(tensors, "t"), *u = tensors_find(tensors, "u");
    cr_assert(t && u && tensors_count(tensors) == 2);
    cr_expect(t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 4 && t->dtype == TENSOR_F32);
    cr_expect(t->data == bytes + DATA_START && t->bytes == 32 && t->elements == 8);
    cr_expect(u->dtype == TENSOR_Q8_0 && u->bytes == 34 && u->data == bytes + DATA_START + 32);
    gguf_clear(&gguf);
    tensors_close(tensors);
}

Test(gguf, damages)
{
    static const struct {
        size_t at, size;
        uint64_t value;
        const char *message; /* NULL: accepted */
    } cases[] = {
        {0, 1, 'g', "f: expected a file that begins with GGUF"},
        {VERSION, 4, 2, NULL},
        {VERSION, 4, 1, "f: version: expected 2 or 3, got 1"},
        {VERSION, 4, 4, "f: version: expected 2 or 3, got 4"},
        {VERSION, 4, 0x03000000,
         "f: big-endian files are not supported: expected a little-endian one"},
        {TENSORS, 8, 1000,
         "f: byte 115: expected 1000 tensors, got 173 bytes until the file's end"},
        {TENSORS, 8, UINT64_MAX,
         "f: byte 115: expected 18446744073709551615 tensors, got 173 bytes until the file's end"},
        {KEYS, 8, UINT64_MAX,
         "f: byte 24: expected 18446744073709551615 keys, got 264 bytes until the file's end"},
        {KEY, 8, 0, "f: byte 32: a key: expected 1 to 65535 bytes without NUL, got 0 bytes"},
        {KEY, 8, UINT64_MAX,
         "f: byte 32: a key: expected a string of 18446744073709551615 bytes, got 256 until the "
         "file's end"},
        {KEY + 9, 1, 0, "f: byte 49: a key: expected 1 to 65535 bytes without NUL, got 17 bytes"},
        {ALIGNMENT, 4, 64,
         "f: tensor \"u\": expected it at byte 64 of the data, where the tensor before it ends, "
         "got "
         "32"},
        {ALIGNMENT, 4, 0, "f: general.alignment: expected an integer in [1, 1048576], got 0"},
        {ALIGNMENT, 4, 24, "f: general.alignment: expected a power of two, got 24"},
        {ALIGNMENT - 4, 4, GGUF_F32, "f: general.alignment: expected an integer, got F32"},
        {ARRAY, 4, 13, "f: byte 70: a: expected a type of 0 to 12, got 13"},
        {ELEMENT, 4, 99, "f: byte 74: a: expected a type of 0 to 12, got 99"},
        {ELEMENT, 4, GGUF_ARRAY, "f: byte 82: a: arrays of arrays are not supported"},
        {ARRAY_COUNT, 8, UINT64_MAX,
         "f: byte 82: a: expected 18446744073709551615 values of STRING, got 206 bytes until the "
         "file's end"},
        {SECOND_TEXT, 8, 1 << 20,
         "f: byte 99: a: expected a string of 1048576 bytes, got 189 until the file's end"},
        {BOOL, 1, 2, "f: byte 115: b: expected a BOOL of 0 or 1, got 2"},
        {BOOL_KEY, 1, 'a', "f: a: the key is there twice"},
        {NAME, 8, 65,
         "f: byte 188: a tensor's name: expected 1 to 64 bytes without NUL, got 65 bytes"},
        {RANK, 4, 0, "f: byte 128: tensor \"t\": expected 1 to 4 dimensions, got 0"},
        {RANK, 4, 5, "f: byte 128: tensor \"t\": expected 1 to 4 dimensions, got 5"},
        {DIMENSION, 8, 0, "f: byte 136: tensor \"t\": expected a dimension of 1 or more, got 0"},
        {DIMENSION, 8, UINT64_MAX,
         "f: byte 136: tensor \"t\": expected a dimension of 1 or more, got 18446744073709551615"},
        {DIMENSION, 8, INT64_MAX, "f: tensor \"t\": shape [2, 9223372036854775807] overflows"},
        {DIMENSION, 8, 5,
         "f: tensor \"u\": expected it at byte 64 of the data, where the tensor before it ends, "
         "got "
         "32"},
        {TYPE, 4, 10,
         "f: tensor \"t\": type Q2_K is not supported (known: F32, F16, BF16, F64, Q8_0, Q4_0, "
         "Q4_1, "
         "Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4, I8, I16, I32, I64)"},
        {TYPE, 4, 4,
         "f: tensor \"t\": unknown type 4 (known: F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, "
         "Q5_1, "
         "Q4_K, Q5_K, Q6_K, MXFP4, I8, I16, I32, I64)"},
        {TYPE, 4, 2,
         "f: tensor \"t\": expected rows of a multiple of 32 numbers for Q4_0, got shape [2, 4]"},
        {OFFSET, 8, 32,
         "f: tensor \"t\": expected it at byte 0 of the data, where the tensor before it ends, got "
         "32"},
        {SECOND_NAME, 1, 't', "tensor \"t\" is both in f and in f"},
        {SECOND_TYPE, 4, 12,
         "f: tensor \"u\": expected rows of a multiple of 256 numbers for Q4_K, got shape [32]"},
        {SECOND_DIMENSION, 8, 96,
         "f: tensor \"u\": expected 102 bytes from byte 32 of the data on for Q8_0 [96], but the "
         "file "
         "has only 96 bytes of data"},
        {SECOND_OFFSET, 8, 0,
         "f: tensor \"u\": expected it at byte 32 of the data, where the tensor before it ends, "
         "got "
         "0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char *bytes = malloc(WHOLE); /* so that a sanitizer sees reads beyond it */
        char what[80];
        build(bytes);
        memcpy(bytes + cases[i].at, &cases[i].value, cases[i].size);
        snprintf(what, sizeof what, "%" PRIu64 " at byte %zu", cases[i].value, cases[i].at);
        expect_load(what, bytes, WHOLE, cases[i].message);
        free(bytes);
    }
}

Test(gguf, every_truncation_is_refused)
{
    unsigned char bytes[WHOLE + 64];
    build(bytes);
    memset(bytes + WHOLE, 0, 64);
    for (size_t cut = 0; cut < WHOLE - 30; cut++) { /* the last bytes are padding */
        unsigned char *copy = malloc(cut + 1);
        struct tensors *tensors;
        struct gguf gguf;
        struct error err = ERROR_INIT;
        memcpy(copy, bytes, cut);
        cr_expect(gguf_tensors_load(&tensors, &gguf, copy, cut, "f", &err) == -1,
                  "%zu bytes accepted", cut);
        cr_expect(strncmp(err.message, "f: ", 3) == 0, "%s", err.message);
        free(copy);
    }
    expect_load("no padding", bytes, WHOLE - 30, NULL);
    expect_load("whole", bytes, WHOLE, NULL);
    expect_load("more", bytes, WHOLE + 32,
                "f: expected 66 bytes of data, as its tensors cover, got 128");
}

static uint64_t fnv(const void *data, size_t length)
{
    const unsigned char *bytes = data;
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001B3u;
    return hash;
}

static void check_numbers(struct tensors *tensors, const char *line)
{
    char name[80], type[16];
    uint64_t hash;
    cr_assert_eq(sscanf(line, "%79s %15s %" SCNx64, name, type, &hash), 3);
    const struct tensor *tensor = tensors_find(tensors, name);
    cr_assert(tensor, "%s", name);
    cr_expect_str_eq(tensor_dtype_name(tensor->dtype), type);
    const enum dtype dtype = (enum dtype)tensor->dtype;
    float *all = malloc(tensor->elements * sizeof *all), some[77];
    quantized_numbers(dtype, tensor->data, 0, (int64_t)tensor->elements, all);
    cr_expect_eq(fnv(all, tensor->elements * sizeof *all), hash, "%s %s: other numbers", name,
                 type);
    for (size_t first = 0, n = 1; first < tensor->elements; first += n, n = 1 + (n + 13) % 77) {
        n = n < tensor->elements - first ? n : tensor->elements - first;
        quantized_numbers(dtype, tensor->data, (int64_t)first, (int64_t)n, some);
        cr_expect(memcmp(some, all + first, n * sizeof *some) == 0, "%s: %zu from %zu on", name, n,
                  first);
    }
    if (dtype_block(dtype) > 1)
        cr_expect(quantized_finite(dtype, tensor->data, 0, (int64_t)tensor->elements));
    free(all);
}

Test(gguf, numbers_are_the_packages)
{
    struct tensors *tensors;
    struct gguf gguf;
    struct error err = ERROR_INIT;
    cr_assert(gguf_tensors_open(&tensors, &gguf, DATA, "quantized.gguf", &err) == 0, "%s",
              err.message);
    size_t size, lines = 0;
    char *expected = read_whole(DATA "quantized.expected", &size);
    for (char *line = strtok(expected, "\n"); line; line = strtok(NULL, "\n"), lines++)
        check_numbers(tensors, line);
    cr_expect_eq(lines, tensors_count(tensors));
    free(expected);
    gguf_clear(&gguf);
    tensors_close(tensors);
}

/* How far a number of integers may be from the file's: of Q4_K f16 rounds scale and minimum. */
static double kept_bound(enum dtype dtype, const struct quantized_integers *w)
{
    const double least = 0x1p-25; /* half of f16's least step */
    const double scale = fabs((double)f16_to_f32(w->scale)) * 0x1p-11 + least;
    const double minimum = fabs((double)f16_to_f32(w->minimum)) * 0x1p-11 + least;
    return dtype == DTYPE_Q4_K ? 15 * scale + minimum : 0.0;
}

/* Every weight of a matrix, as packed in the format of its type, is the file's number. */
static int64_t check_kept(const struct tensor *tensor)
{
    const enum dtype dtype = (enum dtype)tensor->dtype;
    const enum weight_format format = packing_dtype_format(dtype);
    const int64_t cols = tensor->shape[tensor->rank - 1];
    const int64_t rows = (int64_t)tensor->elements / cols;
    const struct matrix matrix = {.rows = rows, .cols = cols, .dtype = dtype, .data = tensor->data};
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < cols; k += PACKING_BLOCK) {
            struct quantized_integers w;
            float numbers[PACKING_BLOCK];
            quantized_numbers(dtype, tensor->data, row * cols + k, PACKING_BLOCK, numbers);
            cr_assert(packing_blocks(format, &matrix, row, 1, k, PACKING_BLOCK, &w));
            for (int i = 0; i < PACKING_BLOCK; i++) {
                const double got = packing_quant_value(format, &w, i);
                cr_assert(fabs(got - numbers[i]) <= kept_bound(dtype, &w),
                          "%s, row %" PRId64 ", %" PRId64 ": expected %.9g, got %.9g", tensor->name,
                          row, k + i, (double)numbers[i], got);
            }
        }
    return rows * cols;
}

Test(gguf, blocks_stay_as_the_file_has_them)
{
    static const enum dtype kept[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,
                                      DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K};
    int64_t numbers[NUM_DTYPES] = {0};
    struct tensors *tensors;
    struct gguf gguf;
    cr_assert(gguf_tensors_open(&tensors, &gguf, DATA, "quantized.gguf", NULL) == 0);
    for (size_t i = 0; i < tensors_count(tensors); i++) {
        const struct tensor *tensor = tensors_at(tensors, i);
        const enum dtype dtype = (enum dtype)tensor->dtype;
        if (tensor_dtype_of_matrices(tensor->dtype) &&
            weight_format_block(packing_dtype_format(dtype)) > 1)
            numbers[dtype] += check_kept(tensor);
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        cr_expect(numbers[kept[i]] > 0, "no %s", dtype_name(kept[i]));
    gguf_clear(&gguf);
    tensors_close(tensors);
}

/* What f16 cannot hold is not kept: -8 d of Q4_0, and d s of Q4_K. */
Test(gguf, blocks_too_large_for_f16_are_not_kept)
{
    unsigned char block[144] = {[1] = 0x73}; /* d = 14,336 */
    struct quantized_integers w;
    cr_expect(!quantized_integers(DTYPE_Q4_0, block, 0, &w));
    cr_expect(quantized_integers(DTYPE_Q4_1, block, 0, &w));
    block[4] = 63; /* s of the first group */
    cr_expect(!quantized_integers(DTYPE_Q4_K, block, 0, &w));
    cr_expect(quantized_integers(DTYPE_Q4_K, block, 32, &w));
    cr_expect(!quantized_integers(DTYPE_Q5_K, block, 0, &w) &&
              !quantized_integers(DTYPE_Q5_1, block, 0, &w));
}

/* Matrices that are packed as one keep a format that all have; else they are rounded once, to f16.
 */
Test(gguf, matrices_of_several_types_are_f16)
{
    const struct matrix parts[] = {{.rows = 1, .cols = 256, .dtype = DTYPE_Q4_K},
                                   {.rows = 1, .cols = 256, .dtype = DTYPE_Q4_0},
                                   {.rows = 1, .cols = 256, .dtype = DTYPE_Q6_K},
                                   {.rows = 1, .cols = 256, .dtype = DTYPE_F32}};
    cr_expect(packing_format(parts, 2) == WEIGHTS_Q4);
    cr_expect(packing_format(parts, 3) == WEIGHTS_F16);
    cr_expect(packing_format(parts, 4) == WEIGHTS_F32);
    cr_expect(packing_format(parts + 2, 1) == WEIGHTS_Q6);
}

/* The f16 scale of a block: infinite, NaN, and the largest that is not. */
Test(gguf, scales_must_be_finite)
{
    static const struct {
        enum dtype dtype;
        size_t at; /* of the last f16 number of a block */
    } cases[] = {{DTYPE_Q4_0, 0}, {DTYPE_Q4_1, 2}, {DTYPE_Q5_0, 0}, {DTYPE_Q5_1, 2},
                 {DTYPE_Q8_0, 0}, {DTYPE_Q4_K, 2}, {DTYPE_Q5_K, 2}, {DTYPE_Q6_K, 208}};
    static const uint16_t values[] = {0x7c00, 0x7e00, 0xfc00, 0x7bff};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t v = 0; v < 4; v++) {
            unsigned char blocks[2 * 256] = {0};
            const int64_t n = (int64_t)dtype_block(cases[i].dtype);
            const size_t size = dtype_size(cases[i].dtype, (size_t)n);
            memcpy(blocks + size + cases[i].at, &values[v], 2);
            cr_expect_eq(quantized_finite(cases[i].dtype, blocks, 0, 2 * n), values[v] == 0x7bff);
            cr_expect(quantized_finite(cases[i].dtype, blocks, 0, n), "the block before it");
        }
}

Test(gguf, a_file_computes_what_its_folder_does)
{
    static const char *const cases[] = {"gpt_neox_tf4", "gpt_neox_tf5", "gpt_neox_tf4_28_buffers"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[512], file[512];
        snprintf(folder, sizeof folder, GOLDEN "%s", cases[i]);
        snprintf(file, sizeof file, GOLDEN "%s/model.gguf", cases[i]);
        struct model *one = open_model(file), *other = open_model(folder);
        cr_expect_str_eq(one->name, "model");
        cr_expect_str_eq(one->directory, folder);
        cr_expect(one->parameters == other->parameters && one->dtype == other->dtype);
        cr_expect(one->eos.count == 1 && one->eos.ids[0] == 0 && one->bos_token_id == 0);
        cr_expect_null(warnings_at(&one->warnings, 0));
        expect_same_logits(cases[i], one, other, WEIGHTS_AUTO);
    }
}

Test(gguf, split_files_are_one_model)
{
    struct model *split = open_model(DATA "split-00001-of-00003.gguf");
    cr_expect_str_eq(split->name, "split-00001-of-00003");
    expect_same_logits("split", split, open_model(GOLDEN "gpt_neox_tf4/model.gguf"), WEIGHTS_AUTO);
}

/* Its tensors as a safetensors file in memory, decoded to F32 and in the model's order. */
static unsigned char *decode_all(const struct model *model, size_t *size)
{
    json_t *header = json_object();
    struct tensors *tensors = model_tensors(model);
    size_t bytes = 0;
    for (size_t i = 0; i < tensors_count(tensors); i++) {
        const struct tensor *tensor = tensors_at(tensors, i);
        json_t *shape = json_array();
        for (int d = 0; d < tensor->rank; d++)
            json_array_append_new(shape, json_integer(tensor->shape[d]));
        const size_t end = bytes + 4 * tensor->elements;
        json_object_set_new(header, tensor->name,
                            json_pack("{ss so s[II]}", "dtype", "F32", "shape", shape,
                                      "data_offsets", (json_int_t)bytes, (json_int_t)end));
        bytes = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t length = strlen(text);
    unsigned char *file = malloc(8 + length + bytes), *at = file;
    put(&at, &length, 8);
    put(&at, text, length);
    for (size_t i = 0; i < tensors_count(tensors); i++) {
        const struct tensor *tensor = tensors_at(tensors, i);
        const int64_t rows = tensor->shape[0], cols = (int64_t)tensor->elements / rows;
        float *row = malloc((size_t)cols * 4);
        for (int64_t r = 0; r < rows; r++) {
            quantized_numbers((enum dtype)tensor->dtype, tensor->data, tensor_row(tensor, r) * cols,
                              cols, row);
            put(&at, row, (size_t)cols * 4);
        }
        free(row);
    }
    *size = (size_t)(at - file);
    free(text);
    json_decref(header);
    return file;
}

Test(gguf, quantized_matrices_compute_as_their_numbers_do)
{
    /* formats in blocks keep those that fit them, which decoded numbers are not */
    for (int format = WEIGHTS_F32; format <= WEIGHTS_F16; format++) {
        struct model *quantized = open_model(DATA "quantized.gguf"), *plain;
        struct error err = ERROR_INIT;
        size_t size, config_length;
        unsigned char *file = decode_all(quantized, &size);
        char *config = read_whole(GOLDEN "gpt_neox/config.json", &config_length);
        cr_assert(model_load(&plain, config, config_length, file, size, &err) == 0, "%s",
                  err.message);
        cr_expect_eq(quantized->parameters, plain->parameters);
        expect_same_logits(weight_format_name((enum weight_format)format), quantized, plain,
                           (enum weight_format)format);
        free(file);
        free(config);
    }
}

/* A golden file with one word in place of another of the same length, at its first place. */
static void expect_changed(const char *from, const char *to, const char *message)
{
    size_t size;
    char *bytes = read_whole(GOLDEN "gpt_neox_tf4/model.gguf", &size);
    replace_word(bytes, size, from, to);
    expect_opened(to, bytes, size, message);
    free(bytes);
}

Test(gguf, metadata_are_followed_or_refused)
{
    expect_changed("token_embd.weight", "token_embd.weight", NULL);
    expect_changed("general.architecture", "general.architectur_",
                   "x.gguf: general.architecture: expected a STRING, got nothing");
    expect_changed("gptneox.context_length", "gptneox.kontext_length",
                   "x.gguf: gptneox.kontext_length: the family does not know this key");
    expect_changed("gptneox.context_length", "fptneox.context_length", NULL);
    expect_changed("gptneox.block_count", "fptneox.block_count",
                   "x.gguf: gptneox.block_count: expected a value, got nothing");
    expect_changed("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight",
                   "x.gguf: tensor \"blk.1.ffn_xx.weight\": the family gptneox has no use for it");
    expect_changed("blk.1.ffn_up.weight", "blk.7.ffn_up.weight",
                   "x.gguf: tensor \"gpt_neox.layers.1.mlp.dense_h_to_4h.weight\": expected shape "
                   "[80, 32], got nothing: the tensor is missing");
    expect_changed("token_embd.weight", "token_embx.weight",
                   "x.gguf: tensor \"token_embd.weight\": expected a matrix, got nothing");
}

Test(gguf, split_files_must_fit_together)
{
    static const struct {
        const char *name; /* opened */
        const char *message;
    } cases[] = {
        {"split-00002-of-00003.gguf",
         "split-00002-of-00003.gguf: expected the first of 3 files, NAME-00001-of-00003.gguf, got "
         "number 2"},
        {"other.gguf",
         "other.gguf: expected the first of 3 files, NAME-00001-of-00003.gguf, got number 1"},
        {"b-00001-of-00003.gguf",
         "b-00002-of-00003.gguf: expected split.no 1 of split.count 3, got 2 of 3"},
        {"c-00001-of-00003.gguf", "cannot open: No such file or directory"},
    };
    static const char *const links[][2] = {
        {"split-00001-of-00003.gguf", "other.gguf"},
        {"split-00001-of-00003.gguf", "b-00001-of-00003.gguf"},
        {"split-00003-of-00003.gguf", "b-00002-of-00003.gguf"},
        {"split-00001-of-00003.gguf", "c-00001-of-00003.gguf"},
        {"split-00002-of-00003.gguf", "split-00002-of-00003.gguf"},
    };
    char directory[] = "/tmp/regla-gguf-XXXXXX", from[512], to[512];
    cr_assert(mkdtemp(directory));
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(from, sizeof from, DATA "%s", links[i][0]);
        snprintf(to, sizeof to, "%s/%s", directory, links[i][1]);
        cr_assert(symlink(from, to) == 0);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *model;
        struct error err = ERROR_INIT;
        snprintf(to, sizeof to, "%s/%s", directory, cases[i].name);
        cr_expect(model_open(&model, to, &err) == -1, "%s", cases[i].name);
        cr_expect(strstr(err.message, cases[i].message), "%s:\n got %s\nwant %s", cases[i].name,
                  err.message, cases[i].message);
    }
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_expect_eq(system(command), 0);
}

/* So that who looks for the first number that is not finite finds it in the block. */
Test(gguf, a_block_of_mxfp4_is_finite_as_a_whole_or_not_at_all)
{
    for (int exponent = 0; exponent < 256; exponent++) {
        unsigned char block[17] = {(unsigned char)exponent, 0x00, 0x01, 0x7f};
        float numbers[32];
        const bool finite = quantized_finite(DTYPE_MXFP4, block, 0, 32);
        quantized_numbers(DTYPE_MXFP4, block, 0, 32, numbers);
        cr_expect(finite == (exponent <= 252), "exponent %d", exponent);
        for (int i = 0; i < 32; i++)
            cr_expect(!!isfinite(numbers[i]) == finite, "exponent %d, number %d", exponent, i);
    }
}
