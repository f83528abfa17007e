/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_syntax.h"

#include "api/chat_calls.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Words that no template has of its own. */
static const char NAME[] = "qzname", THOUGHT[] = "qzthought", BROKEN[] = "qzbroken";
static const char QUESTION[] = "qzquestion";
/* What a probe may take (struct jinja_limits). */
enum { STEPS = 2 << 20, BYTES = 4 << 20 };

/* Rendering. */

/* A text of the probes. */
struct rendered {
    char *text; /* [length], and a NUL; NULL: the template refuses this chat */
    size_t length;
};

static struct rendered render(const struct jinja *template, const struct chat_template *chat,
                              json_t *messages, bool tools, bool generation)
{
    struct rendered result = {0};
    struct error err = ERROR_INIT;
    struct jinja_limits limits = {.steps = STEPS, .memory = BYTES};
    json_t *list = tools ? json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s}}}}}]", "type", "function",
                                     "function", "name", "qztool", "description", "d", "parameters",
                                     "type", "object", "properties", "qzkey", "type", "string")
                         : json_null();
    json_t *context = json_pack("{s:o,s:b,s:O,s:o,s:b,s:b,s:s,s:s}", "messages", messages,
                                "add_generation_prompt", generation, "tools", list, "xml_tools",
                                list, "enable_thinking", 1, "thinking", 1, "bos_token",
                                chat->bos_token ? chat->bos_token : "", "eos_token",
                                chat->eos_token ? chat->eos_token : "");
    if (context && jinja_render(template, context, &limits, (int64_t)time(NULL), &result.text,
                                &result.length, NULL, &err))
        result = (struct rendered){0};
    json_decref(context);
    return result;
}

static json_t *question(void)
{
    return json_pack("[{s:s,s:s}]", "role", "user", "content", QUESTION);
}

/* The question, and an answer whose other members are `more`. */
static json_t *answered(const char *content, json_t *more)
{
    json_t *messages = question();
    json_t *answer = json_pack("{s:s,s:s}", "role", "assistant", "content", content);
    if (more)
        json_object_update(answer, more);
    json_decref(more);
    json_array_append_new(messages, answer);
    return messages;
}

/* Markers. */

static bool holds(const struct rendered *in, const char *word)
{
    return in->text && memmem(in->text, in->length, word, strlen(word));
}

/* The same in brackets: [WORD]. */
static bool word_before(const char *text, size_t end, char marker[CHAT_MARKER_SIZE])
{
    size_t begin = end - 1;
    while (begin > 0 && end - begin < CHAT_MARKER_SIZE - 8 &&
           (isupper((unsigned char)text[begin - 1]) || text[begin - 1] == '_'))
        begin--;
    if (begin == 0 || text[begin - 1] != '[' || end - begin < 3)
        return false;
    begin--;
    memcpy(marker, text + begin, end - begin);
    marker[end - begin] = 0;
    return true;
}

/* The marker that ends at text[end]: <...> without white space, or [WORD]. */
static bool marker_before(const char *text, size_t end, char marker[CHAT_MARKER_SIZE])
{
    size_t begin = end;
    if (end >= 3 && text[end - 1] == ']')
        return word_before(text, end, marker);
    if (end < 3 || text[end - 1] != '>')
        return false;
    do
        begin--;
    while (begin > 0 && end - begin < CHAT_MARKER_SIZE - 8 && text[begin] != '<' &&
           !isspace((unsigned char)text[begin]));
    if (text[begin] != '<' || memchr(text + begin, 0, end - begin))
        return false;
    memcpy(marker, text + begin, end - begin);
    marker[end - begin] = 0;
    return true;
}

/* Writes `word` in place of `by` in the marker. */
static bool replaced(const char *open, const char *word, const char *by,
                     char close[CHAT_MARKER_SIZE])
{
    const char *at = strstr(open, word);
    if (!at)
        return false;
    snprintf(close, CHAT_MARKER_SIZE, "%.*s%s%s", (int)(at - open), open, by, at + strlen(word));
    return true;
}

/* The marker that closes what `open` opens: </x> of <x>, [/x] of [x], <|/x|> of <|x|>, <|x_end|> of
 * <|x_start|>. The text behind it has it, if there is one. */
