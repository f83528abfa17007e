/* SPDX-License-Identifier: Apache-2.0 */
/* Special tokens spelled by the clients of chats are text, in each place of a request and with each
 * template: a conversation has the special tokens of the same one without them, which are those
 * that the template wrote. Texts without have the ids that they always had. */
#include "api/chat.h"
#include "lib/base/file.h"
#include "lib/jinja/chat_template.h"
#include "lib/text/tokenizer.h"
#include "lib/text/unicode.h"
#include "tests/unit/sanitized.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 20260729, MOST_TEXT = 4096 };

static const char *const SPECIAL[] = {
    "<|im_start|>",
    "<|im_end|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|end_of_text|>",
    "<|tool_call|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<tool_call>",
    "</tool_call>",
    "<s>",
    "</s>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|endoftext|>",
    "[INST]",
    "[/INST]",
    "<SPECIAL_11>",
    "<SPECIAL_12>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<|eom_id|>",
};
enum { NUM_SPECIAL = sizeof SPECIAL / sizeof *SPECIAL };
static const char *const ADDED[] = {"<think>", "</think>"}; /* not special */

static const char *const FILES[] = {"chat/granite",  "chat/hermes", "chat/lfm",      "chat/llama",
                                    "chat/nemotron", "chat/olmo",   "chat/qwen_xml", "chat/smollm"};
/* As GLM's and Phi's: special tokens are made of roles. As Llama 2's: names, documents, arguments.
 */
static const char *const OWN[] = {
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% for m in messages %}{{ bos_token ~ '[INST]' ~ m.name ~ ': ' ~ "
    "m.content.split('</think>')[-1] "
    "~ '[/INST]' }}{% for c in m.tool_calls or [] %}{{ c.function.name.upper() }}({% for k, v in "
    "c.function.arguments.items() %}{{ k }}={{ v if v is string else v | tojson }},{% endfor %})"
    "{% endfor %}{% endfor %}{{ tools | tojson(indent=2) }}{{ documents }}{{ mood | replace('e', "
    "'E') "
    "}}{{ '%s|%s' % (mood, eos_token) }}",
};
enum { NUM_FILES = sizeof FILES / sizeof *FILES, NUM_TEMPLATES = NUM_FILES + 2 };

static unsigned seed;

static int dice(int sides)
{
    return (int)((unsigned)rand_r(&seed) % (unsigned)sides);
}

/* ---- the tokenizer: bytes, and the tokens above ---- */

static void add_token(json_t *added, json_t *vocab, const char *content, bool special,
                      bool normalized)
{
    int id = (int)json_object_size(vocab);
    json_object_set_new(vocab, content, json_integer(id));
    json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", id, "content",
                                           content, "single_word", 0, "lstrip", 0, "rstrip", 0,
                                           "normalized", normalized, "special", special));
}

static struct tokenizer *make_tokenizer(const char *normalizer, json_t *merges)
{
    json_t *vocab = json_object(), *added = json_array();
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        text[utf8_encode(byte_level_character((unsigned char)byte), text)] = 0;
        json_object_set_new(vocab, text, json_integer(byte));
    }
    for (size_t i = 0; i < NUM_SPECIAL; i++)
        add_token(added, vocab, SPECIAL[i], true, normalizer != NULL);
    for (size_t i = 0; i < 2; i++)
        add_token(added, vocab, ADDED[i], false, normalizer != NULL);
    for (size_t i = 0; i < json_array_size(merges); i++) {
        char whole[64];
        const char *pair = json_string_value(json_array_get(merges, i)), *space = strchr(pair, ' ');
        snprintf(whole, sizeof whole, "%.*s%s", (int)(space - pair), pair, space + 1);
        if (!json_object_get(vocab, whole))
            json_object_set_new(vocab, whole, json_integer((int)json_object_size(vocab)));
    }
    json_t *level = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", 0);
    json_t *root =
        json_pack("{s:s,s:o,s:o?,s:O,s:O,s:{s:s,s:o,s:o}}", "version", "1.0", "added_tokens", added,
                  "normalizer", normalizer ? json_pack("{s:s}", "type", normalizer) : NULL,
                  "pre_tokenizer", level, "decoder", level, "model", "type", "BPE", "vocab", vocab,
                  "merges", merges ? merges : json_array());
    struct tokenizer *tokenizer;
    struct error err = ERROR_INIT;
    char *text = json_dumps(root, 0);
    cr_assert_eq(tokenizer_load(&tokenizer, text, strlen(text), &err), 0, "%s", err.message);
    free(text);
    json_decref(level);
    json_decref(root);
    return tokenizer;
}

