/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/grammar.h"

#include "lib/grammar/compiled.h"

#include <stdlib.h>

struct grammar *grammar_share(struct grammar *grammar)
{
    atomic_fetch_add(&grammar->shares, 1);
    return grammar;
}

void grammar_release(struct grammar *grammar)
{
    if (!grammar || atomic_fetch_sub(&grammar->shares, 1) != 1)
        return;
    automaton_clear(&grammar->automaton);
    mask_release(grammar->first);
    mask_cache_free(grammar->masks);
    free(grammar);
}

size_t grammar_bytes(const struct grammar *grammar)
{
    return sizeof *grammar + grammar->automaton.bytes + mask_cache_bytes(grammar->masks) +
           mask_cache_share_bytes(grammar->masks, grammar->first);
}

unsigned grammar_annotations(const struct grammar *grammar)
{
    return grammar->annotations;
}

const char *grammar_annotation_name(enum grammar_annotation annotation)
{
    static const char *const names[NUM_ANNOTATIONS] = {
        [ANNOTATION_FORMAT] = "format",   [ANNOTATION_NULLABLE] = "nullable",
        [ANNOTATION_CONTENT] = "content", [ANNOTATION_DISCRIMINATOR] = "discriminator",
        [ANNOTATION_EXAMPLE] = "example", [ANNOTATION_EXTENSION] = "x-",
        [ANNOTATION_OTHER] = "other",
    };
    return names[annotation];
}
