/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_list.h"

#include "api/request.h"
#include "api/responses_turns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_LIMIT = 20, MOST_LIMIT = 100 };

static int read_limit(int *limit, const char *text, struct api_error *err)
{
    char *end;
    *limit = DEFAULT_LIMIT;
    if (!text)
        return 0;
    long number = strtol(text, &end, 10);
    *limit = number >= 1 && number <= MOST_LIMIT ? (int)number : 0;
    if (*text && !*end && *limit > 0)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, "limit",
                         "limit: expected a number from 1 to %d, got \"%.40s\"", MOST_LIMIT, text);
}

int responses_page_read(struct responses_page *page, const char *limit, const char *order,
                        const char *after, struct api_error *err)
{
    *page = (struct responses_page){.ascending = order && strcmp(order, "asc") == 0};
    if (read_limit(&page->limit, limit, err))
        return -1;
    if (order && !page->ascending && strcmp(order, "desc") != 0)
        return api_error_set(err, API_INVALID_VALUE, "order",
                             "order: expected asc or desc, got \"%.40s\"", order);
    if (after && (!*after || strlen(after) >= sizeof page->after))
        return api_error_set(err, API_INVALID_VALUE, "after",
                             "after: expected the id of an item, got \"%.40s\"", after);
    snprintf(page->after, sizeof page->after, "%s", after ? after : "");
    return 0;
}

static const json_t *item_at(const struct responses_page *page, const json_t *items, size_t at)
{
    return json_array_get(items, page->ascending ? at : json_array_size(items) - 1 - at);
}

/* Where the page begins; -1: its item is none of these. */
static int find_start(const struct responses_page *page, const json_t *items, size_t *start,
                      struct api_error *err)
{
    *start = 0;
    for (size_t at = 0; page->after[0] && at < json_array_size(items) && *start == 0; at++) {
        const char *id = json_string_value(json_object_get(item_at(page, items, at), "id"));
        if (id && strcmp(id, page->after) == 0)
            *start = at + 1;
    }
    if (!page->after[0] || *start > 0)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, "after",
                         "after: expected the id of an item, got \"%s\"", page->after);
}

static int encode_item(struct strbuf *buf, const json_t *item, struct api_error *err)
{
    char *text;
    size_t length;
    if (request_dump(item, &text, &length, err))
        return -1;
    strbuf_append(buf, text, length);
    free(text);
    return 0;
}

static void encode_id(struct strbuf *buf, const char *name, const json_t *item)
{
    strbuf_printf(buf, ",\"%s\":", name);
    strbuf_json_cstring(buf, json_string_value(json_object_get(item, "id")));
}

static int encode_page(struct strbuf *buf, const struct responses_page *page, const json_t *items,
                       struct api_error *err)
{
    size_t start, count = json_array_size(items);
    if (find_start(page, items, &start, err))
        return -1;
    size_t end = count - start > (size_t)page->limit ? start + (size_t)page->limit : count;
    strbuf_puts(buf, "{\"object\":\"list\",\"data\":[");
    for (size_t at = start; at < end; at++) {
        strbuf_puts(buf, at > start ? "," : "");
        if (encode_item(buf, item_at(page, items, at), err))
            return -1;
    }
    strbuf_puts(buf, "]");
    encode_id(buf, "first_id", end > start ? item_at(page, items, start) : NULL);
    encode_id(buf, "last_id", end > start ? item_at(page, items, end - 1) : NULL);
    strbuf_printf(buf, ",\"has_more\":%s}", end < count ? "true" : "false");
    return 0;
}

void responses_page_encode(struct strbuf *buf, const struct responses_page *page, const char *asked,
                           size_t length, const char *id, struct api_error *err)
{
    json_t *items = responses_turns_input(asked, length, id, err);
    if (items)
        encode_page(buf, page, items, err);
    json_decref(items);
}

void responses_deleted_encode(struct strbuf *buf, const char *id)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, id);
    strbuf_puts(buf, ",\"object\":\"response\",\"deleted\":true}");
}
