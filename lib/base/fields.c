/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fields_parse(json_t **document, const char *file, const char *text, size_t length,
                 struct error *err)
{
    json_error_t problem;
    *document = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    if (*document)
        return 0;
    if (json_error_code(&problem) == json_error_out_of_memory)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", file);
    return error_set(err, ERROR_INVALID, "%s: line %d, column %d (byte %d): %s", file, problem.line,
                     problem.column, problem.position, problem.text);
}

const char *fields_kind(const json_t *value)
{
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return value ? kinds[json_typeof(value)] : "nothing";
}

int fields_root(struct fields *fields, const json_t *document, const char *file, struct error *err)
{
    fields->object = document;
    snprintf(fields->place, sizeof fields->place, "%s", file);
    if (!json_is_object(document))
        return error_set(err, ERROR_INVALID, "%s: expected an object, got %s", file,
                         fields_kind(document));
    return 0;
}

bool fields_has(const struct fields *fields, const char *key)
{
    const json_t *value = json_object_get(fields->object, key);
    return value && !json_is_null(value);
}

/* Whether the value is what a word of `length` letters says. It takes no memory: where that is
 * lacking no word would be the value. */
static bool is_word(const json_t *value, const char *word, size_t length)
{
    switch (*word) {
    case '[':
        return length == 2 ? json_is_array(value) && json_array_size(value) == 0
                           : json_array_size(value) == 1 &&
                                 is_word(json_array_get(value, 0), word + 1, length - 2);
    case '{':
        return json_is_object(value) && json_object_size(value) == 0;
    case '"':
        return json_is_string(value) && json_string_length(value) == length - 2 &&
               memcmp(json_string_value(value), word + 1, length - 2) == 0;
    case 't':
        return json_is_true(value);
    case 'f':
        return json_is_false(value);
    default:
        return json_is_number(value) && json_number_value(value) == strtod(word, NULL);
    }
}

bool fields_ask_nothing(const json_t *value, const char *nothing)
{
    bool found = !value || json_is_null(value);
    while (!found && *nothing) {
        size_t length = strcspn(nothing, " ");
        found = is_word(value, nothing, length);
        nothing += length + (nothing[length] == ' ');
    }
    return found;
}

/* "place: key" for a key of the document itself, "place.key" further inside. */
static const char *separator(const struct fields *fields)
{
    return strstr(fields->place, ": ") ? "." : ": ";
}

/* What python_json.h makes of a number that is not finite; NULL: it is something else. */
static const char *not_finite(const json_t *value)
{
    const json_t *word = json_object_get(value, "__float__");
    return json_object_size(value) == 1 ? json_string_value(word) : NULL;
}

static int mistake(const struct fields *fields, const char *key, const char *expected,
                   const json_t *got, struct error *err)
{
    char text[80];
    if (not_finite(got))
        snprintf(text, sizeof text, "%.60s", not_finite(got));
    else if (json_is_integer(got))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(got));
    else if (json_is_real(got))
        snprintf(text, sizeof text, "%.17g", json_real_value(got));
    else if (json_is_string(got))
        snprintf(text, sizeof text, "\"%.60s\"", json_string_value(got));
    else
        snprintf(text, sizeof text, "%s", fields_kind(got));
    return error_set(err, ERROR_INVALID, "%s%s%s: expected %s, got %s", fields->place,
                     separator(fields), key, expected, text);
}

/* The value of a key into *value, NULL when absent or null; fails when it is required then. */
static int get(const struct fields *fields, const char *key, enum field_need need,
               const char *expected, const json_t **value, struct error *err)
{
    *value = json_object_get(fields->object, key);
    if (*value && !json_is_null(*value))
        return 0;
    if (need == FIELD_REQUIRED || (need == FIELD_NOT_NULL && *value))
        return mistake(fields, key, expected, *value, err);
    *value = NULL;
    return 0;
}

