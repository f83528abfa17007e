/* SPDX-License-Identifier: Apache-2.0 */
/* A step allocates nothing: the allocator is replaced by one that counts, in front of libc's own.
 * (The sanitizers bring an allocator of theirs, so not there.) */
#include "tests/unit/sanitized.h"

#include <stddef.h>

#if SANITIZED
#define COUNTS_ALLOCATIONS 0
#elif defined(__GLIBC__) || defined(__linux__)
#define COUNTS_ALLOCATIONS 1
#else
#define COUNTS_ALLOCATIONS 0
#endif

#if COUNTS_ALLOCATIONS

#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static atomic_long allocations;

void *malloc(size_t size)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_memalign(alignment, size);
}

Test(engine_allocations, the_counter_counts)
{
    long before = atomic_load(&allocations);
    void *volatile memory = malloc(10);
    cr_assert(memory != NULL);
    free(memory);
    cr_expect(atomic_load(&allocations) == before + 1);
}

Test(engine_allocations, a_step_allocates_nothing)
{
    const struct engine_options options = {
        .threads = 2, .state_memory_bytes = (size_t)16 << 20, .share_always = true};
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *engine;
        struct state *states[2];
        int32_t tokens[100];
        cr_assert(engine_open(&engine, path, &options, NULL) == 0, "%s", name);
        int64_t limit = engine_info(engine)->max_positions;
        int length = limit > 0 && limit < 100 ? (int)limit : 100;
        for (int j = 0; j < length; j++)
            tokens[j] = j * 7 % engine_info(engine)->vocab_size;
        const struct sampling sampling = {
            .temperature = 1, .top_p = 0.9f, .top_k = 9, .repetition_penalty = 1.1f};
        struct draw draw = {.wants_logprob = true, .num_top = SAMPLER_MOST_TOP};
        cr_assert(sampler_create(&draw.sampler, &sampling, engine_info(engine)->vocab_size, tokens,
                                 (size_t)length, NULL) == 0);
        for (int j = 0; j < 2; j++)
            cr_assert(state_create(&states[j], engine, length, NULL) == 0);
        long before = atomic_load(&allocations);
        int result = 0;
        for (int j = 0; j < length && result == 0; j++) {
            struct span spans[2] = {
                {.state = states[0], .tokens = tokens + j, .num_tokens = 1, .draw = &draw},
                {.state = states[1], .tokens = tokens, .num_tokens = length, .num_logits = 1}};
            result = engine_step(engine, spans, j == 0 ? 2 : 1, NULL);
        }
        long after = atomic_load(&allocations);
        cr_assert(result == 0);
        cr_expect(after == before, "%s: %ld allocations in %d steps", name, after - before, length);
        for (int j = 0; j < 2; j++)
            state_free(states[j]);
        sampler_free(draw.sampler);
        engine_close(engine);
    }
}

#endif
