/* SPDX-License-Identifier: Apache-2.0 */
/* What is found of templates in the form of the families' (tests/data/chat), and of others: their
 * markers and formats; whether a prompt ends inside reasoning. */
#include "api/chat_rules.h"

#include "lib/base/file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(chat_syntax);

static struct tokenizer *open_tokenizer(void)
{
    struct tokenizer *tokenizer;
    struct error err = ERROR_INIT;
    cr_assert_eq(tokenizer_open(&tokenizer, "tests/golden/hybrid_regla/tokenizer.json", &err), 0,
                 "%s", err.message);
    return tokenizer;
}

static struct chat_syntax find(const char *source)
{
    struct chat_template chat = {0};
    struct chat_syntax syntax;
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer = open_tokenizer();
    cr_assert_eq(jinja_compile(&chat.template, "test", source, strlen(source), &err), 0, "%s",
                 err.message);
    chat_syntax_find(&syntax, chat.template, &chat, tokenizer);
    jinja_free(chat.template);
    tokenizer_free(tokenizer);
    return syntax;
}

static void expect(const char *source, const char *think, const char *think_end,
                   enum chat_calls_format format, const char *call, const char *call_end)
{
    struct chat_syntax syntax = find(source);
    cr_assert_str_eq(syntax.reasoning.open, think, "%s", source);
    cr_assert_str_eq(syntax.reasoning.close, think_end, "%s", source);
    cr_assert_eq(syntax.format, format, "%s", source);
    cr_assert_str_eq(syntax.calls.open, call, "%s", source);
    cr_assert_str_eq(syntax.calls.close, call_end, "%s", source);
}

static const struct {
    const char *name, *think, *think_end;
    enum chat_calls_format format;
    const char *call, *call_end;
    bool list;
} FILES[] = {
    {"hermes", "<think>", "</think>", CHAT_CALLS_JSON, "<tool_call>", "</tool_call>", false},
    {"qwen_xml", "<think>", "</think>", CHAT_CALLS_XML, "<tool_call>", "</tool_call>", false},
    {"granite", "", "", CHAT_CALLS_JSON, "<|tool_call|>", "", true},
    {"nemotron", "<think>", "</think>", CHAT_CALLS_JSON, "<TOOLCALL>", "</TOOLCALL>", true},
    {"lfm", "<think>", "</think>", CHAT_CALLS_PYTHON, "<|tool_call_start|>", "<|tool_call_end|>",
     true},
    {"olmo", "", "", CHAT_CALLS_PYTHON, "<function_calls>", "</function_calls>", false},
    {"smollm", "<think>", "</think>", CHAT_CALLS_JSON, "<tool_call>", "</tool_call>", false},
    {"mistral", "", "", CHAT_CALLS_JSON, "[TOOL_CALLS]", "", true},
    {"cohere", "", "", CHAT_CALLS_JSON, "<|START_ACTION|>", "<|END_ACTION|>", true},
    {"llama", "", "", CHAT_CALLS_JSON, "", "", false},
    {"llama4", "", "", CHAT_CALLS_PYTHON, "", "", true},
    {"glm", "<think>", "</think>", CHAT_CALLS_GLM, "<tool_call>", "", false},
    {"minimax", "<think>", "</think>", CHAT_CALLS_MINIMAX, "<invoke name=\"", "", false},
    {"gemma", "<|channel>thought\n", "<channel|>", CHAT_CALLS_GEMMA, "<|tool_call>", "<tool_call|>",
     false},
    {"deepseek", "<think>", "</think>", CHAT_CALLS_DEEPSEEK, "<｜tool▁call▁begin｜>",
     "<｜tool▁call▁end｜>", false},
    {"deepseek_fenced", "", "", CHAT_CALLS_DEEPSEEK_FENCED, "<｜tool▁call▁begin｜>",
     "\n```<｜tool▁call▁end｜>", false},
    {"deepseek_dsml", "<think>", "</think>", CHAT_CALLS_DSML, "<｜DSML｜invoke name=\"", "", false},
    {"kimi", "", "", CHAT_CALLS_KIMI, "<|tool_call_begin|>", "<|tool_call_end|>", false},
    {"mistral_args", "", "", CHAT_CALLS_MISTRAL, "[TOOL_CALLS]", "", false},
    {"mistral_ids", "", "", CHAT_CALLS_MISTRAL_IDS, "[TOOL_CALLS]", "", false},
    {"harmony", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant", CHAT_CALLS_CHANNELS,
     "<|channel|>commentary to=functions.", "", false},
};

