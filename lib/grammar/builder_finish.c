/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/builder_finish.h"

#include "lib/grammar/builder_shorten.h"

#include <stdlib.h>
#include <string.h>

void automaton_clear(struct automaton *automaton)
{
    free(automaton->states);
    free(automaton->edges);
    free(automaton->calls);
    free(automaton->jumps);
    free(automaton->starts);
    *automaton = (struct automaton){0};
}

/* --- The needs: calls within calls until an end --- */

/* Arcs by the state or the rule that they lead to, and what is still to be looked at. */
struct search {
    uint8_t *needs;            /* [num_states] */
    uint32_t *arc_at, *arcs;   /* arcs into a state */
    uint32_t *call_at, *calls; /* arcs that call a rule */
    uint32_t *rule_of;         /* by start state: the rule, or UINT32_MAX */
    uint32_t *queue;           /* [num_states] in order of their need */
    size_t head, tail;
};

static void reach(struct search *search, uint32_t state, unsigned need)
{
    if (search->needs[state] != AUTOMATON_NEVER)
        return;
    search->needs[state] = (uint8_t)need;
    search->queue[search->tail++] = state;
}

/* A call arc whose rule and whose next state both can end, the later one with `need` now. */
static bool call_is_ready(const struct builder *builder, const struct search *search,
                          const struct builder_arc *arc, unsigned need)
{
    unsigned rule = search->needs[builder->rules[arc->rule].start];
    unsigned next = search->needs[arc->to];
    return rule + 1 <= need && next <= need;
}

/* All states of need `need`, from those that are in the queue already. */
static void spread(const struct builder *builder, struct search *search, unsigned need)
{
    for (; search->head < search->tail; search->head++) {
        uint32_t state = search->queue[search->head];
        for (uint32_t i = search->arc_at[state]; i < search->arc_at[state + 1]; i++) {
            const struct builder_arc *arc = &builder->arcs[search->arcs[i]];
            if (arc->kind != ARC_CALL || call_is_ready(builder, search, arc, need))
                reach(search, arc->from, need);
        }
    }
}

/* The calls of rules whose need is one less than `need`. */
static void begin_level(const struct builder *builder, struct search *search, unsigned need,
                        size_t *from)
{
    size_t end = search->tail;
    for (; *from < end; (*from)++) {
        uint32_t rule = search->rule_of[search->queue[*from]];
        if (rule == UINT32_MAX)
            continue;
        for (uint32_t i = search->call_at[rule]; i < search->call_at[rule + 1]; i++) {
            const struct builder_arc *arc = &builder->arcs[search->calls[i]];
            if (call_is_ready(builder, search, arc, need))
                reach(search, arc->from, need);
        }
    }
}

static void index_arcs(const struct builder *builder, struct search *search)
{
    for (size_t i = 0; i < builder->num_arcs; i++) {
        search->arc_at[builder->arcs[i].to + 1]++;
        if (builder->arcs[i].kind == ARC_CALL)
            search->call_at[builder->arcs[i].rule + 1]++;
    }
    for (uint32_t i = 0; i < builder->num_states; i++)
        search->arc_at[i + 1] += search->arc_at[i];
    for (size_t i = 0; i < builder->num_rules; i++)
        search->call_at[i + 1] += search->call_at[i];
    for (size_t i = builder->num_arcs; i-- > 0;) {
        const struct builder_arc *arc = &builder->arcs[i];
        search->arcs[--search->arc_at[arc->to + 1]] = (uint32_t)i;
        if (arc->kind == ARC_CALL)
            search->calls[--search->call_at[arc->rule + 1]] = (uint32_t)i;
    }
    /* Each x_at[i + 1] now is where group i begins. */
    memmove(search->arc_at, search->arc_at + 1, builder->num_states * sizeof *search->arc_at);
    search->arc_at[builder->num_states] = (uint32_t)builder->num_arcs;
    uint32_t num_calls = 0;
    for (size_t i = 0; i < builder->num_arcs; i++)
        num_calls += builder->arcs[i].kind == ARC_CALL;
    memmove(search->call_at, search->call_at + 1, builder->num_rules * sizeof *search->call_at);
    search->call_at[builder->num_rules] = num_calls;
}

static void free_search(struct search *search)
{
    free(search->arc_at);
    free(search->arcs);
    free(search->call_at);
    free(search->calls);
    free(search->rule_of);
    free(search->queue);
}

