/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/dfa.h"

#include "lib/grammar/index_table.h"
#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int no_memory(struct error *err)
{
    return error_set(err, ERROR_NO_MEMORY, "no memory for an expression");
}

static int too_large(struct error *err)
{
    return error_set(err, ERROR_UNSUPPORTED,
                     "expected an expression that an automaton of %d states can read, got one that "
                     "needs more",
                     DFA_MOST_STATES);
}

/* --- Classes: characters that no set tells apart --- */

static int rising(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Intervals between all ends of ranges; surrogates are in none of the sets. */
static int make_intervals(struct dfa *dfa, const struct nfa *nfa, struct error *err)
{
    size_t most = 1, count = 0;
    for (size_t i = 0; i < nfa->num_sets; i++)
        most += 2 * nfa->sets[i].count;
    uint32_t *edges = malloc(most * sizeof *edges);
    dfa->intervals = calloc(most, sizeof *dfa->intervals);
    if (!edges || !dfa->intervals) {
        free(edges);
        return no_memory(err);
    }
    edges[count++] = 0;
    for (size_t i = 0; i < nfa->num_sets; i++)
        for (size_t r = 0; r < nfa->sets[i].count; r++) {
            edges[count++] = nfa->sets[i].ranges[r].first;
            edges[count++] = nfa->sets[i].ranges[r].last + 1;
        }
    qsort(edges, count, sizeof *edges, rising);
    for (size_t i = 0; i < count; i++)
        if ((i == 0 || edges[i] != edges[i - 1]) && edges[i] <= CHARSET_LAST)
            dfa->intervals[dfa->num_intervals++] = (struct dfa_interval){edges[i], 0};
    free(edges);
    return 0;
}

/* Splits each class by whether a set has it. *renamed: the new class by old class and membership.
 */
static int split_classes(struct dfa *dfa, const struct charset *set, struct error *err)
{
    uint32_t renamed[2 * DFA_MOST_CLASSES], count = 0;
    memset(renamed, 0xff, sizeof renamed);
    for (size_t i = 0; i < dfa->num_intervals; i++) {
        struct dfa_interval *interval = &dfa->intervals[i];
        uint32_t *name = &renamed[2 * interval->class + charset_has(set, interval->first)];
        if (*name == UINT32_MAX)
            *name = count++;
        interval->class = *name;
        if (count > DFA_MOST_CLASSES)
            return error_set(err, ERROR_UNSUPPORTED,
                             "expected an expression that tells at most %d kinds of characters "
                             "apart, got more",
                             DFA_MOST_CLASSES);
    }
    dfa->num_classes = count;
    return 0;
}

static int make_classes(struct dfa *dfa, const struct nfa *nfa, struct error *err)
{
    if (make_intervals(dfa, nfa, err))
        return -1;
    dfa->num_classes = 1;
    if (dfa->num_intervals * nfa->num_sets > DFA_MOST_WORK)
        return too_large(err);
    if (work_add(nfa->work, 2 * dfa->num_intervals * (nfa->num_sets + 1), err))
        return -1;
    for (size_t i = 0; i < nfa->num_sets; i++)
        if (split_classes(dfa, &nfa->sets[i], err))
            return -1;
    return 0;
}

/* --- Sets of states of an nfa --- */

/* While a dfa is made. Each of its states is a set of states of the nfa, without those that are
 * only passed through. */
struct subsets {
    const struct nfa *nfa;
    struct dfa *dfa;
    uint32_t *edge_at, *edges; /* edges by state */
    bool *has;                 /* [num_sets, num_classes] */
    uint32_t *pool;            /* members of all subsets */
    size_t pool_count, pool_capacity;
    size_t *at; /* where the members of a state begin in the pool; [num_states + 1] */
    size_t at_capacity, next_capacity, final_capacity;
    struct index_table states; /* by their members */
    uint32_t *marks, mark;     /* [nfa's num_states] */
    uint32_t *stack, *members;
    size_t num_members;
    size_t work;
};

static void free_subsets(struct subsets *subsets)
{
    free(subsets->edge_at);
    free(subsets->edges);
    free(subsets->has);
    free(subsets->pool);
    free(subsets->at);
    index_table_clear(&subsets->states);
    free(subsets->marks);
    free(subsets->stack);
    free(subsets->members);
}

static int begin_subsets(struct subsets *subsets, struct dfa *dfa, const struct nfa *nfa,
                         struct error *err)
{
    size_t states = nfa->num_states, edges = nfa->num_edges;
    *subsets = (struct subsets){.nfa = nfa,
                                .dfa = dfa,
                                .edge_at = calloc(states + 2, sizeof(uint32_t)),
                                .edges = malloc((edges + 1) * sizeof(uint32_t)),
                                .has = calloc(nfa->num_sets + 1, dfa->num_classes),
                                .marks = calloc(states, sizeof(uint32_t)),
                                .stack = malloc(states * sizeof(uint32_t)),
                                .members = malloc(states * sizeof(uint32_t))};
    if (!subsets->edge_at || !subsets->edges || !subsets->has || !subsets->marks ||
        !subsets->stack || !subsets->members)
        return no_memory(err);
    for (size_t i = 0; i < edges; i++)
        subsets->edge_at[nfa->edges[i].from + 1]++;
    for (size_t i = 0; i < states; i++)
        subsets->edge_at[i + 1] += subsets->edge_at[i];
    for (size_t i = edges; i-- > 0;)
        subsets->edges[--subsets->edge_at[nfa->edges[i].from + 1]] = (uint32_t)i;
    memmove(subsets->edge_at, subsets->edge_at + 1, states * sizeof *subsets->edge_at);
    subsets->edge_at[states] = (uint32_t)edges;
    for (size_t i = 0; i < dfa->num_intervals; i++)
        for (size_t s = 0; s < nfa->num_sets; s++)
            if (charset_has(&nfa->sets[s], dfa->intervals[i].first))
                subsets->has[s * dfa->num_classes + dfa->intervals[i].class] = true;
    return 0;
}

/* Adds a state and those that it leads to without a character. */
static void add_closure(struct subsets *subsets, uint32_t state)
{
    size_t count = 0;
    if (subsets->marks[state] == subsets->mark)
        return;
    subsets->marks[state] = subsets->mark;
    subsets->stack[count++] = state;
    while (count > 0) {
        uint32_t at = subsets->stack[--count];
        bool reads = at == 1;
        for (uint32_t i = subsets->edge_at[at]; i < subsets->edge_at[at + 1]; i++) {
            const struct nfa_edge *edge = &subsets->nfa->edges[subsets->edges[i]];
            subsets->work++;
            reads |= edge->set >= 0;
            if (edge->set < 0 && subsets->marks[edge->to] != subsets->mark) {
                subsets->marks[edge->to] = subsets->mark;
                subsets->stack[count++] = edge->to;
            }
        }
        if (reads)
            subsets->members[subsets->num_members++] = at;
    }
}

static uint64_t hash_of_state(const void *of, uint32_t state)
{
    const struct subsets *subsets = of;
    const size_t *at = subsets->at + state;
    return XXH3_64bits(subsets->pool + at[0], (at[1] - at[0]) * sizeof *subsets->pool);
}

/* Whether a state has the members that are collected. */
static bool has_members(const void *of, uint32_t state, const void *members)
{
    const struct subsets *subsets = of;
    const size_t *at = subsets->at + state, count = subsets->num_members;
    return at[1] - at[0] == count &&
           memcmp(subsets->pool + at[0], members, count * sizeof *subsets->pool) == 0;
}

static int add_state(struct subsets *subsets, struct error *err)
{
    struct dfa *dfa = subsets->dfa;
    size_t states = (size_t)dfa->num_states + 1, classes = dfa->num_classes;
    if (dfa->num_states >= DFA_MOST_STATES || states * classes > DFA_MOST_CELLS ||
        subsets->pool_count + subsets->num_members > DFA_MOST_MEMBERS)
        return too_large(err);
    if (array_grow((void **)&subsets->pool, &subsets->pool_capacity,
                   subsets->pool_count + subsets->num_members + 1, sizeof *subsets->pool, err) ||
        array_grow((void **)&subsets->at, &subsets->at_capacity, states + 1, sizeof *subsets->at,
                   err) ||
        array_grow((void **)&dfa->next, &subsets->next_capacity, states * classes,
                   sizeof *dfa->next, err) ||
        array_grow((void **)&dfa->final, &subsets->final_capacity, states, sizeof *dfa->final, err))
        return -1;
    subsets->at[0] = 0;
    memcpy(subsets->pool + subsets->pool_count, subsets->members,
           subsets->num_members * sizeof *subsets->members);
    subsets->pool_count += subsets->num_members;
    subsets->at[states] = subsets->pool_count;
    bool final = false;
    for (size_t i = 0; i < subsets->num_members; i++)
        final |= subsets->members[i] == 1;
    dfa->final[dfa->num_states++] = final;
    return 0;
}

/* The state of the members, perhaps a new one. */
static int find_state(struct subsets *subsets, uint32_t *state, struct error *err)
{
    struct dfa *dfa = subsets->dfa;
    size_t count = subsets->num_members, bytes = count * sizeof *subsets->members;
    qsort(subsets->members, count, sizeof *subsets->members, rising);
    uint32_t *slot =
        index_table_find(&subsets->states, dfa->num_states, XXH3_64bits(subsets->members, bytes),
                         subsets->members, hash_of_state, has_members, subsets, err);
    if (!slot)
        return -1;
    *state = *slot ? *slot - 1 : dfa->num_states;
    if (*slot)
        return 0;
    *slot = *state + 1;
    return add_state(subsets, err);
}

static int follow_class(struct subsets *subsets, uint32_t state, uint32_t class, struct error *err)
{
    struct dfa *dfa = subsets->dfa;
    size_t before = subsets->work;
    subsets->num_members = 0;
    subsets->mark++;
    for (size_t m = subsets->at[state]; m < subsets->at[state + 1]; m++) {
        uint32_t from = subsets->pool[m];
        for (uint32_t i = subsets->edge_at[from]; i < subsets->edge_at[from + 1]; i++) {
            const struct nfa_edge *edge = &subsets->nfa->edges[subsets->edges[i]];
            subsets->work++;
            if (edge->set >= 0 && subsets->has[(size_t)edge->set * dfa->num_classes + class])
                add_closure(subsets, edge->to);
        }
    }
    subsets->work += 1 + subsets->num_members; /* they are sorted, and cells are followed back */
    if (subsets->work > DFA_MOST_WORK)
        return too_large(err);
    if (work_add(subsets->nfa->work, subsets->work - before, err))
        return -1;
    uint32_t to = DFA_DEAD;
    if (subsets->num_members > 0 && find_state(subsets, &to, err))
        return -1;
    dfa->next[(size_t)state * dfa->num_classes + class] = to;
    return 0;
}

/* Leads to states that cannot end become DFA_DEAD. */
static int trim(struct dfa *dfa, struct error *err)
{
    size_t states = dfa->num_states, arcs = states * dfa->num_classes;
    uint32_t *at = calloc(states + 2, sizeof *at), *from = malloc((arcs + 1) * sizeof *from);
    uint32_t *stack = malloc((states + 1) * sizeof *stack);
    bool *ends = calloc(states + 1, sizeof *ends);
    size_t count = 0;
    int failed = 0;
    if (!at || !from || !stack || !ends)
        failed = no_memory(err);
    for (size_t i = 0; i < arcs && !failed; i++)
        if (dfa->next[i] != DFA_DEAD)
            at[dfa->next[i] + 1]++;
    for (size_t i = 0; i < states && !failed; i++)
        at[i + 1] += at[i];
    for (size_t i = arcs, state = states; state-- > 0 && !failed;)
        for (uint32_t class = 0; class < dfa->num_classes; class ++)
            if (dfa->next[--i] != DFA_DEAD)
                from[--at[dfa->next[i] + 1]] = (uint32_t)state;
    /* Now the arcs into state i are [at[i + 1], at[i + 2]), those into the last to the end. */
    size_t total = 0;
    for (size_t i = 0; i < arcs && !failed; i++)
        total += dfa->next[i] != DFA_DEAD;
    for (size_t i = 0; i < states && !failed; i++)
        if (dfa->final[i]) {
            ends[i] = true;
            stack[count++] = (uint32_t)i;
        }
    while (count > 0) {
        uint32_t state = stack[--count];
        size_t end = state + 1 < states ? at[state + 2] : total;
        for (size_t i = at[state + 1]; i < end; i++)
            if (!ends[from[i]]) {
                ends[from[i]] = true;
                stack[count++] = from[i];
            }
    }
    for (size_t i = 0; i < arcs && !failed; i++)
        if (dfa->next[i] != DFA_DEAD && !ends[dfa->next[i]])
            dfa->next[i] = DFA_DEAD;
    if (!failed)
        dfa->empty = !ends[0];
    free(at);
    free(from);
    free(stack);
    free(ends);
    return failed;
}

int dfa_make(struct dfa *out, const struct nfa *nfa, struct error *err)
{
    struct subsets subsets = {0};
    *out = (struct dfa){0};
    int failed = make_classes(out, nfa, err) || begin_subsets(&subsets, out, nfa, err);
    uint32_t state;
    if (!failed) {
        subsets.mark = 1;
        add_closure(&subsets, 0);
        failed = find_state(&subsets, &state, err);
    }
    for (uint32_t s = 0; !failed && s < out->num_states; s++)
        for (uint32_t c = 0; !failed && c < out->num_classes; c++)
            failed = follow_class(&subsets, s, c, err);
    free_subsets(&subsets);
    if (!failed)
        failed = trim(out, err);
    if (failed)
        dfa_clear(out);
    return failed ? -1 : 0;
}

void dfa_clear(struct dfa *dfa)
{
    free(dfa->intervals);
    free(dfa->next);
    free(dfa->final);
    *dfa = (struct dfa){0};
}

static uint32_t class_of(const struct dfa *dfa, uint32_t c)
{
    size_t low = 0, high = dfa->num_intervals;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (dfa->intervals[middle].first <= c)
            low = middle;
        else
            high = middle;
    }
    return dfa->intervals[low].class;
}

