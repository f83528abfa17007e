/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/regex.h"

#include "lib/grammar/regex_tree.h"
#include "lib/text/unicode.h"

/* A tree that becomes an nfa. */
struct making {
    const struct regex_tree *tree;
    const char *text;
    struct nfa nfa;
    int32_t any;       /* the set of all characters */
    bool begins, ends; /* any text may stand before what matches, or behind */
    bool wide;         /* what must not follow: $ is before a last line break too */
    struct error *err;
};

/* Where a node stands. */
struct spot {
    bool at_start; /* of the text */
    bool last;     /* nothing of the expression follows */
    bool open;     /* then any text does */
};

static int make(struct making *making, const struct regex_node *node, uint32_t from, uint32_t to,
                struct spot spot);
static int make_outer(struct making *making, const struct regex_node *node, bool at_start);

static int edge(struct making *making, uint32_t from, uint32_t to, int32_t set)
{
    return nfa_edge(&making->nfa, from, to, set, making->err);
}

static int begin(struct making *making, struct work *work)
{
    struct charset any = {0};
    if (nfa_begin(&making->nfa, work, making->err) || charset_negate(&any, making->err)) {
        charset_clear(&any);
        return -1;
    }
    making->any = nfa_set(&making->nfa, &any, making->err);
    return making->any < 0 ? -1 : 0;
}

static bool is_ahead(const struct regex_node *node)
{
    return node->kind == REGEX_AHEAD || node->kind == REGEX_NOT_AHEAD;
}

static int make_children(struct making *making, const struct regex_node *child,
                         const struct regex_node *end, uint32_t from, uint32_t to,
                         struct spot spot);

/* --- Lookaheads --- */

/* What an automaton accepts, up to the end of the text. */
static int embed(struct making *making, const struct dfa *dfa, uint32_t from)
{
    const uint32_t first = making->nfa.num_states;
    making->nfa.num_states += dfa->num_states;
    int failed =
        work_add(making->nfa.work, (size_t)dfa->num_states * dfa->num_intervals, making->err);
    for (uint32_t i = 0; i < dfa->num_states && !failed; i++) {
        const uint32_t *next = dfa->next + (size_t)i * dfa->num_classes;
        for (size_t k = 0; k < dfa->num_intervals && !failed; k++) {
            uint32_t state = next[dfa->intervals[k].class];
            uint32_t last =
                k + 1 < dfa->num_intervals ? dfa->intervals[k + 1].first - 1 : CHARSET_LAST;
            struct charset set = {0};
            if (state == DFA_DEAD)
                continue;
            failed = charset_add(&set, dfa->intervals[k].first, last, making->err);
            if (failed)
                charset_clear(&set);
            int32_t characters = failed ? -1 : nfa_set(&making->nfa, &set, making->err);
            failed = characters < 0 || edge(making, first + i, first + state, characters);
        }
        failed = failed || (dfa->final[i] && edge(making, first + i, 1, -1));
    }
    return failed || (!dfa->empty && edge(making, from, first, -1)) ? -1 : 0;
}

/* What the rest of a sequence accepts, up to the end of the text. */
static int make_rest(const struct making *making, const struct regex_node *child,
                     const struct regex_node *end, struct spot spot, struct dfa *out)
{
    struct making rest = *making;
    int failed = begin(&rest, making->nfa.work);
    uint32_t from = nfa_state(&rest.nfa), to = nfa_state(&rest.nfa);
    failed = failed || edge(&rest, 0, from, -1) || edge(&rest, to, 1, -1) ||
             (spot.open && edge(&rest, to, to, rest.any)) ||
             make_children(&rest, child, end, from, to, spot) ||
             dfa_make(out, &rest.nfa, making->err);
    nfa_clear(&rest.nfa);
    return failed ? -1 : 0;
}

/* What a lookahead accepts of the text from here on. */
static int make_view(const struct making *making, const struct regex_node *node, struct spot spot,
                     struct dfa *out)
{
    struct making view = *making;
    view.begins = false;
    view.ends = true;
    view.wide = making->wide != (node->kind == REGEX_NOT_AHEAD);
    int failed = begin(&view, making->nfa.work) || make_outer(&view, node->child, spot.at_start) ||
                 dfa_make(out, &view.nfa, making->err);
    nfa_clear(&view.nfa);
    return failed ? -1 : 0;
}

/* A lookahead with all behind it: what both accept, or the one and not the other. */
static int make_ahead(struct making *making, const struct regex_node *node,
                      const struct regex_node *end, uint32_t from, struct spot spot)
{
    struct dfa rest, view, both;
    if (!spot.last)
        return error_set(making->err, ERROR_UNSUPPORTED,
                         "offset %zu: a lookahead in what is repeated, or in a group that more "
                         "follows, is not supported",
                         utf8_characters(making->text, node->offset));
    if (make_rest(making, node->next, end, spot, &rest))
        return -1;
    if (make_view(making, node, spot, &view)) {
        dfa_clear(&rest);
        return -1;
    }
    int failed = dfa_combine(&both, &rest, &view, node->kind == REGEX_NOT_AHEAD, making->nfa.work,
                             making->err);
    dfa_clear(&rest);
    dfa_clear(&view);
    if (failed)
        return -1;
    failed = embed(making, &both, from);
    dfa_clear(&both);
    return failed;
}

/* --- The others --- */

