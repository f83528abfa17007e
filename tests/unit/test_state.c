/* SPDX-License-Identifier: Apache-2.0 */
/* The budget of states and pages: reservations, clones, accounting, recycled memory. */
#include "engine/engine.h"
#include "engine/state_memory.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct engine *open_budget(const char *name, size_t budget, bool poison)
{
    const struct engine_options options = {
        .threads = 1, .state_memory_bytes = budget, .max_step_logits = 512, .poison = poison};
    char path[512];
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", name);
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s: %s", name, err.message);
    return engine;
}

static void feed(struct engine *engine, struct state *state, int count)
{
    for (int i = 0; i < count; i++) {
        int32_t token = (int32_t)(state_position(state) * 31 + 7) % 200;
        struct span span = {.state = state, .tokens = &token, .num_tokens = 1};
        struct error err = ERROR_INIT;
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    }
}

static struct engine_memory memory_of(const struct engine *engine)
{
    struct engine_memory memory;
    engine_memory(engine, &memory);
    return memory;
}

Test(state, pages_are_taken_as_the_text_grows_and_all_come_back)
{
    struct engine *engine = open_budget("hybrid_regla", (size_t)4 << 20, false);
    const struct engine_info *info = engine_info(engine);
    size_t page = info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    struct state *state;
    cr_assert(state_create(&state, engine, 130, NULL) == 0);
    cr_expect(engine_state_bytes(engine, 130) == info->recurrent_bytes_per_text + 3 * page);
    struct engine_memory memory = memory_of(engine);
    cr_expect(memory.states == 1 && memory.kv_bytes == 0 && memory.kv_reserved_bytes == 3 * page);
    cr_expect(memory.recurrent_bytes == info->recurrent_bytes_per_text);
    static const int lengths[] = {1, 63, 64, 65, 128, 129, 130}, pages[] = {1, 1, 1, 2, 2, 3, 3};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        feed(engine, state, lengths[i] - (int)state_position(state));
        memory = memory_of(engine);
        cr_expect(memory.kv_bytes == (size_t)pages[i] * page, "at %d", lengths[i]);
        cr_expect(memory.kv_reserved_bytes == 3 * page);
        cr_expect(state_bytes(&state, 1) ==
                  info->recurrent_bytes_per_text + (size_t)pages[i] * page);
    }
    state_free(state);
    memory = memory_of(engine);
    cr_expect(memory.states == 0 && memory.kv_bytes == 0 && memory.kv_reserved_bytes == 0 &&
              memory.recurrent_bytes == 0 && memory.recurrent_reserved_bytes == 0);
    cr_expect(memory.kv_peak_bytes == 3 * page);
    engine_close(engine);
}

Test(state, what_does_not_fit_now_waits_and_what_never_fits_is_refused)
{
    struct engine *probe = open_budget("hybrid_regla", (size_t)4 << 20, false);
    size_t one = engine_state_bytes(probe, 100);
    engine_close(probe);
    struct engine *engine = open_budget("hybrid_regla", 2 * one + one / 2, false);
    struct state *states[3];
    struct error err = ERROR_INIT;
    cr_assert(state_create(&states[0], engine, 100, &err) == 0);
    cr_assert(state_create(&states[1], engine, 100, &err) == 0);
    cr_expect(state_create(&states[2], engine, 100, &err) == -1 && err.code == ERROR_NO_MEMORY);
    error_clear(&err);
    cr_expect(state_clone(&states[2], states[0], 100, &err) == -1 && err.code == ERROR_NO_MEMORY);
    error_clear(&err);
    static const int64_t never[] = {100000, INT64_MAX / 4, INT64_MAX};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        cr_expect(state_create(&states[2], engine, never[i], &err) == -1);
        cr_expect(err.code == ERROR_INVALID, "%lld: %s", (long long)never[i], err.message);
        error_clear(&err);
    }
    cr_expect(state_create(&states[2], engine, -1, &err) == -1 && err.code == ERROR_INVALID);
    error_clear(&err);
    state_free(states[0]);
    cr_expect(state_create(&states[0], engine, 100, &err) == 0, "%s", err.message);
    state_free(states[0]);
    state_free(states[1]);
    cr_expect(memory_of(engine).states == 0);
    engine_close(engine);
}