bool dfa_accepts(const struct dfa *dfa, const char *text, size_t length)
{
    uint32_t state = 0;
    for (size_t at = 0, used; at < length && state != DFA_DEAD; at += used)
        state = dfa->next[(size_t)state * dfa->num_classes +
                          class_of(dfa, utf8_decode(text + at, &used))];
    return state != DFA_DEAD && dfa->final[state];
}

int dfa_lengths(struct dfa *out, int64_t least, int64_t most, struct work *work, struct error *err)
{
    int64_t last = most < 0 ? least : most;
    /* Surrogates are no characters: else what leaves some texts out would tell those with
     * surrogates from all others. */
    static const struct dfa_interval intervals[] = {{0, 0}, {0xD800, 1}, {0xE000, 0}};
    *out = (struct dfa){.num_classes = 2, .num_intervals = 3, .empty = most >= 0 && most < least};
    if (last >= DFA_MOST_STATES)
        return too_large(err);
    if (work_add(work, (size_t)last + 1, err))
        return -1;
    out->num_states = (uint32_t)last + 1;
    out->intervals = malloc(sizeof intervals);
    out->next = malloc((size_t)out->num_states * out->num_classes * sizeof *out->next);
    out->final = malloc(out->num_states * sizeof *out->final);
    if (!out->intervals || !out->next || !out->final) {
        dfa_clear(out);
        return no_memory(err);
    }
    memcpy(out->intervals, intervals, sizeof intervals);
    for (uint32_t i = 0; i < out->num_states; i++) {
        out->next[2 * i] = i < last ? i + 1 : most < 0 ? i : DFA_DEAD;
        out->next[2 * i + 1] = DFA_DEAD;
        out->final[i] = i >= least;
    }
    return 0;
}

