/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_parser.h"

#include "api/chat_calls.h"
#include "api/chat_channels.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum state { BEGINNING, HEAD, REASONING, CONTENT, CALL };
/* Bytes of a call. A longer one is content: streams are taken apart on the event loop, which must
 * not wait long. Of one that is told in parts: a longer one is cut off. */
enum { MOST_CALL = 128 << 10, MOST_TOLD = 16 << 20 };
/* Bytes of white space between what opens all calls and the first of them. */
enum { MOST_SPACE = 64 };

void chat_output_clear(struct chat_output *output)
{
    strbuf_clear(&output->reasoning);
    strbuf_clear(&output->content);
    chat_calls_clear(&output->calls);
    output->failed = false;
}

void chat_output_reset(struct chat_output *output)
{
    strbuf_reset(&output->reasoning);
    strbuf_reset(&output->content);
    chat_calls_cut(&output->calls, 0);
    output->failed = false;
}

void chat_parser_clear(struct chat_parser *parser)
{
    strbuf_clear(&parser->held);
    strbuf_clear(&parser->ids);
    chat_scan_clear(&parser->scan);
}

static const char *bytes_of(const struct chat_parser *parser)
{
    return parser->held.data ? parser->held.data + parser->front : "";
}

static size_t length_of(const struct chat_parser *parser)
{
    return parser->held.length - parser->front;
}

/* Takes `count` bytes from the front: into *to, or nowhere. */
static void release(struct chat_parser *parser, size_t count, struct strbuf *to)
{
    const char *bytes = bytes_of(parser);
    parser->looked = parser->spaces = 0;
    if (count == 0)
        return;
    parser->characters += (int64_t)utf8_characters(bytes, count);
    if (to)
        strbuf_append(to, bytes, count);
    parser->front += count;
}

/* White space after a call is no content, unless it stands between two texts: of the `count` bytes
 * at the front, which other content follows, it is dropped. Returns how many are left of them. */
static size_t drop_space(struct chat_parser *parser, size_t count)
{
    if (!parser->after_call || parser->answered)
        return count;
    size_t space = chat_calls_skip(bytes_of(parser), count, parser->spaces);
    release(parser, space, NULL);
    return count - space;
}

/* Where calls are demanded, what is none at the end of the text is one that was cut off, and no
 * content, unless a call that was too long is. */
static bool is_cut(const struct chat_parser *parser, bool last)
{
    return last && parser->rules->demand.calls && !parser->answered;
}

static void release_content(struct chat_parser *parser, size_t count, bool last,
                            struct chat_output *output)
{
    bool cut = is_cut(parser, last);
    if (count > 0) {
        parser->answered = !cut;
        parser->after_call = parser->after_reasoning = parser->in_section = false;
    }
    release(parser, count, cut ? NULL : &output->content);
}

/* Bytes at the end of the text that may be the beginning of the marker. */
static size_t beginning_of(const char *text, size_t length, const char *marker)
{
    size_t most = strlen(marker) - 1;
    for (size_t count = most < length ? most : length; count > 0; count--)
        if (memcmp(text + length - count, marker, count) == 0)
            return count;
    return 0;
}

/* Where the marker begins, or where it may begin at the end; *whole says which. */
static size_t find_marker(const struct chat_parser *parser, const char *marker, bool *whole)
{
    const char *text = bytes_of(parser);
    size_t length = length_of(parser), from = parser->looked;
    const char *found = memmem(text + from, length - from, marker, strlen(marker));
    *whole = found != NULL;
    return found ? (size_t)(found - text) : length - beginning_of(text, length, marker);
}

/* A call, or what may become the beginning of one at the end of the text. */
struct found {
    size_t at, body; /* where it begins, at its marker; and of a whole one what the marker opens */
    bool whole;
    bool bare;         /* struct chat_parser */
    const char *close; /* likewise */
};

/* Behind the marker of what is around all calls, and with it. More white space than templates write
 * between them is looked at once: it is none. */
