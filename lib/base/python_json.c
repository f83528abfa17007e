/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/python_json.h"

#include "lib/base/fields.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBER = 4096 };

static const char *const WORDS[] = {"-Infinity", "Infinity", "NaN"};

struct copy {
    char *bytes; /* [size] */
    size_t used, size;
};

/* False: no memory. */
static bool put(struct copy *copy, const char *bytes, size_t length)
{
    if (length > copy->size - copy->used) {
        size_t size = 2 * copy->size + length;
        char *grown = size < copy->size ? NULL : realloc(copy->bytes, size);
        if (!grown)
            return false;
        copy->bytes = grown;
        copy->size = size;
    }
    memcpy(copy->bytes + copy->used, bytes, length);
    copy->used += length;
    return true;
}

static bool put_word(struct copy *copy, const char *word)
{
    static const char before[] = "{\"__float__\":\"", after[] = "\"}";
    return put(copy, before, sizeof before - 1) && put(copy, word, strlen(word)) &&
           put(copy, after, sizeof after - 1);
}

/* Takes the number of `length` bytes; what is not one stays as it is, and the parser says so. */
static bool put_number(struct copy *copy, const char *at, size_t length)
{
    char text[MOST_NUMBER + 1], *end;
    if (length > MOST_NUMBER)
        return put(copy, at, length);
    memcpy(text, at, length);
    text[length] = 0;
    double number = strtod(text, &end);
    if (end == text + length && isinf(number))
        return put_word(copy, number < 0 ? WORDS[0] : WORDS[1]);
    errno = 0;
    strtoll(text, &end, 10);
    bool large = end == text + length && errno == ERANGE;
    return put(copy, at, length) && (!large || put(copy, ".0", 2));
}

/* The bytes of the string that begins at `at`, up to its closing quote, or all `left` of them. */
static size_t string_length(const char *at, size_t left)
{
    size_t i = 1;
    while (i < left && at[i] != '"')
        i += at[i] == '\\' ? 2 : 1;
    return i < left ? i + 1 : left;
}

/* The bytes at `at` that numbers are made of. */
static size_t number_length(const char *at, size_t left)
{
    static const char made_of[] = "0123456789+-.eE";
    size_t i = 0;
    while (i < left && memchr(made_of, at[i], sizeof made_of - 1))
        i++;
    return i;
}

/* Copies the next piece of text [left]; *took is its length. */
static bool put_next(struct copy *copy, const char *at, size_t left, size_t *took)
{
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        *took = strlen(WORDS[i]);
        if (*took <= left && memcmp(at, WORDS[i], *took) == 0)
            return put_word(copy, WORDS[i]);
    }
    if (*at == '"')
        *took = string_length(at, left);
    else if (*at == '-' || (*at >= '0' && *at <= '9')) {
        *took = number_length(at, left);
        return put_number(copy, at, *took);
    } else
        *took = 1;
    return put(copy, at, *took);
}

int python_json_parse(json_t **document, const char *file, const char *text, size_t length,
                      struct error *err)
{
    *document = NULL;
    struct copy copy = {.bytes = malloc(length + 1), .size = length + 1};
    bool memory = copy.bytes != NULL;
    for (size_t at = 0, took; memory && at < length; at += took)
        memory = put_next(&copy, text + at, length - at, &took);
    int result = memory ? fields_parse(document, file, copy.bytes, copy.used, err)
                        : error_set(err, ERROR_NO_MEMORY, "%s: out of memory", file);
    free(copy.bytes);
    return result;
}
