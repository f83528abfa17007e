/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/marker.h"

#include "lib/grammar/grammar_vocabulary.h"

#include <string.h>

static const char LEAD = (char)VOCABULARY_SPECIAL;
static const char BAR[] = "｜"; /* around DeepSeek's */

/* The length of the special token that the text begins with, or 0. */
static size_t special_at(const struct trie *trie, const char *text, struct error *err)
{
    struct text_buffer bytes = {0};
    size_t length = strlen(text), found = 0;
    if (text_buffer_append(&bytes, &LEAD, 1, err) == 0 &&
        text_buffer_append(&bytes, text, length, err) == 0)
        for (size_t size = length; size > 0 && found == 0; size--)
            found = trie_has(trie, bytes.data, size + 1) ? size : 0;
    text_buffer_clear(&bytes);
    return found;
}

int marker_append(const struct trie *trie, const char *text, struct text_buffer *bytes,
                  struct error *err)
{
    for (size_t at = 0; text[at];) {
        bool begins = at == 0 || text[at] == '<' || text[at] == '[' || text[at] == BAR[0];
        size_t special = begins ? special_at(trie, text + at, err) : 0;
        size_t size = special ? special : 1;
        if ((special && text_buffer_append(bytes, &LEAD, 1, err)) ||
            text_buffer_append(bytes, text + at, size, err))
            return -1;
        at += size;
    }
    return 0;
}

void marker_add(struct builder *builder, const struct trie *trie, uint32_t from, uint32_t to,
                const char *text)
{
    struct text_buffer bytes = {0};
    if (marker_append(trie, text, &bytes, builder->err) == 0)
        builder_text(builder, from, to, bytes.data, bytes.length);
    text_buffer_clear(&bytes);
}

bool marker_begins_special(const struct trie *trie, const char *text, struct error *err)
{
    return *text && special_at(trie, text, err) > 0;
}