/* Begins at the ends of all rules. */
static int begin_search(const struct builder *builder, struct search *search, uint8_t *needs)
{
    size_t states = builder->num_states, arcs = builder->num_arcs, rules = builder->num_rules;
    *search = (struct search){.needs = needs,
                              .arc_at = calloc(states + 2, sizeof(uint32_t)),
                              .arcs = calloc(arcs + 1, sizeof(uint32_t)),
                              .call_at = calloc(rules + 2, sizeof(uint32_t)),
                              .calls = calloc(arcs + 1, sizeof(uint32_t)),
                              .rule_of = malloc((states + 1) * sizeof(uint32_t)),
                              .queue = malloc((states + 1) * sizeof(uint32_t))};
    if (!search->arc_at || !search->arcs || !search->call_at || !search->calls ||
        !search->rule_of || !search->queue)
        return error_set(builder->err, ERROR_NO_MEMORY, "no memory for %zu states", states);
    memset(needs, AUTOMATON_NEVER, states);
    memset(search->rule_of, 0xff, states * sizeof *search->rule_of);
    index_arcs(builder, search);
    for (size_t i = 0; i < rules; i++) {
        search->rule_of[builder->rules[i].start] = (uint32_t)i;
        reach(search, builder->rules[i].final, 0);
    }
    return 0;
}

static int find_needs(const struct builder *builder, uint8_t *needs)
{
    struct search search;
    int failed = begin_search(builder, &search, needs);
    size_t level = 0;
    if (!failed)
        spread(builder, &search, 0);
    for (unsigned need = 1; !failed && need <= AUTOMATON_MOST_DEPTH && level < search.tail;
         need++) {
        begin_level(builder, &search, need, &level);
        spread(builder, &search, need);
    }
    free_search(&search);
    return failed;
}

/* --- Left recursion --- */

/* marks: 0 for the states from which a rule's end can be reached without a byte. */
static int find_empty(const struct builder *builder, uint8_t *marks)
{
    struct search search;
    int failed = begin_search(builder, &search, marks);
    for (; !failed && search.head < search.tail; search.head++) {
        uint32_t state = search.queue[search.head], rule = search.rule_of[state];
        for (uint32_t i = search.arc_at[state]; i < search.arc_at[state + 1]; i++) {
            const struct builder_arc *arc = &builder->arcs[search.arcs[i]];
            if (arc->kind == ARC_JUMP ||
                (arc->kind == ARC_CALL && marks[builder->rules[arc->rule].start] == 0))
                reach(&search, arc->from, 0);
        }
        for (uint32_t i = rule == UINT32_MAX ? 0 : search.call_at[rule];
             rule != UINT32_MAX && i < search.call_at[rule + 1]; i++) {
            const struct builder_arc *arc = &builder->arcs[search.calls[i]];
            if (marks[arc->to] == 0)
                reach(&search, arc->from, 0);
        }
    }
    free_search(&search);
    return failed;
}

/* The rules that each rule can call before it has read a byte, as lists, and a search for cycles.
 */
struct left {
    const struct automaton *automaton;
    const uint8_t *empty; /* of find_empty */
    bool *seen;           /* [num_states] */
    uint32_t *states;     /* [num_states], to be looked at */
    uint32_t *at;         /* [num_rules + 1]: where the list of a rule begins in rules */
    uint32_t *rules;      /* [number of calls] */
};

static void list_left_calls(struct left *left, uint32_t rule)
{
    const struct automaton *automaton = left->automaton;
    size_t count = 0;
    uint32_t end = left->at[rule];
    left->states[count++] = automaton->starts[rule];
    left->seen[automaton->starts[rule]] = true;
    while (count > 0) {
        const struct automaton_state *state = &automaton->states[left->states[--count]];
        for (uint32_t i = state->jump_at; i < state[1].jump_at; i++)
            if (!left->seen[automaton->jumps[i]]) {
                left->seen[automaton->jumps[i]] = true;
                left->states[count++] = automaton->jumps[i];
            }
        for (uint32_t i = state->call_at; i < state[1].call_at; i++) {
            const struct automaton_call *call = &automaton->calls[i];
            left->rules[end++] = call->rule;
            if (left->empty[automaton->starts[call->rule]] == 0 && !left->seen[call->to]) {
                left->seen[call->to] = true;
                left->states[count++] = call->to;
            }
        }
    }
    left->at[rule + 1] = end;
}

