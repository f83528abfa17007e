/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/grammar_vocabulary.h"

#include "lib/grammar/builder_finish.h"
#include "lib/grammar/json_rules.h"
#include "lib/grammar/walk.h"
#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT_FROM = 1 << 30 }; /* what is counted down while a prefix is made */

/* Copies the bytes of all tokens that stand for any. */
static int copy_tokens(struct grammar_vocabulary *vocabulary, const struct tokenizer *tokenizer,
                       struct error *err)
{
    struct trie *trie = &vocabulary->trie;
    struct text_buffer bytes = {0};
    const bool spaced = tokenizer_joins_with_spaces(tokenizer);
    static const char special[] = {(char)VOCABULARY_SPECIAL, 0};
    int failed = 0;
    for (int32_t id = 0; id < trie->num_tokens && !failed; id++) {
        size_t length;
        const char *text = tokenizer_token_bytes(tokenizer, id, &length);
        const char *content = tokenizer_token_content(tokenizer, id), *before = spaced ? " " : "";
        if (!content || (length > 0 && memchr(text, VOCABULARY_SPECIAL, length)))
            continue;
        if (tokenizer_is_special(tokenizer, id)) {
            before = special;
            text = content;
            length = strlen(content);
        }
        trie->tokens[id].length = (uint32_t)(strlen(before) + length);
        failed = text_buffer_append(&bytes, before, strlen(before), err) ||
                 text_buffer_append(&bytes, text, length, err);
    }
    trie->bytes = bytes.data;
    const char *at = bytes.data;
    for (int32_t id = 0; id < trie->num_tokens && !failed; id++) {
        struct trie_token *token = &trie->tokens[id];
        token->bytes = at;
        if (token->length == 1)
            vocabulary->alphabet[(unsigned char)*at] = true;
        else if (token->length > 1 && (unsigned char)*at == VOCABULARY_SPECIAL)
            vocabulary->alphabet[VOCABULARY_SPECIAL] = true;
        if (token->length > 0)
            at += token->length;
    }
    return failed ? -1 : 0;
}

/* A prefix while it is made. */
struct making {
    const struct trie *trie;
    struct readings *readings;
    struct prefix *prefix;
    int32_t ended[16]; /* counts with which the rule ended at this node */
    int num_ended;
    int failed;
    struct error *err;
};

static void at_end(void *context, int32_t high)
{
    struct making *making = context;
    int32_t count = COUNT_FROM - high;
    for (int i = 0; i < making->num_ended; i++)
        if (making->ended[i] == count)
            return;
    if (making->num_ended == 16)
        making->failed = error_set(making->err, ERROR_INTERNAL, "grammar: a rule ends too often");
    else
        making->ended[making->num_ended++] = count;
}

static int add_counted(struct making *making, const struct trie_node *node, int32_t count)
{
    struct prefix *prefix = making->prefix;
    for (int32_t id = node->token; id >= 0; id = making->trie->tokens[id].same) {
        if (array_grow((void **)&prefix->counted, &prefix->counted_capacity,
                       prefix->num_counted + 1, sizeof *prefix->counted, making->err))
            return -1;
        prefix->counted[prefix->num_counted++] = (struct prefix_counted){id, count};
    }
    return 0;
}

/* Rules that count call no others, so what counts is a reading without a frame. */
static void at_node(void *context, uint32_t index, size_t from)
{
    struct making *making = context;
    struct prefix *prefix = making->prefix;
    int32_t least = INT32_MAX;
    for (size_t i = from; i < making->readings->count; i++) {
        const struct reading *reading = &making->readings->items[i];
        int32_t count = reading->frame == FRAME_UNKNOWN ? COUNT_FROM - reading->high : 0;
        least = count < least ? count : least;
    }
    if (least > 0 && least < INT32_MAX && add_counted(making, &making->trie->nodes[index], least))
        making->failed = -1;
    for (int i = 0; i < making->num_ended && !making->failed; i++) {
        if (array_grow((void **)&prefix->ends, &prefix->ends_capacity, prefix->num_ends + 1,
                       sizeof *prefix->ends, making->err))
            making->failed = -1;
        else
            prefix->ends[prefix->num_ends++] = (struct prefix_end){index, making->ended[i]};
    }
    making->num_ended = 0;
}

static int rising(const void *a, const void *b)
{
    const struct prefix_counted *x = a, *y = b;
    return x->count != y->count ? (x->count > y->count) - (x->count < y->count)
                                : (x->id > y->id) - (x->id < y->id);
}

