/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_turns.h"

#include "api/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The numbers of a line take at most so many bytes. */
enum { MOST_HEAD = 3 * 21 };

/* Reads the line at `at`. *messages: where its list begins; *end: behind the line. */
static int read_line(const char *turns, size_t length, size_t at, struct chat_turn *turn,
                     size_t *messages, size_t *end)
{
    char head[MOST_HEAD + 1];
    int used = 0;
    const char *newline = memchr(turns + at, '\n', length - at);
    if (!newline)
        return -1;
    *end = (size_t)(newline - turns) + 1;
    size_t most = *end - at < MOST_HEAD ? *end - at : MOST_HEAD;
    memcpy(head, turns + at, most);
    head[most] = 0;
    if (sscanf(head, "%" SCNd64 " %zu %" SCNx64 " %n", &turn->position, &turn->text_length,
               &turn->text_hash, &used) != 3 ||
        used == 0 || turn->position < 0)
        return -1;
    *messages = at + (size_t)used;
    return 0;
}

int chat_turns_next(const char *turns, size_t length, size_t *at, struct chat_turn *turn,
                    struct chat_turns_text *text)
{
    size_t begin, end;
    if (read_line(turns, length, *at, turn, &begin, &end))
        return -1;
    *text = (struct chat_turns_text){turns + begin, end - 1 - begin};
    *at = end;
    return 0;
}

int chat_turns_last(const char *turns, size_t length, struct chat_turn *last)
{
    size_t at = length, messages, end;
    *last = (struct chat_turn){0};
    if (length == 0)
        return 0;
    while (--at > 0 && turns[at - 1] != '\n')
        continue;
    return read_line(turns, length, at, last, &messages, &end) != 0 || end != length ? -1 : 0;
}

bool chat_turns_begin(const char *turns, size_t turns_length, const char *text, size_t length,
                      struct chat_turn *last)
{
    return chat_turns_last(turns, turns_length, last) == 0 && last->text_length <= length &&
           chat_turns_hash(text, last->text_length, NULL, 0) == last->text_hash;
}

size_t chat_turns_until(const char *turns, size_t length, int64_t position)
{
    struct chat_turn turn;
    size_t at = 0, messages, end;
    while (at < length && read_line(turns, length, at, &turn, &messages, &end) == 0 &&
           turn.position <= position)
        at = end;
    return at;
}

static int damaged(struct api_error *err)
{
    return api_error_set(err, API_INTERNAL, NULL, "the turns that the session keeps are damaged");
}

void chat_specials_clear(struct chat_specials *specials)
{
    free(specials->items);
    *specials = (struct chat_specials){0};
}

/* Those of the last message. */
static int take_specials(struct chat_specials *specials, const json_t *all, const json_t *list,
                         struct api_error *err)
{
    struct error full = ERROR_INIT;
    size_t message = json_array_size(all) - 1, at = 0;
    const json_t *content = json_object_get(json_array_get(all, message), "content");
    for (size_t i = 0; i + 1 < json_array_size(list); i += 2) {
        json_int_t start = json_integer_value(json_array_get(list, i));
        json_int_t end = json_integer_value(json_array_get(list, i + 1));
        if (start < (json_int_t)at || end <= start || (size_t)end > json_string_length(content))
            return damaged(err);
        if (array_grow((void **)&specials->items, &specials->capacity, specials->count + 1,
                       sizeof *specials->items, &full))
            return request_no_memory(err);
        at = (size_t)end;
        specials->items[specials->count++] =
            (struct chat_special){message, {(size_t)start, (size_t)end}};
    }
    return 0;
}

/* Adds the messages of a line to the list. */
static int take_messages(json_t *all, const char *text, size_t length,
                         struct chat_specials *specials, struct api_error *err)
{
    enum { ADDED = 2 }; /* what chat_turns_write adds to those of a request */
    json_t *fields = request_load_with(text, length, ADDED, err);
    if (!fields)
        return -1;
    int result = json_array_extend(all, request_field(fields, "messages")) ? damaged(err) : 0;
    if (result == 0 && specials && json_array_size(all) > 0)
        result = take_specials(specials, all, request_field(fields, "special"), err);
    json_decref(fields);
    return result;
}

json_t *chat_turns_messages(const char *turns, size_t length, struct chat_specials *specials,
                            struct api_error *err)
{
    json_t *all = json_array();
    int result = all ? 0 : request_no_memory(err);
    for (size_t at = 0, messages, end = 0; at < length && result == 0; at = end) {
        struct chat_turn turn;
        result = read_line(turns, length, at, &turn, &messages, &end)
                     ? damaged(err)
                     : take_messages(all, turns + messages, end - 1 - messages, specials, err);
    }
    if (result == 0)
        return all;
    json_decref(all);
    return NULL;
}

uint64_t chat_turns_hash(const char *text, size_t length, const char *more, size_t more_length)
{
    /* Of the two hashes: so neither part need be copied. */
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, text, length);
    if (more_length)
        XXH3_64bits_update(&state, more, more_length);
    return XXH3_64bits_digest(&state);
}

void chat_turns_head(struct strbuf *out, const struct chat_turn *turn)
{
    strbuf_printf(out, "%" PRId64 " %zu %" PRIx64 " ", turn->position, turn->text_length,
                  turn->text_hash);
}

void chat_turns_move(struct strbuf *out, const char *turns, size_t length, size_t from,
                     int64_t position)
{
    struct chat_turn turn;
    for (size_t at = from, messages, end;
         at < length && read_line(turns, length, at, &turn, &messages, &end) == 0; at = end) {
        turn.position = position;
        chat_turns_head(out, &turn);
        strbuf_append(out, turns + messages, end - messages);
    }
}

static int append(const char *bytes, size_t length, void *out)
{
    strbuf_append(out, bytes, length);
    return 0;
}

/* Behind the messages, whose list is still open for it. */
static void write_reply(struct strbuf *out, const struct chat_turn_reply *reply, bool first)
{
    const struct span_list *special = &reply->special;
    strbuf_puts(out, first ? "" : ",");
    strbuf_puts(out, "{\"role\":\"assistant\",\"content\":");
    strbuf_json_string(out, reply->text, reply->length);
    strbuf_puts(out, "}]");
    for (size_t i = 0; i < special->count; i++)
        strbuf_printf(out, "%s%zu,%zu", i ? "," : ",\"special\":[", special->items[i].start,
                      special->items[i].end);
    strbuf_puts(out, special->count ? "]" : "");
}

int chat_turns_write(struct strbuf *out, const struct chat_turn *turn, const json_t *messages,
                     const struct chat_turn_reply *reply, struct api_error *err)
{
    chat_turns_head(out, turn);
    strbuf_puts(out, "{\"messages\":");
    if (json_dump_callback(messages, append, out, JSON_COMPACT))
        return request_no_memory(err);
    if (reply->text && out->length > 0) {
        /* Here the reply would become reasoning_content, content and tool_calls. */
        out->length--;
        write_reply(out, reply, json_array_size(messages) == 0);
    }
    strbuf_puts(out, "}\n");
    return out->failed ? request_no_memory(err) : 0;
}