/* --- Two at once --- */

/* Pairs of classes that have a character in common. */
static int pair_classes(struct dfa *out, const struct dfa *a, const struct dfa *b, uint32_t *pairs,
                        struct error *err)
{
    size_t i = 0, j = 0;
    out->intervals = malloc((a->num_intervals + b->num_intervals) * sizeof *out->intervals);
    if (!out->intervals)
        return no_memory(err);
    while (i < a->num_intervals || j < b->num_intervals) {
        uint32_t next_a = i < a->num_intervals ? a->intervals[i].first : UINT32_MAX;
        uint32_t next_b = j < b->num_intervals ? b->intervals[j].first : UINT32_MAX;
        uint32_t first = next_a < next_b ? next_a : next_b;
        i += next_a == first;
        j += next_b == first;
        uint32_t pair = a->intervals[i - 1].class * b->num_classes + b->intervals[j - 1].class;
        uint32_t class = 0;
        while (class < out->num_classes && pairs[class] != pair)
            class ++;
        if (class == DFA_MOST_CLASSES)
            return too_large(err);
        if (class == out->num_classes)
            pairs[out->num_classes++] = pair;
        out->intervals[out->num_intervals++] = (struct dfa_interval){first, class};
    }
    return 0;
}

/* Pairs of states, while they are found. State b is num_states of b once b is dead. */
struct pairing {
    const struct dfa *a, *b;
    struct dfa *out;
    uint32_t *found; /* [states of a, states of b + 1]: a state of out + 1 */
    uint64_t *pairs; /* by state of out */
    size_t pairs_capacity, next_capacity, final_capacity;
    bool without;
};

