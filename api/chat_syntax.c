/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_syntax.h"

#include "api/chat_calls.h"
#include "api/chat_channels.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Words that no template has of its own. */
static const char NAME[] = "qzname", ID[] = "call00000", ANSWER[] = "qzanswer",
                  THOUGHT[] = "qzthought", BROKEN[] = "qzbroken";
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
    struct rendered answer = render(template, chat, answered(ANSWER, thought), false, false);
    struct rendered prompt = render(template, chat, question(), false, true);
    if (!reasoning_of_answer(markers, &answer) && !reasoning_of_prompt(markers, &prompt)) {
        /* It only takes it out of what was answered, or tells the model to write it. */
        bool known = jinja_mentions(template, "</think>") ||
                     (holds(&prompt, "<think>") && holds(&prompt, "</think>"));
        *markers = known ? (struct chat_markers){"<think>", "</think>"}
                   : jinja_mentions(template, "<channel|>") /* Gemma 4 */
                       ? (struct chat_markers){"<|channel>thought\n", "<channel|>"}
                       : (struct chat_markers){0};
    }
    free(answer.text);
    free(prompt.text);
}

/* Adds the special token that is the word to a list of `count`; returns how many it has now. */
static size_t add_token(int32_t *tokens, size_t count, const struct tokenizer *tokenizer,
                        const char *word)
{
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
        const char *content =
            tokenizer_is_special(tokenizer, id) ? tokenizer_token_content(tokenizer, id) : NULL;
        if (content && strcmp(content, word) == 0) {
            tokens[count] = id;
            return count + 1;
        }
    }
    return count;
}

