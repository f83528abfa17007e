/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/builder.h"

#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

bool builder_failed(const struct builder *builder)
{
    return builder->err->code != ERROR_NONE;
}

uint32_t builder_state(struct builder *builder)
{
    if (builder_failed(builder))
        return 0;
    if (builder->num_states >= BUILDER_MOST_STATES) {
        error_set(builder->err, ERROR_UNSUPPORTED,
                  "expected a grammar of at most %d states, got a larger one", BUILDER_MOST_STATES);
        return 0;
    }
    return builder->num_states++;
}

uint32_t builder_rule(struct builder *builder)
{
    if (builder_failed(builder))
        return 0;
    if (builder->num_rules >= BUILDER_MOST_RULES) {
        error_set(builder->err, ERROR_UNSUPPORTED,
                  "expected a grammar of at most %d rules, got a larger one", BUILDER_MOST_RULES);
        return 0;
    }
    if (array_grow((void **)&builder->rules, &builder->rules_capacity, builder->num_rules + 1,
                   sizeof *builder->rules, builder->err))
        return 0;
    uint32_t start = builder_state(builder), final = builder_state(builder);
    builder->rules[builder->num_rules] = (struct builder_rule){start, final};
    return (uint32_t)builder->num_rules++;
}

void builder_add(struct builder *builder, struct builder_arc arc)
{
    if (builder_failed(builder))
        return;
    if (builder->num_arcs >= BUILDER_MOST_ARCS) {
        error_set(builder->err, ERROR_UNSUPPORTED,
                  "expected a grammar of at most %d edges, got a larger one", BUILDER_MOST_ARCS);
        return;
    }
    if (array_grow((void **)&builder->arcs, &builder->arcs_capacity, builder->num_arcs + 1,
                   sizeof *builder->arcs, builder->err))
        return;
    builder->arcs[builder->num_arcs++] = arc;
}

void builder_range(struct builder *builder, uint32_t from, uint32_t to, unsigned first,
                   unsigned last, unsigned flags)
{
    for (unsigned byte = first; byte <= last; byte++) {
        if (!builder->alphabet[byte])
            continue;
        unsigned end = byte;
        while (end < last && builder->alphabet[end + 1])
            end++;
        builder_add(builder, (struct builder_arc){.from = from,
                                                  .to = to,
                                                  .kind = ARC_RANGE,
                                                  .first = (uint8_t)byte,
                                                  .last = (uint8_t)end,
                                                  .flags = (uint8_t)flags});
        byte = end;
    }
}

void builder_byte(struct builder *builder, uint32_t from, uint32_t to, unsigned char byte)
{
    builder_range(builder, from, to, byte, byte, 0);
}

void builder_jump(struct builder *builder, uint32_t from, uint32_t to)
{
    builder_add(builder, (struct builder_arc){.from = from, .to = to, .kind = ARC_JUMP});
}

void builder_call(struct builder *builder, uint32_t from, uint32_t to, uint32_t rule, int32_t low,
                  int32_t high)
{
    builder_add(
        builder,
        (struct builder_arc){
            .from = from, .to = to, .kind = ARC_CALL, .rule = rule, .low = low, .high = high});
}

void builder_text(struct builder *builder, uint32_t from, uint32_t to, const char *text,
                  size_t length)
{
    if (length == 0)
        builder_jump(builder, from, to);
    for (size_t i = 0; i < length && !builder_failed(builder); i++) {
        uint32_t next = i + 1 == length ? to : builder_state(builder);
        builder_byte(builder, from, next, (unsigned char)text[i]);
        from = next;
    }
}

static int compare_words(const void *a, const void *b)
{
    const struct builder_word *x = a, *y = b;
    size_t shorter = x->length < y->length ? x->length : y->length;
    int order = shorter ? memcmp(x->bytes, y->bytes, shorter) : 0;
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static size_t common_length(const struct builder_word *a, const struct builder_word *b)
{
    size_t i = 0;
    while (i < a->length && i < b->length && a->bytes[i] == b->bytes[i])
        i++;
    return i;
}

/* The states along the word before, by length read, are kept: a sorted word leaves it where the two
 * part. */
void builder_words(struct builder *builder, uint32_t from, struct builder_word *words, size_t count)
{
    size_t longest = 0;
    for (size_t i = 0; i < count; i++)
        longest = words[i].length > longest ? words[i].length : longest;
    uint32_t *path = malloc((longest + 1) * sizeof *path);
    if (!path) {
        error_set(builder->err, ERROR_NO_MEMORY, "no memory for a word of %zu bytes", longest);
        return;
    }
    qsort(words, count, sizeof *words, compare_words);
    path[0] = from;
    for (size_t i = 0; i < count && !builder_failed(builder); i++) {
        const struct builder_word *word = &words[i];
        size_t at = i == 0 ? 0 : common_length(word, &words[i - 1]);
        if (i > 0 && at == word->length)
            continue; /* the same word again: no sorted word begins the one before */
        for (; at < word->length; at++) {
            path[at + 1] = builder_state(builder);
            builder_byte(builder, path[at], path[at + 1], (unsigned char)word->bytes[at]);
        }
        builder_jump(builder, path[word->length], word->to);
    }
    free(path);
}

void builder_clear(struct builder *builder)
{
    free(builder->arcs);
    free(builder->rules);
    builder->arcs = NULL;
    builder->rules = NULL;
}