static int find_pair(struct pairing *pairing, uint32_t a, uint32_t b, uint32_t *state,
                     struct error *err)
{
    struct dfa *out = pairing->out;
    uint64_t pair = (uint64_t)a * (pairing->b->num_states + 1) + b;
    if (pairing->found[pair]) {
        *state = pairing->found[pair] - 1;
        return 0;
    }
    size_t states = (size_t)out->num_states + 1;
    if (states > DFA_MOST_STATES || states * out->num_classes > DFA_MOST_CELLS)
        return too_large(err);
    if (array_grow((void **)&pairing->pairs, &pairing->pairs_capacity, states,
                   sizeof *pairing->pairs, err) ||
        array_grow((void **)&out->next, &pairing->next_capacity, states * out->num_classes,
                   sizeof *out->next, err) ||
        array_grow((void **)&out->final, &pairing->final_capacity, states, sizeof *out->final, err))
        return -1;
    bool in_b = b < pairing->b->num_states && pairing->b->final[b];
    *state = out->num_states++;
    out->final[*state] = pairing->a->final[a] && in_b != pairing->without;
    pairing->pairs[*state] = pair;
    pairing->found[pair] = *state + 1;
    return 0;
}

static int follow_pair(struct pairing *pairing, uint32_t state, uint32_t class, uint32_t pair,
                       struct error *err)
{
    const struct dfa *a = pairing->a, *b = pairing->b;
    uint32_t from_a = (uint32_t)(pairing->pairs[state] / (b->num_states + 1));
    uint32_t from_b = (uint32_t)(pairing->pairs[state] % (b->num_states + 1));
    uint32_t class_a = pair / b->num_classes, class_b = pair % b->num_classes;
    uint32_t to_a = a->next[(size_t)from_a * a->num_classes + class_a];
    uint32_t to_b =
        from_b < b->num_states ? b->next[(size_t)from_b * b->num_classes + class_b] : DFA_DEAD;
    uint32_t to = DFA_DEAD;
    if (to_a != DFA_DEAD && (to_b != DFA_DEAD || pairing->without) &&
        find_pair(pairing, to_a, to_b == DFA_DEAD ? b->num_states : to_b, &to, err))
        return -1;
    pairing->out->next[(size_t)state * pairing->out->num_classes + class] = to;
    return 0;
}