static void find_section(const struct chat_parser *parser, const char *section, struct found *found)
{
    const char *text = bytes_of(parser), *open = parser->rules->syntax->calls.open;
    size_t length = length_of(parser);
    for (size_t from = parser->looked; from < found->at;) {
        const char *begins = memmem(text + from, length - from, section, strlen(section));
        size_t at = begins ? (size_t)(begins - text) : length - beginning_of(text, length, section);
        size_t behind = begins ? at + strlen(section) : length;
        behind = chat_calls_skip(text, length - behind < MOST_SPACE ? length : behind + MOST_SPACE,
                                 behind);
        enum chat_match match = chat_calls_match(text, length, behind, open);
        if (at >= from && at < found->at && match != CHAT_MATCH_NO) {
            found->at = at;
            found->body = behind + strlen(open);
            found->whole = begins && match == CHAT_MATCH_WHOLE;
            found->bare = false;
        }
        if (!begins || match != CHAT_MATCH_NO)
            return;
        from = at + 1;
    }
}

/* Of a format that has no markers: at the beginning of the content, or behind another, perhaps with
 * a semicolon between. */
static void find_bare(const struct chat_parser *parser, struct found *found)
{
    const char *text = bytes_of(parser);
    size_t length = length_of(parser), at = chat_calls_skip(text, length, parser->spaces);
    size_t body = at;
    if (parser->answered || parser->refused)
        return;
    if (parser->after_call && at < length && text[at] == ';')
        body = chat_calls_skip(text, length, at + 1);
    char first = parser->rules->syntax->format == CHAT_CALLS_JSON ? '{' : '[';
    if (at == length || (body < length && text[body] != first))
        return;
    *found =
        (struct found){.at = at, .body = body, .whole = body < length, .bare = true, .close = ""};
}

/* The first call. Beside a format of the text there is none but at the beginning. */
static struct found find_call(const struct chat_parser *parser)
{
    const struct chat_syntax *syntax = parser->rules->syntax;
    const char *section = chat_words(syntax->format)->section;
    size_t length = length_of(parser);
    struct found found = {.at = length, .close = syntax->calls.close};
    bool alone;
    if (*syntax->calls.open)
        found.at = find_marker(parser, syntax->calls.open, &found.whole);
    found.body = found.at + strlen(syntax->calls.open);
    size_t first = chat_calls_skip(bytes_of(parser), length, parser->spaces);
    found.bare = *section && !(parser->in_section && found.at == first);
    if (*section)
        find_section(parser, section, &found);
    size_t bare = chat_calls_find(syntax->format, bytes_of(parser), length,
                                  (struct chat_part){parser->looked, found.at},
                                  &parser->rules->types, &alone);
    if (bare < found.at)
        found = (struct found){.at = bare, .body = bare, .whole = alone, .close = found.close};
    if (syntax->bare)
        find_bare(parser, &found);
    if (parser->rules->demand.offered && (parser->answered || found.at > first))
        found = (struct found){.at = length};
    return found;
}

/* The states. Each returns whether there is more to do with what is held. `last`: no more comes. */

/* Reasoning is only opened at the beginning. */
static bool in_beginning(struct chat_parser *parser, bool last)
{
    const struct chat_rules *rules = parser->rules;
    const char *open = rules->syntax->reasoning.open;
    enum chat_match match = CHAT_MATCH_NO;
    size_t at = 0;
    if (rules->syntax->channels) {
        parser->state = rules->inside ? REASONING : rules->answering ? CONTENT : HEAD;
        parser->reasoning_ends = rules->inside ? INT64_MAX : 0;
        return true;
    }
    if (rules->reasoning) {
        at = chat_calls_skip(bytes_of(parser), length_of(parser), parser->spaces);
        match = chat_calls_match(bytes_of(parser), length_of(parser), at, open);
        parser->spaces = at;
    }
    if (match == CHAT_MATCH_BEGINS && !last)
        return false;
    bool opened = match == CHAT_MATCH_WHOLE;
    parser->state = opened || rules->inside ? REASONING : CONTENT;
    if (parser->state == REASONING)
        parser->reasoning_ends = INT64_MAX;
    release(parser, opened ? at + strlen(open) : 0, NULL);
    return true;
}

