/* SPDX-License-Identifier: Apache-2.0 */
#include "api/request.h"

#include "lib/base/fields.h"
#include "lib/text/unicode.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64
/* An empty array costs the parser fifty times its two bytes: without a bound, a body of a few MB
 * would take gigabytes. */
#define MAX_CONTAINERS 65536

int request_no_memory(struct api_error *err)
{
    return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory while reading the request");
}

/* Where the string that begins at body[i] ends: its closing quote, or beyond the body. */
static size_t string_end(const char *body, size_t length, size_t i)
{
    while (++i < length && body[i] != '"')
        if (body[i] == '\\')
            i++;
    return i;
}

/* Checks depth and number of arrays and objects before the parser recurses into them. */
static int check_structure(const char *body, size_t length, size_t most, struct api_error *err)
{
    size_t depth = 0;
    size_t containers = 0;
    for (size_t i = 0; i < length; i++) {
        char byte = body[i];
        if (byte == '"') {
            i = string_end(body, length, i);
        } else if (byte == '[' || byte == '{') {
            containers++;
            if (++depth > MAX_DEPTH)
                return api_error_set(err, API_INVALID_JSON, NULL,
                                     "JSON is nested more than %d deep at byte %zu", MAX_DEPTH, i);
            if (containers > most)
                return api_error_set(err, API_INVALID_JSON, NULL,
                                     "JSON has more than %zu arrays and objects at byte %zu", most,
                                     i);
        } else if ((byte == ']' || byte == '}') && depth > 0) {
            depth--;
        }
    }
    return 0;
}

static int check_utf8(const char *body, size_t length, struct api_error *err)
{
    size_t valid = utf8_valid_length(body, length);
    if (valid < length)
        return api_error_set(err, API_INVALID_JSON, NULL, "the body is not UTF-8 at byte %zu",
                             valid);
    return 0;
}

static bool is_beyond_int64(const char *digits)
{
    errno = 0;
    strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* Gives every integer beyond int64 an exponent in the place of its last two digits: as a real it
 * reaches the check of its own field. The body ends with a NUL. */
static void make_reals(char *body, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (body[i] == '"') {
            i = string_end(body, length, i);
        } else if (body[i] == '-' || (body[i] >= '0' && body[i] <= '9')) {
            size_t number = strspn(body + i, "+-.0123456789Ee");
            bool whole = strspn(body + i, "-0123456789") == number;
            if (whole && is_beyond_int64(body + i))
                memcpy(body + i + number - 2, "e2", 2);
            i += number - 1;
        }
    }
}

/* jansson calls some failed allocations bad JSON, and where it cannot append a byte to a string it
 * goes on without that byte. So its allocations note when one fails. */
static _Thread_local bool lacking;
/* A tree can take fifty times the bytes of its text. So what trees take is counted, and asked for
 * beyond a small part of each thread. A tree belongs to one thread. */
static _Thread_local int64_t held, reserved;
static bool (*reserve_memory)(void *context, int64_t bytes);
static bool (*memory_possible)(void *context, int64_t bytes);
static void *reserve_context;

enum { OWN_BYTES = 64 << 10, STEP_BYTES = 256 << 10 };

void request_bound_memory(bool (*reserve)(void *context, int64_t bytes),
                          bool (*possible)(void *context, int64_t bytes), void *context)
{
    reserve_memory = reserve;
    memory_possible = possible;
    reserve_context = context;
}

bool request_reserve_memory(int64_t bytes)
{
    return !reserve_memory || reserve_memory(reserve_context, bytes) || bytes < 0;
}

bool request_memory_possible(int64_t bytes)
{
    return !memory_possible || memory_possible(reserve_context, bytes);
}

static bool take(int64_t bytes)
{
    held += bytes;
    int64_t more = held - reserved - OWN_BYTES;
    if (more <= 0 || !reserve_memory)
        return true;
    more = more < STEP_BYTES ? STEP_BYTES : more;
    if (!reserve_memory(reserve_context, more)) {
        held -= bytes;
        return false;
    }
    reserved += more;
    return true;
}

static void give_back(int64_t bytes)
{
    held -= bytes;
    if (held > 0)
        return;
    held = 0;
    if (reserved > 0 && reserve_memory)
        reserve_memory(reserve_context, -reserved);
    reserved = 0;
}

/* With what malloc keeps before it. */
static int64_t size_of(void *bytes)
{
    return (int64_t)(malloc_usable_size(bytes) + sizeof(size_t));
}

static void *note_malloc(size_t size)
{
    void *bytes = malloc(size);
    if (bytes && !take(size_of(bytes))) {
        free(bytes);
        bytes = NULL;
    }
    lacking |= !bytes;
    return bytes;
}

static void note_free(void *bytes)
{
    int64_t size = bytes ? size_of(bytes) : 0;
    free(bytes);
    give_back(size);
}

static void set_allocator(void)
{
    json_set_alloc_funcs(note_malloc, note_free);
}