/* A rule on a cycle, or UINT32_MAX. Depth first; path and next have the rules on the way. */
static uint32_t find_cycle(const struct left *left, uint32_t num_rules, uint8_t *marks,
                           uint32_t *path, uint32_t *next)
{
    for (uint32_t start = 0; start < num_rules; start++) {
        size_t depth = 0;
        if (marks[start])
            continue;
        path[depth++] = start;
        next[start] = left->at[start];
        marks[start] = 1;
        while (depth > 0) {
            uint32_t rule = path[depth - 1];
            if (next[rule] == left->at[rule + 1]) {
                marks[rule] = 2;
                depth--;
                continue;
            }
            uint32_t to = left->rules[next[rule]++];
            if (marks[to] == 1)
                return to;
            if (marks[to] == 0) {
                marks[to] = 1;
                next[to] = left->at[to];
                path[depth++] = to;
            }
        }
    }
    return UINT32_MAX;
}

static int find_left_recursion(const struct builder *builder, const struct automaton *automaton,
                               const uint8_t *empty, uint32_t *rule)
{
    size_t states = (size_t)automaton->num_states + 1, rules = (size_t)automaton->num_rules + 1;
    uint8_t *marks = calloc(rules, 1);
    uint32_t *path = malloc(2 * rules * sizeof *path);
    struct left left = {.automaton = automaton,
                        .empty = empty,
                        .seen = calloc(states, sizeof(bool)),
                        .states = malloc(states * sizeof(uint32_t)),
                        .at = calloc(rules + 1, sizeof(uint32_t)),
                        .rules = malloc((builder->num_arcs + 1) * sizeof(uint32_t))};
    int failed = 0;
    if (!marks || !path || !left.seen || !left.states || !left.at || !left.rules)
        failed = error_set(builder->err, ERROR_NO_MEMORY, "no memory for %zu states", states);
    for (uint32_t i = 0; !failed && i < automaton->num_rules; i++)
        list_left_calls(&left, i);
    if (!failed)
        *rule = find_cycle(&left, automaton->num_rules, marks, path, path + rules);
    free(marks);
    free(path);
    free(left.seen);
    free(left.states);
    free(left.at);
    free(left.rules);
    return failed;
}

/* --- Packing --- */

static bool is_possible(const struct builder *builder, const struct builder_arc *arc,
                        const uint8_t *needs)
{
    return arc->kind != ARC_NONE && needs[arc->to] != AUTOMATON_NEVER &&
           (arc->kind != ARC_CALL || needs[builder->rules[arc->rule].start] != AUTOMATON_NEVER);
}

static int allocate(const struct builder *builder, const size_t counts[3], struct automaton *out)
{
    size_t states = (size_t)builder->num_states + 1;
    out->states = calloc(states, sizeof *out->states);
    out->edges = malloc((counts[ARC_RANGE] + 1) * sizeof *out->edges);
    out->calls = malloc((counts[ARC_CALL] + 1) * sizeof *out->calls);
    out->jumps = malloc((counts[ARC_JUMP] + 1) * sizeof *out->jumps);
    out->starts = malloc((builder->num_rules + 1) * sizeof *out->starts);
    if (!out->states || !out->edges || !out->calls || !out->jumps || !out->starts)
        return error_set(builder->err, ERROR_NO_MEMORY, "no memory for %zu states", states);
    out->bytes = states * sizeof *out->states + counts[ARC_RANGE] * sizeof *out->edges +
                 counts[ARC_CALL] * sizeof *out->calls + counts[ARC_JUMP] * sizeof *out->jumps +
                 builder->num_rules * sizeof *out->starts;
    out->num_states = builder->num_states;
    out->num_rules = (uint32_t)builder->num_rules;
    return 0;
}