static bool in_reasoning(struct chat_parser *parser, bool last, struct chat_output *output)
{
    const char *close = parser->rules->syntax->reasoning.close;
    bool whole;
    size_t at = find_marker(parser, close, &whole);
    release(parser, last && !whole ? length_of(parser) : at, &output->reasoning);
    if (!whole)
        return false;
    release(parser, strlen(close), NULL);
    parser->reasoning_ends = parser->characters;
    parser->state = CONTENT;
    parser->after_reasoning = true;
    return true;
}

/* Newlines between reasoning and content belong to neither. */
static void drop_newlines(struct chat_parser *parser)
{
    const char *text = bytes_of(parser);
    size_t length = length_of(parser), count = 0;
    while (count < length && text[count] == '\n')
        count++;
    if (count > 0)
        release(parser, count, NULL);
}

/* What ends what is around all calls, behind one of them: it is no content. */
static enum chat_match end_section(struct chat_parser *parser, bool last)
{
    const char *end = chat_words(parser->rules->syntax->format)->section_end;
    size_t length = length_of(parser),
           at = chat_calls_skip(bytes_of(parser), length, parser->spaces);
    enum chat_match match = chat_calls_match(bytes_of(parser), length, at, end);
    if (match == CHAT_MATCH_WHOLE) {
        release(parser, at + strlen(end), NULL);
        parser->in_section = false;
    } else if (match == CHAT_MATCH_BEGINS) {
        release(parser, last ? length : 0, NULL);
        parser->spaces = last ? 0 : at;
    }
    return match;
}

/* White space before a call is no content, nor after one, unless it stands between two texts. */
static bool in_content(struct chat_parser *parser, bool last, struct chat_output *output)
{
    if (parser->after_reasoning && parser->spaces == 0)
        drop_newlines(parser);
    if (!parser->rules->calls) {
        release_content(parser, length_of(parser), last, output);
        return false;
    }
    enum chat_match section =
        parser->in_section && parser->after_call ? end_section(parser, last) : CHAT_MATCH_NO;
    if (section != CHAT_MATCH_NO)
        return section == CHAT_MATCH_WHOLE;
    const struct found found = find_call(parser);
    bool ends = last && !found.whole;
    size_t text_end =
        chat_calls_trim(bytes_of(parser), parser->spaces, ends ? length_of(parser) : found.at);
    if (text_end == parser->spaces)
        text_end = 0; /* nothing but white space */
    size_t end = ends ? length_of(parser) : text_end;
    if (parser->after_call && text_end == 0)
        release(parser, end, NULL); /* of the end: else it waits for what follows */
    else
        release_content(parser, text_end > 0 ? drop_space(parser, end) : end, last, output);
    if (ends)
        return false;
    parser->looked = parser->spaces = found.at - end;
    if (!found.whole)
        return false;
    parser->body = found.body - end;
    parser->bare = found.bare;
    parser->close = found.close;
    parser->state = CALL;
    return true;
}

/* A model that writes an id again means another call: that one gets none. */
static void check_id(struct chat_parser *parser, struct chat_call *call)
{
    struct strbuf id = {0};
    strbuf_printf(&id, "\n%s\n", call->id);
    const struct strbuf *ids = &parser->ids;
    if (!id.failed && ids->length > 0 && memmem(ids->data, ids->length, id.data, id.length)) {
        free(call->id);
        call->id = NULL;
    } else if (!id.failed) {
        strbuf_append(&parser->ids, id.data, id.length);
    }
    parser->ids.failed |= id.failed;
    strbuf_clear(&id);
}