/* As json_loadb. *no_memory: an allocation failed. */
static json_t *load(const char *body, size_t length, size_t flags, json_error_t *error,
                    bool *no_memory)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
    lacking = false;
    json_t *root = json_loadb(body, length, flags, error);
    *no_memory = lacking || (!root && json_error_code(error) == json_error_out_of_memory);
    if (!lacking)
        return root;
    json_decref(root);
    return NULL;
}

/* As load, of a copy with reals for such integers. */
static json_t *load_reals(const char *body, size_t length, size_t flags, json_error_t *error,
                          bool *no_memory)
{
    char *copy = malloc(length + 1);
    *no_memory = !copy;
    if (!copy)
        return NULL;
    memcpy(copy, body, length);
    copy[length] = 0;
    make_reals(copy, length);
    json_t *root = load(copy, length, flags, error, no_memory);
    free(copy);
    return root;
}

static json_t *load_object(const char *body, size_t length, size_t added, size_t flags,
                           struct api_error *err)
{
    if (length == 0) {
        api_error_set(err, API_INVALID_JSON, NULL,
                      "invalid JSON at byte 0: expected an object, got nothing");
        return NULL;
    }
    if (check_utf8(body, length, err) != 0 ||
        check_structure(body, length, MAX_CONTAINERS + added, err) != 0)
        return NULL;
    json_error_t error;
    bool no_memory;
    json_t *root = load(body, length, flags, &error, &no_memory);
    if (!root && !no_memory && json_error_code(&error) == json_error_numeric_overflow)
        root = load_reals(body, length, flags, &error, &no_memory);
    if (!root) {
        if (no_memory)
            request_no_memory(err);
        else
            api_error_set(err, API_INVALID_JSON, NULL, "invalid JSON at byte %d: %s",
                          error.position, error.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        api_error_set(err, API_INVALID_TYPE, NULL, "the body: expected a JSON object, got %s",
                      fields_kind(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *request_load(const char *body, size_t length, struct api_error *err)
{
    return request_load_with(body, length, 0, err);
}

json_t *request_load_with(const char *body, size_t length, size_t added, struct api_error *err)
{
    return load_object(body, length, added, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, err);
}

json_t *request_load_repeats(const char *body, size_t length, struct api_error *err)
{
    return load_object(body, length, 0, JSON_ALLOW_NUL, err);
}

json_t *request_load_dump(const char *text, size_t length, struct api_error *err)
{
    json_error_t error;
    bool no_memory;
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *root = load(text, length, flags, &error, &no_memory);
    if (!root && !no_memory && json_error_code(&error) == json_error_numeric_overflow)
        root = load_reals(text, length, flags, &error, &no_memory);
    if (!root)
        request_no_memory(err);
    return root;
}

int request_dump(const json_t *value, char **text, size_t *length, struct api_error *err)
{
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY;
    *length = json_dumpb(value, NULL, 0, flags);
    *text = malloc(*length + 1);
    if (!*text || *length == 0 || json_dumpb(value, *text, *length, flags) != *length) {
        free(*text);
        *text = NULL;
        return request_no_memory(err);
    }
    (*text)[*length] = 0;
    return 0;
}

json_t *request_field(const json_t *fields, const char *name)
{
    json_t *value = json_object_get(fields, name);
    return json_is_null(value) ? NULL : value;
}

int request_wrong_type(struct api_error *err, const char *name, const char *expected,
                       const json_t *got)
{
    return api_error_set(err, API_INVALID_TYPE, name, "%s: expected %s, got %s", name, expected,
                         fields_kind(got));
}

bool request_as_int(const json_t *value, int64_t *number)
{
    if (json_is_integer(value)) {
        *number = json_integer_value(value);
        return true;
    }
    if (!json_is_real(value))
        return false;
    double real = json_real_value(value);
    if (real != trunc(real) || fabs(real) > 9007199254740992.0) /* 2^53: exact below */
        return false;
    *number = (int64_t)real;
    return true;
}

int request_bool(const json_t *fields, const char *name, bool *value, struct api_error *err)
{
    const json_t *got = request_field(fields, name);
    if (!got)
        return 0;
    if (!json_is_boolean(got))
        return request_wrong_type(err, name, "a boolean", got);
    *value = json_is_true(got);
    return 0;
}

int request_int(const json_t *fields, const char *name, int64_t min, int64_t max, int64_t *value,
                struct api_error *err)
{
    const json_t *got = request_field(fields, name);
    if (!got)
        return 0;
    if (!json_is_number(got))
        return request_wrong_type(err, name, "an integer", got);
    int64_t number;
    if (!request_as_int(got, &number)) {
        double real = json_real_value(got);
        bool whole = real == trunc(real); /* then only too large */
        return api_error_set(err, whole ? API_INVALID_VALUE : API_INVALID_TYPE, name,
                             "%s: expected an integer in [%lld, %lld], got %g", name,
                             (long long)min, (long long)max, real);
    }
    if (number >= min && number <= max) {
        *value = number;
        return 0;
    }
    if (max == INT64_MAX)
        return api_error_set(err, API_INVALID_VALUE, name,
                             "%s: expected an integer of at least %lld, got %lld", name,
                             (long long)min, (long long)number);
    return api_error_set(err, API_INVALID_VALUE, name,
                         "%s: expected an integer in [%lld, %lld], got %lld", name, (long long)min,
                         (long long)max, (long long)number);
}

int request_float(const json_t *fields, const char *name, double min, double max, bool min_open,
                  float *value, struct api_error *err)
{
    const json_t *got = request_field(fields, name);
    if (!got)
        return 0;
    if (!json_is_number(got))
        return request_wrong_type(err, name, "a number", got);
    double number = json_number_value(got);
    if (number > max || number < min || (min_open && (float)number <= (float)min))
        return api_error_set(err, API_INVALID_VALUE, name,
                             "%s: expected a number in %c%g, %g], got %g", name,
                             min_open ? '(' : '[', min, max, number);
    *value = (float)number;
    return 0;
}

int request_text(const json_t *fields, const char *name, char **text, size_t *length,
                 struct api_error *err)
{
    const json_t *got = request_field(fields, name);
    if (!got)
        return 0;
    if (!json_is_string(got))
        return request_wrong_type(err, name, "a string", got);
    size_t bytes = json_string_length(got);
    char *copy = malloc(bytes + 1);
    if (!copy)
        return request_no_memory(err);
    memcpy(copy, json_string_value(got), bytes + 1);
    *text = copy;
    if (length)
        *length = bytes;
    return 0;
}

int request_salt(const json_t *fields, char **salt, size_t *length, struct api_error *err)
{
    if (request_text(fields, "cache_salt", salt, length, err) != 0)
        return -1;
    if (*salt && *length == 0)
        return api_error_set(err, API_INVALID_VALUE, "cache_salt", "cache_salt: an empty string");
    return 0;
}

int request_token_ids(const json_t *list, const char *name, int32_t vocab_size, int32_t **ids,
                      size_t *count, struct api_error *err)
{
    *ids = NULL;
    *count = 0;
    size_t size = json_array_size(list);
    if (size == 0)
        return 0;
    int32_t *copy = malloc(size * sizeof *copy);
    if (!copy)
        return request_no_memory(err);
    for (size_t i = 0; i < size; i++) {
        const json_t *item = json_array_get(list, i);
        int64_t id = -1;
        if (!json_is_number(item)) {
            api_error_set(err, API_INVALID_TYPE, name, "%s: item %zu: expected a token id, got %s",
                          name, i, fields_kind(item));
        } else if (!request_as_int(item, &id)) {
            api_error_set(err, API_INVALID_VALUE, name, "%s: item %zu: %g is not a token id", name,
                          i, json_number_value(item));
        } else if (id < 0 || id >= vocab_size) {
            api_error_set(err, API_INVALID_VALUE, name,
                          "%s: item %zu: token id %lld is not in [0, %d)", name, i, (long long)id,
                          (int)vocab_size);
        } else {
            copy[i] = (int32_t)id;
            continue;
        }
        free(copy);
        return -1;
    }
    *ids = copy;
    *count = size;
    return 0;
}

bool request_model_pattern(const char *name)
{
    return strpbrk(name, "*?") != NULL;
}

/* A * stands for any bytes, a ? for one; all else, as in claude-*[1m], for itself. */
static bool matches(const char *pattern, const char *name)
{
    const char *behind = NULL, *tried = NULL; /* the last *, and where what follows it may begin */
    while (*name) {
        if (*pattern == '*') {
            behind = ++pattern;
            tried = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (behind) {
            pattern = behind;
            name = ++tried;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

bool request_names_model(const char *const *names, size_t count, const char *name)
{
    bool is_short = strlen(name) <= REQUEST_MOST_NAME;
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0 ||
            (is_short && request_model_pattern(names[i]) && matches(names[i], name)))
            return true;
    return false;
}

int request_model(const json_t *fields, const char *const *names, size_t count,
                  struct api_error *err)
{
    const json_t *got = request_field(fields, "model");
    if (!got)
        return 0;
    if (!json_is_string(got))
        return request_wrong_type(err, "model", "a string", got);
    const char *name = json_string_value(got);
    size_t length = json_string_length(got);
    if (length == 0 || (length == strlen(name) && request_names_model(names, count, name)))
        return 0;
    return api_error_model(err, name, names[0]);
}

int request_copy_text(const json_t *string, char **text, size_t *length, struct api_error *err)
{
    size_t bytes = json_string_length(string);
    *text = malloc(bytes + 1);
    if (!*text)
        return request_no_memory(err);
    memcpy(*text, json_string_value(string), bytes + 1);
    *length = bytes;
    return 0;
}

bool request_id_valid(const char *text, size_t length)
{
    if (length == 0 || length > 128)
        return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] <= ' ' || text[i] >= 0x7F)
            return false;
    return true;
}