int fields_unknown(const char *place, const char *what, const char *got, const char *const *known,
                   size_t count, struct error *err)
{
    char list[480];
    size_t used = 0;
    list[0] = 0;
    for (size_t i = 0; i < count; i++) {
        if (!known[i])
            continue;
        int wrote =
            snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", known[i]);
        if (wrote < 0 || (size_t)wrote >= sizeof list - used) {
            memcpy(list + sizeof list - 4, "...", 4);
            break;
        }
        used += (size_t)wrote;
    }
    return error_set(err, ERROR_INVALID, "%s: unknown %s \"%.60s\" (known: %s)", place, what, got,
                     list);
}

int fields_only(const struct fields *fields, const char *const *known, size_t count,
                struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields->object, key, value)
    {
        size_t i = 0;
        while (i < count && strcmp(known[i], key) != 0)
            i++;
        if (i == count)
            return fields_unknown(fields->place, "key", key, known, count, err);
    }
    return 0;
}

int fields_object(const struct fields *fields, const char *key, enum field_need need,
                  struct fields *member, struct error *err)
{
    if (get(fields, key, need, "an object", &member->object, err) != 0)
        return -1;
    int wrote = snprintf(member->place, sizeof member->place, "%s%s%s", fields->place,
                         separator(fields), key);
    if (wrote < 0 || (size_t)wrote >= sizeof member->place)
        memcpy(member->place + sizeof member->place - 4, "...", 4);
    if (member->object && (!json_is_object(member->object) || not_finite(member->object)))
        return mistake(fields, key, "an object", member->object, err);
    return 0;
}

int fields_bool(const struct fields *fields, const char *key, enum field_need need, bool *value,
                struct error *err)
{
    const json_t *got;
    if (get(fields, key, need, "true or false", &got, err) != 0)
        return -1;
    if (got && !json_is_boolean(got))
        return mistake(fields, key, "true or false", got, err);
    if (got)
        *value = json_is_true(got);
    return 0;
}

int fields_int(const struct fields *fields, const char *key, enum field_need need, int64_t min,
               int64_t max, int64_t *value, struct error *err)
{
    char expected[80];
    snprintf(expected, sizeof expected, "an integer in [%lld, %lld]", (long long)min,
             (long long)max);
    const json_t *got;
    if (get(fields, key, need, expected, &got, err) != 0)
        return -1;
    if (!got)
        return 0;
    if (!json_is_integer(got) || json_integer_value(got) < min || json_integer_value(got) > max)
        return mistake(fields, key, expected, got, err);
    *value = json_integer_value(got);
    return 0;
}

int fields_double(const struct fields *fields, const char *key, enum field_need need, double min,
                  double max, double *value, struct error *err)
{
    char expected[80];
    snprintf(expected, sizeof expected, "a number in [%g, %g]", min, max);
    const json_t *got;
    if (get(fields, key, need, expected, &got, err) != 0)
        return -1;
    if (!got)
        return 0;
    double number = json_number_value(got);
    if (!json_is_number(got) || !isfinite(number) || number < min || number > max)
        return mistake(fields, key, expected, got, err);
    *value = number;
    return 0;
}

int fields_string(const struct fields *fields, const char *key, enum field_need need,
                  const char **value, struct error *err)
{
    const json_t *got;
    if (get(fields, key, need, "a string", &got, err) != 0)
        return -1;
    if (got && !json_is_string(got))
        return mistake(fields, key, "a string", got, err);
    if (got)
        *value = json_string_value(got);
    return 0;
}

int fields_list(const struct fields *fields, const char *key, enum field_need need,
                const json_t **value, struct error *err)
{
    if (get(fields, key, need, "a list", value, err) != 0)
        return -1;
    if (*value && !json_is_array(*value))
        return mistake(fields, key, "a list", *value, err);
    return 0;
}

int fields_choice(const struct fields *fields, const char *key, enum field_need need,
                  const char *const *names, int count, int *value, struct error *err)
{
    const char *got = NULL;
    if (fields_string(fields, key, need, &got, err) != 0)
        return -1;
    if (!got)
        return 0;
    for (int i = 0; i < count; i++)
        if (names[i] && strcmp(names[i], got) == 0) {
            *value = i;
            return 0;
        }
    char place[256];
    snprintf(place, sizeof place, "%s%s%s", fields->place, separator(fields), key);
    return fields_unknown(place, key, got, names, (size_t)count, err);
}
