/* SPDX-License-Identifier: Apache-2.0 */
/* Short questions with the words that make an answer right: reads them, and judges answers. */
#ifndef BENCH_QUESTIONS_H
#define BENCH_QUESTIONS_H

#include "lib/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The hundred questions of questions.jsonl. */
extern const char questions_built_in[];

struct questions {    /* zero-initialise; questions_clear frees */
    const char *name; /* of the file, borrowed */
    json_t *items;    /* a list of objects: `question`, a text, and `accepted`, a list of words */
};

/* Reads JSONL: an object a line with `question`, a text, and `accepted`, a list of at least one
 * word or phrase. Blank lines are skipped. path: a file, which is borrowed; NULL: the built-in
 * ones. */
int questions_open(struct questions *questions, const char *path, struct error *err);
/* The same from text [length]; `name` is the place in messages, borrowed. */
int questions_read(struct questions *questions, const char *name, const char *text, size_t length,
                   struct error *err);
void questions_clear(struct questions *questions);

size_t questions_count(const struct questions *questions);
const char *questions_text(const struct questions *questions, size_t i, size_t *length);
/* A list of strings; borrowed. */
const json_t *questions_accepted(const struct questions *questions, size_t i);

/* Judges an answer, valid UTF-8 of [length] bytes: whether an accepted word stands in it as a whole
 * word, whatever its case; no letter, digit, mark or underscore may stand right before or behind
 * it. */
int questions_judge(const struct questions *questions, size_t i, const char *answer, size_t length,
                    bool *right, struct error *err);

#endif
