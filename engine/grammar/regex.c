/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/regex.h"

#include "engine/grammar/regex_tree.h"
#include "engine/text/unicode.h"

/* A tree that becomes an nfa. */
struct making {
    const struct regex_tree *tree;
    const char *text;
    struct nfa nfa;
    int32_t any; /* the set of all characters */
    bool search;
    struct error *err;
};

static int make(struct making *making, const struct regex_node *node, uint32_t from, uint32_t to);

static int edge(struct making *making, uint32_t from, uint32_t to, int32_t set)
{
    return nfa_edge(&making->nfa, from, to, set, making->err);
}

/* The children from `child` up to `end` (NULL: all), one after the other. */
static int make_children(struct making *making, const struct regex_node *child,
                         const struct regex_node *end, uint32_t from, uint32_t to)
{
    for (; child != end; child = child->next) {
        uint32_t next = nfa_state(&making->nfa);
        if (make(making, child, from, next))
            return -1;
        from = next;
    }
    return edge(making, from, to, -1);
}

static int make_repeat(struct making *making, const struct regex_node *node, uint32_t from,
                       uint32_t to)
{
    for (int i = 0; i < node->least; i++) {
        uint32_t next = nfa_state(&making->nfa);
        if (make(making, node->child, from, next))
            return -1;
        from = next;
    }
    if (node->most < 0) {
        uint32_t loop = nfa_state(&making->nfa), back = nfa_state(&making->nfa);
        return edge(making, from, loop, -1) || make(making, node->child, loop, back) ||
                       edge(making, back, loop, -1) || edge(making, loop, to, -1)
                   ? -1
                   : 0;
    }
    for (int i = node->least; i < node->most; i++) {
        uint32_t next = nfa_state(&making->nfa);
        if (edge(making, from, to, -1) || make(making, node->child, from, next))
            return -1;
        from = next;
    }
    return edge(making, from, to, -1);
}

/* Recursion is as deep as groups are. */
static int make(struct making *making, const struct regex_node *node, uint32_t from, uint32_t to)
{
    switch (node->kind) {
    case REGEX_SEQUENCE:
        return make_children(making, node->child, NULL, from, to);
    case REGEX_CHOICE:
        for (const struct regex_node *child = node->child; child; child = child->next)
            if (make(making, child, from, to))
                return -1;
        return 0;
    case REGEX_REPEAT:
        return make_repeat(making, node, from, to);
    case REGEX_SET: {
        struct charset copy = {0};
        if (charset_add_all(&copy, &making->tree->sets[node->set], making->err)) {
            charset_clear(&copy);
            return -1;
        }
        int32_t set = nfa_set(&making->nfa, &copy, making->err);
        return set < 0 ? -1 : edge(making, from, to, set);
    }
    case REGEX_START:
    case REGEX_END:
        break;
    }
    return error_set(making->err, ERROR_UNSUPPORTED,
                     "offset %zu: ^ and $ are supported at the beginning and the end only",
                     utf8_characters(making->text, node->offset));
}

/* Any text, where a search may begin or end. */
static int make_any(struct making *making, uint32_t state)
{
    return making->search ? edge(making, state, state, making->any) : 0;
}

/* One of the outermost choices: ^ and $ count here. */
static int make_outer(struct making *making, const struct regex_node *node)
{
    const struct regex_node *first = node->child, *end = NULL;
    if (node->kind == REGEX_CHOICE) {
        for (; first; first = first->next)
            if (make_outer(making, first))
                return -1;
        return 0;
    }
    if (first && !first->next && first->kind == REGEX_CHOICE) /* one group is all there is */
        return make_outer(making, first);
    uint32_t from = nfa_state(&making->nfa), to = nfa_state(&making->nfa);
    if (edge(making, 0, from, -1) || edge(making, to, 1, -1))
        return -1;
    bool starts = first && first->kind == REGEX_START;
    if (!starts && make_any(making, from))
        return -1;
    first = starts ? first->next : first;
    bool ends = first && node->last->kind == REGEX_END;
    if (!ends && make_any(making, to))
        return -1;
    if (ends)
        end = node->last;
    return make_children(making, first, end, from, to);
}

int regex_read(struct nfa *out, const char *text, size_t length, bool search, struct work *work,
               struct error *err)
{
    struct regex_tree tree = {0};
    struct making making = {.tree = &tree, .text = text, .search = search, .err = err};
    struct charset any = {0};
    int failed = work_add(work, 16 * length, err) || regex_tree_parse(&tree, text, length, err) ||
                 nfa_begin(&making.nfa, work, err) || charset_negate(&any, err);
    making.any = failed ? -1 : nfa_set(&making.nfa, &any, err);
    if (failed || making.any < 0 || make_outer(&making, tree.root))
        failed = -1;
    charset_clear(&any);
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
