/* SPDX-License-Identifier: Apache-2.0 */
/* States saved and restored: the same bits go on, and nothing of another text is in an image. */
#include "engine/state_image.h"
#include "lib/base/half.h"
#include "tests/unit/state_texts.h"

#include <math.h>

enum { MOST = 140, MORE = 8, EDGES = 4 };

/* Positions at the edges of pages and rings, and some between. */
static int64_t some_position(int round, int64_t limit)
{
    static const int64_t edges[EDGES] = {0, 1, 64, 65};
    uint32_t x = (uint32_t)round * 2654435761u;
    int64_t position =
        round < EDGES ? edges[round] : (int64_t)((x >> 8) % (uint32_t)(limit - MORE)) + 1;
    return position < limit - MORE ? position : limit - MORE;
}

Test(state_image, a_restored_text_goes_on_with_the_same_bits)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *engine = open_golden(name, false), *other = open_golden(name, true);
        size_t logits_bytes = (size_t)engine_info(engine)->vocab_size * sizeof(float);
        float *expected = malloc(logits_bytes);
        int64_t limit = model_length(engine, MOST);
        for (int round = 0; round < EDGES + 2; round++) {
            int64_t position = some_position(round + (round >= EDGES ? i : 0), limit);
            struct error err = ERROR_INIT;
            char *image = text_image(engine, 1, position);
            struct state *state = text_state(engine, 1, position);
            cr_assert(state_reserve(state, position + MORE, &err) == 0, "%s", err.message);
            memcpy(expected, take_text(engine, state, 1, position + MORE), logits_bytes);
            state_free(state);
            state_free(text_state(other, 2, limit)); /* its slot and pages are used again */
            cr_assert(state_restore(&state, other, image, position, position + MORE, &err) == 0,
                      "%s", err.message);
            cr_expect(state_position(state) == position);
            cr_expect(state_bytes(&state, 1) == state_image_bytes(other, position));
            cr_expect(memcmp(expected, take_text(other, state, 1, position + MORE), logits_bytes) ==
                          0,
                      "%s at %lld", name, (long long)position);
            state_free(state);
            free(image);
        }
        free(expected);
        engine_close(engine);
        engine_close(other);
    }
}

/* Memory that was NaN, and then another text's, gives the image that fresh memory gives. */
Test(state_image, nothing_of_another_text_is_in_an_image)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *clean = open_golden(name, false), *dirty = open_golden(name, true);
        int64_t limit = model_length(clean, MOST);
        for (int round = 0; round < EDGES + 1; round++) {
            int64_t position = some_position(round + (round >= EDGES ? i : 0), limit);
            size_t bytes = state_image_bytes(clean, position);
            char *expected = text_image(clean, 1, position);
            for (int again = 0; again < 2; again++) {
                char *image = text_image(dirty, 1, position);
                cr_expect(memcmp(image, expected, bytes) == 0, "%s at %lld, %d", name,
                          (long long)position, again);
                free(image);
                state_free(text_state(dirty, 2, limit));
            }
            free(expected);
        }
        engine_close(clean);
        engine_close(dirty);
    }
}

/* A restored state's own image is the one it came from, also where an untrusted file had numbers
 * in places that its text has not written. */
Test(state_image, saving_a_restored_state_gives_the_image_again)
{
    static const char *const names[] = {"hybrid_regla", "block_kerple_dpfp",
                                        "sliding_parallel_learned", "regla",
                                        "long_short_rank3_alibi"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct engine *engine = open_golden(names[i], true);
        int64_t position = 5;
        size_t bytes = state_image_bytes(engine, position);
        char *image = text_image(engine, 1, position), *again = malloc(bytes);
        char *noisy = malloc(bytes);
        memset(noisy, 0x7f, bytes);
        struct state *state;
        cr_assert(state_restore(&state, engine, image, position, 99, NULL) == 0);
        state_save(state, again, NULL);
        cr_expect(memcmp(image, again, bytes) == 0, "%s", names[i]);
        state_free(state);
        state_image_scrub(engine_state_layout(engine), position, noisy);
        for (size_t j = 0; j < bytes; j++)
            cr_assert(noisy[j] == 0 || noisy[j] == 0x7f);
        cr_assert(state_restore(&state, engine, noisy, position, 99, NULL) == 0);
        state_save(state, again, NULL);
        cr_expect(memcmp(noisy, again, bytes) == 0, "%s", names[i]);
        state_free(state);
        free(image);
        free(again);
        free(noisy);
        engine_close(engine);
    }
}

Test(state_image, a_wrong_position_is_refused)
{
    struct engine *engine = open_golden("sliding_parallel_learned", false); /* 128 positions */
    char *image = text_image(engine, 1, 20);
    struct state *state;
    struct error err = ERROR_INIT;
    static const int64_t wrong[][2] = {{-1, 100}, {20, 19}, {20, 129}, {129, 129}, {0, -1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect(state_restore(&state, engine, image, wrong[i][0], wrong[i][1], &err) == -1);
        cr_expect(err.code == ERROR_INVALID, "%zu: %s", i, err.message);
        error_clear(&err);
    }
    free(image);
    engine_close(engine);
}

Test(state_image, a_restored_state_is_reserved_as_a_new_one)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    const struct engine_info *info = engine_info(engine);
    size_t page = info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    char *image = text_image(engine, 1, 70);
    int64_t most =
        (int64_t)((info->state_memory_bytes - info->recurrent_bytes_per_text) / page) * 64;
    struct state *states[2];
    struct error err = ERROR_INIT;
    struct engine_memory memory;
    cr_assert(state_restore(&states[0], engine, image, 70, 200, &err) == 0, "%s", err.message);
    engine_memory(engine, &memory);
    cr_expect(memory.kv_bytes == 2 * page && memory.kv_reserved_bytes == 4 * page);
    cr_expect(state_restore(&states[1], engine, image, 70, most, &err) == -1 &&
              err.code == ERROR_NO_MEMORY);
    error_clear(&err);
    cr_expect(state_restore(&states[1], engine, image, 70, most + 64, &err) == -1 &&
              err.code == ERROR_INVALID);
    state_free(states[0]);
    engine_memory(engine, &memory);
    cr_expect(memory.kv_reserved_bytes == 0 && memory.states == 0);
    free(image);
    engine_close(engine);
}

Test(state_image, other_kv_formats)
{
    enum { COUNT = 1000 };
    float numbers[COUNT], back[COUNT];
    uint16_t halves[COUNT], others[COUNT];
    for (int i = 0; i < COUNT; i++)
        numbers[i] = sinf((float)i) * ldexpf(1.0f, i % 10 - 5);
    for (int kv = KV_F16; kv <= KV_BF16; kv++) {
        state_image_convert(KV_F32, numbers, (enum kv_format)kv, halves, COUNT);
        state_image_convert((enum kv_format)kv, halves, KV_F32, back, COUNT);
        for (int i = 0; i < COUNT; i++) {
            uint16_t half = kv == KV_F16 ? f32_to_f16(numbers[i]) : f32_to_bf16(numbers[i]);
            cr_assert(halves[i] == half);
            cr_assert(fabsf(back[i] - numbers[i]) <= fabsf(numbers[i]) * 0x1p-8f + 0x1p-24f);
        }
        state_image_convert(KV_F32, back, (enum kv_format)kv, others, COUNT);
        cr_expect(memcmp(halves, others, sizeof halves) == 0); /* exact from then on */
    }
    state_image_convert(KV_F32, numbers, KV_F32, back, COUNT);
    cr_expect(memcmp(numbers, back, sizeof numbers) == 0);
}
