/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"
#include "engine/ops/packing.h"
#include "lib/base/arena.h"
#include "lib/base/bytes.h"
#include "lib/base/half.h"

#include "tests/unit/checkpoint.h"

#include <math.h>

Test(weights, arena)
{
    struct arena arena = {0};
    struct error err = ERROR_INIT;
    unsigned char *last = NULL;
    for (size_t size = 0; size < 200000; size = 3 * size + 1) {
        unsigned char *at = arena_alloc(&arena, size, 1, &err);
        cr_assert(at && (uintptr_t)at % 64 == 0);
        for (size_t i = 0; i < size; i++)
            cr_assert_eq(at[i], 0);
        memset(at, 0xFF, size);
        if (last)
            cr_expect_eq(last[0], 0xFF);
        last = size > 0 ? at : last;
    }
    cr_expect_null(arena_alloc(&arena, SIZE_MAX / 2, 4, &err));
    cr_expect_eq(err.code, ERROR_NO_MEMORY);
    arena_clear(&arena);
}

/* The same numbers as F32, F16 and BF16 become the same floats. */
Test(weights, dtypes)
{
    static const char header[] =
        "{\"f32\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
        "\"f16\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[12,18]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[18,24]},"
        "\"i64\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[24,48]}}";
    static const float f32[] = {0.5f, -1.5f, 96.0f};
    static const uint16_t f16[] = {0x3800, 0xBE00, 0x5600}, bf16[] = {0x3F00, 0xBFC0, 0x42C0};
    static const int64_t i64[] = {2, 0, 1};
    unsigned char bytes[8 + sizeof header - 1 + 48];
    uint64_t length = sizeof header - 1;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, f32, 12);
    memcpy(bytes + 20 + length, f16, 6);
    memcpy(bytes + 26 + length, bf16, 6);
    memcpy(bytes + 32 + length, i64, 24);
    struct arena arena = {0};
    struct error err = ERROR_INIT;
    struct weights weights = {.arena = &arena};
    cr_assert(safetensors_load(&weights.file, bytes, sizeof bytes, "f", &err) == 0, "%s",
              err.message);
    static const char *const names[] = {"f32", "f16", "bf16"};
    for (int n = 0; n < 3; n++) {
        const float *values;
        int64_t any = WEIGHT_ANY;
        cr_assert(weights_floats(&weights, names[n], 1, &any, &values, &err) == 0, "%s",
                  err.message);
        cr_expect_eq(any, 3);
        cr_expect_arr_eq(values, f32, sizeof f32);
    }
    const int32_t *permutation;
    cr_assert(weights_permutation(&weights, "i64", 3, &permutation, &err) == 0, "%s", err.message);
    cr_expect(permutation[0] == 2 && permutation[1] == 0 && permutation[2] == 1);
    tensors_close(weights.file);
    arena_clear(&arena);
}

/* Rows stay where the file has them: those of a file's other order, and every third run of two. */
static void check_order(enum dtype dtype, const char *name, int64_t width)
{
    char header[200];
    unsigned char bytes[600];
    snprintf(header, sizeof header,
             "{\"m\":{\"dtype\":\"%s\",\"shape\":[12,2],\"data_offsets\":[0,%d]}}", name,
             (int)(24 * width));
    const uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (int i = 0; i < 24; i++) {
        const float single = (float)i;
        const double value = i;
        memcpy(bytes + 8 + length + i * width, width == 8 ? (const void *)&value : &single,
               (size_t)width);
    }
    struct arena arena = {0};
    struct error err = ERROR_INIT;
    struct weights weights = {.arena = &arena};
    struct matrix matrix;
    cr_assert(safetensors_load(&weights.file, bytes, 8 + length + 24 * (size_t)width, "f", &err) ==
              0);
    tensors_find(weights.file, "m")->order = (struct tensor_order){2, 3, 2};
    cr_assert(weights_matrix(&weights, "m", 12, 2, &matrix, &err) == 0, "%s", err.message);
    cr_expect_eq(matrix.dtype, dtype);
    static const int all[] = {0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}, middle[] = {4, 5, 6, 7};
    float rows[12][PACKING_BLOCK];
    packing_rows(&matrix, 0, 12, 0, 2, rows);
    for (int r = 0; r < 12; r++)
        cr_expect(rows[r][0] == (float)(2 * all[r]) && rows[r][1] == (float)(2 * all[r] + 1));
    matrix.rows = 4;
    matrix.part = (struct row_part){2, 2, 6};
    packing_rows(&matrix, 0, 4, 0, 2, rows);
    for (int r = 0; r < 4; r++)
        cr_expect(rows[r][0] == (float)(2 * middle[r]), "%g", (double)rows[r][0]);
    tensors_close(weights.file);
    arena_clear(&arena);
}

Test(weights, rows_in_another_order)
{
    check_order(DTYPE_F32, "F32", 4);
    check_order(DTYPE_F32, "F64", 8); /* which is converted */
}

