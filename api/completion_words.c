/* SPDX-License-Identifier: Apache-2.0 */
#include "api/completion_words.h"

#include "api/parameters.h"
#include "api/request.h"
#include "engine/base/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A key of logit_bias: the decimal digits of a token id, with no sign, space or leading zero. */
static bool parse_id(const char *text, size_t length, int32_t vocab_size, int32_t *id)
{
    int64_t value = 0;
    if (length == 0 || length > 10 || (length > 1 && text[0] == '0'))
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
    }
    *id = (int32_t)value;
    return value < vocab_size;
}

/* Names all keys that are no token ids, as far as the message has room. */
static int check_bias_keys(json_t *object, int32_t vocab_size, struct api_error *err)
{
    enum { KEY_BYTES = 40 };
    char names[256] = "";
    size_t length = 0, bad = 0;
    bool cut = false;
    const char *key;
    json_t *value;
    int32_t id;
    json_object_foreach(object, key, value)
    {
        if (parse_id(key, strlen(key), vocab_size, &id))
            continue;
        /* With room left to say that there are more. */
        bool fits = !cut && length + KEY_BYTES + sizeof ", \"\", …" < sizeof names;
        if (fits)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s\"%.*s\"",
                                       bad ? ", " : "", KEY_BYTES, key);
        else if (!cut)
            length += (size_t)snprintf(names + length, sizeof names - length, ", …");
        cut = !fits;
        bad++;
    }
    if (bad == 0)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, "logit_bias",
                         "logit_bias: %zu keys are not token ids in [0, %d): %s", bad,
                         (int)vocab_size, names);
}

static int parse_logit_bias(const json_t *fields, struct completion_request *request,
                            int32_t vocab_size, struct api_error *err)
{
    static const char name[] = "logit_bias";
    json_t *object = request_field(fields, name);
    if (!object)
        return 0;
    if (!json_is_object(object))
        return request_wrong_type(err, name, "an object", object);
    if (check_bias_keys(object, vocab_size, err))
        return -1;
    size_t size = json_object_size(object);
    struct logit_bias *biases = calloc(size ? size : 1, sizeof *biases);
    if (!biases)
        return request_no_memory(err);
    request->sampling.logit_bias = biases;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        struct logit_bias *bias = &biases[request->sampling.num_logit_bias];
        parse_id(key, strlen(key), vocab_size, &bias->id);
        if (!json_is_number(value))
            return request_wrong_type(err, name, "numbers", value);
        double number = json_number_value(value);
        if (number < -100 || number > 100)
            return api_error_set(err, API_INVALID_VALUE, name,
                                 "logit_bias: token %s: expected a number in [-100, 100], got %g",
                                 key, number);
        bias->bias = (float)number;
        request->sampling.num_logit_bias++;
    }
    return 0;
}

/* A string or, with list_only, a list of non-empty strings, at most `most`. */
static int parse_strings(const json_t *value, const char *name, bool list_only, size_t most,
                         struct completion_string **strings, size_t *count, struct api_error *err)
{
    bool is_list = json_is_array(value);
    if (!is_list && (list_only || !json_is_string(value)))
        return request_wrong_type(
            err, name, list_only ? "a list of strings" : "a string or a list of strings", value);
    size_t size = is_list ? json_array_size(value) : 1;
    if (size > most)
        return api_error_set(err, API_INVALID_VALUE, name, "%s: expected at most %zu, got %zu",
                             name, most, size);
    *strings = calloc(size ? size : 1, sizeof **strings);
    if (!*strings)
        return request_no_memory(err);
    *count = size;
    for (size_t i = 0; i < size; i++) {
        const json_t *item = is_list ? json_array_get(value, i) : value;
        struct completion_string *string = &(*strings)[i];
        if (!json_is_string(item))
            return api_error_set(err, API_INVALID_TYPE, name,
                                 "%s: item %zu: expected a string, got %s", name, i,
                                 fields_kind(item));
        if (json_string_length(item) == 0)
            return api_error_set(err, API_INVALID_VALUE, name, "%s: item %zu: an empty string",
                                 name, i);
        if (request_copy_text(item, &string->text, &string->length, err) != 0)
            return -1;
    }
    return 0;
}

