/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the reply of a chat, whole and in pieces: the parts are the same, nothing is lost,
 * and arguments are JSON objects. The first byte chooses rules and one of the first four formats,
 * the second the pieces and, by its upper half, others. */
#include "api/chat_parser.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

static const struct chat_syntax SYNTAXES[] = {
    {.reasoning = {"<t>", "</t>"}, .calls = {"<c>", "</c>"}, .format = CHAT_CALLS_JSON},
    {.reasoning = {"<t>", "</t>"}, .calls = {"<c>", ""}, .format = CHAT_CALLS_JSON},
    {.reasoning = {"<t>", "</t>"}, .calls = {"<c>", "</c>"}, .format = CHAT_CALLS_XML},
    {.reasoning = {"<t>", "</t>"}, .calls = {"<c>", "</c>"}, .format = CHAT_CALLS_PYTHON},
    {.calls = {"<c>", ""}, .format = CHAT_CALLS_JSON, .bare = true},
    {.calls = {"<c>", "</c>"}, .format = CHAT_CALLS_PYTHON, .bare = true},
};
enum { NUM_SYNTAXES = sizeof SYNTAXES / sizeof *SYNTAXES, PIECES = 16 };

/* One of these, or of the formats of the table that have markers of their own. */
static const struct chat_syntax *syntax_of(size_t number)
{
    static struct chat_syntax of_table;
    number %= NUM_SYNTAXES + CHAT_CALLS_COUNT - CHAT_CALLS_GLM;
    if (number < NUM_SYNTAXES)
        return &SYNTAXES[number];
    of_table = (struct chat_syntax){0};
    chat_syntax_take(&of_table, (enum chat_calls_format)(CHAT_CALLS_GLM + number - NUM_SYNTAXES));
    return &of_table;
}

static const char TOOLS[] = "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
                            "{\"a\": {\"type\": [\"integer\", "
                            "\"number\", \"boolean\", \"null\", \"array\", \"object\"]}, \"s\": "
                            "{\"type\": \"string\"}}}}}]";

static const struct chat_types *types_of_tools(void)
{
    static struct chat_types types;
    struct api_error err = {0};
    if (types.count > 0)
        return &types;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    if (chat_types_take(&types, tools, &err))
        abort();
    json_decref(tools);
    return &types;
}

static void parse(struct chat_output *output, const struct chat_rules *rules, const char *text,
                  size_t length, size_t piece)
{
    struct chat_parser parser = {.rules = rules};
    *output = (struct chat_output){0};
    for (size_t at = 0; at < length; at += piece)
        chat_parser_push(&parser, text + at, piece < length - at ? piece : length - at, output);
    chat_parser_finish(&parser, output);
    if (output->failed)
        abort();
    chat_parser_clear(&parser);
}

static bool same(const struct strbuf *a, const struct strbuf *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0);
}

static char demanded[] = "[]"; /* what is cut off then is a call, and its arguments no JSON */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || utf8_valid_length((const char *)data + 2, size - 2) < size - 2)
        return 0; /* no text of a model */
    size_t form = (data[0] & 3u) + 4u * (data[1] / PIECES);
    const struct chat_syntax *syntax = syntax_of(form);
    bool thinks = (data[0] & 4) && (form < 4 || syntax->channels);
    struct chat_rules rules = {.syntax = syntax,
                               .reasoning = thinks,
                               .inside = (data[0] & 8) && thinks,
                               .answering = (data[0] & 8) && !thinks && syntax->channels,
                               .calls = data[0] & 16,
                               .one_call = data[0] & 32,
                               .demand.calls = data[0] & 64 ? demanded : NULL,
                               .demand.offered = data[0] & 128 ? demanded : NULL,
                               .types = *types_of_tools()};
    const char *text = (const char *)data + 2;
    struct chat_output whole, cut;
    parse(&whole, &rules, text, size - 2, size);
    parse(&cut, &rules, text, size - 2, 1 + data[1] % PIECES);
    if (!same(&whole.content, &cut.content) || !same(&whole.reasoning, &cut.reasoning) ||
        whole.calls.count != cut.calls.count || (!rules.calls && whole.calls.count) ||
        (!rules.calls && !rules.reasoning && !rules.demand.calls && !syntax->channels &&
         whole.content.length != size - 2))
        abort();
    for (size_t i = 0; i < whole.calls.count; i++) {
        const struct chat_call *call = &whole.calls.items[i];
        json_t *object = json_loadb(call->arguments, call->arguments_length, JSON_ALLOW_NUL, NULL);
        if (call->open || (!call->cut && !json_is_object(object)) ||
            call->cut != cut.calls.items[i].cut ||
            strcmp(call->arguments, cut.calls.items[i].arguments) != 0)
            abort();
        json_decref(object);
    }
    chat_output_clear(&whole);
    chat_output_clear(&cut);
    return 0;
}