/* Counts the calls that were added behind the first `before`, notes where they stand, and drops
 * those that are too many. */
static void count_calls(struct chat_parser *parser, size_t before, struct chat_output *output)
{
    struct chat_calls *calls = &output->calls;
    for (size_t i = before; i < calls->count; i++) {
        parser->num_begun += calls->items[i].name != NULL;
        if (parser->rules->one_call && parser->num_begun > 1) {
            chat_calls_cut(calls, i);
            return;
        }
        parser->num_calls += calls->items[i].name != NULL;
        if (calls->items[i].id)
            check_id(parser, &calls->items[i]);
        calls->items[i].at = output->content.length;
    }
}

/* Channels: where the body of the message begins whose head names a call. */
static size_t body_of(const struct chat_parser *parser)
{
    return parser->body +
           chat_channels_body(bytes_of(parser) + parser->body, length_of(parser) - parser->body);
}

/* What is no call: `used` bytes of its body are content, or one that is demanded was cut off. */
static void take_no_call(struct chat_parser *parser, size_t used, bool last,
                         struct chat_output *output)
{
    const struct chat_rules *rules = parser->rules;
    size_t before = output->calls.count;
    parser->refused |= parser->bare;
    if (!is_cut(parser, last)) {
        if (rules->syntax->channels)
            release(parser, body_of(parser), NULL);
        else
            release_content(parser, drop_space(parser, parser->body + used), last, output);
        return;
    }
    output->failed |= chat_calls_read_cut(&output->calls, &parser->scan,
                                          bytes_of(parser) + parser->body, used, &rules->types) < 0;
    count_calls(parser, before, output);
    if (output->calls.count > before)
        output->calls.items[output->calls.count - 1].cut = true;
    parser->cut = true;
    release(parser, parser->body + used, NULL);
}

/* What comes next stands behind a call. */
static void follow_call(struct chat_parser *parser)
{
    parser->state = parser->rules->syntax->channels ? HEAD : CONTENT;
    parser->after_call = true;
    parser->after_reasoning = false;
    parser->in_section = *chat_words(parser->rules->syntax->format)->section_end;
}

/* Whether a tool of the request has the name of each call from `first` on. */
static bool are_known(const struct chat_calls *calls, size_t first, const struct chat_types *types)
{
    for (size_t i = first; i < calls->count; i++)
        if (!chat_types_knows(types, calls->items[i].name, calls->items[i].name_length))
            return false;
    return true;
}

/* The call up to `used` bytes of its body, of which no text is left. */
static void take_call(struct chat_parser *parser, size_t used, bool last,
                      struct chat_output *output)
{
    const struct chat_rules *rules = parser->rules;
    size_t before = output->calls.count;
    output->calls.repeats =
        rules->demand.calls != NULL; /* no automaton knows which keys there were */
    int read = chat_calls_read(&output->calls, &parser->scan, bytes_of(parser) + parser->body,
                               &rules->types);
    output->failed |= read < 0;
    if (read > 0 && parser->bare && !are_known(&output->calls, before, &rules->types)) {
        chat_calls_cut(&output->calls, before);
        read = 0;
    }
    if (read <= 0) {
        take_no_call(parser, used, last, output);
        return;
    }
    count_calls(parser, before, output);
    release(parser, parser->body + used, NULL);
    follow_call(parser);
}

/* The end of a body whose calls were told in parts. */
static void end_told(struct chat_parser *parser, const struct chat_reading *reading, size_t used,
                     bool whole, bool last, struct chat_output *output)
{
    if (!whole && !parser->scan.open) /* behind the last of a list */
        used = parser->scan.told;
    parser->cut |= !whole && (parser->scan.open || is_cut(parser, last));
    output->failed |=
        chat_calls_told(&parser->scan, reading, bytes_of(parser) + parser->body, used, whole) < 0;
    release(parser, parser->body + used, NULL);
    follow_call(parser);
    if (!whole)
        parser->state = CONTENT;
}