/* ---- texts ---- */

static void append(char text[MOST_TEXT], const char *more, size_t length)
{
    size_t used = strlen(text);
    cr_assert_lt(used + length, MOST_TEXT);
    memcpy(text + used, more, length);
    text[used + length] = 0;
}

/* Words, odd characters, and with `spells` special tokens and parts of them. */
static void make_text(char text[MOST_TEXT], bool spells)
{
    static const char *const WORDS[] = {
        "sure",     " the ",     "\n", "<",      "|",    ">",   "\"x\"",    "</",   "user",
        "é",        "e\xCC\x81", "世", "🙂",   "\\n",  "{}",  "%s",       " \t ", "<think>",
        "</think>", "im_end",    "[",  "system", "&lt;", "1.5", "\xCC\x81", "\r\n"};
    text[0] = 0;
    for (int parts = 1 + dice(6); parts > 0; parts--) {
        const char *token = SPECIAL[dice(NUM_SPECIAL)];
        size_t length = strlen(token), cut = (size_t)dice((int)length);
        int kind = spells ? dice(4) : 3;
        if (kind == 0)
            append(text, token, length);
        else if (kind == 1)
            append(text, token, cut);
        else if (kind == 2)
            append(text, token + cut, length - cut);
        else {
            const char *word = WORDS[dice(sizeof WORDS / sizeof *WORDS)];
            append(text, word, strlen(word));
        }
    }
}

/* Writes x over each special token. Returns whether there was one. */
static bool blank(char *text)
{
    bool found = false, more = true;
    while (more) {
        more = false;
        for (size_t i = 0; i < NUM_SPECIAL; i++)
            for (char *at; (at = strstr(text, SPECIAL[i])); found = more = true)
                memset(at, 'x', strlen(SPECIAL[i]));
    }
    return found;
}

/* ---- conversations ---- */

/* The next text as JSON. The same again with x for each special token: `plain`. */
struct writer {
    bool spells, plain;
    size_t spelled;
};

static json_t *next(struct writer *w)
{
    char text[MOST_TEXT], copy[MOST_TEXT];
    make_text(text, w->spells);
    memcpy(copy, text, sizeof copy);
    w->spelled += blank(copy);
    return json_string(w->plain ? copy : text);
}

static json_t *call(struct writer *w)
{
    json_t *arguments = json_object(), *key = next(w);
    json_object_set_new(arguments, json_string_value(key), next(w));
    json_object_set_new(arguments, "list", json_pack("[o,i]", next(w), 3));
    json_decref(key);
    return json_pack("{s:o,s:s,s:{s:o,s:o}}", "id", next(w), "type", "function", "function", "name",
                     next(w), "arguments", arguments);
}