static int parse_words(const json_t *fields, struct completion_request *request,
                       const struct completion_limits *limits, struct api_error *err)
{
    const json_t *stop = request_field(fields, "stop"), *bad = request_field(fields, "bad_words");
    if (stop && limits->token_ids_only)
        return api_error_set(err, API_INVALID_VALUE, "stop",
                             "stop: this model has no tokenizer, so that its text is empty; "
                             "stop_token_ids takes token ids");
    if (stop && parse_strings(stop, "stop", false, SIZE_MAX, &request->stops, &request->num_stops,
                              err) != 0)
        return -1;
    if (bad && parse_strings(bad, "bad_words", true, COMPLETION_MOST_BAD_WORDS, &request->bad_words,
                             &request->num_bad_words, err) != 0)
        return -1;
    if (request->num_bad_words > 0 && limits->token_ids_only)
        return api_error_set(err, API_INVALID_VALUE, "bad_words",
                             "bad_words: this model has no tokenizer; allowed_token_ids and "
                             "logit_bias take token ids");
    return 0;
}

/* Each id once: the lists of bans and of stop tokens are searched for every token. */
static int drop_repeats(int32_t **list, size_t *count, int32_t vocab_size, struct api_error *err)
{
    int32_t *ids = *list;
    unsigned char *seen = calloc((size_t)vocab_size / 8 + 1, 1);
    size_t kept = 0;
    if (!seen)
        return request_no_memory(err);
    for (size_t i = 0; i < *count; i++) {
        unsigned char *byte = &seen[ids[i] / 8], bit = (unsigned char)(1 << ids[i] % 8);
        if (!(*byte & bit))
            ids[kept++] = ids[i];
        *byte |= bit;
    }
    free(seen);
    if (kept < *count && (ids = realloc(ids, kept * sizeof *ids)))
        *list = ids;
    *count = kept;
    return 0;
}

/* A list of token ids, not empty unless may_be_empty. */
static int parse_ids(const json_t *fields, const char *name, int32_t vocab_size, bool may_be_empty,
                     int32_t **ids, size_t *count, struct api_error *err)
{
    const json_t *list = request_field(fields, name);
    if (!list)
        return 0;
    if (!json_is_array(list))
        return request_wrong_type(err, name, "a list of token ids", list);
    if (!may_be_empty && json_array_size(list) == 0)
        return api_error_set(err, API_INVALID_VALUE, name, "%s: an empty list", name);
    return request_token_ids(list, name, vocab_size, ids, count, err) != 0
               ? -1
               : drop_repeats(ids, count, vocab_size, err);
}

static int parse_drafts(const json_t *fields, struct completion_request *request,
                        const struct completion_limits *limits, struct api_error *err)
{
    const json_t *list = request_field(fields, PARAMETER_OF_TESTS);
    if (!list)
        return 0;
    if (!limits->drafts)
        return api_error_set(err, API_UNSUPPORTED, PARAMETER_OF_TESTS,
                             PARAMETER_OF_TESTS " is for tests of this server alone");
    if (!json_is_array(list))
        return request_wrong_type(err, PARAMETER_OF_TESTS, "a list of token ids", list);
    return request_token_ids(list, PARAMETER_OF_TESTS, limits->vocab_size,
                             &request->draft_token_ids, &request->num_draft_token_ids, err);
}

static int parse_id_lists(const json_t *fields, struct completion_request *request,
                          int32_t vocab_size, struct api_error *err)
{
    int32_t *allowed = NULL;
    int result = parse_ids(fields, "allowed_token_ids", vocab_size, false, &allowed,
                           &request->sampling.num_allowed, err);
    request->sampling.allowed = allowed;
    if (result != 0 ||
        parse_ids(fields, "stop_token_ids", vocab_size, true, &request->stop_token_ids,
                  &request->num_stop_token_ids, err) != 0 ||
        parse_ids(fields, "logprob_token_ids", vocab_size, false, &request->logprob_token_ids,
                  &request->num_logprob_token_ids, err) != 0)
        return -1;
    return 0;
}

int completion_words_read(const json_t *fields, struct completion_request *request,
                          const struct completion_limits *limits, struct api_error *err)
{
    return parse_words(fields, request, limits, err) != 0 ||
                   parse_logit_bias(fields, request, limits->vocab_size, err) != 0 ||
                   parse_id_lists(fields, request, limits->vocab_size, err) != 0 ||
                   parse_drafts(fields, request, limits, err) != 0
               ? -1
               : 0;
}