/* Looks for the end of the call in so many bytes of the text as it may have. */
static enum chat_scan_result scan_call(struct chat_parser *parser,
                                       const struct chat_reading *reading, bool last, size_t *used)
{
    size_t length = length_of(parser) - parser->body;
    size_t most = parser->scan.telling == CHAT_TELLING_PARTS ? MOST_TOLD : MOST_CALL;
    const char *body = bytes_of(parser) + parser->body;
    enum chat_scan_result result = CHAT_SCAN_OPEN;
    for (; result == CHAT_SCAN_OPEN; most = MOST_TOLD) {
        bool is_long = length > most;
        result = chat_scan_push(&parser->scan, reading, body, is_long ? most : length,
                                last && !is_long, used);
        if (result != CHAT_SCAN_OPEN || !is_long)
            return result;
        if (parser->scan.telling != CHAT_TELLING_PARTS || most == MOST_TOLD)
            return CHAT_SCAN_TEXT;
    }
    return result;
}

static bool in_call(struct chat_parser *parser, bool last, struct chat_output *output)
{
    const struct chat_syntax *syntax = parser->rules->syntax;
    const struct chat_reading reading = {chat_words(syntax->format), parser->close, parser->bare,
                                         &parser->rules->types, &output->calls};
    size_t used, before = output->calls.count;
    output->calls.repeats =
        parser->rules->demand.calls != NULL; /* no automaton knows which keys there were */
    enum chat_scan_result result = scan_call(parser, &reading, last, &used);
    if (result == CHAT_SCAN_TEXT &&
        chat_calls_alone(&parser->scan, bytes_of(parser) + parser->body, &parser->rules->types)) {
        result = CHAT_SCAN_CALL;
        used = parser->scan.end;
    }
    output->failed |= result == CHAT_SCAN_NO_MEMORY;
    bool parts = parser->scan.telling == CHAT_TELLING_PARTS;
    if (result != CHAT_SCAN_OPEN)
        parser->state = CONTENT;
    if (parts && result != CHAT_SCAN_OPEN)
        end_told(parser, &reading, used, result == CHAT_SCAN_CALL, last, output);
    if (parts)
        count_calls(parser, before, output);
    if (result == CHAT_SCAN_OPEN)
        return false;
    if (!parts && result == CHAT_SCAN_CALL)
        take_call(parser, used, last, output);
    else if (!parts)
        take_no_call(parser, used, last, output);
    chat_scan_clear(&parser->scan);
    return true;
}

/* Channels: a head. */

/* What a message with this head is, which is released unless a call or a thought that stays in the
 * content needs it. */
static void begin_message(struct chat_parser *parser, const struct chat_channels_head *head)
{
    const struct chat_rules *rules = parser->rules;
    const char *name = bytes_of(parser) + head->name.begin;
    size_t size = head->name.end - head->name.begin;
    bool thought = head->thought || (size > 0 && !head->function);
    parser->head_ends = parser->characters + (int64_t)utf8_characters(bytes_of(parser), head->end);
    parser->begins = true;
    if (size > 0 && rules->calls &&
        (head->function || chat_types_knows(&rules->types, name, size))) {
        parser->body = head->name.begin;
        parser->bare = false;
        parser->close = "";
        parser->state = CALL;
        return;
    }
    parser->raw = thought && !rules->reasoning;
    parser->state = thought && !parser->raw ? REASONING : CONTENT;
    if (parser->state == REASONING)
        parser->reasoning_ends = INT64_MAX;
    if (!parser->raw)
        release(parser, head->end, NULL);
    else
        parser->looked = head->end;
}