/* A safetensors file of one [2, 4] matrix "m" of F8_E4M3 and its [1, 2] scales. */
static size_t write_fp8(unsigned char *bytes, const unsigned char *numbers, const float *scales)
{
    static const char header[] =
        "{\"m\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
        "\"m_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}";
    const uint64_t length = sizeof header - 1;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, numbers, 8);
    memcpy(bytes + 16 + length, scales, 8);
    return 24 + length;
}

Test(weights, fp8_times_the_scale_of_its_block)
{
    /* 1, 2, 0.5, -448; 2^-9, 1.125, -0, 3.5 */
    static const unsigned char numbers[] = {0x38, 0x40, 0x30, 0xfe, 0x01, 0x39, 0x80, 0x46};
    static const float expected[] = {0.5f, 1, 1.5f, -1344, 0x1p-10f, 0.5625f, 0, 10.5f};
    unsigned char bytes[512];
    const size_t size = write_fp8(bytes, numbers, (float[]){0.5f, 3});
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const struct fp8_config fp8 = {.scaled = scaled, .block = {2, 2}, .dtype = dtype};
            struct arena arena = {0};
            struct error err = ERROR_INIT;
            struct weights weights = {.arena = &arena, .fp8 = &fp8};
            struct matrix matrix;
            cr_assert(safetensors_load(&weights.file, bytes, size, "f", &err) == 0, "%s",
                      err.message);
            cr_assert(weights_matrix(&weights, "m", 2, 4, &matrix, &err) == 0, "%s", err.message);
            cr_expect_eq(matrix.dtype, dtype);
            cr_expect_eq(tensors_find(weights.file, "m_scale_inv")->used, scaled);
            for (size_t i = 0; i < 8; i++) {
                const float wanted = scaled ? expected[i] : e4m3_to_f32(numbers[i]);
                const uint16_t *halves = matrix.data;
                const float got = dtype == DTYPE_F32   ? ((const float *)matrix.data)[i]
                                  : dtype == DTYPE_F16 ? f16_to_f32(halves[i])
                                                       : bf16_to_f32(halves[i]);
                const float same = dtype == DTYPE_F32   ? wanted
                                   : dtype == DTYPE_F16 ? f16_to_f32(f32_to_f16(wanted))
                                                        : bf16_to_f32(f32_to_bf16(wanted));
                cr_expect(got == same, "%zu: %g, expected %g", i, (double)got, (double)same);
            }
            tensors_close(weights.file);
            arena_clear(&arena);
        }
}

Test(weights, fp8_that_is_not_finite)
{
    static const unsigned char nan[] = {0x38, 0x40, 0x7f, 0, 0, 0, 0, 0};
    static const unsigned char large[] = {0, 0, 0, 0, 0, 0, 0, 0x7e};
    const struct {
        const unsigned char *numbers;
        float scale;
        enum dtype dtype;
        const char *message;
    } cases[] = {
        {nan, 1, DTYPE_F32, "f: tensor \"m\": expected finite numbers, got another at element 2"},
        {large, 1e38f, DTYPE_F32,
         "f: tensor \"m\": expected finite numbers, got another at element 7"},
        {large, 200, DTYPE_F16,
         "f: tensor \"m\": expected finite numbers, got another at element 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[512];
        const size_t size = write_fp8(bytes, cases[i].numbers, (float[]){1, cases[i].scale});
        const struct fp8_config fp8 = {.scaled = true, .dtype = cases[i].dtype};
        struct arena arena = {0};
        struct error err = ERROR_INIT;
        struct weights weights = {.arena = &arena, .fp8 = &fp8};
        struct matrix matrix;
        cr_assert(safetensors_load(&weights.file, bytes, size, "f", &err) == 0, "%s", err.message);
        cr_expect(weights_matrix(&weights, "m", 2, 4, &matrix, &err) == -1);
        cr_expect_str_eq(err.message, cases[i].message);
        tensors_close(weights.file);
        arena_clear(&arena);
    }
}

/* Columns in another order, in pieces that end inside of blocks. */
Test(weights, columns_have_an_order)
{
    enum { COLS = 128, ROWS = 2 };
    static unsigned char bytes[ROWS * COLS / 32 * 34];
    float whole[ROWS * COLS], packed[ROWS][PACKING_BLOCK];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i % 34 == 1 ? 0x2c : (unsigned char)(i * 37 % 251);
    struct matrix matrix = {.rows = ROWS, .cols = COLS, .dtype = DTYPE_Q8_0, .data = bytes};
    packing_numbers(&matrix, 0, ROWS * COLS, whole);
    matrix.columns = (struct tensor_order){2, 4, 16}; /* [..][4][2][16] in the file */
    for (int k = 0; k < COLS; k += PACKING_BLOCK) {
        packing_rows(&matrix, 0, ROWS, k, PACKING_BLOCK, packed);
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < PACKING_BLOCK; i++) {
                const int a = (k + i) / 64, b = (k + i) / 16 % 4, inner = (k + i) % 16;
                cr_expect_eq(packed[row][i], whole[row * COLS + (b * 2 + a) * 16 + inner],
                             "row %d, column %d", row, k + i);
            }
    }
}
