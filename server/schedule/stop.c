/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/stop.h"

#include <stdlib.h>

/* A prefix of some strings. Children are a linked list: a node has at most 256, and most have 1. */
struct node {
    int32_t first_child, next_sibling; /* 0: none (the root is nobody's child) */
    int32_t fallback;                  /* the longest proper suffix that is a node */
    int32_t depth;
    int32_t match; /* the longest string that ends here, or -1 */
    unsigned char byte;
};

struct stop_set {
    struct node *nodes; /* [count], nodes[0] is the root */
    int32_t count;
    int32_t *lengths; /* of the strings */
};

static int32_t child(const struct stop_set *set, int32_t node, unsigned char byte)
{
    int32_t at = set->nodes[node].first_child;
    while (at && set->nodes[at].byte != byte)
        at = set->nodes[at].next_sibling;
    return at;
}

static void insert(struct stop_set *set, const struct stop_string *string, int32_t index)
{
    int32_t at = 0;
    for (size_t i = 0; i < string->length; i++) {
        int32_t next = child(set, at, (unsigned char)string->text[i]);
        if (!next) {
            next = set->count++;
            set->nodes[next] = (struct node){.next_sibling = set->nodes[at].first_child,
                                             .depth = set->nodes[at].depth + 1,
                                             .match = -1,
                                             .byte = (unsigned char)string->text[i]};
            set->nodes[at].first_child = next;
        }
        at = next;
    }
    if (set->nodes[at].match < 0)
        set->nodes[at].match = index;
}

static int32_t step(const struct stop_set *set, int32_t node, unsigned char byte)
{
    for (;;) {
        int32_t next = child(set, node, byte);
        if (next || node == 0)
            return next;
        node = set->nodes[node].fallback;
    }
}

/* Breadth first, so that a node's fallback, which is shallower, is ready before it. */
static void link_fallbacks(struct stop_set *set, int32_t *queue)
{
    int32_t head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        int32_t at = queue[head++];
        for (int32_t c = set->nodes[at].first_child; c; c = set->nodes[c].next_sibling) {
            struct node *node = &set->nodes[c];
            node->fallback = at ? step(set, set->nodes[at].fallback, node->byte) : 0;
            if (node->match < 0)
                node->match = set->nodes[node->fallback].match;
            queue[tail++] = c;
        }
    }
}

int stop_set_create(struct stop_set **out, const struct stop_string *strings, size_t count,
                    struct error *err)
{
    size_t total = 1;
    for (size_t i = 0; i < count; i++)
        total += strings[i].length;
    if (total > INT32_MAX / sizeof(struct node) || count > INT32_MAX)
        return error_set(err, ERROR_INVALID, "stop: the strings hold %zu bytes, too many", total);
    struct stop_set *set = calloc(1, sizeof *set);
    int32_t *queue = malloc(total * sizeof *queue);
    if (set) {
        set->nodes = malloc(total * sizeof *set->nodes);
        set->lengths = malloc((count + 1) * sizeof *set->lengths);
    }
    if (!set || !queue || !set->nodes || !set->lengths) {
        free(queue);
        stop_set_free(set);
        return error_set(err, ERROR_NO_MEMORY, "stop: out of memory for %zu bytes", total);
    }
    set->nodes[0] = (struct node){.match = -1};
    set->count = 1;
    for (size_t i = 0; i < count; i++) {
        set->lengths[i] = (int32_t)strings[i].length;
        insert(set, &strings[i], (int32_t)i);
    }
    link_fallbacks(set, queue);
    free(queue);
    *out = set;
    return 0;
}

size_t stop_set_bytes(size_t length)
{
    return (length + 1) * (sizeof(struct node) + sizeof(int32_t));
}

void stop_set_free(struct stop_set *set)
{
    if (!set)
        return;
    free(set->nodes);
    free(set->lengths);
    free(set);
}

int stop_scan_push(const struct stop_set *set, struct stop_scan *scan, const char *text,
                   size_t length, struct stop_match *match)
{
    for (size_t i = 0; i < length; i++) {
        scan->node = step(set, scan->node, (unsigned char)text[i]);
        int32_t index = set->nodes[scan->node].match;
        if (index >= 0) {
            *match = (struct stop_match){i + 1, (size_t)set->lengths[index], (size_t)index};
            return 1;
        }
    }
    return 0;
}

size_t stop_scan_held(const struct stop_set *set, const struct stop_scan *scan)
{
    return (size_t)set->nodes[scan->node].depth;
}
