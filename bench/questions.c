/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/questions.h"

#include "lib/base/fields.h"
#include "lib/base/file.h"
#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 16 << 20, MOST_QUESTIONS = 100000 };

static bool has_word(const char *text, size_t length)
{
    for (size_t i = 0, bytes; i < length; i += bytes)
        if ((unicode_class(utf8_decode(text + i, &bytes)) & UNICODE_WORD) != 0)
            return true;
    return false;
}

/* Checks a question that was parsed. */
static int check(const struct fields *fields, struct error *err)
{
    static const char *const known[] = {"question", "accepted"};
    const char *question;
    const json_t *accepted;
    if (fields_only(fields, known, sizeof known / sizeof *known, err) != 0 ||
        fields_string(fields, "question", FIELD_REQUIRED, &question, err) != 0 ||
        fields_list(fields, "accepted", FIELD_REQUIRED, &accepted, err) != 0)
        return -1;
    if (!*question)
        return error_set(err, ERROR_INVALID, "%s: question: expected a text, got an empty one",
                         fields->place);
    if (json_array_size(accepted) == 0)
        return error_set(err, ERROR_INVALID, "%s: accepted: expected at least one word, got none",
                         fields->place);
    for (size_t i = 0; i < json_array_size(accepted); i++) {
        const json_t *word = json_array_get(accepted, i);
        if (!json_is_string(word))
            return error_set(err, ERROR_INVALID, "%s: accepted[%zu]: expected a word, got %s",
                             fields->place, i, fields_kind(word));
        if (!has_word(json_string_value(word), json_string_length(word)))
            return error_set(err, ERROR_INVALID, "%s: accepted[%zu]: expected a word, got \"%s\"",
                             fields->place, i, json_string_value(word));
    }
    return 0;
}

static int read_line(struct questions *questions, const char *place, const char *line,
                     size_t length, struct error *err)
{
    json_t *item;
    struct fields fields;
    if (fields_parse(&item, place, line, length, err) != 0)
        return -1;
    if (fields_root(&fields, item, place, err) != 0 || check(&fields, err) != 0) {
        json_decref(item);
        return -1;
    }
    if (json_array_size(questions->items) == MOST_QUESTIONS) {
        json_decref(item);
        return error_set(err, ERROR_INVALID, "%s: expected at most %d questions", place,
                         MOST_QUESTIONS);
    }
    return json_array_append_new(questions->items, item) == 0
               ? 0
               : error_set(err, ERROR_NO_MEMORY, "%s: out of memory", place);
}

int questions_read(struct questions *questions, const char *name, const char *text, size_t length,
                   struct error *err)
{
    questions->name = name;
    questions->items = json_array();
    if (!questions->items)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", name);
    size_t number = 1;
    for (size_t at = 0, end; at < length; at = end + 1, number++) {
        const char *newline = memchr(text + at, '\n', length - at);
        end = newline ? (size_t)(newline - text) : length;
        size_t blank = at;
        while (blank < end && strchr(" \t\r", text[blank]) && text[blank])
            blank++;
        char place[160];
        snprintf(place, sizeof place, "%.120s, line %zu", name, number);
        if (blank < end && read_line(questions, place, text + at, end - at, err) != 0)
            return -1;
    }
    if (json_array_size(questions->items) == 0)
        return error_set(err, ERROR_INVALID, "%s: expected a question a line, got none", name);
    return 0;
}

int questions_open(struct questions *questions, const char *path, struct error *err)
{
    char *text;
    size_t length;
    if (!path)
        return questions_read(questions, "questions", questions_built_in,
                              strlen(questions_built_in), err);
    if (file_read(path, MOST_BYTES, &text, &length, err) != 0)
        return -1;
    int result = questions_read(questions, path, text, length, err);
    free(text);
    return result;
}

void questions_clear(struct questions *questions)
{
    json_decref(questions->items);
    *questions = (struct questions){0};
}

size_t questions_count(const struct questions *questions)
{
    return json_array_size(questions->items);
}

const char *questions_text(const struct questions *questions, size_t i, size_t *length)
{
    const json_t *text = json_object_get(json_array_get(questions->items, i), "question");
    *length = json_string_length(text);
    return json_string_value(text);
}

const json_t *questions_accepted(const struct questions *questions, size_t i)
{
    return json_object_get(json_array_get(questions->items, i), "accepted");
}

/* Appends valid UTF-8 in lower case. */
static int fold(struct text_buffer *out, const char *text, size_t length, struct error *err)
{
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t lower[2];
        char spelt[4];
        int count = unicode_lowercase_of(utf8_decode(text + i, &bytes), lower);
        for (int j = 0; j < count; j++)
            if (text_buffer_append(out, spelt, utf8_encode(lower[j], spelt), err) != 0)
                return -1;
    }
    return 0;
}

static bool is_word(const char *text, size_t at)
{
    size_t bytes;
    return (unicode_class(utf8_decode(text + at, &bytes)) & UNICODE_WORD) != 0;
}

static bool stands_alone(const struct text_buffer *text, size_t begin, size_t end)
{
    return (begin == 0 || !is_word(text->data, utf8_previous(text->data, begin))) &&
           (end == text->length || !is_word(text->data, end));
}

static bool contains(const struct text_buffer *text, const struct text_buffer *word)
{
    for (size_t at = 0; at + word->length <= text->length; at++) {
        const char *found = memmem(text->data + at, text->length - at, word->data, word->length);
        if (!found)
            return false;
        at = (size_t)(found - text->data);
        if (stands_alone(text, at, at + word->length))
            return true;
    }
    return false;
}

int questions_judge(const struct questions *questions, size_t i, const char *answer, size_t length,
                    bool *right, struct error *err)
{
    const json_t *accepted = questions_accepted(questions, i);
    struct text_buffer text = {0}, word = {0};
    int result = fold(&text, answer, length, err);
    *right = false;
    for (size_t j = 0; result == 0 && !*right && j < json_array_size(accepted); j++) {
        const json_t *item = json_array_get(accepted, j);
        word.length = 0;
        result = fold(&word, json_string_value(item), json_string_length(item), err);
        *right = result == 0 && text.length > 0 && contains(&text, &word);
    }
    text_buffer_clear(&text);
    text_buffer_clear(&word);
    return result;
}
