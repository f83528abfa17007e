/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/tokenizer_parts.h"

#include "engine/text/unicode.h"

#include <stdio.h>
#include <string.h>

static const char *kind_of(const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return value ? "null" : "nothing";
}

static int expected(const struct place *place, const char *key, const char *what,
                    const json_t *value)
{
    return error_set(place->err, ERROR_INVALID, "%s: %s: expected %s, got %s", place->name, key,
                     what, kind_of(value));
}

const char *place_string(const struct place *place, const char *key)
{
    const json_t *value = json_object_get(place->object, key);
    if (!json_is_string(value)) {
        expected(place, key, "a string", value);
        return NULL;
    }
    return json_string_value(value);
}

int place_bool(const struct place *place, const char *key, bool fallback, bool *value)
{
    const json_t *json = json_object_get(place->object, key);
    if (json && !json_is_null(json) && !json_is_boolean(json))
        return expected(place, key, "a boolean", json);
    *value = json_is_boolean(json) ? json_is_true(json) : fallback;
    return 0;
}

const json_t *place_array(const struct place *place, const char *key)
{
    const json_t *value = json_object_get(place->object, key);
    if (!json_is_array(value)) {
        expected(place, key, "an array", value);
        return NULL;
    }
    return value;
}

int place_character(const struct place *place, const char *key, char character[5])
{
    const char *text = place_string(place, key);
    if (!text)
        return -1;
    size_t used = 0;
    if (text[0])
        utf8_decode(text, &used);
    if (used == 0 || text[used])
        return error_set(place->err, ERROR_INVALID, "%s: %s: expected one character, got \"%.40s\"",
                         place->name, key, text);
    memcpy(character, text, used + 1);
    return 0;
}

struct pattern *place_pattern(const struct place *place)
{
    const json_t *value = json_object_get(place->object, "pattern");
    const json_t *literal = json_object_get(value, "String");
    const json_t *regex = json_object_get(value, "Regex");
    if (json_object_size(value) != 1 || !json_is_string(literal ? literal : regex)) {
        expected(place, "pattern", "{\"String\": text} or {\"Regex\": text}", value);
        return NULL;
    }
    const json_t *text = literal ? literal : regex;
    struct pattern *pattern = NULL;
    if (pattern_create(&pattern, json_string_value(text), json_string_length(text), regex != NULL,
                       place->err))
        error_prefix(place->err, "%s", place->name);
    return pattern;
}

int place_choice(const struct place *place, const char *key, const char *const *names, size_t count)
{
    const char *text = place_string(place, key);
    if (!text)
        return -1;
    char known[240] = "";
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0)
            return (int)i;
        int added = snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
        if (added > 0 && (size_t)added < sizeof known - used)
            used += (size_t)added;
    }
    return error_set(place->err, ERROR_UNSUPPORTED, "%s: %s: unknown \"%.60s\" (known: %s)",
                     place->name, key, text, known);
}
