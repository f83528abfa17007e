/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_pattern.h"

#include "lib/grammar/regex.h"

#include <string.h>
#include <xxhash.h>

struct schema_pattern {
    struct schema_pattern *next;
    const char *text; /* [length] */
    size_t length;
    bool search;
    struct dfa dfa;
};

/* Automata are kept, so their memory is work too: 16 steps for each of their cells of 4 bytes. */
enum { KEPT_WORK = 1024, KEPT_CELL_WORK = 16 };

const struct dfa *schema_pattern(const struct schema_document *document,
                                 const struct schema_place *place, const char *key,
                                 const char *pattern, size_t length, bool search)
{
    char text[SCHEMA_PLACE_BYTES];
    if (schema_work(document, place, length / 8 + 16))
        return NULL;
    uint64_t hash = XXH3_64bits_withSeed(pattern, length, search);
    struct schema_pattern **slot = &document->patterns->slots[hash % SCHEMA_PATTERN_SLOTS];
    for (const struct schema_pattern *known = *slot; known; known = known->next)
        if (known->length == length && known->search == search &&
            memcmp(known->text, pattern, length) == 0)
            return &known->dfa;
    struct schema_pattern *made = arena_alloc(document->arena, 1, sizeof *made, document->err);
    if (!made)
        return NULL;
    *made = (struct schema_pattern){.text = pattern, .length = length, .search = search};
    if (regex_compile(&made->dfa, pattern, length, search, document->work, document->err)) {
        error_prefix(document->err, "%s.%.64s", schema_place_text(place, text), key);
        return NULL;
    }
    made->next = *slot;
    *slot = made;
    size_t cells = (size_t)made->dfa.num_states * made->dfa.num_classes;
    return schema_work(document, place, KEPT_WORK + KEPT_CELL_WORK * cells) ? NULL : &made->dfa;
}

void schema_patterns_clear(struct schema_patterns *patterns)
{
    for (size_t i = 0; i < SCHEMA_PATTERN_SLOTS; i++)
        for (struct schema_pattern *at = patterns->slots[i]; at; at = at->next)
            dfa_clear(&at->dfa);
}