Test(state, clones_share_full_pages_and_give_them_back_last)
{
    struct engine *engine = open_budget("hybrid_regla", (size_t)4 << 20, false);
    const struct engine_info *info = engine_info(engine);
    size_t page = info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    struct state *state, *clone;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, 200, &err) == 0);
    feed(engine, state, 140); /* two full pages and one begun */
    cr_expect(state_clone(&clone, state, 139, &err) == -1 && err.code == ERROR_INVALID);
    error_clear(&err);
    cr_assert(state_clone(&clone, state, 300, &err) == 0, "%s", err.message);
    cr_expect(state_position(clone) == 140);
    cr_expect(memory_of(engine).kv_bytes == 4 * page);          /* 3, and a copy of the last */
    cr_expect(memory_of(engine).kv_reserved_bytes == 7 * page); /* 4 + 1 + 2 to come */
    struct state *both[2] = {clone, state};
    for (int again = 0; again < 2; again++)
        cr_expect_eq(state_bytes(both, 2), 2 * info->recurrent_bytes_per_text + 4 * page);
    cr_expect_eq(state_bytes(&clone, 1), info->recurrent_bytes_per_text + 3 * page);
    state_free(state);
    cr_expect(memory_of(engine).kv_bytes == 3 * page);
    cr_expect(memory_of(engine).kv_reserved_bytes == 5 * page);
    feed(engine, clone, 160);
    cr_expect(memory_of(engine).kv_bytes == 5 * page);
    state_free(clone);
    cr_expect(memory_of(engine).kv_bytes == 0 && memory_of(engine).kv_reserved_bytes == 0);
    engine_close(engine);
}

Test(state, a_reservation_shrinks_and_grows)
{
    struct engine *engine = open_budget("hybrid_regla", (size_t)1 << 20, false);
    const struct engine_info *info = engine_info(engine);
    size_t page = info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    int64_t most = (int64_t)((info->state_memory_bytes - info->recurrent_bytes_per_text) / page);
    struct state *state, *other;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, 64 * most, &err) == 0, "%s", err.message);
    cr_expect(state_create(&other, engine, 64, &err) == -1 && err.code == ERROR_NO_MEMORY);
    error_clear(&err);
    feed(engine, state, 65);
    cr_expect(state_reserve(state, 64, &err) == -1 && err.code == ERROR_INVALID);
    error_clear(&err);
    cr_expect(state_reserve(state, 65, &err) == 0);
    cr_expect(memory_of(engine).kv_reserved_bytes == 2 * page);
    int32_t tokens[64] = {0};
    struct span span = {.state = state, .tokens = tokens, .num_tokens = 1};
    cr_expect(engine_step(engine, &span, 1, &err) == -1 && err.code == ERROR_INVALID);
    error_clear(&err);
    cr_assert(state_create(&other, engine, 64, &err) == 0, "%s", err.message);
    cr_expect(state_reserve(state, 64 * most, &err) == -1 && err.code == ERROR_NO_MEMORY);
    error_clear(&err);
    cr_expect(memory_of(engine).kv_reserved_bytes == 3 * page);
    state_free(other);
    static const int64_t never[] = {1000000, INT64_MAX};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        cr_expect(state_reserve(state, never[i], &err) == -1 && err.code == ERROR_INVALID);
        error_clear(&err);
    }
    cr_expect(state_reserve(state, 64 * most, &err) == 0, "%s", err.message);
    cr_expect(memory_of(engine).kv_reserved_bytes == (size_t)most * page);
    feed(engine, state, 64); /* into pages beyond the first reservation's table */
    state_free(state);
    cr_expect(memory_of(engine).kv_reserved_bytes == 0 && memory_of(engine).states == 0);
    engine_close(engine);
}

/* 2,000 random creates, clones, growths and drops: after each, what the states hold and what the
 * engine says agree, and the budget is never passed. */
