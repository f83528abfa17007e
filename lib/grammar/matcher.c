/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/error.h"
#include "lib/grammar/compiled.h"
#include "lib/grammar/grammar.h"
#include "lib/grammar/walk.h"
#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_FRAMES = 1024, /* frames are swept from so many on, when they have doubled */
    CHEAP_NODES = 192,   /* a mask of fewer nodes is made again rather than kept */
};

struct grammar_matcher {
    struct grammar *grammar;
    struct readings readings; /* items [0, count): where the text is */
    struct walk walk;
    bool begun; /* a token was accepted */
    bool may_end;
    uint32_t *own;       /* a mask's words */
    uint32_t *few;       /* the same, for what counters leave of a prefix */
    const uint32_t *set; /* the mask, once it was asked for; NULL: not yet */
    struct mask *held;   /* whose set that is, unless it is `own` */
    struct mask_key key;
    size_t work;    /* for the last mask; 0: it was kept */
    size_t swept;   /* frames that the last sweep left */
    int32_t *highs; /* [json.num_states]: the most that a reading there may count; -1: none is */
};

int grammar_matcher_create(struct grammar_matcher **out, struct grammar *grammar, struct error *err)
{
    struct grammar_matcher *matcher = calloc(1, sizeof *matcher);
    if (!matcher)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's matcher");
    const struct trie *trie = &grammar->vocabulary->trie;
    matcher->grammar = grammar_share(grammar);
    matcher->own = malloc((2 * trie_set_words(trie) + 1) * sizeof *matcher->own);
    matcher->highs = malloc((grammar->vocabulary->json.num_states + 1) * sizeof *matcher->highs);
    struct reading start = {grammar->automaton.starts[grammar->root], 0, AUTOMATON_NO_LIMIT,
                            FRAME_BOTTOM};
    int failed = 0;
    if (!matcher->own || !matcher->highs)
        failed = error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's matcher");
    if (failed || readings_init(&matcher->readings, &grammar->automaton, err) ||
        walk_init(&matcher->walk, trie, &matcher->readings, err)) {
        grammar_matcher_free(matcher);
        return -1;
    }
    matcher->few = matcher->own + trie_set_words(trie);
    readings_begin(&matcher->readings);
    if (readings_enter(&matcher->readings, start, err)) {
        grammar_matcher_free(matcher);
        return -1;
    }
    matcher->may_end = matcher->readings.ended;
    *out = matcher;
    return 0;
}

void grammar_matcher_free(struct grammar_matcher *matcher)
{
    if (!matcher)
        return;
    mask_release(matcher->held);
    walk_clear(&matcher->walk);
    readings_clear(&matcher->readings);
    free(matcher->own);
    free(matcher->highs);
    grammar_release(matcher->grammar);
    free(matcher);
}

size_t grammar_matcher_bytes(const struct grammar_matcher *matcher)
{
    const struct grammar_vocabulary *vocabulary = matcher->grammar->vocabulary;
    return sizeof *matcher + readings_bytes(&matcher->readings) +
           2 * trie_set_words(&vocabulary->trie) * sizeof *matcher->own +
           vocabulary->json.num_states * sizeof *matcher->highs +
           ((size_t)vocabulary->trie.longest + 2) * sizeof *matcher->walk.levels;
}

/* Spells out all readings with their stacks. False: that is too long to be a key. Where all texts
 * begin has a key of its own. */
static bool make_key(struct grammar_matcher *matcher)
{
    const struct readings *readings = &matcher->readings;
    struct mask_key *key = &matcher->key;
    size_t count = 0;
    key->words[count++] = matcher->begun;
    for (size_t i = 0; i < readings->count && matcher->begun; i++) {
        const struct reading *reading = &readings->items[i];
        uint32_t state = reading->state, frame = reading->frame;
        int32_t low = reading->low, high = reading->high;
        for (;;) {
            if (count + 4 > MASK_KEY_WORDS)
                return false;
            key->words[count++] = state;
            key->words[count++] = (uint32_t)low;
            key->words[count++] = (uint32_t)high;
            if (frame == FRAME_BOTTOM)
                break;
            const struct frame *at = &readings->frames[frame];
            state = at->state;
            low = at->low;
            high = at->high;
            frame = at->below;
        }
        key->words[count++] = UINT32_MAX;
    }
    key->count = count;
    return true;
}

