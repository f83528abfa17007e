/* SPDX-License-Identifier: Apache-2.0 */
/* What hostile grammars may take while a text is read: steps and memory. */
#include "lib/grammar/readings.h"
#include "tests/unit/grammar_texts.h"

#include <stdlib.h>

/* A spec of `count` times `item` between two texts. The caller frees it. */
static char *many(const char *before, const char *item, int count, const char *behind)
{
    size_t length = strlen(item);
    char *spec = malloc(strlen(before) + (size_t)count * length + strlen(behind) + 1);
    cr_assert_not_null(spec);
    char *at = stpcpy(spec, before);
    for (int i = 0; i < count; i++)
        at = stpcpy(at, item);
    stpcpy(at, behind);
    return spec;
}

static struct grammar_matcher *begin(const struct grammar_texts *texts, enum grammar_kind kind,
                                     const char *spec)
{
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    struct grammar *grammar = grammar_texts_compile(texts, kind, spec, &err);
    cr_assert_not_null(grammar, "%s", err.message);
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0, "%s", err.message);
    grammar_release(grammar);
    return matcher;
}

/* It takes work to look at edges, whether they lead on or not. */
Test(grammar_work, edges_are_work)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    char *spec = many("root ::= ([^\\x01]", "|\"\\x01\"", 30000, ")*");
    cr_expect_null(grammar_texts_compile(&texts, GRAMMAR_GBNF, spec, &err));
    cr_expect_eq(err.code, ERROR_UNSUPPORTED, "%s", err.message);
    free(spec);
    grammar_texts_close(&texts);
}

/* A chain of states that are entered at once: one reading waits at a time, but all are noted. */
Test(grammar_work, states_of_one_step_are_bounded)
{
    enum { STATES = READINGS_MOST + 2 };
    struct automaton automaton = {.num_states = STATES};
    struct readings readings;
    struct error err = ERROR_INIT;
    automaton.states = calloc(STATES + 1, sizeof *automaton.states);
    automaton.jumps = calloc(STATES, sizeof *automaton.jumps);
    cr_assert(automaton.states && automaton.jumps);
    for (uint32_t i = 0; i < STATES; i++) {
        automaton.jumps[i] = (i + 1) % STATES;
        automaton.states[i + 1].jump_at = i + 1;
    }
    cr_assert_eq(readings_init(&readings, &automaton, &err), 0);
    readings_begin(&readings);
    cr_expect_eq(readings_enter(&readings, (struct reading){0, 0, 0, FRAME_BOTTOM}, &err), -1);
    cr_expect_eq(err.code, ERROR_UNSUPPORTED);
    cr_expect_lt(readings_bytes(&readings), READINGS_MOST * 8 * sizeof(struct readings_seen));
    readings_clear(&readings);
    free(automaton.states);
    free(automaton.jumps);
}

Test(grammar_work, a_matcher_tells_what_it_takes)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    struct grammar_matcher *few = begin(&texts, GRAMMAR_REGEX, "a");
    char *spec = many("root ::= \"b\"", "|(\"a\" [b-z] \"c\"*)", 1000, "");
    struct grammar_matcher *matcher = begin(&texts, GRAMMAR_GBNF, spec);
    cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['a'], &err), 0, "%s", err.message);
    cr_expect_gt(grammar_matcher_bytes(matcher),
                 grammar_matcher_bytes(few) + 1000 * sizeof(struct reading));
    grammar_matcher_free(matcher);
    grammar_matcher_free(few);
    free(spec);
    grammar_texts_close(&texts);
}
