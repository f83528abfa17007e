/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/bad_words.h"

#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Of all forms of words of several tokens, so that a text need not remember more. */
enum { MOST_TOKENS = 16384 };

struct bad_words {
    struct token_list tokens; /* of one word after the other */
    size_t *ends;             /* [count], in tokens */
    size_t count, capacity;   /* of ends: two forms of each word */
    size_t longest;           /* of the words, less its last token */
};

static int no_memory(struct api_error *err)
{
    return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
}

/* Where the text begins, without white space as Python's lstrip() sees it. */
static size_t skip_space(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length) {
        size_t bytes;
        uint32_t c = utf8_decode(text + at, &bytes);
        if (!(unicode_class(c) & UNICODE_SPACE) && !(c >= 0x1C && c <= 0x1F))
            break;
        at += bytes;
    }
    return at;
}

static int add_form(struct bad_words *words, struct token_list *singles,
                    const struct token_list *form, struct error *err)
{
    if (form->count == 1)
        return token_list_contains(singles->ids, singles->count, form->ids[0])
                   ? 0
                   : token_list_push(singles, form->ids[0], err);
    for (size_t i = 0; i < form->count; i++)
        if (token_list_push(&words->tokens, form->ids[i], err))
            return -1;
    words->ends[words->count++] = words->tokens.count;
    if (form->count - 1 > words->longest)
        words->longest = form->count - 1;
    return 0;
}

/* Both forms of a word. spaced: room for it behind a space. */
static int add_word(struct bad_words *words, struct token_list *singles,
                    const struct tokenizer *tokenizer, const struct completion_string *word,
                    char *spaced, struct error *err)
{
    size_t skipped = skip_space(word->text, word->length), length = word->length - skipped;
    struct token_list plain = {0}, behind = {0};
    spaced[0] = ' ';
    memcpy(spaced + 1, word->text + skipped, length);
    int result = -1;
    if (tokenizer_encode(tokenizer, spaced + 1, length, false, &plain, err) ||
        tokenizer_encode(tokenizer, spaced, length + 1, false, &behind, err))
        goto done;
    if (plain.count == 0) {
        error_set(err, ERROR_INVALID, "\"%.40s\" has no tokens", word->text);
        goto done;
    }
    result = add_form(words, singles, &plain, err);
    if (result == 0 && behind.count == plain.count && behind.ids[0] != plain.ids[0])
        result = add_form(words, singles, &behind, err);
    if (result == 0 && words->tokens.count > MOST_TOKENS)
        result =
            error_set(err, ERROR_INVALID, "all together have more than %d tokens", MOST_TOKENS);
done:
    token_list_clear(&plain);
    token_list_clear(&behind);
    return result;
}

int bad_words_create(struct bad_words **out, struct token_list *singles,
                     const struct tokenizer *tokenizer, const struct completion_string *list,
                     size_t count, size_t longest, struct api_error *err)
{
    struct bad_words *words = calloc(1, sizeof *words);
    char *spaced = malloc(longest + 1);
    if (words) {
        words->capacity = 2 * count;
        words->ends = malloc(words->capacity * sizeof *words->ends);
    }
    int result = words && spaced && words->ends ? 0 : no_memory(err);
    for (size_t i = 0; i < count && result == 0; i++) {
        struct error error = ERROR_INIT;
        if (add_word(words, singles, tokenizer, &list[i], spaced, &error) == 0)
            continue;
        result = error.code == ERROR_NO_MEMORY
                     ? no_memory(err)
                     : api_error_set(err, API_INVALID_VALUE, "bad_words", "bad_words: item %zu: %s",
                                     i, error.message);
    }
    free(spaced);
    if (result || words->count == 0) {
        bad_words_free(words);
        words = NULL;
    }
    *out = words;
    return result;
}

void bad_words_free(struct bad_words *words)
{
    if (!words)
        return;
    token_list_clear(&words->tokens);
    free(words->ends);
    free(words);
}

size_t bad_words_kept(const struct bad_words *words)
{
    return sizeof *words + words->tokens.capacity * sizeof *words->tokens.ids +
           words->capacity * sizeof *words->ends;
}

size_t bad_words_bytes(const struct bad_words *words, size_t more)
{
    return (2 * words->longest + more + words->count) * sizeof(int32_t);
}

int bad_words_open(struct bad_words_text *text, const struct bad_words *words, size_t more)
{
    text->recent = malloc(2 * words->longest * sizeof *text->recent);
    text->banned = malloc((more + words->count) * sizeof *text->banned);
    return text->recent && text->banned ? 0 : -1;
}

void bad_words_close(struct bad_words_text *text)
{
    free(text->recent);
    free(text->banned);
}

void bad_words_take(struct bad_words_text *text, const struct bad_words *words, int32_t id)
{
    if (text->count == 2 * words->longest) { /* the older half is of no use */
        text->count = words->longest;
        memmove(text->recent, text->recent + words->longest, words->longest * sizeof *text->recent);
    }
    text->recent[text->count++] = id;
}

size_t bad_words_ban(struct bad_words_text *text, const struct bad_words *words,
                     const int32_t *also, size_t count)
{
    const int32_t *word = words->tokens.ids;
    if (count > 0)
        memcpy(text->banned, also, count * sizeof *also);
    for (size_t i = 0, begin = 0; i < words->count; begin = words->ends[i++]) {
        size_t before = words->ends[i] - begin - 1;
        int32_t last = word[begin + before];
        if (before <= text->count &&
            memcmp(text->recent + text->count - before, word + begin, before * sizeof *word) == 0 &&
            !token_list_contains(text->banned, count, last))
            text->banned[count++] = last;
    }
    return count;
}