Test(state, random_lives_of_states_keep_the_accounts)
{
    enum { MOST = 12 };
    struct engine *engine = open_budget("hybrid_regla", (size_t)1 << 20, false);
    const struct engine_info *info = engine_info(engine);
    struct state *states[MOST] = {NULL};
    int64_t limits[MOST] = {0};
    uint32_t x = 12345;
    for (int round = 0; round < 2000; round++) {
        x = x * 1664525u + 1013904223u;
        int i = (int)(x >> 8) % MOST, j = (int)(x >> 16) % MOST, kind = (int)(x >> 24) % 4;
        struct error err = ERROR_INIT;
        if (states[i] == NULL && kind < 2) {
            limits[i] = (int64_t)(x >> 4) % 150;
            if (state_create(&states[i], engine, limits[i], &err) != 0)
                cr_assert(err.code == ERROR_NO_MEMORY, "%s", err.message);
        } else if (states[i] == NULL && states[j] != NULL) {
            limits[i] = state_position(states[j]) + (int64_t)(x >> 4) % 100;
            if (state_clone(&states[i], states[j], limits[i], &err) != 0)
                cr_assert(err.code == ERROR_NO_MEMORY, "%s", err.message);
        } else if (states[i] != NULL && kind != 0) {
            int64_t room = limits[i] - state_position(states[i]);
            feed(engine, states[i], (int)(room < 20 ? room : 20));
        } else if (states[i] != NULL && x >> 31) {
            int64_t wanted = state_position(states[i]) + (int64_t)(x >> 4) % 200;
            if (state_reserve(states[i], wanted, &err) == 0)
                limits[i] = wanted;
            else
                cr_assert(err.code == ERROR_NO_MEMORY && wanted > limits[i], "%s", err.message);
        } else {
            state_free(states[i]);
            states[i] = NULL;
        }
        struct engine_memory memory = memory_of(engine);
        int alive = 0;
        for (int k = 0; k < MOST; k++)
            alive += states[k] != NULL;
        cr_assert(memory.states == alive);
        cr_assert(memory.recurrent_bytes == (size_t)alive * info->recurrent_bytes_per_text);
        cr_assert(memory.kv_bytes <= memory.kv_reserved_bytes);
        cr_assert(memory.recurrent_reserved_bytes + memory.kv_reserved_bytes <=
                  info->state_memory_bytes);
    }
    for (int i = 0; i < MOST; i++)
        state_free(states[i]);
    cr_expect(memory_of(engine).kv_reserved_bytes == 0 && memory_of(engine).states == 0);
    engine_close(engine);
}

/* The same text in an engine with little memory and in one with much. */
struct twin {
    struct state *states[2]; /* NULL: there is none */
    const char *slot, *page; /* where the first one's slot and first page were seen last */
};

static void check_twin(struct engine *engine, struct twin *twin, int moved[2])
{
    const struct state *state = twin->states[0];
    const char *page = state->num_pages > 0 ? state->pages[0] : NULL;
    moved[0] += twin->slot != NULL && twin->slot != state->slot;
    moved[1] += twin->page != NULL && twin->page != page;
    twin->slot = state->slot;
    twin->page = page;
    size_t bytes = state_image_bytes(engine, state_position(twin->states[0]));
    char *images = malloc(2 * bytes);
    for (int i = 0; i < 2; i++)
        cr_assert(state_save(twin->states[i], images + (size_t)i * bytes, NULL) == 0);
    cr_assert(memcmp(images, images + bytes, bytes) == 0);
    free(images);
}

/* A text of so many tokens that nobody has computed, which may have `more`; or a clone. Made if and
 * only if there is room. */
static void make_twin(struct engine *const engines[2], struct twin *twin, const struct twin *source,
                      int tokens, int more)
{
    const struct engine_info *info = engine_info(engines[0]);
    struct engine_memory memory = memory_of(engines[0]);
    struct error err = ERROR_INIT;
    size_t left =
        info->state_memory_bytes - memory.recurrent_reserved_bytes - memory.kv_reserved_bytes;
    size_t shared = source == NULL ? 0 : (size_t)tokens / 64 * info->kv_bytes_per_token * 64;
    bool room = engine_state_bytes(engines[0], tokens + more) - shared <= left;
    float *image = NULL;
    if (source == NULL) {
        size_t count = state_image_bytes(engines[0], tokens) / sizeof *image;
        image = malloc(count * sizeof *image);
        for (size_t i = 0; i < count; i++)
            image[i] = (float)((i * 7 + (size_t)tokens) % 1021) / 1021;
    }
    for (int i = 0; i < 2; i++) {
        int result =
            source == NULL
                ? state_restore(&twin->states[i], engines[i], image, tokens, tokens + more, &err)
                : state_clone(&twin->states[i], source->states[i], tokens + more, &err);
        if (i == 0 && !room) {
            cr_assert(result == -1 && err.code == ERROR_NO_MEMORY);
            break;
        }
        cr_assert(result == 0, "%s", err.message);
    }
    free(image);
}

