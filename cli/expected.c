/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/expected.h"

#include "lib/base/fields.h"
#include "lib/base/file.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_BYTES = 256 << 20, MAX_TOKENS = 1 << 20 };

static const char file_name[] = "expected.json";

/* A list of `count` entries, or of 1 to MAX_TOKENS when *count is 0, which it then sets. */
static const json_t *list(const struct fields *root, const char *key, size_t *count,
                          struct error *err)
{
    const json_t *value = json_object_get(root->object, key);
    size_t size = json_array_size(value);
    if (json_is_array(value) && size > 0 && size <= MAX_TOKENS && (*count == 0 || size == *count)) {
        *count = size;
        return value;
    }
    if (json_is_array(value) && *count > 0)
        error_set(err, ERROR_INVALID, "%s: %s: expected %zu entries, got %zu", file_name, key,
                  *count, size);
    else
        error_set(err, ERROR_INVALID, "%s: %s: expected a list of 1 to %d entries, got %s (%zu)",
                  file_name, key, MAX_TOKENS, fields_kind(value), size);
    return NULL;
}

static int id_of(const json_t *value, const char *key, size_t i, int32_t vocab_size, int32_t *id,
                 struct error *err)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= vocab_size)
        return error_set(err, ERROR_INVALID, "%s: %s[%zu]: expected an id in [0, %d)", file_name,
                         key, i, vocab_size);
    *id = (int32_t)json_integer_value(value);
    return 0;
}

static int read_ids(const struct fields *root, const char *key, int32_t vocab_size, int32_t **ids,
                    size_t *count, struct error *err)
{
    const json_t *values = list(root, key, count, err);
    if (!values)
        return -1;
    *ids = calloc(*count, sizeof **ids);
    if (!*ids)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", file_name);
    for (size_t i = 0; i < *count; i++)
        if (id_of(json_array_get(values, i), key, i, vocab_size, &(*ids)[i], err) != 0)
            return -1;
    return 0;
}

static int read_numbers(const struct fields *root, const char *key, float **numbers, size_t count,
                        struct error *err)
{
    *numbers = calloc(count ? count : 1, sizeof **numbers);
    if (!*numbers)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", file_name);
    if (count == 0) /* a prompt of one token has no log-probability */
        return 0;
    const json_t *values = list(root, key, &count, err);
    if (!values)
        return -1;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(values, i);
        if (!json_is_number(value))
            return error_set(err, ERROR_INVALID, "%s: %s[%zu]: expected a number, got %s",
                             file_name, key, i, fields_kind(value));
        (*numbers)[i] = (float)json_number_value(value);
    }
    return 0;
}

static int read_top(const struct fields *root, struct expected *out, int32_t vocab_size,
                    struct error *err)
{
    size_t count = out->num_prompt;
    const json_t *rows = list(root, "top5", &count, err);
    if (!rows)
        return -1;
    out->top = calloc(count * EXPECTED_TOP, sizeof *out->top);
    if (!out->top)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", file_name);
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(rows, i);
        if (json_array_size(row) != EXPECTED_TOP)
            return error_set(err, ERROR_INVALID, "%s: top5[%zu]: expected %d pairs, got %zu",
                             file_name, i, EXPECTED_TOP, json_array_size(row));
        for (size_t j = 0; j < EXPECTED_TOP; j++) {
            const json_t *pair = json_array_get(row, j);
            struct token_logprob *entry = &out->top[i * EXPECTED_TOP + j];
            if (id_of(json_array_get(pair, 0), "top5", i, vocab_size, &entry->id, err) != 0)
                return -1;
            if (!json_is_number(json_array_get(pair, 1)))
                return error_set(err, ERROR_INVALID, "%s: top5[%zu][%zu]: expected [id, logprob]",
                                 file_name, i, j);
            entry->logprob = (float)json_number_value(json_array_get(pair, 1));
        }
    }
    return 0;
}

static int read_root(const struct fields *root, struct expected *out, int32_t vocab_size,
                     struct error *err)
{
    if (read_ids(root, "prompt", vocab_size, &out->prompt, &out->num_prompt, err) != 0 ||
        read_ids(root, "greedy", vocab_size, &out->greedy, &out->num_greedy, err) != 0 ||
        read_numbers(root, "prompt_logprobs", &out->prompt_logprobs, out->num_prompt - 1, err) !=
            0 ||
        read_numbers(root, "greedy_margin", &out->greedy_margin, out->num_greedy, err) != 0 ||
        read_top(root, out, vocab_size, err) != 0)
        return -1;
    if (fields_double(root, "tolerance", FIELD_REQUIRED, 0, 1, &out->tolerance, err) != 0)
        return -1;
    out->tolerance_f32 = out->tolerance;
    return fields_double(root, "tolerance_f32", FIELD_OPTIONAL, 0, 1, &out->tolerance_f32, err);
}

int expected_open(struct expected *out, const char *directory, int32_t vocab_size,
                  struct error *err)
{
    char path[4096];
    *out = (struct expected){0};
    if (vocab_size < EXPECTED_TOP)
        return error_set(err, ERROR_INVALID, "%s: expected a vocabulary of at least %d, got %d",
                         file_name, EXPECTED_TOP, vocab_size);
    int length = snprintf(path, sizeof path, "%s/%s", directory, file_name);
    if (length < 0 || (size_t)length >= sizeof path)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", directory);
    char *text;
    size_t size;
    if (file_read(path, MAX_BYTES, &text, &size, err) != 0)
        return -1;
    json_t *document = NULL;
    struct fields root;
    int result = fields_parse(&document, file_name, text, size, err);
    if (result == 0)
        result = fields_root(&root, document, file_name, err);
    if (result == 0)
        result = read_root(&root, out, vocab_size, err);
    json_decref(document);
    free(text);
    if (result != 0)
        expected_clear(out);
    return result;
}

void expected_clear(struct expected *expected)
{
    free(expected->prompt);
    free(expected->prompt_logprobs);
    free(expected->top);
    free(expected->greedy);
    free(expected->greedy_margin);
    *expected = (struct expected){0};
}