Test(chat_syntax, of_the_families)
{
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        char path[128], *text;
        size_t length;
        struct error err = ERROR_INIT;
        snprintf(path, sizeof path, "tests/data/chat/%s.jinja", FILES[i].name);
        cr_assert_eq(file_read(path, 1 << 20, &text, &length, &err), 0, "%s", err.message);
        expect(text, FILES[i].think, FILES[i].think_end, FILES[i].format, FILES[i].call,
               FILES[i].call_end);
        const struct chat_syntax syntax = find(text);
        cr_assert_eq(syntax.list, FILES[i].list, "%s", FILES[i].name);
        cr_assert_eq(syntax.bare, strncmp(FILES[i].name, "llama", 5) == 0, "%s", FILES[i].name);
        cr_assert_eq(syntax.texts, strcmp(FILES[i].name, "deepseek") == 0, "%s", FILES[i].name);
        const bool channels = strcmp(FILES[i].name, "harmony") == 0;
        cr_assert_eq(syntax.channels, channels, "%s", FILES[i].name);
        cr_assert_eq(syntax.either, channels, "%s", FILES[i].name);
        cr_assert_eq(syntax.single, channels || strcmp(FILES[i].name, "llama") == 0, "%s",
                     FILES[i].name);
        cr_assert_eq(syntax.parameters,
                     strcmp(FILES[i].name, "llama") == 0 || strcmp(FILES[i].name, "cohere") == 0,
                     "%s", FILES[i].name);
        free(text);
    }
}

#define EACH(text) "{% for m in messages %}" text "{% endfor %}"
#define CALL "{% for c in m.tool_calls or [] %}{% set f = c.function %}"

Test(chat_syntax, of_other_templates)
{
    static const char *const NOTHING[] = {
        "",
        "x",
        EACH("{{ m.content }}"),
        "{{ raise_exception('no') }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 9999999 }}",
        EACH("{{ m.reasoning_content }} {{ m.content }}"),
        EACH("<b> {{ m.reasoning_content }} </c>"),
        /* Behind markers that end something. */
        EACH("<|THOUGHT_END|> {{ m.reasoning_content }} <|/THOUGHT_END|>"),
        EACH("</a> {{ m.reasoning_content }} <//a>"),
        EACH(CALL "<|call_end|>{\"name\": \"{{ f.name }}\"}<|/call_end|>{% endfor %}"),
        "{% if tools %}<callEnd>{\"name\": 1}</callEnd>{% endif %}",
        /* Calls with a marker that every answer has, and which stand elsewhere than answers. */
        EACH(CALL "{\"name\": \"{{ f.name }}\"}{% endfor %}"),
        EACH("<turn>" CALL "{\"name\": \"{{ f.name }}\"}{% endfor %}</turn>"),
        /* In a form that is not known. */
        EACH(CALL "<call>{{ f.name }}: {{ f.arguments }}</call>{% endfor %}"),
        EACH(CALL "<call>{{ f.name }}(</other>{% endfor %}"),
        "{% if tools %}<tool_call></tool_call>{% endif %}",
        "{% if tools %}<tool_call>{name}<arg>{value}</arg></tool_call>{% endif %}",
    };
    for (size_t i = 0; i < sizeof NOTHING / sizeof *NOTHING; i++)
        expect(NOTHING[i], "", "", CHAT_CALLS_NONE, "", "");
    expect(EACH("<|START_THINKING|>{{ m.thinking }}<|END_THINKING|>"), "<|START_THINKING|>",
           "<|END_THINKING|>", CHAT_CALLS_NONE, "", "");
    expect(EACH("<seed:think>\n{{ m.reasoning }} </seed:think>"), "<seed:think>", "</seed:think>",
           CHAT_CALLS_NONE, "", "");
    expect("{% if add_generation_prompt %}<think>{% endif %}", "<think>", "</think>",
           CHAT_CALLS_NONE, "", "");
    expect(EACH(CALL "<|call|> [{ \"name\" : \"{{ f.name }}\"}]<|/call|>{% endfor %}"), "", "",
           CHAT_CALLS_JSON, "<|call|>", "<|/call|>");
    /* What a chat's system part says, with tools and without. */
    expect("Begin with <tool_call> {\"name\": x, \"arguments\": y} </tool_call>.\n" EACH(
               "{{ m.content }}"),
           "", "", CHAT_CALLS_JSON, "<tool_call>", "</tool_call>");
    expect("<call> is for calls.\n" EACH("{{ m.content }}" CALL
                                         "<call>{\"name\": \"{{ f.name }}\"}</call>{% endfor %}"),
           "", "", CHAT_CALLS_JSON, "<call>", "</call>");
    expect(
        "{% if tools %}Behind <tool_call_end> {\"name\"} comes no call. <tool_call_begin>{\"name\"}"
        "<tool_call_end>{% endif %}",
        "", "", CHAT_CALLS_JSON, "<tool_call_begin>", "<tool_call_end>");
    expect("{% if tools %}<send_call>{\"name\"}</send_call>{% endif %}", "", "", CHAT_CALLS_JSON,
           "<send_call>", "</send_call>");
    expect("{% if tools %}<CALL>\n<function=x></function></CALL>{% endif %}", "", "",
           CHAT_CALLS_XML, "<CALL>", "</CALL>");
    /* Without markers, where answers stand; what may stand around them. */
    expect(EACH("<turn>{{ m.content }}" CALL "{\"name\": \"{{ f.name }}\"}{% endfor %}"), "", "",
           CHAT_CALLS_JSON, "", "");
    expect("{# <|python_tag|> #}{{ '' if 1 else '<|python_tag|>' }}" EACH(
               "{{ m.content }}" CALL "{\"name\": \"{{ f.name }}\"}{% endfor %}"),
           "", "", CHAT_CALLS_JSON, "<|python_tag|>", "");
    expect(EACH("{{ m.content }}" CALL "[{\"name\": \"{{ f.name }}\"}]{% endfor %}"), "", "",
           CHAT_CALLS_NONE, "", "");
    expect(EACH("{{ m.content }}" CALL "{{ f.name }}(){% endfor %}"), "", "", CHAT_CALLS_NONE, "",
           "");
}