static bool mirror(const char *open, const char *text, size_t length, char close[CHAT_MARKER_SIZE])
{
    static const char *const PAIRS[][2] = {{"<|", "<|/"},    {"<", "</"},      {"[", "[/"},
                                           {"start", "end"}, {"START", "END"}, {"begin", "end"}};
    for (size_t i = 0; i < sizeof PAIRS / sizeof *PAIRS; i++)
        if (replaced(open, PAIRS[i][0], PAIRS[i][1], close) &&
            memmem(text, length, close, strlen(close)))
            return true;
    close[0] = 0;
    return false;
}

static bool mentions(const char *marker, const char *word)
{
    return strcasestr(marker, word) != NULL;
}

static bool is_letter(char byte)
{
    return isalpha((unsigned char)byte);
}

/* Whether its name says that it ends something: </x>, <|x_end|>, <END_X>, <xEnd>; not <send>. */
static bool ends_something(const char *marker)
{
    for (const char *at = marker; (at = strcasestr(at, "end")); at++)
        if (!is_letter(at[-1]) || (at[0] == 'E' && islower((unsigned char)at[-1])))
            return true;
    return marker[1] == '/' || strncmp(marker, "<|/", 3) == 0;
}

/* Reasoning. */

static bool reasoning_of_answer(struct chat_markers *markers, const struct rendered *in)
{
    const char *at = in->text ? memmem(in->text, in->length, THOUGHT, strlen(THOUGHT)) : NULL;
    if (!at)
        return false;
    size_t position = (size_t)(at - in->text);
    return marker_before(in->text, chat_calls_trim(in->text, 0, position), markers->open) &&
           !ends_something(markers->open) &&
           mirror(markers->open, at, in->length - position, markers->close);
}

/* A template that opens it in what it leaves to the model: <think> at the end of the prompt. */
static bool reasoning_of_prompt(struct chat_markers *markers, const struct rendered *in)
{
    if (!in->text ||
        !marker_before(in->text, chat_calls_trim(in->text, 0, in->length), markers->open) ||
        !mentions(markers->open, "think") || ends_something(markers->open))
        return false;
    return replaced(markers->open, "<", "</", markers->close);
}

static void find_reasoning(struct chat_syntax *syntax, const struct jinja *template,
                           const struct chat_template *chat)
{
    struct chat_markers *markers = &syntax->reasoning;
    json_t *thought = json_pack("{s:s,s:s,s:s}", "reasoning_content", THOUGHT, "thinking", THOUGHT,
                                "reasoning", THOUGHT);
    struct rendered answer = render(template, chat, answered("qzanswer", thought), false, false);
    struct rendered prompt = render(template, chat, question(), false, true);
    if (!reasoning_of_answer(markers, &answer) && !reasoning_of_prompt(markers, &prompt)) {
        /* It only takes it out of what was answered, or tells the model to write it. */
        bool known = jinja_mentions(template, "</think>") ||
                     (holds(&prompt, "<think>") && holds(&prompt, "</think>"));
        *markers = known ? (struct chat_markers){"<think>", "</think>"} : (struct chat_markers){0};
    }
    free(answer.text);
    free(prompt.text);
}

/* Calls. */

/* Whether text[..end] ends with the word; then *end is where it begins. */
static bool ends_with(const char *text, size_t *end, const char *word)
{
    size_t length = strlen(word);
    if (*end < length || memcmp(text + *end - length, word, length) != 0)
        return false;
    *end -= length;
    return true;
}

/* What is around the name at text[at]: *begin is where the body begins. */
static enum chat_calls_format format_around(const char *text, size_t at, size_t *begin)
{
    char next = text[at + strlen(NAME)];
    *begin = at;
    if (next == '>' && ends_with(text, begin, "<function="))
        return CHAT_CALLS_XML;
    if (next == '(') {
        *begin = chat_calls_trim(text, 0, *begin);
        ends_with(text, begin, "[");
        return CHAT_CALLS_PYTHON;
    }
    if (next != '"' || !ends_with(text, begin, "\""))
        return CHAT_CALLS_NONE;
    *begin = chat_calls_trim(text, 0, *begin);
    if (!ends_with(text, begin, ":"))
        return CHAT_CALLS_NONE;
    *begin = chat_calls_trim(text, 0, *begin);
    bool tool_name = ends_with(text, begin, "\"tool_name\"");
    if (!tool_name && !ends_with(text, begin, "\"name\""))
        return CHAT_CALLS_NONE;
    *begin = chat_calls_trim(text, 0, *begin);
    if (tool_name) /* an id stands before it */
        while (*begin > 0 && text[*begin - 1] != '{' && text[*begin - 1] != '\n')
            --*begin;
    if (!ends_with(text, begin, "{"))
        return CHAT_CALLS_NONE;
    *begin = chat_calls_trim(text, 0, *begin);
    ends_with(text, begin, "[");
    return CHAT_CALLS_JSON;
}

