/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/arena.h"
#include "engine/base/bytes.h"
#include "engine/model/weights.h"

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
    safetensors_close(weights.file);
    arena_clear(&arena);
}