/* Prompts. */

static bool inside(const char *prompt, const char *last, bool continues)
{
    struct chat_syntax syntax = {.reasoning = {"<think>", "</think>"}};
    struct chat_rules *rules;
    struct api_error err = {0};
    json_t *fields = json_pack("{s:[{s:s}]}", "messages", "content", last);
    cr_assert_eq(
        chat_rules_make(&rules, fields, prompt, strlen(prompt), continues, &syntax, true, &err), 0);
    bool result = rules->inside;
    chat_rules_free(rules);
    json_decref(fields);
    return result;
}

Test(chat_syntax, whether_a_prompt_ends_inside_reasoning)
{
    cr_assert(inside("<user>x<assistant><think>\n", "x", false));
    cr_assert_not(inside("<user>x<assistant><think>\n\n</think>\n\n", "x", false));
    cr_assert_not(inside("<user><think><assistant>", "<think>", false));
    cr_assert_not(inside("<user>x<assistant>", "x", false));
    cr_assert_not(inside("", "", false));
    cr_assert_not(inside("</think>", "", false));
    cr_assert(inside("<assistant><think>a b", "<think>a b ", true));
    cr_assert(inside("<assistant><think>\na b ", "a b ", true));
    cr_assert(inside("<assistant><think>", "<think>", true));
    cr_assert_not(inside("<assistant><think>a</think>b", "<think>a</think>b", true));
    cr_assert_not(inside("<user><think>?<assistant>a", "a", true));
    cr_assert_not(inside("<assistant>a", "a", true));
}

#define ALL "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
#define REFUSES(when) "{% if " when " %}{{ raise_exception('no') }}{% endif %}"

Test(chat_syntax, which_messages_of_the_system_are_written)
{
    static const struct {
        const char *source;
        enum chat_systems systems;
    } cases[] = {
        {ALL, CHAT_SYSTEMS_ALL},
        {"{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}",
         CHAT_SYSTEMS_NONE},
        {REFUSES("messages[0].role == 'system'") ALL, CHAT_SYSTEMS_NONE},
        {"{% for m in messages %}" REFUSES(
             "m.role == 'system' and not loop.first") "{{ m.content }}{% endfor %}",
         CHAT_SYSTEMS_FIRST},
        {"{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.content }}"
         "{% endif %}{% endfor %}",
         CHAT_SYSTEMS_FIRST},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(find(cases[i].source).systems, cases[i].systems, "%s", cases[i].source);
}