/* A token for every text that has room for one. */
static void step_together(struct engine *engine, const struct twin *twins, int count, int which)
{
    struct span spans[64];
    int32_t tokens[64];
    struct error err = ERROR_INIT;
    int num = 0;
    for (int i = 0; i < count; i++) {
        struct state *state = twins[i].states[which];
        if (state == NULL || state_position(state) >= state->max_tokens)
            continue;
        tokens[num] = (int32_t)(state_position(state) * 31 + i) % 200;
        spans[num] = (struct span){.state = state, .tokens = &tokens[num], .num_tokens = 1};
        num++;
    }
    if (num > 0)
        cr_assert(engine_step(engine, spans, num, &err) == 0, "%s", err.message);
}

/* Slots and pages come and go in any order, and all that is free can always be had: so what lies in
 * the way moves, with what is in it, also between two steps of its text. */
Test(state, what_is_free_can_be_had_to_the_last_byte)
{
    enum { MOST = 64 };
    alarm(600);
    struct engine *probe = open_budget("hybrid_regla", (size_t)4 << 20, false);
    size_t slot = engine_info(probe)->recurrent_bytes_per_text;
    size_t page = engine_info(probe)->kv_bytes_per_token * 64;
    engine_close(probe);
    struct engine *engines[2] = {open_budget("hybrid_regla", 4 * slot + 7 * page + 63, true),
                                 open_budget("hybrid_regla", (size_t)16 << 20, true)};
    struct twin twins[MOST] = {{.slot = NULL}};
    uint32_t x = 4711;
    int moved[2] = {0, 0};
    for (int round = 0; round < 6000; round++) {
        x = x * 1664525u + 1013904223u;
        int kind = (int)(x >> 28), tokens = 40 + (int)(x >> 6) % 100, more = (int)(x >> 16) % 100;
        bool slots = round / 100 % 2 == 0; /* more of texts without pages, or with */
        struct twin *twin = &twins[(x >> 8) % MOST], *source = twin;
        for (int i = 0; i < MOST && source->states[0] == NULL; i++)
            source = &twins[((x >> 20) + (uint32_t)i) % MOST];
        if (twin->states[0] == NULL && kind < 8) {
            make_twin(engines, twin, NULL, slots ? 0 : tokens, slots ? 0 : more);
        } else if (twin->states[0] == NULL && source->states[0] != NULL) {
            make_twin(engines, twin, source, (int)state_position(source->states[0]), more);
        } else if (kind == 7) {
            for (int i = 0; i < 2; i++)
                step_together(engines[i], twins, MOST, i);
        } else if (twin->states[0] != NULL &&
                   (kind > 13 || slots == (state_position(twin->states[0]) > 0))) {
            for (int i = 0; i < 2; i++)
                state_free(twin->states[i]);
            *twin = (struct twin){.slot = NULL};
        }
        cr_assert(memory_of(engines[0]).kv_cached_bytes == 0, "nothing is set aside");
        for (int i = 0; i < MOST; i++)
            if (twins[i].states[0] != NULL && (i == round % MOST || &twins[i] == twin))
                check_twin(engines[0], &twins[i], moved);
    }
    cr_expect(moved[0] > 0 && moved[1] > 0, "%d slots, %d pages", moved[0], moved[1]);
    for (int i = 0; i < MOST; i++)
        for (int j = 0; j < 2; j++)
            state_free(twins[i].states[j]);
    cr_expect(memory_of(engines[0]).kv_reserved_bytes == 0 && memory_of(engines[0]).states == 0);
    engine_close(engines[0]);
    engine_close(engines[1]);
}