/* The children from `child` up to `end` (NULL: all), one after the other. */
static int make_children(struct making *making, const struct regex_node *child,
                         const struct regex_node *end, uint32_t from, uint32_t to, struct spot spot)
{
    for (; child != end; child = child->next) {
        if (is_ahead(child))
            return make_ahead(making, child, end, from, spot);
        uint32_t next = nfa_state(&making->nfa);
        struct spot own = spot;
        own.last = spot.last && child->next == end;
        if (make(making, child, from, next, own))
            return -1;
        from = next;
        spot.at_start = false;
    }
    return edge(making, from, to, -1);
}

static int make_repeat(struct making *making, const struct regex_node *node, uint32_t from,
                       uint32_t to, struct spot spot)
{
    const struct spot inner = {0}, last = {.last = spot.last, .open = spot.open};
    for (int i = 0; i < node->least; i++) {
        uint32_t next = nfa_state(&making->nfa);
        if (make(making, node->child, from, next, i + 1 == node->most ? last : inner))
            return -1;
        from = next;
    }
    if (node->most < 0) {
        uint32_t loop = nfa_state(&making->nfa), back = nfa_state(&making->nfa);
        return edge(making, from, loop, -1) || make(making, node->child, loop, back, inner) ||
                       edge(making, back, loop, -1) || edge(making, loop, to, -1)
                   ? -1
                   : 0;
    }
    for (int i = node->least; i < node->most; i++) {
        uint32_t next = nfa_state(&making->nfa);
        if (edge(making, from, to, -1) ||
            make(making, node->child, from, next, i + 1 == node->most ? last : inner))
            return -1;
        from = next;
    }
    return edge(making, from, to, -1);
}

/* $ where nothing of the expression follows: the text ends, whatever `to` allows. */
static int make_end(struct making *making, uint32_t from)
{
    int32_t line = making->wide ? nfa_character(&making->nfa, '\n', making->err) : -1;
    return edge(making, from, 1, -1) || (making->wide && (line < 0 || edge(making, from, 1, line)))
               ? -1
               : 0;
}

/* Recursion is as deep as groups are. */
static int make(struct making *making, const struct regex_node *node, uint32_t from, uint32_t to,
                struct spot spot)
{
    switch (node->kind) {
    case REGEX_SEQUENCE:
        return make_children(making, node->child, NULL, from, to, spot);
    case REGEX_CHOICE:
        for (const struct regex_node *child = node->child; child; child = child->next)
            if (make(making, child, from, to, spot))
                return -1;
        return 0;
    case REGEX_REPEAT:
        return make_repeat(making, node, from, to, spot);
    case REGEX_SET: {
        struct charset copy = {0};
        if (charset_add_all(&copy, &making->tree->sets[node->set], making->err)) {
            charset_clear(&copy);
            return -1;
        }
        int32_t set = nfa_set(&making->nfa, &copy, making->err);
        return set < 0 ? -1 : edge(making, from, to, set);
    }
    case REGEX_AHEAD: /* of a sequence, so not here */
    case REGEX_NOT_AHEAD:
        break;
    case REGEX_START:
        if (spot.at_start)
            return edge(making, from, to, -1);
        break;
    case REGEX_END:
        if (spot.last)
            return make_end(making, from);
        break;
    }
    return error_set(making->err, ERROR_UNSUPPORTED,
                     "offset %zu: ^ and $ are supported at the beginning and the end only",
                     utf8_characters(making->text, node->offset));
}

/* One of the outermost choices: ^ and $ count here. at_start: of the text, where there may be ^. */
static int make_outer(struct making *making, const struct regex_node *node, bool at_start)
{
    const struct regex_node *first = node->child, *end = NULL;
    if (node->kind == REGEX_CHOICE) {
        for (; first; first = first->next)
            if (make_outer(making, first, at_start))
                return -1;
        return 0;
    }
    if (first && !first->next && first->kind == REGEX_CHOICE) /* one group is all there is */
        return make_outer(making, first, at_start);
    uint32_t from = nfa_state(&making->nfa), to = nfa_state(&making->nfa);
    if (edge(making, 0, from, -1) || edge(making, to, 1, -1))
        return -1;
    bool starts = at_start && first && first->kind == REGEX_START;
    if (!starts && making->begins && edge(making, from, from, making->any))
        return -1;
    first = starts ? first->next : first;
    bool ends = first && node->last->kind == REGEX_END;
    struct spot spot = {.at_start = at_start && (starts || !making->begins),
                        .last = true,
                        .open = !ends && making->ends};
    if (spot.open && edge(making, to, to, making->any))
        return -1;
    if (ends)
        end = node->last;
    if (ends && making->wide && make_end(making, to))
        return -1;
    return make_children(making, first, end, from, to, spot);
}

int regex_read(struct nfa *out, const char *text, size_t length, bool search, struct work *work,
               struct error *err)
{
    struct regex_tree tree = {0};
    struct making making = {
        .tree = &tree, .text = text, .begins = search, .ends = search, .err = err};
    int failed = work_add(work, 16 * length, err) || regex_tree_parse(&tree, text, length, err) ||
                 begin(&making, work) || make_outer(&making, tree.root, true);
    regex_tree_clear(&tree);
    if (failed)
        nfa_clear(&making.nfa);
    else
        *out = making.nfa;
    return failed ? -1 : 0;
}

int regex_compile(struct dfa *out, const char *text, size_t length, bool search, struct work *work,
                  struct error *err)
{
    struct nfa nfa;
    if (regex_read(&nfa, text, length, search, work, err))
        return -1;
    int failed = dfa_make(out, &nfa, err);
    nfa_clear(&nfa);
    return failed;
}
