/* SPDX-License-Identifier: Apache-2.0 */
/* The server's compiled grammars: shared by equal constraints, kept while there is room, and taken
 * out of the memory for requests. And what a text makes of one: its mask with the ends. */
#include "lib/base/file.h"
#include "lib/grammar/grammar_text.h"
#include "server/grammars.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 275, MIB = 1 << 20 };

static struct tokenizer *tokenizer;
static struct admission admission;
static struct metrics metrics;

static struct grammars *open_grammars(int64_t bytes)
{
    struct grammars *grammars = NULL;
    struct error err = ERROR_INIT;
    struct admission_limits limits = {.max_body_bytes = bytes};
    char *json;
    size_t size;
    admission_init(&admission, &limits);
    metrics_init(&metrics);
    cr_assert_eq(file_read(GOLDEN_DIRECTORY "hybrid_regla/tokenizer.json", MIB, &json, &size, &err),
                 0, "%s", err.message);
    cr_assert_eq(tokenizer_load(&tokenizer, json, size, &err), 0, "%s", err.message);
    free(json);
    cr_assert_eq(grammars_create(&grammars, tokenizer, VOCAB, &admission, &metrics, &err), 0, "%s",
                 err.message);
    return grammars;
}

static void close_grammars(struct grammars *grammars)
{
    grammars_free(grammars);
    cr_expect_eq(admission.body_bytes, 0);
    cr_expect_eq(atomic_load(&metrics.grammar_bytes), 0);
    admission_destroy(&admission);
    tokenizer_free(tokenizer);
}

static struct constraint choice(char *spec)
{
    return (struct constraint){.param = "guided_choice",
                               .name = "guided_choice",
                               .kind = GRAMMAR_CHOICE,
                               .spec = spec,
                               .length = strlen(spec)};
}

static struct grammars_entry *get(struct grammars *grammars, char *spec)
{
    struct grammars_entry *entry;
    struct api_error err = {0};
    struct constraint constraint = choice(spec);
    cr_assert_eq(grammars_get(grammars, &constraint, &entry, &err), 0, "%s", err.message);
    return entry;
}

Test(grammars, equal_constraints_share_one)
{
    struct grammars *grammars = open_grammars(100 * MIB);
    struct grammars_entry *a = get(grammars, "[\"a\",\"b\"]"), *b = get(grammars, "[\"a\"]");
    cr_expect(a != b && get(grammars, "[\"a\",\"b\"]") == a);
    cr_expect(grammars_entry_grammar(a) != grammars_entry_grammar(b));
    cr_expect_eq(atomic_load(&metrics.grammars_compiled), 2);
    cr_expect_eq(atomic_load(&metrics.grammar_hits), 1);
    cr_expect_eq(atomic_load(&metrics.grammar_bytes), admission.body_bytes);
    grammars_release(grammars, a);
    grammars_release(grammars, a);
    grammars_release(grammars, b);
    cr_expect_eq(get(grammars, "[\"a\"]"), b); /* it stays */
    grammars_release(grammars, b);
    close_grammars(grammars);
}

/* Of idle ones the last used stay, and those in use whatever room there is. */
Test(grammars, the_last_used_stay)
{
    struct grammars *grammars = open_grammars(1000 * MIB);
    struct grammars_entry *first = get(grammars, "[\"0\"]");
    int64_t each = admission.body_bytes;
    admission_limit_bodies(&admission, 6 * each + 6000); /* of which three may be idle */
    char spec[32];
    for (int i = 1; i < 6; i++) {
        snprintf(spec, sizeof spec, "[\"%d\"]", i);
        grammars_release(grammars, get(grammars, spec));
    }
    cr_expect_leq(admission.body_bytes, 3 * each + 3000);
    cr_expect_eq(get(grammars, "[\"0\"]"), first);
    grammars_release(grammars, first);
    uint64_t compiled = atomic_load(&metrics.grammars_compiled);
    grammars_release(grammars, get(grammars, "[\"5\"]"));
    cr_expect_eq(atomic_load(&metrics.grammars_compiled), compiled);
    grammars_release(grammars, get(grammars, "[\"1\"]"));
    cr_expect_eq(atomic_load(&metrics.grammars_compiled), compiled + 1);
    grammars_release(grammars, first);
    close_grammars(grammars);
}

Test(grammars, what_has_no_room_is_refused)
{
    struct grammars *grammars = open_grammars(1000 * MIB);
    struct grammars_entry *used = get(grammars, "[\"a\"]"), *none;
    struct constraint constraint = choice("[\"b\"]");
    struct api_error err = {0};
    admission_limit_bodies(&admission, admission.body_bytes + 1000);
    cr_expect_eq(grammars_get(grammars, &constraint, &none, &err), -1);
    cr_expect(err.code == API_OUT_OF_MEMORY && none == NULL);
    cr_expect_str_eq(err.param, "guided_choice");
    grammars_release(grammars, used); /* idle now: it makes room */
    cr_expect_eq(grammars_get(grammars, &constraint, &used, &err), 0);
    grammars_release(grammars, used);
    admission_limit_bodies(&admission, 1000);
    constraint = choice("[\"c\"]");
    err = (struct api_error){0};
    cr_expect_eq(grammars_get(grammars, &constraint, &none, &err), -1);
    cr_expect_eq(err.code, API_BODY_TOO_LARGE);
    close_grammars(grammars);
}

Test(grammars, faults_name_the_field)
{
    struct grammars *grammars = open_grammars(100 * MIB);
    struct grammars_entry *none;
    struct constraint constraint = choice("[7]");
    struct api_error err = {0};
    cr_expect_eq(grammars_get(grammars, &constraint, &none, &err), -1);
    cr_expect_eq(err.code, API_INVALID_VALUE);
    cr_expect(strncmp(err.message, "guided_choice: ", 15) == 0, "%s", err.message);
    close_grammars(grammars);
}

