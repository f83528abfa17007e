/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls whose name stands before their arguments, which are JSON; an id may stand between. */
#include "api/chat_channels.h"
#include "api/chat_formats.h"

#include <ctype.h>
#include <string.h>

enum { MOST_NAME = 256, MOST_ID = 64 }; /* bytes */

/* What stands before the arguments. */
struct head {
    struct chat_part name, id; /* an empty one: there is none */
    size_t end;                /* white space behind it included */
};

/* Skips white space and takes the word, but for the white space around it. */
static enum chat_match take_word(const char *body, size_t length, size_t *at, const char *word)
{
    char bare[64];
    word = chat_calls_bare_word(word);
    size_t size = chat_calls_trim(word, 0, strlen(word));
    memcpy(bare, word, size);
    bare[size] = 0;
    size_t begin = chat_calls_skip(body, length, *at);
    enum chat_match match = chat_calls_match(body, length, begin, bare);
    if (match == CHAT_MATCH_WHOLE)
        *at = begin + size;
    return match;
}

static bool in_name(char byte)
{
    return (unsigned char)byte > ' ' && byte != 0x7F && !strchr("<>[]{}\"`", byte);
}

/* The number at the end of the name, behind `id`, and all that stands before it. */
static void take_count(struct head *head, const char *body, size_t begin, const char *id)
{
    size_t end = head->name.end, at = end, size = strlen(id);
    while (at > head->name.begin && isdigit((unsigned char)body[at - 1]))
        at--;
    if (at == end || at - head->name.begin <= size || end - begin > MOST_ID ||
        memcmp(body + at - size, id, size) != 0)
        return;
    head->id = (struct chat_part){begin, end};
    head->name.end = at - size;
}

/* The id that may stand at body[*at]. */
static enum chat_match take_id(struct head *head, const char *body, size_t length, size_t *at,
                               const char *word)
{
    enum chat_match match = take_word(body, length, at, word);
    if (match == CHAT_MATCH_BEGINS)
        return match;
    if (match == CHAT_MATCH_NO)
        return CHAT_MATCH_WHOLE;
    head->id = (struct chat_part){*at, *at};
    while (*at < length && in_name(body[*at]))
        ++*at;
    head->id.end = *at;
    return *at - head->id.begin > MOST_ID ? CHAT_MATCH_NO
           : *at == length                ? CHAT_MATCH_BEGINS
                                          : CHAT_MATCH_WHOLE;
}

static enum chat_match take_head(struct head *head, const struct chat_words *words,
                                 const char *body, size_t length)
{
    size_t at = chat_calls_skip(body, length, 0), begin = at;
    *head = (struct head){0};
    enum chat_match match = take_word(body, length, &at, words->before);
    if (match == CHAT_MATCH_BEGINS || (match == CHAT_MATCH_NO && !words->counts))
        return match; /* a name that is counted may lack it */
    head->name = (struct chat_part){at, at};
    while (at < length && at - head->name.begin <= MOST_NAME && in_name(body[at]))
        at++;
    head->name.end = at;
    if (at == length)
        return CHAT_MATCH_BEGINS;
    if (words->counts)
        take_count(head, body, begin, words->id);
    else if (*words->id &&
             (match = take_id(head, body, length, &at, words->id)) != CHAT_MATCH_WHOLE)
        return match;
    size_t size = head->name.end - head->name.begin;
    if (size == 0 || size > MOST_NAME)
        return CHAT_MATCH_NO;
    if (words->channels) {
        at += chat_channels_body(body + at, length - at);
        match = CHAT_MATCH_WHOLE;
    } else {
        match = take_word(body, length, &at, words->behind);
    }
    head->end = chat_calls_skip(body, length, at);
    return match;
}

/* Whether no arguments stand there, but the closing marker. */
static enum chat_match has_none(const struct chat_reading *reading, const char *body, size_t length,
                                size_t at)
{
    const char *close = chat_calls_bare_word(reading->close);
    return *close ? chat_calls_match(body, length, at, close) : CHAT_MATCH_NO;
}

static int identify(struct chat_calls *calls, const struct head *head, const char *body)
{
    size_t length = head->id.end - head->id.begin;
    return length > 0 ? chat_calls_identify(calls, body + head->id.begin, length) : 0;
}

/* The head is there, and what follows it begins an object. */
static enum chat_scan_result begin(struct chat_scan *scan, const struct chat_reading *reading,
                                   const char *body, const struct head *head)
{
    const char *name = body + head->name.begin;
    size_t length = head->name.end - head->name.begin;
    bool known = chat_types_knows(reading->types, name, length);
    if (!known && reading->bare)
        return CHAT_SCAN_TEXT;
    scan->named = true;
    scan->at = head->end;
    if (!known)
        return CHAT_SCAN_CALL;
    chat_scan_name(scan, name, length);
    scan->telling = CHAT_TELLING_PARTS;
    scan->open = scan->inside = true;
    scan->told = head->end;
    return scan->name && chat_calls_begin(reading->calls, name, length) == 0 &&
                   identify(reading->calls, head, body) == 0
               ? CHAT_SCAN_CALL
               : CHAT_SCAN_NO_MEMORY;
}

/* Up to where the arguments begin. CHAT_SCAN_CALL: they do, or scan->end is set. */
static enum chat_scan_result scan_head(struct chat_scan *scan, const struct chat_reading *reading,
                                       const char *body, size_t length)
{
    struct head head;
    enum chat_match match = take_head(&head, reading->words, body, length);
    if (match == CHAT_MATCH_NO)
        return CHAT_SCAN_TEXT;
    if (match == CHAT_MATCH_BEGINS || head.end == length)
        return CHAT_SCAN_OPEN;
    if (body[head.end] == '{')
        return begin(scan, reading, body, &head);
    match = has_none(reading, body, length, head.end);
    if (match == CHAT_MATCH_WHOLE)
        scan->end = scan->at = head.end;
    return match == CHAT_MATCH_WHOLE    ? CHAT_SCAN_CALL
           : match == CHAT_MATCH_BEGINS ? CHAT_SCAN_OPEN
                                        : CHAT_SCAN_TEXT;
}

enum chat_scan_result chat_calls_named_scan(struct chat_scan *scan,
                                            const struct chat_reading *reading, const char *body,
                                            size_t length)
{
    enum chat_scan_result result = CHAT_SCAN_CALL;
    if (!scan->named)
        result = scan_head(scan, reading, body, length);
    if (result != CHAT_SCAN_CALL || scan->end > 0)
        return result;
    return chat_calls_json_scan(scan, reading, body, length);
}

int chat_calls_named_read(struct chat_calls *calls, const struct chat_words *words,
                          const char *body, size_t length)
{
    struct head head;
    if (take_head(&head, words, body, length) != CHAT_MATCH_WHOLE)
        return 0;
    bool none = head.end == length;
    int result = chat_calls_add(calls, body + head.name.begin, head.name.end - head.name.begin,
                                none ? "{}" : body + head.end, none ? 2 : length - head.end);
    return result > 0 && identify(calls, &head, body) ? -1 : result;
}

int chat_calls_named_read_cut(struct chat_calls *calls, const struct chat_words *words,
                              const char *body, size_t length)
{
    struct head head;
    if (take_head(&head, words, body, length) != CHAT_MATCH_WHOLE)
        return 0;
    int result = chat_calls_add_cut(calls, body + head.name.begin, head.name.end - head.name.begin,
                                    body + head.end, length - head.end);
    return result > 0 && identify(calls, &head, body) ? -1 : result;
}