int dfa_combine(struct dfa *out, const struct dfa *a, const struct dfa *b, bool without,
                struct work *work, struct error *err)
{
    uint32_t pairs[DFA_MOST_CLASSES] = {0};
    struct pairing pairing = {.a = a, .b = b, .out = out, .without = without};
    *out = (struct dfa){0};
    /* Each interval is looked up among the classes. */
    if (work_add(work, 1024 + (a->num_intervals + b->num_intervals) * DFA_MOST_CLASSES / 8, err))
        return -1;
    if ((size_t)a->num_states * (b->num_states + 1) > DFA_MOST_WORK)
        return too_large(err);
    pairing.found = calloc((size_t)a->num_states * (b->num_states + 1), sizeof *pairing.found);
    int failed = pairing.found ? 0 : no_memory(err);
    uint32_t start;
    failed =
        failed || pair_classes(out, a, b, pairs, err) || find_pair(&pairing, 0, 0, &start, err);
    for (uint32_t s = 0; !failed && s < out->num_states; s++) {
        failed = work_add(work, 4 * (size_t)out->num_classes, err);
        for (uint32_t c = 0; !failed && c < out->num_classes; c++)
            failed = follow_pair(&pairing, s, c, pairs[c], err);
    }
    free(pairing.found);
    free(pairing.pairs);
    if (!failed)
        failed = trim(out, err);
    if (failed)
        dfa_clear(out);
    return failed ? -1 : 0;
}