/* A page that two texts share is in the way of slots. */
Test(state, a_shared_page_moves_for_all_that_have_it)
{
    enum { MOST = 10 };
    struct engine *probe = open_budget("hybrid_regla", (size_t)4 << 20, false);
    size_t slot = engine_info(probe)->recurrent_bytes_per_text;
    size_t page = engine_info(probe)->kv_bytes_per_token * 64;
    size_t bytes = state_image_bytes(probe, 128);
    engine_close(probe);
    struct engine *engine = open_budget("hybrid_regla", 3 * slot + 3 * page, true);
    struct state *first, *text, *clone, *more[MOST];
    struct error err = ERROR_INIT;
    cr_assert(state_create(&first, engine, 64, &err) == 0);
    feed(engine, first, 64);
    cr_assert(state_create(&text, engine, 128, &err) == 0);
    feed(engine, text, 128);
    cr_assert(state_clone(&clone, text, 128, &err) == 0);
    char *images = malloc(2 * bytes), *last = text->pages[1];
    cr_assert(state_save(text, images, NULL) == 0);
    state_free(first);
    for (size_t i = 0; i < MOST; i++)
        if (i < 1 + page / slot)
            cr_assert(state_create(&more[i], engine, 0, &err) == 0, "%s", err.message);
        else
            more[i] = NULL;
    cr_expect(text->pages[1] != last && text->pages[1] == clone->pages[1]);
    struct state *const both[] = {text, clone};
    for (int i = 0; i < 2; i++) {
        cr_assert(state_save(both[i], images + bytes, NULL) == 0);
        cr_expect(memcmp(images, images + bytes, bytes) == 0);
    }
    state_set_cached(clone, true);
    cr_expect(memory_of(engine).kv_cached_bytes == 0);
    state_free(text);
    cr_expect(memory_of(engine).kv_cached_bytes == 2 * page);
    state_free(clone);
    cr_expect(memory_of(engine).kv_bytes == 0);
    for (int i = 0; i < MOST; i++)
        state_free(more[i]);
    free(images);
    engine_close(engine);
}

/* Resident memory of this process, in bytes. */
static size_t resident(void)
{
    unsigned long pages = 0, total;
    FILE *file = fopen("/proc/self/statm", "r");
    cr_assert(file != NULL && fscanf(file, "%lu %lu", &total, &pages) == 2);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

Test(state, a_large_budget_costs_nothing_until_it_is_used)
{
    size_t before = resident();
    struct engine *engine = open_budget("hybrid_regla", (size_t)64 << 30, false);
    cr_expect(resident() - before < (size_t)64 << 20);
    struct state *state;
    cr_assert(state_create(&state, engine, 1000000, NULL) == 0);
    feed(engine, state, 3);
    cr_expect(resident() - before < (size_t)80 << 20);
    state_free(state);
    engine_close(engine);
}

/* Logits after the same text in fresh memory, in memory full of NaN, and in recycled memory. */
Test(state, results_do_not_depend_on_what_was_in_memory)
{
    char path[512], name[256];
    enum { LENGTH = 90 };
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *clean = open_budget(name, (size_t)1 << 20, false);
        struct engine *dirty = open_budget(name, (size_t)1 << 20, true);
        size_t vocab = (size_t)engine_info(clean)->vocab_size;
        int64_t limit = engine_info(clean)->max_positions;
        int length = limit > 0 && limit < LENGTH ? (int)limit : LENGTH;
        float *expected = malloc((size_t)length * vocab * sizeof(float));
        int32_t tokens[2][LENGTH];
        for (int j = 0; j < LENGTH; j++) {
            tokens[0][j] = j * 31 % (int)vocab;
            tokens[1][j] = j * 17 % (int)vocab;
        }
        struct engine *engines[] = {clean, dirty, dirty, dirty};
        for (int run = 0; run < 4; run++) {
            struct state *state;
            cr_assert(state_create(&state, engines[run], length, NULL) == 0);
            /* run 2 is another text, whose memory run 3 gets */
            struct span span = {.state = state,
                                .tokens = tokens[run == 2],
                                .num_tokens = length,
                                .num_logits = length};
            cr_assert(engine_step(engines[run], &span, 1, NULL) == 0);
            size_t bytes = (size_t)length * vocab * sizeof(float);
            if (run == 0)
                memcpy(expected, span.logits, bytes);
            else if (run != 2)
                cr_expect(memcmp(expected, span.logits, bytes) == 0, "%s, run %d", name, run);
            state_free(state);
        }
        free(expected);
        engine_close(clean);
        engine_close(dirty);
    }
}