/* A text that begins with none is content, up to the next. One that is cut off is dropped. */
static bool in_head(struct chat_parser *parser, bool last)
{
    struct chat_channels_head head;
    size_t spaces = parser->spaces;
    size_t ends = chat_channels_ends(bytes_of(parser), length_of(parser), &spaces);
    release(parser, ends, NULL); /* at once: a model may go on with them */
    parser->spaces = spaces;
    size_t length = length_of(parser);
    switch (chat_channels_head(&head, bytes_of(parser), length, spaces)) {
    case CHAT_MATCH_WHOLE:
        parser->spaces = 0;
        begin_message(parser, &head);
        return true;
    case CHAT_MATCH_BEGINS:
        if (!last)
            return false;
        if (chat_calls_trim(bytes_of(parser), 0, length) == 0 ||
            memchr(bytes_of(parser), '<', length)) {
            release(parser, length, NULL);
            return false;
        }
        break;
    default:
        break;
    }
    parser->state = CONTENT;
    parser->spaces = 0;
    parser->looked = length > 0;
    return true;
}

/* Messages of one kind stand apart. */
static void part_messages(struct chat_parser *parser, bool thought, struct chat_output *output)
{
    if (parser->begins && (thought ? parser->thought : parser->answered))
        strbuf_puts(thought ? &output->reasoning : &output->content, "\n\n");
    parser->begins = false;
    parser->thought |= thought;
}

static bool in_message(struct chat_parser *parser, bool last, struct chat_output *output)
{
    bool thought = parser->state == REASONING, whole;
    size_t length = length_of(parser), size;
    size_t at = chat_channels_end(bytes_of(parser), length, parser->looked, &size, &whole);
    size_t count = last && !whole ? length : at;
    if (parser->raw) {
        count += size;
        size = 0;
    }
    if (count > 0)
        part_messages(parser, thought, output);
    if (count > 0 && thought)
        release(parser, count, &output->reasoning);
    else if (count > 0)
        release_content(parser, count, last, output);
    if (!whole)
        return false;
    release(parser, size, NULL);
    if (thought)
        parser->reasoning_ends = parser->characters;
    parser->raw = false;
    parser->state = HEAD;
    return true;
}

static void run(struct chat_parser *parser, bool last, struct chat_output *output)
{
    bool more = !parser->held.failed, channels = parser->rules->syntax->channels;
    while (more)
        switch (parser->state) {
        case BEGINNING:
            more = in_beginning(parser, last);
            break;
        case HEAD:
            more = in_head(parser, last);
            break;
        case REASONING:
            more = channels ? in_message(parser, last, output) : in_reasoning(parser, last, output);
            break;
        case CONTENT:
            more = channels ? in_message(parser, last, output) : in_content(parser, last, output);
            break;
        default:
            more = in_call(parser, last, output);
        }
    output->failed |= parser->held.failed || parser->ids.failed || output->content.failed ||
                      output->reasoning.failed;
}

void chat_parser_push(struct chat_parser *parser, const char *text, size_t length,
                      struct chat_output *output)
{
    struct strbuf *held = &parser->held;
    if (parser->front > held->length / 2) {
        memmove(held->data, held->data + parser->front, held->length - parser->front);
        held->length -= parser->front;
        parser->front = 0;
    }
    strbuf_append(held, text, length);
    if (length > 0)
        run(parser, false, output);
}

void chat_parser_finish(struct chat_parser *parser, struct chat_output *output)
{
    run(parser, true, output);
}

bool chat_parser_undecided(const struct chat_parser *parser)
{
    return parser->state == BEGINNING || parser->state == HEAD;
}

int64_t chat_parser_text_from(const struct chat_parser *parser)
{
    if (chat_parser_undecided(parser))
        return -1;
    return parser->reasoning_ends > parser->head_ends ? parser->reasoning_ends : parser->head_ends;
}

bool chat_parser_channel(const struct chat_parser *parser)
{
    static const char word[] = "<|channel|>";
    size_t length = length_of(parser), size = sizeof word - 1;
    return parser->state == HEAD && length >= size &&
           memcmp(bytes_of(parser) + length - size, word, size) == 0;
}