/* The tokens of a prefix's set that need no more than `high`. */
static int add_prefix_set(struct grammar_matcher *matcher, const struct prefix *prefix,
                          int32_t high, struct error *err)
{
    size_t words = trie_set_words(matcher->walk.trie), n = prefix->num_counted;
    const uint32_t *set = prefix->set;
    size_t most = words + (high == AUTOMATON_NO_LIMIT ? 0 : n);
    matcher->walk.visited += words / 4;
    if (readings_spend(&matcher->readings, 1 + most / READINGS_STEP, err))
        return -1;
    if (n > 0 && prefix->counted[n - 1].count > high) {
        memcpy(matcher->few, set, words * sizeof *set);
        for (; n > 0 && prefix->counted[n - 1].count > high; n--) {
            int32_t id = prefix->counted[n - 1].id;
            matcher->few[id / 32] &= ~(1u << id % 32);
        }
        set = matcher->few;
    }
    for (size_t i = 0; i < words; i++)
        matcher->walk.set[i] |= set[i];
    return 0;
}

/* The tokens that a reading in a rule of JSON may go on with behind the rule's end. */
static int add_behind(struct grammar_matcher *matcher, const struct reading *reading,
                      const struct prefix *prefix, struct error *err)
{
    struct readings *readings = &matcher->readings;
    const struct trie *trie = matcher->walk.trie;
    size_t from = readings->count, frames = readings->num_frames;
    matcher->walk.visited += prefix->num_ends;
    if (prefix->num_ends == 0)
        return 0;
    if (readings_spend(readings, 1 + prefix->num_ends / READINGS_STEP, err))
        return -1;
    readings_begin(readings);
    int failed = readings_return(readings, reading->frame, err);
    for (size_t i = 0; i < prefix->num_ends && !failed; i++) {
        const struct prefix_end *end = &prefix->ends[i];
        if (end->count < reading->low || end->count > reading->high)
            continue;
        trie_add(trie, &trie->nodes[end->node], matcher->walk.set);
        if (readings->count > from)
            failed = walk_below(&matcher->walk, end->node, from, err);
    }
    readings->count = from;
    readings_cut_frames(readings, frames);
    return failed;
}

/* The prefix of a reading's state, if there is one and nothing that it allows is too deep here. */
static const struct prefix *prefix_of(const struct grammar_matcher *matcher,
                                      const struct reading *reading)
{
    const struct grammar_vocabulary *vocabulary = matcher->grammar->vocabulary;
    if (reading->state >= vocabulary->json.num_states)
        return NULL;
    const struct prefix *prefix = &vocabulary->prefixes[reading->state];
    uint32_t depth = matcher->readings.frames[reading->frame].depth;
    return prefix->set && depth + prefix->deepest <= matcher->grammar->automaton.most_depth ? prefix
                                                                                            : NULL;
}

/* What readings in the rules of JSON may go on with. Several in one state differ in what they may
 * count: what the others allow is part of what the one with the most does. */
static int add_prefixes(struct grammar_matcher *matcher, size_t count, struct error *err)
{
    const struct grammar_vocabulary *vocabulary = matcher->grammar->vocabulary;
    const struct readings *readings = &matcher->readings;
    const uint32_t states = vocabulary->json.num_states;
    memset(matcher->highs, 0xff, states * sizeof *matcher->highs);
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) {
        const struct reading reading = readings->items[i];
        const struct prefix *prefix = prefix_of(matcher, &reading);
        if (!prefix)
            continue;
        if (reading.high > matcher->highs[reading.state])
            matcher->highs[reading.state] = reading.high;
        failed = add_behind(matcher, &reading, prefix, err);
    }
    for (uint32_t i = 0; i < states && !failed; i++)
        if (matcher->highs[i] >= 0)
            failed = add_prefix_set(matcher, &vocabulary->prefixes[i], matcher->highs[i], err);
    return failed;
}