Test(state, what_is_set_aside_counts_as_cached_until_a_text_shares_it)
{
    struct engine *engine = open_budget("hybrid_regla", (size_t)4 << 20, false);
    const struct engine_info *info = engine_info(engine);
    size_t page = info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    size_t slot = info->recurrent_bytes_per_text;
    struct state *state, *aside, *text;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, 200, &err) == 0);
    feed(engine, state, 140);
    cr_assert(state_clone(&aside, state, 140, &err) == 0, "%s", err.message);
    state_set_cached(aside, true);
    struct engine_memory memory = memory_of(engine);
    cr_expect(memory.states == 2 && memory.cached == 1);
    cr_expect(memory.recurrent_cached_bytes == slot && memory.kv_cached_bytes == page);
    state_free(state);
    cr_expect(memory_of(engine).kv_cached_bytes == 3 * page);
    cr_assert(state_clone(&text, aside, 150, &err) == 0, "%s", err.message);
    cr_expect(memory_of(engine).kv_cached_bytes == page, "two pages are the text's too");
    state_free(aside);
    memory = memory_of(engine);
    cr_expect(memory.cached == 0 && memory.kv_cached_bytes == 0 && memory.kv_bytes == 3 * page);
    state_set_cached(text, true);
    state_set_cached(text, true);
    cr_expect(memory_of(engine).kv_cached_bytes == 3 * page);
    state_set_cached(text, false);
    memory = memory_of(engine);
    cr_expect(memory.kv_cached_bytes == 0 && memory.recurrent_cached_bytes == 0);
    state_free(text);
    cr_expect(memory_of(engine).kv_bytes == 0);
    engine_close(engine);
}

static bool is_there(const char *address)
{
    unsigned char there = 0;
    char *page = (char *)((uintptr_t)address & ~(uintptr_t)4095);
    return mincore(page, 1, &there) == 0 && (there & 1) != 0;
}

/* Slots lie from the end of the budget on, pages from its beginning. */
Test(state, memory_is_there_before_the_texts_that_take_it)
{
    const size_t mib = (size_t)1 << 20, budget = 300 * mib;
    struct engine *engine = open_budget("hybrid_regla", budget, false);
    struct state *state;
    cr_assert(state_create(&state, engine, 130, NULL) == 0);
    feed(engine, state, 70);
    size_t bytes = engine_info(engine)->recurrent_bytes_per_text;
    const char *end = state->slot + bytes, *begin = state->pages[0];
    cr_expect(!is_there(end - 40 * mib) && !is_there(begin + 40 * mib));
    char *written = malloc(bytes);
    memcpy(written, state->slot, bytes);
    int pieces = 0;
    while (pieces < 1000 && engine_populate(engine))
        pieces++;
    if (pieces == 0)
        cr_skip("this kernel has no MADV_POPULATE_WRITE");
    cr_expect(pieces >= 64 && pieces <= 66, "%d pieces", pieces);
    cr_expect(memcmp(written, state->slot, bytes) == 0);
    for (size_t i = 0; i <= 60; i += 4) {
        cr_expect(is_there(end - 1 - i * mib), "%zu MiB before the end", i);
        cr_expect(is_there(begin + i * mib), "%zu MiB from the beginning", i);
    }
    cr_expect(!is_there(end - 80 * mib) && !is_there(begin + 80 * mib));
    cr_expect(!engine_populate(engine));
    free(written);
    state_free(state);
    engine_close(engine);
}

/* 3 MiB: a piece and a half for the slots, and none is left for the pages. */
Test(state, a_small_budget_is_there_as_a_whole)
{
    const size_t budget = (size_t)3 << 20;
    struct engine *engine = open_budget("hybrid_regla", budget, false);
    struct state *state;
    cr_assert(state_create(&state, engine, 130, NULL) == 0);
    const char *end = state->slot + engine_info(engine)->recurrent_bytes_per_text;
    int pieces = 0;
    while (pieces < 1000 && engine_populate(engine))
        pieces++;
    if (pieces == 0)
        cr_skip("this kernel has no MADV_POPULATE_WRITE");
    cr_expect(pieces == 2, "%d pieces", pieces);
    for (size_t at = 4096; at < budget; at += 4096)
        cr_expect(is_there(end - at), "%zu bytes before the end", at);
    state_free(state);
    engine_close(engine);
}
