/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_shorten.h"

#include "api/request.h"

#include <stdbool.h>
#include <string.h>

/* About what a value takes in a prompt, in bytes; it nests little deeper than a body. */
static double weight_of(const json_t *value)
{
    enum { AROUND = 8 }; /* what a template writes around a value */
    double weight = AROUND + (double)json_string_length(value);
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_array(value))
        json_array_foreach(value, i, member) weight += weight_of(member);
    if (json_is_object(value))
        json_object_foreach((json_t *)value, key, member) weight += weight_of(member);
    return weight;
}

static bool has_role(const json_t *messages, size_t index, const char *role)
{
    const char *given = json_string_value(json_object_get(json_array_get(messages, index), "role"));
    return given && strcmp(given, role) == 0;
}

/* Where the first turn begins. */
static size_t first_turn(const json_t *messages)
{
    size_t i = 0;
    while (i < json_array_size(messages) &&
           (has_role(messages, i, "system") || has_role(messages, i, "developer")))
        i++;
    return i;
}

/* Where the turn behind that at `begin` begins; the number of messages: there is none. */
static size_t next_turn(const json_t *messages, size_t begin)
{
    size_t i = begin + 1;
    while (i < json_array_size(messages) && !has_role(messages, i, "user"))
        i++;
    return i;
}

static size_t count_turns(const json_t *messages, size_t begin)
{
    size_t count = 0;
    for (size_t i = begin; i < json_array_size(messages); i = next_turn(messages, i))
        count++;
    return count;
}

int chat_shorten(json_t *fields, int64_t tokens, int64_t most, int attempts, size_t *dropped,
                 struct api_error *err)
{
    enum { BY_WEIGHT = 4 }; /* attempts; from then on half of the turns go */
    json_t *messages = request_field(fields, "messages");
    size_t begin = first_turn(messages), end = begin, turns = count_turns(messages, begin);
    size_t least = attempts < BY_WEIGHT ? 1 : turns / 2;
    double of_token = weight_of(fields) / (double)(tokens > 0 ? tokens : 1), weight = 0;
    *dropped = 0;
    while (*dropped + 1 < turns &&
           (*dropped < least || weight < of_token * (double)(tokens - most))) {
        size_t next = next_turn(messages, end);
        for (; end < next; end++)
            weight += weight_of(json_array_get(messages, end));
        (*dropped)++;
    }
    json_t *kept = *dropped > 0 ? json_array() : NULL;
    if (*dropped == 0)
        return 0;
    int failed = !kept;
    for (size_t i = 0; i < json_array_size(messages) && !failed; i++)
        if (i < begin || i >= end)
            failed = json_array_append(kept, json_array_get(messages, i));
    if (!failed)
        failed = json_object_set(fields, "messages", kept);
    json_decref(kept);
    return failed ? request_no_memory(err) : 0;
}