/* Whether answers without calls have the marker. What stands before the question says nothing: a
 * system part may speak of calls also where there are no tools. */
static bool in_answers(const struct rendered *plain, const char *marker)
{
    const char *from =
        plain->text ? memmem(plain->text, plain->length, QUESTION, sizeof QUESTION - 1) : NULL;
    from = from ? from : plain->text;
    return from &&
           memmem(from, plain->length - (size_t)(from - plain->text), marker, strlen(marker));
}

static bool calls_of_answer(struct chat_syntax *syntax, const struct rendered *in,
                            const struct rendered *plain)
{
    const char *at = in->text ? memmem(in->text, in->length, NAME, strlen(NAME)) : NULL;
    size_t begin;
    if (!at)
        return false;
    size_t position = (size_t)(at - in->text);
    enum chat_calls_format format = format_around(in->text, position, &begin);
    if (format == CHAT_CALLS_NONE ||
        !marker_before(in->text, chat_calls_trim(in->text, 0, begin), syntax->calls.open) ||
        ends_something(syntax->calls.open) || in_answers(plain, syntax->calls.open))
        return false;
    bool closed = mirror(syntax->calls.open, at, in->length - position, syntax->calls.close);
    if (!closed && format != CHAT_CALLS_JSON)
        return false;
    syntax->format = format;
    syntax->list = in->text[begin] == '[';
    syntax->tool_names = memmem(in->text + begin, position - begin, "\"tool_name\"", 11);
    return true;
}

/* What the template tells the model to write behind the marker that ends at text[at]. */
static enum chat_calls_format format_told(const char *text, size_t length, size_t at, bool *list)
{
    enum { NEAR = 64 };
    size_t next = chat_calls_skip(text, length, at);
    *list = false;
    if (chat_calls_match(text, length, next, "<function=") == CHAT_MATCH_WHOLE)
        return CHAT_CALLS_XML;
    if (next < length && text[next] == '[') {
        *list = true;
        next = chat_calls_skip(text, length, next + 1);
    }
    if (chat_calls_match(text, length, next, "{\"name\"") == CHAT_MATCH_WHOLE)
        return CHAT_CALLS_JSON;
    /* "... followed by a JSON list" */
    size_t near = length - at < NEAR ? length - at : NEAR;
    const char *json = memmem(text + at, near, "JSON", strlen("JSON"));
    if (!json || memchr(text + at, '<', (size_t)(json - text) - at))
        return CHAT_CALLS_NONE;
    static const char words[] = "JSON list";
    *list = near >= sizeof words - 1 && memmem(text + at, near, words, sizeof words - 1);
    return CHAT_CALLS_JSON;
}

static bool calls_of_instructions(struct chat_syntax *syntax, const struct rendered *in,
                                  const struct rendered *plain)
{
    for (size_t at = 1; in->text && at <= in->length; at++) {
        char *open = syntax->calls.open;
        if (!marker_before(in->text, at, open) || ends_something(open) || !mentions(open, "call") ||
            in_answers(plain, open))
            continue;
        syntax->format = format_told(in->text, in->length, at, &syntax->list);
        bool closed = mirror(open, in->text + at, in->length - at, syntax->calls.close);
        if (syntax->format == CHAT_CALLS_JSON || (closed && syntax->format == CHAT_CALLS_XML))
            return true;
    }
    return false;
}

/* A message's call with these arguments. */
static json_t *call_with(json_t *arguments)
{
    return json_pack("{s:[{s:s,s:s,s:{s:s,s:o}}]}", "tool_calls", "id", "call00000", "type",
                     "function", "function", "name", NAME, "arguments", arguments);
}