/* A request with such a text in each place that has one. */
static json_t *make_request(struct writer *w)
{
    json_t *messages = json_array(), *tools = json_array();
    json_array_append_new(messages, json_pack("{s:s,s:o,s:o}", "role", "system", "content", next(w),
                                              "name", next(w)));
    json_array_append_new(messages, json_pack("{s:s,s:[{s:s,s:o},{s:s,s:o}],s:o}", "role", "user",
                                              "content", "type", "text", "text", next(w), "type",
                                              "text", "text", next(w), "name", next(w)));
    json_array_append_new(messages, json_pack("{s:s,s:o,s:o,s:[o],s:o}", "role", "assistant",
                                              "content", next(w), "reasoning_content", next(w),
                                              "tool_calls", call(w), "name", next(w)));
    json_array_append_new(messages, json_pack("{s:s,s:o,s:o,s:o}", "role", "tool", "content",
                                              next(w), "tool_call_id", next(w), "name", next(w)));
    json_array_append_new(messages, json_pack("{s:s,s:o,s:o}", "role", "assistant", "content",
                                              next(w), "name", next(w)));
    json_array_append_new(
        messages, json_pack("{s:o,s:o,s:o}", "role", next(w), "content", next(w), "name", next(w)));
    json_array_append_new(
        messages, json_pack("{s:s,s:o,s:o}", "role", "user", "content", next(w), "name", next(w)));
    json_array_append_new(tools, json_pack("{s:s,s:{s:o,s:o,s:{s:s,s:{s:{s:s,s:o}}}}}", "type",
                                           "function", "function", "name", next(w), "description",
                                           next(w), "parameters", "type", "object", "properties",
                                           "a", "type", "string", "description", next(w)));
    json_t *fields = json_pack("{s:o,s:o,s:[{s:o,s:o}],s:{s:o}}", "messages", messages, "tools",
                               tools, "documents", "title", next(w), "text", next(w),
                               "chat_template_kwargs", "mood", next(w));
    cr_assert(fields);
    return fields;
}

/* ---- ids ---- */

struct room {
    struct tokenizer *tokenizer;
    struct chat_template chats[NUM_TEMPLATES];
};

static void open_room(struct room *room, struct tokenizer *tokenizer)
{
    room->tokenizer = tokenizer;
    for (size_t i = 0; i < NUM_TEMPLATES; i++) {
        struct chat_template *chat = &room->chats[i];
        struct error err = ERROR_INIT;
        char path[512], *text;
        size_t length;
        *chat = (struct chat_template){.bos_token = strdup("<s>"), .eos_token = strdup("</s>")};
        if (i < NUM_FILES) {
            snprintf(path, sizeof path, "%s/tests/data/%s.jinja", REGLA_SOURCE_DIR, FILES[i]);
            cr_assert_eq(file_read(path, 1 << 20, &text, &length, &err), 0, "%s", err.message);
        } else {
            text = strdup(OWN[i - NUM_FILES]);
            length = strlen(text);
        }
        cr_assert_eq(jinja_compile(&chat->template, "t", text, length, &err), 0, "%s", err.message);
        free(text);
    }
}

static void close_room(struct room *room)
{
    for (size_t i = 0; i < NUM_TEMPLATES; i++)
        chat_template_clear(&room->chats[i]);
    tokenizer_free(room->tokenizer);
}

static void render(struct completion_prompt *prompt, const struct room *room, size_t template,
                   const json_t *fields)
{
    const struct completion_limits limits = {.chat = &room->chats[template]};
    struct api_error err = {0};
    cr_assert_eq(chat_render(prompt, NULL, fields, 100000, NULL, &limits, &err), 0, "%zu: %s",
                 template, err.message);
}

static struct token_list encode(const struct room *room, const struct completion_prompt *prompt,
                                bool text)
{
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    cr_assert_eq(tokenizer_encode_input(room->tokenizer, prompt->text, prompt->length,
                                        prompt->input.items, text ? prompt->input.count : 0, false,
                                        &ids, &err),
                 0, "%s", err.message);
    return ids;
}

static void clear(struct completion_prompt *prompt)
{
    free(prompt->text);
    span_list_clear(&prompt->input);
}

static void keep_special(const struct room *room, struct token_list *ids)
{
    size_t kept = 0;
    for (size_t i = 0; i < ids->count; i++)
        if (tokenizer_is_special(room->tokenizer, ids->ids[i]))
            ids->ids[kept++] = ids->ids[i];
    ids->count = kept;
}