struct crowd {
    struct grammars *grammars;
    int number;
};

static void *use_many(void *context)
{
    const struct crowd *crowd = context;
    char spec[32];
    for (int i = 0; i < 60; i++) {
        snprintf(spec, sizeof spec, "[\"%d\"]", (i + crowd->number) % 7);
        struct grammars_entry *entry = get(crowd->grammars, spec);
        grammars_release(crowd->grammars, entry);
    }
    return NULL;
}

/* With room for some of what they use. */
Test(grammars, threads_share_them)
{
    enum { THREADS = 4 };
    alarm(60);
    struct grammars *grammars = open_grammars(1000 * MIB);
    grammars_release(grammars, get(grammars, "[\"0\"]"));
    admission_limit_bodies(&admission, 8 * admission.body_bytes);
    pthread_t threads[THREADS];
    struct crowd crowds[THREADS];
    for (int i = 0; i < THREADS; i++) {
        crowds[i] = (struct crowd){grammars, i};
        cr_assert_eq(pthread_create(&threads[i], NULL, use_many, &crowds[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    cr_expect_leq(admission.body_bytes, admission.limits.max_body_bytes / 2);
    close_grammars(grammars);
}

struct same {
    struct grammars *grammars;
    pthread_barrier_t *start;
    char *spec;
    struct grammars_entry *entry;
};

static void *use_same(void *context)
{
    struct same *same = context;
    pthread_barrier_wait(same->start);
    same->entry = get(same->grammars, same->spec);
    return NULL;
}

/* Those that come while another thread compiles it wait for that. */
Test(grammars, one_thread_compiles_what_many_want)
{
    enum { THREADS = 8, CHOICES = 16000 };
    alarm(60);
    static char spec[CHOICES * 12];
    struct grammars *grammars = open_grammars(1000 * MIB);
    size_t length = 0;
    for (int i = 0; i < CHOICES; i++)
        length += (size_t)sprintf(spec + length, "%c\"%d\"", i ? ',' : '[', i * 7919);
    spec[length] = ']';
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, THREADS);
    pthread_t threads[THREADS];
    struct same same[THREADS];
    for (int i = 0; i < THREADS; i++) {
        same[i] = (struct same){grammars, &start, spec, NULL};
        cr_assert_eq(pthread_create(&threads[i], NULL, use_same, &same[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        cr_expect_eq(same[i].entry, same[0].entry);
        grammars_release(grammars, same[i].entry);
    }
    cr_expect_eq(atomic_load(&metrics.grammars_compiled), 1);
    cr_expect_eq(atomic_load(&metrics.grammar_hits), THREADS - 1);
    pthread_barrier_destroy(&start);
    close_grammars(grammars);
}

static bool lets(const uint32_t *mask, int32_t id)
{
    return (mask[id / 32] >> id % 32 & 1) != 0;
}

/* Ends may come where the text is whole. What the grammar has of them stays, but for an EOS. */
Test(grammars, a_text_may_end_where_it_is_whole)
{
    struct grammars *grammars = open_grammars(100 * MIB);
    struct grammars_entry *entry = get(grammars, "[\"a\",\"ab\"]");
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    cr_assert_eq(tokenizer_encode(tokenizer, "ab", 2, false, &ids, &err), 0, "%s", err.message);
    cr_assert_eq(ids.count, 2, "letters are tokens of this model");
    const int32_t a = ids.ids[0], b = ids.ids[1], list[] = {0, a, 40};
    struct grammar_ends ends = {list, 3, 2};
    struct grammar_text *text;
    cr_assert_eq(grammar_text_open(&text, grammars_entry_grammar(entry), VOCAB, &ends, &err), 0);
    const uint32_t *mask = grammar_text_mask(text, &err);
    cr_assert_neq(mask, NULL);
    for (int32_t i = 0; i < VOCAB; i++)
        cr_expect(!lets(mask, i) || (i != a && i != 0 && i != 40), "%d", (int)i);
    grammar_text_close(text);
    ends.num_eos = 1;
    cr_assert_eq(grammar_text_open(&text, grammars_entry_grammar(entry), VOCAB, &ends, &err), 0);
    mask = grammar_text_mask(text, &err);
    cr_expect(mask && lets(mask, a) && !lets(mask, 0) && !lets(mask, 40));
    grammar_text_close(text);
    ends.count = 1;
    cr_assert_eq(grammar_text_open(&text, grammars_entry_grammar(entry), VOCAB, &ends, &err), 0);
    mask = grammar_text_mask(text, &err);
    cr_expect(mask && lets(mask, a) && !lets(mask, b) && !lets(mask, 0));
    cr_expect(grammar_text_take(text, b, &err) == -1);
    error_clear(&err);
    cr_assert_eq(grammar_text_take(text, a, &err), 0);
    cr_expect(!grammar_text_over(text));
    mask = grammar_text_mask(text, &err);
    cr_expect(mask && !lets(mask, a) && lets(mask, b) && lets(mask, 0));
    cr_assert_eq(grammar_text_take(text, b, &err), 0);
    cr_expect(grammar_text_over(text));
    mask = grammar_text_mask(text, &err);
    for (int32_t i = 0; mask && i < VOCAB; i++)
        cr_expect_eq(lets(mask, i), i == 0, "%d", (int)i);
    grammar_text_close(text);
    grammars_release(grammars, entry);
    token_list_clear(&ids);
    close_grammars(grammars);
}