static int make_prefix(struct grammar_vocabulary *vocabulary, uint32_t state, struct walk *walk,
                       struct error *err)
{
    struct readings *readings = walk->readings;
    struct prefix *prefix = &vocabulary->prefixes[state];
    struct making making = {&vocabulary->trie, readings, prefix, {0}, 0, 0, err};
    size_t words = trie_set_words(&vocabulary->trie);
    prefix->set = calloc(words + 1, sizeof *prefix->set);
    if (!prefix->set)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's vocabulary");
    readings->work = 0;
    readings->deepest = 0;
    readings->at_unknown = at_end;
    readings->context = walk->context = &making;
    walk->at_node = at_node;
    walk->set = prefix->set;
    readings->items[0] = (struct reading){state, 0, COUNT_FROM, FRAME_UNKNOWN};
    readings->count = 1;
    if (walk_all(walk, 0, err) || making.failed)
        return -1;
    prefix->deepest = readings->deepest;
    if (prefix->num_counted > 0)
        qsort(prefix->counted, prefix->num_counted, sizeof *prefix->counted, rising);
    vocabulary->bytes += words * sizeof *prefix->set +
                         prefix->counted_capacity * sizeof *prefix->counted +
                         prefix->ends_capacity * sizeof *prefix->ends;
    return 0;
}

static int make_prefixes(struct grammar_vocabulary *vocabulary, struct error *err)
{
    const struct automaton *json = &vocabulary->json;
    struct readings readings = {0};
    struct walk walk = {0};
    vocabulary->prefixes = calloc((size_t)json->num_states + 1, sizeof *vocabulary->prefixes);
    int failed = 0;
    if (!vocabulary->prefixes)
        failed = error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's vocabulary");
    if (!failed)
        failed = readings_init(&readings, json, err);
    if (!failed)
        failed = array_grow((void **)&readings.items, &readings.capacity, 1, sizeof *readings.items,
                            err);
    if (!failed)
        failed = walk_init(&walk, &vocabulary->trie, &readings, err);
    for (uint32_t i = 0; i < json->num_states && !failed; i++)
        if (json->states[i].edge_at < json->states[i + 1].edge_at)
            failed = make_prefix(vocabulary, i, &walk, err);
    vocabulary->bytes += json->num_states * sizeof *vocabulary->prefixes;
    walk_clear(&walk);
    readings_clear(&readings);
    return failed;
}

static int make_json(struct grammar_vocabulary *vocabulary, struct error *err)
{
    struct builder builder = {.alphabet = vocabulary->alphabet, .err = err};
    uint32_t left_recursive;
    json_rules_add(&builder);
    int failed = builder_finish(&builder, &vocabulary->json, &left_recursive);
    builder_clear(&builder);
    return failed;
}

int grammar_vocabulary_create(struct grammar_vocabulary **out, const struct tokenizer *tokenizer,
                              int32_t vocab_size, struct error *err)
{
    struct grammar_vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    if (!vocabulary)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's vocabulary");
    struct trie *trie = &vocabulary->trie;
    trie->num_tokens = vocab_size;
    trie->tokens = calloc((size_t)vocab_size + 1, sizeof *trie->tokens);
    int failed = 0;
    if (!trie->tokens)
        failed =
            error_set(err, ERROR_NO_MEMORY, "no memory for a vocabulary of %d tokens", vocab_size);
    if (failed || copy_tokens(vocabulary, tokenizer, err) || trie_make(trie, err) ||
        make_json(vocabulary, err) || make_prefixes(vocabulary, err)) {
        grammar_vocabulary_free(vocabulary);
        return -1;
    }
    vocabulary->bytes += sizeof *vocabulary + trie_bytes(trie) + vocabulary->json.bytes;
    *out = vocabulary;
    return 0;
}

void grammar_vocabulary_free(struct grammar_vocabulary *vocabulary)
{
    if (!vocabulary)
        return;
    for (uint32_t i = 0; vocabulary->prefixes && i < vocabulary->json.num_states; i++) {
        free(vocabulary->prefixes[i].set);
        free(vocabulary->prefixes[i].counted);
        free(vocabulary->prefixes[i].ends);
    }
    free(vocabulary->prefixes);
    automaton_clear(&vocabulary->json);
    trie_clear(&vocabulary->trie);
    free(vocabulary);
}

size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary)
{
    return vocabulary->bytes;
}