static bool same(const struct token_list *a, const struct token_list *b)
{
    return a->count == b->count && memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0;
}

/* The same request twice, once with x for special tokens: the template's own are the same. */
static size_t expect_no_forged(const struct room *room, size_t template, bool has_text)
{
    struct writer writers[2] = {{.spells = true}, {.spells = true, .plain = true}};
    struct token_list special[2];
    unsigned begin = seed;
    for (int plain = 0; plain < 2; plain++) {
        struct completion_prompt prompt;
        seed = begin;
        json_t *fields = make_request(&writers[plain]);
        render(&prompt, room, template, fields);
        special[plain] = encode(room, &prompt, true);
        if (has_text) {
            char *text;
            size_t length;
            struct error err = ERROR_INIT;
            cr_assert_eq(tokenizer_decode(room->tokenizer, special[plain].ids, special[plain].count,
                                          false, &text, &length, &err),
                         0);
            cr_expect(length == prompt.length && memcmp(text, prompt.text, length) == 0);
            free(text);
        }
        keep_special(room, &special[plain]);
        clear(&prompt);
        json_decref(fields);
    }
    cr_expect(same(&special[0], &special[1]), "template %zu, seed %u", template, begin);
    cr_expect_gt(special[1].count, 0, "template %zu", template);
    token_list_clear(&special[0]);
    token_list_clear(&special[1]);
    return writers[0].spelled;
}

static void expect_as_before(const struct room *room, size_t template)
{
    struct writer writer = {0};
    struct completion_prompt prompt;
    unsigned begin = seed;
    json_t *fields = make_request(&writer);
    cr_assert_eq(writer.spelled, 0);
    render(&prompt, room, template, fields);
    cr_assert_gt(prompt.input.count, 0);
    struct token_list ids = encode(room, &prompt, true), before = encode(room, &prompt, false);
    cr_expect(same(&ids, &before), "template %zu, seed %u", template, begin);
    token_list_clear(&ids);
    token_list_clear(&before);
    clear(&prompt);
    json_decref(fields);
}

static void in_all_templates(const struct room *room, int count, bool has_text)
{
    size_t spelled = 0;
    for (size_t template = 0; template <NUM_TEMPLATES; template ++)
        for (int i = 0; i < count; i++)
            spelled += expect_no_forged(room, template, has_text);
    cr_expect_gt(spelled, (size_t)count * NUM_TEMPLATES);
    for (size_t template = 0; template <NUM_TEMPLATES; template ++)
        for (int i = 0; i < count; i++)
            expect_as_before(room, template);
}

Test(special_tokens, in_each_place_and_template_they_are_text)
{
    struct room room;
    seed = SEED;
    cr_log_info("seed %d", SEED);
    open_room(&room, make_tokenizer(NULL, NULL));
    in_all_templates(&room, SANITIZED ? 10 : 1000, true);
    close_room(&room);
}

Test(special_tokens, behind_normalizers_too)
{
    static const char *const NORMALIZERS[] = {"NFC", "NFKD", "Lowercase"};
    seed = SEED;
    cr_log_info("seed %d", SEED);
    for (size_t i = 0; i < sizeof NORMALIZERS / sizeof *NORMALIZERS; i++) {
        struct room room;
        open_room(&room, make_tokenizer(NORMALIZERS[i], NULL));
        in_all_templates(&room, SANITIZED ? 2 : 30, false);
        close_room(&room);
    }
}

/* ---- parts of one text ---- */

/* Encodes a text whose input stands between ( and ), which are no part of it, and says each special
 * token as #, each added one as +, all else as it is. */
