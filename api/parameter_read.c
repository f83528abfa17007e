/* SPDX-License-Identifier: Apache-2.0 */
#include "api/parameter_read.h"

#include "api/parameter_table.h"
#include "api/request.h"

#include <stdlib.h>
#include <string.h>

static bool is_of_completions(const struct parameter *row)
{
    return (row->apis & PARAMETERS_COMPLETIONS) && row->kind == PARAMETER_HONOURED;
}

static void *member(struct completion_request *request, size_t at)
{
    return (char *)request + at;
}

static void store(struct completion_request *request, const struct parameter *row, int64_t value)
{
    const int32_t small = (int32_t)value;
    const bool flag = value != 0;
    if (row->type == PARAMETER_BOOLEAN)
        memcpy(member(request, row->at), &flag, sizeof flag);
    else if (row->size == sizeof small)
        memcpy(member(request, row->at), &small, sizeof small);
    else
        memcpy(member(request, row->at), &value, sizeof value);
}

void parameter_read_usual(struct completion_request *request,
                          const struct completion_limits *limits)
{
    for (int i = 0; i < parameter_count; i++) {
        const struct parameter *row = &parameter_table[i];
        if (!is_of_completions(row))
            continue;
        if (row->type == PARAMETER_NUMBER)
            sampling_set(&request->sampling, row->number,
                         author_sampling_value(limits->sampling, row->number));
        else if (row->size > 0 &&
                 (row->type == PARAMETER_BOOLEAN || row->type == PARAMETER_INTEGER))
            store(request, row, row->usual);
    }
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

static int read_ids(struct completion_request *request, const struct parameter *row,
                    const json_t *list, int32_t vocab_size, struct api_error *err)
{
    int32_t *ids;
    size_t count;
    if (!json_is_array(list))
        return request_wrong_type(err, row->name, "a list of token ids", list);
    if (!row->may_be_empty && json_array_size(list) == 0)
        return api_error_set(err, API_INVALID_VALUE, row->name, "%s: an empty list", row->name);
    if (request_token_ids(list, row->name, vocab_size, &ids, &count, err) != 0)
        return -1;
    const int result = drop_repeats(&ids, &count, vocab_size, err);
    memcpy(member(request, row->at), &ids, sizeof ids);
    memcpy(member(request, row->count_at), &count, sizeof count);
    return result;
}

static int read_number(struct completion_request *request, const struct parameter *row,
                       const json_t *fields, struct api_error *err)
{
    const struct sampling_row *number = &sampling_rows[row->number];
    int64_t whole = 0;
    float real = 0;
    if (number->whole ? request_int(fields, row->name, (int64_t)number->low, (int64_t)number->high,
                                    &whole, err)
                      : request_float(fields, row->name, number->low, number->high, number->above,
                                      &real, err))
        return -1;
    sampling_set(&request->sampling, row->number, number->whole ? (double)whole : (double)real);
    return 0;
}

/* value: what the row's field says. */
static int read_value(struct completion_request *request, const struct parameter *row,
                      const json_t *fields, json_t *value, int32_t vocab_size,
                      struct api_error *err)
{
    char *text = NULL;
    int64_t whole = 0;
    bool flag = false;
    switch (row->type) {
    case PARAMETER_BOOLEAN:
        if (request_bool(fields, row->name, &flag, err) != 0)
            return -1;
        store(request, row, flag);
        return 0;
    case PARAMETER_INTEGER:
        if (request_int(fields, row->name, row->low, row->high, &whole, err) != 0)
            return -1;
        store(request, row, whole);
        return 0;
    case PARAMETER_NUMBER:
        return read_number(request, row, fields, err);
    case PARAMETER_TEXT:
        if (request_text(fields, row->name, &text, NULL, err) != 0)
            return -1;
        memcpy(member(request, row->at), &text, sizeof text);
        return 0;
    case PARAMETER_IDS:
        return read_ids(request, row, value, vocab_size, err);
    case PARAMETER_ANY:
        break;
    }
    return 0;
}

int parameter_read_all(struct completion_request *request, const json_t *fields,
                       const struct completion_limits *limits, struct api_error *err)
{
    for (int i = 0; i < parameter_count; i++) {
        const struct parameter *row = &parameter_table[i];
        json_t *value = request_field(fields, row->name);
        if (!is_of_completions(row))
            continue;
        if (row->read && row->read(fields, request, limits, err) != 0)
            return -1;
        const bool is_read = row->size > 0 || row->type == PARAMETER_NUMBER;
        if (value && !row->read && is_read &&
            read_value(request, row, fields, value, limits->vocab_size, err) != 0)
            return -1;
    }
    return 0;
}

void parameter_read_clear(struct completion_request *request)
{
    for (int i = 0; i < parameter_count; i++) {
        const struct parameter *row = &parameter_table[i];
        void *bytes;
        if (row->size == 0 || (row->type != PARAMETER_TEXT && row->type != PARAMETER_IDS))
            continue;
        memcpy(&bytes, member(request, row->at), sizeof bytes);
        free(bytes);
    }
}