/* Counts what leaves each state, then turns the counts into places. */
static void place(const struct builder *builder, const uint8_t *needs, struct automaton *out)
{
    for (size_t i = 0; i < builder->num_arcs; i++) {
        const struct builder_arc *arc = &builder->arcs[i];
        struct automaton_state *from = &out->states[arc->from];
        if (is_possible(builder, arc, needs)) {
            from->edge_at += arc->kind == ARC_RANGE;
            from->call_at += arc->kind == ARC_CALL;
            from->jump_at += arc->kind == ARC_JUMP;
        }
    }
    for (uint32_t i = 0; i < out->num_states; i++) {
        struct automaton_state *state = &out->states[i];
        if (state->call_at == 0 && state->jump_at == 0)
            state->flags |= STATE_PLAIN;
        if (i > 0) {
            state->edge_at += state[-1].edge_at;
            state->call_at += state[-1].call_at;
            state->jump_at += state[-1].jump_at;
        }
    }
    struct automaton_state *end = &out->states[out->num_states];
    if (out->num_states > 0) {
        end->edge_at = end[-1].edge_at;
        end->call_at = end[-1].call_at;
        end->jump_at = end[-1].jump_at;
    }
}

static void pack_arcs(const struct builder *builder, const uint8_t *needs, struct automaton *out)
{
    for (size_t i = builder->num_arcs; i-- > 0;) { /* each lands before those placed already */
        const struct builder_arc *arc = &builder->arcs[i];
        struct automaton_state *from = &out->states[arc->from];
        if (!is_possible(builder, arc, needs))
            continue;
        if (arc->kind == ARC_RANGE)
            out->edges[--from->edge_at] =
                (struct automaton_edge){arc->to, arc->first, arc->last, arc->flags};
        else if (arc->kind == ARC_CALL)
            out->calls[--from->call_at] =
                (struct automaton_call){arc->rule, arc->to, arc->low, arc->high};
        else
            out->jumps[--from->jump_at] = arc->to;
    }
    for (size_t i = 0; i < builder->num_rules; i++)
        out->starts[i] = builder->rules[i].start;
}

/* is_final [num_states]. A tail leads nowhere but to a rule's end: it is one itself, or has one
 * jump to a tail. Jumps mostly lead to later states, so that one pass finds most chains of them; a
 * call that misses one only takes a frame more. */
static void mark_ends(struct automaton *out, const bool *is_final)
{
    for (uint32_t i = out->num_states; i-- > 0;) {
        struct automaton_state *state = &out->states[i];
        bool reads = state[1].edge_at > state->edge_at || state[1].call_at > state->call_at;
        uint32_t jumps = state[1].jump_at - state->jump_at;
        if (is_final[i])
            state->flags |= STATE_FINAL;
        if (!reads && (is_final[i] ? jumps == 0
                                   : jumps == 1 && out->states[out->jumps[state->jump_at]].flags &
                                                       STATE_TAIL))
            state->flags |= STATE_TAIL;
    }
}

/* The automaton of states whose needs and ends are known. */
static int pack(struct builder *builder, const uint8_t *needs, bool *is_final,
                struct automaton *out)
{
    size_t counts[4] = {0};
    for (size_t i = 0; i < builder->num_rules; i++)
        is_final[builder->rules[i].final] = true;
    if (builder_shorten(builder, is_final))
        return -1;
    for (size_t i = 0; i < builder->num_arcs; i++)
        counts[builder->arcs[i].kind] += is_possible(builder, &builder->arcs[i], needs);
    if (allocate(builder, counts, out))
        return -1;
    place(builder, needs, out);
    pack_arcs(builder, needs, out);
    mark_ends(out, is_final);
    for (uint32_t i = 0; i < out->num_states; i++)
        out->states[i].need = needs[i];
    return 0;
}

int builder_finish(struct builder *builder, struct automaton *out, uint32_t *left_recursive)
{
    *out = (struct automaton){.most_depth =
                                  builder->most_depth ? builder->most_depth : AUTOMATON_MOST_DEPTH};
    *left_recursive = UINT32_MAX;
    if (builder_failed(builder))
        return -1;
    size_t states = (size_t)builder->num_states + 1;
    uint8_t *needs = malloc(states), *empty = malloc(states);
    bool *is_final = calloc(states, sizeof *is_final);
    int failed = 0;
    if (!needs || !empty || !is_final)
        failed = error_set(builder->err, ERROR_NO_MEMORY, "no memory for %zu states", states);
    failed = failed || find_needs(builder, needs) || find_empty(builder, empty) ||
             pack(builder, needs, is_final, out) ||
             find_left_recursion(builder, out, empty, left_recursive);
    free(needs);
    free(empty);
    free(is_final);
    if (failed)
        automaton_clear(out);
    return failed ? -1 : 0;
}