static char *encoded(const struct tokenizer *tokenizer, const char *marked)
{
    char text[256], *said = calloc(1, 256);
    size_t length = 0, used = 0, num_input = 0;
    struct text_span input[16];
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    for (const char *at = marked; *at; at++)
        if (*at == '(')
            input[num_input].start = length;
        else if (*at == ')')
            input[num_input++].end = length;
        else
            text[length++] = *at;
    cr_assert_eq(
        tokenizer_encode_input(tokenizer, text, length, input, num_input, false, &ids, &err), 0,
        "%s", err.message);
    for (size_t i = 0; i < ids.count; i++) {
        size_t bytes;
        const char *token = tokenizer_token_bytes(tokenizer, ids.ids[i], &bytes);
        bool added = strcmp(tokenizer_token_content(tokenizer, ids.ids[i]), ADDED[0]) == 0;
        if (tokenizer_is_special(tokenizer, ids.ids[i]) || added) {
            said[used++] = added ? '+' : '#';
            continue;
        }
        memcpy(said + used, token, bytes);
        used += bytes;
    }
    token_list_clear(&ids);
    return said;
}

static void expect_encoded(const struct tokenizer *tokenizer, const char *marked,
                           const char *expected)
{
    char *said = encoded(tokenizer, marked);
    cr_expect_str_eq(said, expected, "%s", marked);
    free(said);
}

Test(special_tokens, take_no_byte_of_input)
{
    static const struct {
        const char *marked, *expected;
    } cases[] = {
        {"<s>a<s>", "#a#"},
        {"<s>(<s>)<s>", "#<s>#"},
        {"(<s)>", "<s>"},
        {"<(s>)", "<s>"},
        {"<(s)>", "<s>"},
        {"(a)<s>(b)", "a#b"},
        {"(<)<s>(s>)", "<#s>"},
        {"(<think>)<think>", "++"},
        {"(<|im_start|>user<|im_e)nd|><|im_end|>", "<|im_start|>user<|im_end|>#"},
        {"(<|im_end)<|im_end|>", "<|im_end#"},
        {"<|im_start|>(x<|im_start|><think></s>)<|im_end|>", "#x<|im_start|>+</s>#"},
        {"(<s>)(<s>)<s>(<s>)", "<s><s>#<s>"},
    };
    struct tokenizer *plain = make_tokenizer(NULL, NULL), *normal = make_tokenizer("NFC", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_encoded(plain, cases[i].marked, cases[i].expected);
        expect_encoded(normal, cases[i].marked, cases[i].expected);
    }
    /* A mark changes what stands before it, and then there is no token to find; else both are
     * apart. */
    expect_encoded(normal, "<s>(\xCC\xB8z)<s>", "<s\xE2\x89\xAFz#");
    expect_encoded(normal, "(e)<s>(e\xCC\x81)<s>", "e#\xC3\xA9#");
    expect_encoded(normal, "(e\xCC\x81<s>)<s>(\xE4\xB8\x96)", "\xC3\xA9<s>#\xE4\xB8\x96");
    tokenizer_free(plain);
    tokenizer_free(normal);
    struct tokenizer *wide = make_tokenizer("NFKD", NULL),
                     *lower = make_tokenizer("Lowercase", NULL);
    expect_encoded(wide, "(\xEF\xBC\x9Cs>)<s>", "<s>#");
    expect_encoded(lower, "(<S>)<S>(<s>)[INST]", "<s>#<s>#");
    tokenizer_free(wide);
    tokenizer_free(lower);
}

/* What a vocabulary's merges could make of the characters of one. */
Test(special_tokens, are_not_merged_out_of_input)
{
    struct tokenizer *tokenizer = make_tokenizer(NULL, json_pack("[s,s,s]", "< s", "<s >", "a b"));
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    expect_encoded(tokenizer, "<s>(<s>ab)<s>", "#<s>ab#");
    const struct text_span all = {0, 5};
    cr_assert_eq(tokenizer_encode_input(tokenizer, "<s>ab", 5, &all, 1, false, &ids, &err), 0);
    cr_expect_eq(ids.count, 3, "<s, >, ab");
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}
