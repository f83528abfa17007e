/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_channels.h"

#include <string.h>

enum { MOST_HEAD = 512 }; /* bytes */

enum word { START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL };
static const unsigned ENDS = 1u << END | 1u << RETURN | 1u << CALL;
const char *const chat_channels_words[CHAT_CHANNELS_WORDS] = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
    "<|end|>",   "<|return|>",  "<|call|>"};

static const char TO[] = "to=", FUNCTIONS[] = "functions.", MESSAGE_WORD[] = "<|message|>";

/* The word at text[at]: the first that is whole, else one that may become so. */
static enum chat_match word_at(const char *text, size_t length, size_t at, unsigned words,
                               enum word *word)
{
    enum chat_match best = CHAT_MATCH_NO;
    for (int i = 0; i < CHAT_CHANNELS_WORDS && best != CHAT_MATCH_WHOLE; i++) {
        enum chat_match match = words >> i & 1
                                    ? chat_calls_match(text, length, at, chat_channels_words[i])
                                    : CHAT_MATCH_NO;
        if (match > best) {
            best = match;
            *word = (enum word)i;
        }
    }
    return best;
}

size_t chat_channels_ends(const char *text, size_t length, size_t *spaces)
{
    size_t at = *spaces, ends = 0;
    enum word word;
    for (;; at = ends) {
        at = chat_calls_skip(text, length, at);
        *spaces = at - ends;
        if (word_at(text, length, at, ENDS, &word) != CHAT_MATCH_WHOLE)
            return ends;
        ends = at + strlen(chat_channels_words[word]);
    }
}

/* The text up to white space or a special token. */
static struct chat_part take_name(const char *text, size_t begin, size_t end)
{
    struct chat_part part = {begin, begin};
    while (part.end < end && !chat_calls_space(text[part.end]) && text[part.end] != '<')
        part.end++;
    return part;
}

static bool is(const char *text, struct chat_part part, const char *word)
{
    size_t length = strlen(word);
    return part.end - part.begin == length && memcmp(text + part.begin, word, length) == 0;
}

/* What text[at..end], which is up to its last word, says. */
static void read_head(struct chat_channels_head *head, const char *text, size_t at, size_t end)
{
    size_t size = sizeof FUNCTIONS - 1;
    const char *channel = memmem(text + at, end - at, chat_channels_words[CHANNEL],
                                 strlen(chat_channels_words[CHANNEL]));
    const char *to = memmem(text + at, end - at, TO, sizeof TO - 1);
    *head = (struct chat_channels_head){.end = end + sizeof MESSAGE_WORD - 1};
    if (channel) {
        size_t begin = (size_t)(channel - text) + strlen(chat_channels_words[CHANNEL]);
        head->thought = is(text, take_name(text, begin, end), "analysis");
    }
    if (!to)
        return;
    head->name = take_name(text, (size_t)(to - text) + sizeof TO - 1, end);
    if (head->name.end - head->name.begin > size &&
        memcmp(text + head->name.begin, FUNCTIONS, size) == 0) {
        head->function = true;
        head->name.begin += size;
    }
}

enum chat_match chat_channels_head(struct chat_channels_head *head, const char *text, size_t length,
                                   size_t at)
{
    size_t most;
    enum word word;
    enum chat_match match = word_at(text, length, at, ENDS, &word);
    if (match != CHAT_MATCH_NO || at == length)
        return CHAT_MATCH_BEGINS;
    match = word_at(text, length, at, 1u << START | 1u << CHANNEL | 1u << CONSTRAIN | 1u << MESSAGE,
                    &word);
    if (match == CHAT_MATCH_NO)
        match = chat_calls_match(text, length, at, TO);
    if (match != CHAT_MATCH_WHOLE)
        return match;
    most = length - at < MOST_HEAD ? length : at + MOST_HEAD;
    const char *message = memmem(text + at, most - at, MESSAGE_WORD, sizeof MESSAGE_WORD - 1);
    if (!message)
        return most == length ? CHAT_MATCH_BEGINS : CHAT_MATCH_NO;
    read_head(head, text, at, (size_t)(message - text));
    return CHAT_MATCH_WHOLE;
}

size_t chat_channels_end(const char *text, size_t length, size_t from, size_t *size, bool *whole)
{
    *size = 0;
    *whole = false;
    for (const char *at; from < length; from++) {
        enum word word;
        at = memchr(text + from, '<', length - from);
        if (!at)
            return length;
        from = (size_t)(at - text);
        enum chat_match match =
            word_at(text, length, from, ENDS | 1u << START | 1u << CHANNEL, &word);
        *whole = match == CHAT_MATCH_WHOLE;
        if (*whole && word != START && word != CHANNEL) /* these belong to the next */
            *size = strlen(chat_channels_words[word]);
        if (match != CHAT_MATCH_NO)
            return from;
    }
    return length;
}

size_t chat_channels_body(const char *text, size_t length)
{
    size_t most = length < MOST_HEAD ? length : MOST_HEAD;
    const char *message = memmem(text, most, MESSAGE_WORD, sizeof MESSAGE_WORD - 1);
    return message ? (size_t)(message - text) + sizeof MESSAGE_WORD - 1 : length;
}
