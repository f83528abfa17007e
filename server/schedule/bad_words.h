/* SPDX-License-Identifier: Apache-2.0 */
/* bad_words of a request: texts that may not come, as tokens. A word of one token is banned. Of a
 * word of several the last one is banned where the text has just got the others; what the prompt
 * ends with does not count. As in vLLM, a word has one form as it is and, if that begins with
 * another token and is as long, one behind a space. */
#ifndef SERVER_SCHEDULE_BAD_WORDS_H
#define SERVER_SCHEDULE_BAD_WORDS_H

#include "api/completion.h"
#include "lib/text/tokenizer.h"

struct bad_words; /* those of several tokens */

/* longest: the bytes of the longest word. singles: those of one token, each once. *out is NULL if
 * there are no others. API_INVALID_VALUE: a word has no tokens, or one that the model lacks, or all
 * have too many. */
int bad_words_create(struct bad_words **out, struct token_list *singles,
                     const struct tokenizer *tokenizer, const struct completion_string *words,
                     size_t count, size_t longest, struct api_error *err);
void bad_words_free(struct bad_words *words);

/* What a text remembers. */
struct bad_words_text {
    int32_t *recent; /* [count]: its last tokens */
    size_t count;
    int32_t *banned; /* for the next draw */
};

/* The bytes that words hold themselves. */
size_t bad_words_kept(const struct bad_words *words);

/* What a text takes; `more` as below. */
size_t bad_words_bytes(const struct bad_words *words, size_t more);
/* more: how many other tokens are banned at a time, at most. -1: out of memory. */
int bad_words_open(struct bad_words_text *text, const struct bad_words *words, size_t more);
void bad_words_close(struct bad_words_text *text);
/* The text has got this token. */
void bad_words_take(struct bad_words_text *text, const struct bad_words *words, int32_t id);
/* Writes `also` [count] and the tokens that would complete a word to text->banned; returns how
 * many.
 */
size_t bad_words_ban(struct bad_words_text *text, const struct bad_words *words,
                     const int32_t *also, size_t count);

#endif