/* Whether it writes a call whose arguments are a text. Else it may refuse the chat for them. */
static bool takes_broken(const struct jinja *template, const struct chat_template *chat)
{
    struct rendered call =
        render(template, chat, answered("", call_with(json_string(BROKEN))), true, false);
    bool result = holds(&call, BROKEN);
    free(call.text);
    return result;
}

static void find_calls(struct chat_syntax *syntax, const struct jinja *template,
                       const struct chat_template *chat)
{
    json_t *call = call_with(json_pack("{s:s}", "qzkey", "qzvalue"));
    struct rendered plain = render(template, chat, answered("qzanswer", NULL), false, true);
    struct rendered answer = render(template, chat, answered("", call), true, false);
    struct rendered told = render(template, chat, question(), true, true);
    if (!calls_of_answer(syntax, &answer, &plain) &&
        !calls_of_instructions(syntax, &told, &plain)) {
        syntax->calls = (struct chat_markers){0};
        syntax->format = CHAT_CALLS_NONE;
    }
    free(plain.text);
    free(answer.text);
    free(told.text);
}

/* Messages of the system. */

static const char FIRST[] = "qzfirst", LATER[] = "qzlater", LAST[] = "qzlast";

static enum chat_systems systems_of(const struct jinja *template, const struct chat_template *chat)
{
    json_t *first = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", FIRST, "role",
                              "user", "content", QUESTION);
    json_t *all = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role",
                            "system", "content", FIRST, "role", "user", "content", QUESTION, "role",
                            "system", "content", LATER, "role", "assistant", "content", "qzanswer",
                            "role", "user", "content", QUESTION, "role", "system", "content", LAST);
    struct rendered one = render(template, chat, first, false, true);
    struct rendered several = render(template, chat, all, false, true);
    enum chat_systems result =
        holds(&several, FIRST) && holds(&several, LATER) && holds(&several, LAST) ? CHAT_SYSTEMS_ALL
        : holds(&one, FIRST) ? CHAT_SYSTEMS_FIRST
                             : CHAT_SYSTEMS_NONE;
    free(one.text);
    free(several.text);
    return result;
}

/* Tokens. */

static size_t find_tokens(int32_t tokens[2], const struct chat_markers *markers,
                          const struct tokenizer *tokenizer)
{
    size_t count = 0;
    for (int32_t id = 0; id < tokenizer_size(tokenizer) && count < 2; id++) {
        const char *content =
            tokenizer_is_special(tokenizer, id) ? tokenizer_token_content(tokenizer, id) : NULL;
        if (content && *content &&
            (strcmp(content, markers->open) == 0 || strcmp(content, markers->close) == 0))
            tokens[count++] = id;
    }
    return count;
}

/* The tokens of a marker's text; none: the tokenizer has none, or no memory is left. */
static size_t spell(int32_t *tokens, size_t most, const char *marker,
                    const struct tokenizer *tokenizer)
{
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    size_t count = 0;
    if (*marker && tokenizer_encode(tokenizer, marker, strlen(marker), false, &ids, &err) == 0 &&
        ids.count <= most)
        count = ids.count;
    if (count > 0)
        memcpy(tokens, ids.ids, count * sizeof *tokens);
    token_list_clear(&ids);
    return count;
}

void chat_syntax_find(struct chat_syntax *syntax, const struct jinja *template,
                      const struct chat_template *chat, const struct tokenizer *tokenizer)
{
    *syntax = (struct chat_syntax){0};
    find_reasoning(syntax, template, chat);
    find_calls(syntax, template, chat);
    syntax->broken = takes_broken(template, chat);
    syntax->systems = systems_of(template, chat);
    syntax->num_reasoning_tokens =
        find_tokens(syntax->reasoning_tokens, &syntax->reasoning, tokenizer);
    syntax->num_closing_tokens =
        spell(syntax->closing_tokens, CHAT_MARKER_SIZE, syntax->reasoning.close, tokenizer);
    syntax->num_call_tokens = find_tokens(syntax->call_tokens, &syntax->calls, tokenizer);
}

const char *chat_syntax_format(const struct chat_syntax *syntax)
{
    static const char *const NAMES[] = {[CHAT_CALLS_NONE] = "none",
                                        [CHAT_CALLS_JSON] = "JSON",
                                        [CHAT_CALLS_XML] = "XML",
                                        [CHAT_CALLS_PYTHON] = "Python"};
    return NAMES[syntax->format];
}