static int make_mask(struct grammar_matcher *matcher, struct error *err)
{
    struct readings *readings = &matcher->readings;
    size_t count = readings->count;
    readings->work = 0;
    readings->most_work = READINGS_MOST_WORK;
    matcher->walk.visited = 0;
    matcher->walk.set = matcher->own;
    memset(matcher->own, 0, trie_set_words(matcher->walk.trie) * sizeof *matcher->own);
    int failed = add_prefixes(matcher, count, err);
    size_t others = 0;
    for (size_t i = 0; i < count && !failed; i++)
        others += !prefix_of(matcher, &readings->items[i]);
    if (!failed && others > 0)
        failed = array_grow((void **)&readings->items, &readings->capacity, count + others,
                            sizeof *readings->items, err);
    for (size_t i = 0; i < count && !failed && others > 0; i++)
        if (!prefix_of(matcher, &readings->items[i]))
            readings->items[readings->count++] = readings->items[i];
    if (!failed && others > 0)
        failed = walk_all(&matcher->walk, count, err);
    readings->count = count;
    readings->ended = false;
    return failed;
}

const uint32_t *grammar_matcher_mask(struct grammar_matcher *matcher, struct error *err)
{
    if (matcher->set)
        return matcher->set;
    struct mask_cache *masks = matcher->grammar->masks;
    bool is_key = make_key(matcher);
    matcher->work = 0;
    if (!matcher->begun && matcher->grammar->first)
        matcher->held = mask_share(matcher->grammar->first);
    else if (is_key)
        matcher->held = mask_cache_find(masks, &matcher->key);
    if (!matcher->held) {
        int failed = make_mask(matcher, err);
        matcher->work = matcher->readings.work;
        if (failed)
            return NULL;
        if (is_key && matcher->walk.visited > CHEAP_NODES) {
            matcher->held = mask_cache_keep(masks, &matcher->key, matcher->own, err);
            if (!matcher->held)
                return NULL;
        }
    }
    matcher->set = matcher->held ? mask_set(matcher->held) : matcher->own;
    return matcher->set;
}

struct mask *matcher_kept(const struct grammar_matcher *matcher)
{
    return matcher->held ? mask_share(matcher->held) : NULL;
}

size_t grammar_matcher_work(const struct grammar_matcher *matcher)
{
    return matcher->work;
}

bool grammar_matcher_may_end(const struct grammar_matcher *matcher)
{
    return matcher->may_end;
}

bool grammar_matcher_must_end(const struct grammar_matcher *matcher)
{
    return matcher->readings.count == 0;
}

/* Forgets frames that no reading needs, now and then. */
static int sweep(struct grammar_matcher *matcher, struct error *err)
{
    size_t frames = matcher->readings.num_frames;
    if (frames < SWEEP_FRAMES || frames < 2 * matcher->swept)
        return 0;
    if (readings_sweep(&matcher->readings, err))
        return -1;
    matcher->swept = matcher->readings.num_frames;
    return 0;
}

int grammar_matcher_accept(struct grammar_matcher *matcher, int32_t id, struct error *err)
{
    struct readings *readings = &matcher->readings;
    const struct trie *trie = matcher->walk.trie;
    if (id < 0 || id >= trie->num_tokens || trie->tokens[id].length == 0)
        return error_set(err, ERROR_INVALID, "grammar: expected a token of text, got id %d", id);
    if (sweep(matcher, err))
        return -1;
    const struct trie_token *token = &trie->tokens[id];
    size_t count = readings->count, frames = readings->num_frames, from = 0, to = count;
    int failed = 0;
    readings->work = 0;
    readings->most_work = READINGS_MOST_READ;
    for (uint32_t i = 0; i < token->length && !failed; i++) {
        readings->ended = false;
        failed = readings_step(readings, from, to, (unsigned char)token->bytes[i], err);
        from = to;
        to = readings->count;
        if (!failed && from == to && !(readings->ended && i + 1 == token->length))
            failed = error_set(err, ERROR_INVALID,
                               "grammar: expected a token that may come here, got id %d", id);
    }
    if (failed) {
        readings->count = count;
        readings_cut_frames(readings, frames);
        return -1;
    }
    if (to > from)
        memmove(readings->items, readings->items + from, (to - from) * sizeof *readings->items);
    readings->count = to - from;
    matcher->may_end = readings->ended;
    matcher->begun = true;
    mask_release(matcher->held);
    matcher->held = NULL;
    matcher->set = NULL;
    return 0;
}
