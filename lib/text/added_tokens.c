/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/added_tokens.h"

#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

int added_tokens_push(struct added_tokens *tokens, struct added_token token, struct error *err)
{
    if (array_grow((void **)&tokens->items, &tokens->capacity, tokens->count + 1,
                   sizeof *tokens->items, err)) {
        free(token.content);
        return -1;
    }
    tokens->items[tokens->count++] = token;
    return 0;
}

static int compare(const void *left, const void *right)
{
    const struct added_token *a = left, *b = right;
    size_t shorter = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->content, b->content, shorter);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

int added_tokens_sort(struct added_tokens *tokens, struct error *err)
{
    if (tokens->count)
        qsort(tokens->items, tokens->count, sizeof *tokens->items, compare);
    for (size_t i = 1; i < tokens->count; i++)
        if (compare(&tokens->items[i - 1], &tokens->items[i]) == 0)
            return error_set(err, ERROR_INVALID,
                             "added_tokens: ids %d and %d are the same text, \"%.*s\"",
                             tokens->items[i - 1].id, tokens->items[i].id,
                             (int)tokens->items[i].length, tokens->items[i].content);
    size_t at = 0;
    for (size_t byte = 0; byte < 257; byte++) {
        while (at < tokens->count && (unsigned char)tokens->items[at].content[0] < byte)
            at++;
        tokens->first[byte] = at;
    }
    return 0;
}

void added_tokens_clear(struct added_tokens *tokens)
{
    for (size_t i = 0; i < tokens->count; i++)
        free(tokens->items[i].content);
    free(tokens->items);
    *tokens = (struct added_tokens){0};
}

/* The first item of [low, high), all of which agree on `depth` bytes, whose next byte is at least
 * `byte`. Items that end there come first. */
static size_t lower_bound(const struct added_tokens *tokens, size_t low, size_t high, size_t depth,
                          int byte)
{
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct added_token *item = &tokens->items[middle];
        int next = item->length > depth ? (unsigned char)item->content[depth] : -1;
        if (next < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* How many bytes from `at` on are before the next input; 0: it begins there. */
static size_t bytes_before_input(struct section_reader *reader, size_t at)
{
    while (reader->next_input < reader->num_input && reader->input[reader->next_input].end <= at)
        reader->next_input++;
    if (reader->next_input == reader->num_input)
        return SIZE_MAX;
    size_t start = reader->input[reader->next_input].start;
    return start > at ? start - at : 0;
}

/* The longest token that the text [length] begins with, or NULL. Special ones take `most_special`
 * bytes at most. */
static const struct added_token *longest(const struct added_tokens *tokens, const char *text,
                                         size_t length, size_t most_special, bool only_special)
{
    unsigned char byte = (unsigned char)text[0];
    size_t low = tokens->first[byte], high = tokens->first[byte + 1];
    const struct added_token *found = NULL;
    for (size_t depth = 1; low < high; depth++) {
        const struct added_token *item = &tokens->items[low];
        if (item->length == depth && (item->special ? depth <= most_special : !only_special))
            found = item;
        if (depth == length)
            break;
        byte = (unsigned char)text[depth];
        low = lower_bound(tokens, low, high, depth, byte);
        high = lower_bound(tokens, low, high, depth, byte + 1);
    }
    return found;
}

const struct added_token *added_tokens_special(const struct added_tokens *tokens, const char *text,
                                               size_t length)
{
    return longest(tokens, text, length, SIZE_MAX, true);
}

/* The longest token that the text has at `at`, or NULL. Special ones take no input. */
static const struct added_token *longest_at(struct section_reader *reader, size_t at)
{
    return longest(reader->tokens, reader->text + at, reader->length - at,
                   bytes_before_input(reader, at), false);
}

static bool is_word(const char *text, size_t at)
{
    size_t used;
    return unicode_class(utf8_decode(text + at, &used)) & UNICODE_WORD;
}

static size_t skip_spaces(struct section_reader *reader, size_t at)
{
    size_t end = at, used;
    if (reader->spaces_start <= at && at < reader->spaces_end)
        return reader->spaces_end;
    while (end < reader->length &&
           unicode_class(utf8_decode(reader->text + end, &used)) & UNICODE_SPACE)
        end += used;
    reader->spaces_start = at;
    reader->spaces_end = end;
    return end;
}

static size_t spaces_before(const struct section_reader *reader, size_t at)
{
    while (at > reader->done) {
        size_t before = utf8_previous(reader->text, at), used;
        if (!(unicode_class(utf8_decode(reader->text + before, &used)) & UNICODE_SPACE))
            break;
        at = before;
    }
    return at;
}

/* The next match that counts, with what it strips; false when there is none. */
static bool next_match(struct section_reader *reader, struct section *match)
{
    while (reader->searched < reader->length) {
        size_t start = reader->searched;
        const struct added_token *token = longest_at(reader, start);
        if (!token) {
            reader->searched++;
            continue;
        }
        size_t end = start + token->length;
        reader->searched = end;
        if (token->special && reader->leave_special)
            continue;
        if (token->single_word &&
            ((start > 0 && is_word(reader->text, utf8_previous(reader->text, start))) ||
             (end < reader->length && is_word(reader->text, end))))
            continue;
        if (token->lstrip)
            start = start > reader->done ? spaces_before(reader, start) : reader->done;
        if (token->rstrip)
            end = skip_spaces(reader, end);
        *match = (struct section){start, end, token->id};
        return true;
    }
    return false;
}

bool section_next(struct section_reader *reader, struct section *section)
{
    if (reader->has_waiting) {
        reader->has_waiting = false;
        *section = reader->waiting;
        reader->done = section->end;
        return true;
    }
    struct section match;
    if (reader->tokens->count > 0 && next_match(reader, &match)) {
        bool text_before = reader->done < match.start;
        *section = text_before ? (struct section){reader->done, match.start, -1} : match;
        reader->done = section->end;
        reader->waiting = match;
        reader->has_waiting = text_before;
        return true;
    }
    *section = (struct section){reader->done, reader->length, -1};
    reader->done = reader->length;
    return section->start < section->end;
}
