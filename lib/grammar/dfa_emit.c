/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/dfa_emit.h"

#include "lib/text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where ranges of characters lead. The states behind which only bytes 80 to BF follow are shared.
 */
struct target {
    uint32_t to;
    uint32_t rest[4]; /* rest[n]: n such bytes before `to`; 0: not made yet */
};

static uint32_t rest_of(struct builder *builder, struct target *target, int count)
{
    if (count == 0)
        return target->to;
    if (target->rest[count] == 0) {
        uint32_t next = rest_of(builder, target, count - 1);
        target->rest[count] = builder_state(builder);
        builder_range(builder, target->rest[count], next, 0x80, 0xBF, 0);
    }
    return target->rest[count];
}

/* Characters of one length, of which each byte runs through a range by itself. */
static void emit_block(struct builder *builder, uint32_t from, struct target *target,
                       uint32_t first, uint32_t last)
{
    char low[4], high[4];
    int length = (int)utf8_encode(first, low);
    utf8_encode(last, high);
    for (int i = 0; i < length; i++) {
        bool full = true; /* what follows byte i */
        for (int j = i + 1; j < length; j++)
            full = full && (uint8_t)low[j] == 0x80 && (uint8_t)high[j] == 0xBF;
        uint32_t next = full ? rest_of(builder, target, length - 1 - i) : builder_state(builder);
        builder_range(builder, from, next, (uint8_t)low[i], (uint8_t)high[i], 0);
        if (full)
            return;
        from = next;
    }
}

static void emit_to(struct builder *builder, uint32_t from, struct target *target, uint32_t first,
                    uint32_t last)
{
    static const uint32_t edges[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, CHARSET_LAST};
    while (first <= last) {
        uint32_t end = last;
        int length = 0;
        while (edges[length] < first)
            length++;
        if (end > edges[length])
            end = edges[length];
        int bits = length == 0 ? 0 : length == 1 ? 6 : length < 5 ? 12 : 18;
        for (; bits > 0; bits -= 6) { /* all, or none, of the blocks of 64, 4096, ... characters */
            uint32_t mask = (1u << bits) - 1;
            if ((first & ~mask) == (end & ~mask) || (first & mask) == 0)
                continue;
            end = first | mask;
        }
        for (bits = 6; bits <= 18 && length > 0; bits += 6) {
            uint32_t mask = (1u << bits) - 1;
            if ((first & ~mask) != (end & ~mask) && (end & mask) != mask)
                end = (end & ~mask) - 1;
        }
        if (length != 3) /* surrogates are no characters */
            emit_block(builder, from, target, first, end);
        first = end + 1;
    }
}

void dfa_emit_range(struct builder *builder, uint32_t from, uint32_t to, uint32_t first,
                    uint32_t last)
{
    struct target target = {.to = to};
    emit_to(builder, from, &target, first, last);
}

/* One character that JSON wants escaped. */
static void emit_escape(struct builder *builder, uint32_t from, uint32_t to, uint32_t c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    char text[8];
    const char *found = c ? strchr(plain, (int)c) : NULL;
    int length = found ? snprintf(text, sizeof text, "\\%c", letters[found - plain])
                       : snprintf(text, sizeof text, "\\u%04x", c);
    if (c > 0)
        builder_text(builder, from, to, text, (size_t)length);
}

static void emit_json(struct builder *builder, uint32_t from, struct target *target, uint32_t first,
                      uint32_t last)
{
    static const uint32_t escaped[] = {'"', '<', '\\'};
    for (; first < 0x20 && first <= last; first++)
        emit_escape(builder, from, target->to, first);
    for (int i = 0; i < 3; i++)
        if (first <= escaped[i] && escaped[i] <= last && (builder->tame || escaped[i] != '<')) {
            if (first < escaped[i])
                emit_to(builder, from, target, first, escaped[i] - 1);
            emit_escape(builder, from, target->to, escaped[i]);
            first = escaped[i] + 1;
        }
    if (first <= last)
        emit_to(builder, from, target, first, last);
}

void dfa_emit(struct builder *builder, uint32_t from, uint32_t to, const struct dfa *dfa,
              enum dfa_spelling spelling)
{
    struct target *targets = calloc((size_t)dfa->num_states + 1, sizeof *targets);
    if (!targets) {
        error_set(builder->err, ERROR_NO_MEMORY, "no memory for an expression");
        return;
    }
    work_add(&builder->work, (size_t)dfa->num_states * dfa->num_intervals, builder->err);
    for (uint32_t i = 0; i < dfa->num_states; i++)
        targets[i].to = builder_state(builder);
    for (uint32_t i = 0; i < dfa->num_states && !builder_failed(builder); i++) {
        const uint32_t *next = dfa->next + (size_t)i * dfa->num_classes;
        for (size_t k = 0; k < dfa->num_intervals;) {
            size_t end = k + 1;
            uint32_t state = next[dfa->intervals[k].class];
            while (end < dfa->num_intervals && next[dfa->intervals[end].class] == state)
                end++;
            uint32_t first = dfa->intervals[k].first;
            uint32_t last = end < dfa->num_intervals ? dfa->intervals[end].first - 1 : CHARSET_LAST;
            k = end;
            if (state == DFA_DEAD)
                continue;
            if (spelling == DFA_JSON)
                emit_json(builder, targets[i].to, &targets[state], first, last);
            else
                emit_to(builder, targets[i].to, &targets[state], first, last);
        }
        if (dfa->final[i])
            builder_jump(builder, targets[i].to, to);
    }
    if (!dfa->empty)
        builder_jump(builder, from, targets[0].to);
    free(targets);
}

void dfa_emit_nfa(struct builder *builder, uint32_t from, uint32_t to, const struct nfa *nfa)
{
    struct target *targets = calloc((size_t)nfa->num_states + 1, sizeof *targets);
    if (!targets) {
        error_set(builder->err, ERROR_NO_MEMORY, "no memory for an expression");
        return;
    }
    for (uint32_t i = 0; i < nfa->num_states; i++)
        targets[i].to = builder_state(builder);
    for (size_t i = 0; i < nfa->num_edges && !builder_failed(builder); i++) {
        const struct nfa_edge *edge = &nfa->edges[i];
        const struct charset *set = edge->set < 0 ? NULL : &nfa->sets[edge->set];
        if (!set)
            builder_jump(builder, targets[edge->from].to, targets[edge->to].to);
        for (size_t r = 0; set && r < set->count; r++)
            emit_to(builder, targets[edge->from].to, &targets[edge->to], set->ranges[r].first,
                    set->ranges[r].last);
    }
    builder_jump(builder, from, targets[0].to);
    builder_jump(builder, targets[1].to, to);
    free(targets);
}