static bool has_token(const struct tokenizer *tokenizer, const char *word)
{
    int32_t id;
    return add_token(&id, 0, tokenizer, word) > 0;
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

/* Takes the word, but for white space around it, behind white space. */
static bool take_word(const struct rendered *in, size_t *at, const char *word)
{
    word = chat_calls_bare_word(word);
    size_t size = chat_calls_trim(word, 0, strlen(word));
    size_t begin = chat_calls_skip(in->text, in->length, *at);
    if (in->length - begin < size || memcmp(in->text + begin, word, size) != 0)
        return false;
    *at = begin + size;
    return true;
}

/* Whether a call is spelled with these words, all of them. */
static bool is_spelled(const struct rendered *in, const struct chat_words *words)
{
    const char *name = words->counts ? ID : NAME; /* the id has the name, as clients return it */
    const char *found = in->text ? memmem(in->text, in->length, name, strlen(name)) : NULL;
    if (!words->open || !*words->open || !found)
        return false;
    size_t begin = (size_t)(found - in->text), at = begin + strlen(name);
    bool id = *words->id && !words->counts;
    return (words->counts || ends_with(in->text, &begin, words->before)) &&
           ends_with(in->text, &begin, words->open) && (!id || take_word(in, &at, words->id)) &&
           (!id || take_word(in, &at, ID)) && take_word(in, &at, words->behind) &&
           (words->kind != CHAT_KIND_XML || take_word(in, &at, words->key));
}

static bool calls_of_table(struct chat_syntax *syntax, const struct rendered *in,
                           const struct rendered *plain)
{
    for (int i = 0; i < CHAT_CALLS_COUNT; i++) {
        const struct chat_words *words = chat_words((enum chat_calls_format)i);
        if (!is_spelled(in, words) || in_answers(plain, words->open))
            continue;
        chat_syntax_take(syntax, (enum chat_calls_format)i);
        return true;
    }
    return false;
}

/* Whether a call that begins at text[begin] stands where the content of an answer does. */
static bool is_content(const struct rendered *in, size_t begin, const struct rendered *answer)
{
    enum { NEAR = 24 }; /* bytes before it */
    const char *content =
        answer->text ? memmem(answer->text, answer->length, ANSWER, sizeof ANSWER - 1) : NULL;
    if (!content)
        return false;
    size_t other = chat_calls_trim(answer->text, 0, (size_t)(content - answer->text));
    size_t end = chat_calls_trim(in->text, 0, begin), near = NEAR;
    near = near > other ? other : near;
    return near <= end && memcmp(in->text + end - near, answer->text + other - near, near) == 0;
}

/* Calls without markers. `tag`: what may stand around them, if the model knows it. */
static bool calls_alone(struct chat_syntax *syntax, bool list, const struct jinja *template,
                        const struct tokenizer *tokenizer)
{
    const struct chat_words *words = chat_words(syntax->format);
    if (list != (syntax->format == CHAT_CALLS_PYTHON) || !*words->tag)
        return false;
    syntax->bare = true;
    syntax->list = list;
    syntax->calls = (struct chat_markers){0};
    if (!jinja_mentions(template, words->tag) && !has_token(tokenizer, words->tag))
        return true;
    snprintf(syntax->calls.open, CHAT_MARKER_SIZE, "%s", words->tag);
    snprintf(syntax->calls.close, CHAT_MARKER_SIZE, "%s", words->tag_end);
    return true;
}

static bool calls_of_answer(struct chat_syntax *syntax, const struct rendered *in,
                            const struct rendered *plain, const struct jinja *template,
                            const struct tokenizer *tokenizer)
{
    static const char PARAMETERS[] = "\"parameters\"", ARGUMENTS[] = "\"arguments\"";
    const char *at = in->text ? memmem(in->text, in->length, NAME, strlen(NAME)) : NULL;
    size_t begin;
    if (!at)
        return false;
    size_t position = (size_t)(at - in->text), left = in->length - position;
    syntax->format = format_around(in->text, position, &begin);
    if (syntax->format == CHAT_CALLS_NONE)
        return false;
    bool list = in->text[begin] == '[';
    const char *arguments = memmem(at, left, ARGUMENTS, sizeof ARGUMENTS - 1);
    const char *parameters = memmem(at, left, PARAMETERS, sizeof PARAMETERS - 1);
    syntax->tool_names = memmem(in->text + begin, position - begin, "\"tool_name\"", 11);
    syntax->parameters = parameters && (!arguments || parameters < arguments);
    if (is_content(in, begin, plain))
        return calls_alone(syntax, list, template, tokenizer);
    if (!marker_before(in->text, chat_calls_trim(in->text, 0, begin), syntax->calls.open) ||
        ends_something(syntax->calls.open) || in_answers(plain, syntax->calls.open))
        return false;
    syntax->list = list;
    return mirror(syntax->calls.open, at, left, syntax->calls.close) ||
           syntax->format == CHAT_CALLS_JSON;
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
static json_t *call_with(const char *id, json_t *arguments)
{
    return json_pack("{s:[{s:s,s:s,s:{s:s,s:o}}]}", "tool_calls", "id", id, "type", "function",
                     "function", "name", NAME, "arguments", arguments);
}

/* An answer with a call. Some templates take arguments as a text only. */
static struct rendered called(const struct jinja *template, const struct chat_template *chat,
                              const char *id, bool texts)
{
    json_t *arguments =
        texts ? json_string("{\"qzkey\": \"qzvalue\"}") : json_pack("{s:s}", "qzkey", "qzvalue");
    return render(template, chat, answered("", call_with(id, arguments)), true, false);
}

/* Whether it refuses an answer with two. */
static bool takes_one(const struct jinja *template, const struct chat_template *chat, bool texts)
{
    json_t *arguments = texts ? json_string("{}") : json_object(), *more = call_with(ID, arguments);
    json_t *calls = json_object_get(more, "tool_calls");
    json_array_append(calls, json_array_get(calls, 0));
    struct rendered two = render(template, chat, answered("", more), true, false);
    bool result = !two.text;
    free(two.text);
    return result;
}

/* Whether it writes a call whose arguments are a text. Else it may refuse the chat for them. */
static bool takes_broken(const struct jinja *template, const struct chat_template *chat)
{
    struct rendered call =
        render(template, chat, answered("", call_with(ID, json_string(BROKEN))), true, false);
    bool result = holds(&call, BROKEN);
    free(call.text);
    return result;
}

static void find_calls(struct chat_syntax *syntax, const struct jinja *template,
                       const struct chat_template *chat, const struct tokenizer *tokenizer)
{
    struct rendered plain = render(template, chat, answered(ANSWER, NULL), false, true);
    struct rendered answer = called(template, chat, ID, false);
    struct rendered told = render(template, chat, question(), true, true);
    if (!answer.text && (answer = called(template, chat, ID, true)).text)
        syntax->texts = true;
    if (!calls_of_table(syntax, &answer, &plain) &&
        !calls_of_answer(syntax, &answer, &plain, template, tokenizer) &&
        !calls_of_instructions(syntax, &told, &plain)) {
        syntax->calls = (struct chat_markers){0};
        syntax->format = CHAT_CALLS_NONE;
        syntax->tool_names = syntax->parameters = syntax->list = false;
    }
    struct rendered other = called(template, chat, "qz_longer_than_nine", syntax->texts);
    syntax->single = answer.text && takes_one(template, chat, syntax->texts);
    syntax->ids = chat_words(syntax->format)->counts ? CHAT_IDS_COUNTED
                  : answer.text && !other.text       ? CHAT_IDS_SHORT
                                                     : CHAT_IDS_ANY;
    free(other.text);
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

/* Whether a special token has a part in a word. */
static bool has_part(const char *word, const char *content)
{
    static const char BAR[] = "｜"; /* around DeepSeek's */
    bool begins = *content == '<' || *content == '[' || strncmp(content, BAR, sizeof BAR - 1) == 0;
    return begins && strlen(content) > sizeof BAR - 1 && strstr(word, content);
}

/* Those of the markers, and with `words` (or NULL) of a format's other words. */
static size_t find_tokens(int32_t *tokens, size_t most, const struct chat_markers *markers,
                          const struct chat_words *words, const struct tokenizer *tokenizer)
{
    size_t count = 0;
    for (int32_t id = 0; id < tokenizer_size(tokenizer) && count < most; id++) {
        const char *content =
            tokenizer_is_special(tokenizer, id) ? tokenizer_token_content(tokenizer, id) : NULL;
        if (!content || !*content)
            continue;
        bool is = strcmp(content, markers->open) == 0 || strcmp(content, markers->close) == 0 ||
                  (!words && has_part(markers->open, content));
        const char *const others[] = {markers->close,
                                      words ? words->section : "",
                                      words ? words->section_end : "",
                                      words ? words->before : "",
                                      words ? words->behind : "",
                                      words ? words->key : "",
                                      words ? words->key_end : "",
                                      words ? words->value : "",
                                      words ? words->value_end : "",
                                      words && words->other ? words->other : "",
                                      words ? words->end : "",
                                      words ? words->id : ""};
        for (size_t i = 0; words && i < sizeof others / sizeof *others && !is; i++)
            is = has_part(others[i], content);
        if (is)
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

/* Channels. */

/* Whether an answer with a call is refused for having a thought and a text. */
static bool takes_either(const struct jinja *template, const struct chat_template *chat)
{
    json_t *both = call_with(ID, json_object()), *one = call_with(ID, json_object());
    json_object_set_new(both, "thinking", json_string(THOUGHT));
    struct rendered with = render(template, chat, answered(ANSWER, both), true, false);
    struct rendered without = render(template, chat, answered(ANSWER, one), true, false);
    bool result = !with.text && without.text;
    free(with.text);
    free(without.text);
    return result;
}

/* Whether replies are messages in channels. Then all is known but whether it writes calls. */
static bool find_channels(struct chat_syntax *syntax, const struct jinja *template,
                          const struct chat_template *chat, const struct tokenizer *tokenizer)
{
    struct rendered answer = render(template, chat, answered(ANSWER, NULL), false, false);
    struct rendered call = called(template, chat, ID, false);
    int32_t *tokens = syntax->call_tokens;
    char written[sizeof CHAT_CHANNELS_ANSWER + sizeof ANSWER], function[] = "to=functions.qzname";
    snprintf(written, sizeof written, CHAT_CHANNELS_ANSWER "%s", ANSWER);
    bool found = holds(&answer, written), calls = holds(&call, function);
    free(answer.text);
    free(call.text);
    if (!found)
        return false;
    chat_syntax_take(syntax, CHAT_CALLS_CHANNELS);
    if (!calls)
        syntax->format = CHAT_CALLS_NONE;
    syntax->single = true;
    syntax->either = takes_either(template, chat);
    for (int i = 0; i < CHAT_CHANNELS_WORDS; i++) {
        const char *word = chat_channels_words[i];
        syntax->num_call_tokens = add_token(tokens, syntax->num_call_tokens, tokenizer, word);
        if (i >= CHAT_CHANNELS_FIRST_END)
            syntax->num_end_tokens =
                add_token(syntax->end_tokens, syntax->num_end_tokens, tokenizer, word);
    }
    return true;
}

/* The first tokens of the channels' names. */
static void find_names(struct chat_syntax *syntax, const struct tokenizer *tokenizer)
{
    static const char *const NAMES[] = {"final", "commentary"};
    int32_t tokens[CHAT_MARKER_SIZE];
    for (int i = 0; i < 2; i++)
        if (spell(tokens, CHAT_MARKER_SIZE, NAMES[i], tokenizer) > 0)
            syntax->channel_tokens[syntax->num_channel_tokens++] = tokens[0];
}

void chat_syntax_find(struct chat_syntax *syntax, const struct jinja *template,
                      const struct chat_template *chat, const struct tokenizer *tokenizer)
{
    *syntax = (struct chat_syntax){0};
    syntax->broken = takes_broken(template, chat);
    syntax->systems = systems_of(template, chat);
    if (find_channels(syntax, template, chat, tokenizer)) {
        syntax->num_closing_tokens =
            spell(syntax->closing_tokens, CHAT_MARKER_SIZE, syntax->reasoning.close, tokenizer);
        find_names(syntax, tokenizer);
        return;
    }
    find_reasoning(syntax, template, chat);
    find_calls(syntax, template, chat, tokenizer);
    syntax->num_reasoning_tokens =
        find_tokens(syntax->reasoning_tokens, 2, &syntax->reasoning, NULL, tokenizer);
    syntax->num_closing_tokens =
        spell(syntax->closing_tokens, CHAT_MARKER_SIZE, syntax->reasoning.close, tokenizer);
    syntax->num_call_tokens = find_tokens(syntax->call_tokens, CHAT_MOST_CALL_TOKENS,
                                          &syntax->calls, chat_words(syntax->format), tokenizer);
}

void chat_syntax_take(struct chat_syntax *syntax, enum chat_calls_format format)
{
    const struct chat_words *words = chat_words(format);
    syntax->format = format;
    snprintf(syntax->calls.open, CHAT_MARKER_SIZE, "%s", words->open);
    snprintf(syntax->calls.close, CHAT_MARKER_SIZE, "%s", words->close);
    syntax->channels = words->channels;
    if (words->channels)
        syntax->reasoning = (struct chat_markers){CHAT_CHANNELS_THOUGHT, CHAT_CHANNELS_NEXT};
}

const char *chat_syntax_format(const struct chat_syntax *syntax)
{
    return chat_words(syntax->format)->title;
}
