/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in the formats of the table of words: found, told in parts, and none where they are none;
 * however the text is cut. */
#include "tests/unit/chat_replies.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(chat_words);

static const char TOOLS[] =
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": "
    "\"string\"}, \"i\": {\"type\": \"integer\"}, \"l\": {\"type\": \"array\"}, \"o\": {\"type\": "
    "\"object\"}}}}}, {\"function\": {\"name\": \"g\"}}]";

struct wanted {
    int syntax;
    const char *text, *calls, *content;
};

static void expect_all(const struct wanted *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct chat_rules rules = rules_of(cases[i].syntax, TOOLS);
        json_t *calls = json_loads(cases[i].calls, 0, NULL);
        cr_assert(calls, "%s", cases[i].calls);
        expect(&rules, cases[i].text, "", cases[i].content, calls);
        json_decref(calls);
        chat_types_clear(&rules.types);
    }
}

#define F "[[\"f\", {\"s\": \"a\"}]]"
#define FG "[[\"f\", {\"s\": \"a\"}], [\"g\", {}]]"

Test(chat_words, llama)
{
    static const struct wanted cases[] = {
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}", F, ""},
        {LLAMA, "\n{\"type\": \"function\", \"name\": \"f\", \"arguments\": {\"s\": \"a\"}}\n", F,
         ""},
        {LLAMA, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}", F, ""},
        {LLAMA, "So: <|python_tag|>{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}", F, "So:"},
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}; {\"name\": \"g\"}", FG, ""},
        {LLAMA,
         "{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}{\"name\": \"g\", \"parameters\": {}}",
         FG, ""},
        {LLAMA, "{\"parameters\": {\"s\": \"a\"}, \"name\": \"f\"}", F, ""},
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}} Done.", F, "Done."},
        {LLAMA, "{\"name\": \"h\", \"parameters\": {}}", "[]",
         "{\"name\": \"h\", \"parameters\": {}}"},
        {LLAMA, "{\"name\": 5}", "[]", "{\"name\": 5}"},
        {LLAMA, "{\"a\": {\"name\": \"f\"}}", "[]", "{\"a\": {\"name\": \"f\"}}"},
        {LLAMA, "{}", "[]", "{}"},
        {LLAMA, "{", "[]", "{"},
        {LLAMA, "[{\"name\": \"g\"}]", "[]", "[{\"name\": \"g\"}]"},
        {LLAMA, "I say {\"name\": \"g\"}", "[]", "I say {\"name\": \"g\"}"},
        {LLAMA, "{\"name\": \"g\"} ;", "[[\"g\", {}]]", ";"},
        {LLAMA, "{\"name\": \"g\"}; no", "[[\"g\", {}]]", "; no"},
        {LLAMA, "<|python_tag|>print(1)", "[]", "<|python_tag|>print(1)"},
        {LLAMA4, "[f(s=\"a\")]", F, ""},
        {LLAMA4, "[f(s='a'), g()]", FG, ""},
        {LLAMA4, "<|python_start|>[f(s=\"a\"), g()]<|python_end|>", FG, ""},
        {LLAMA4, "[f(s=\"a)]\", l=[1, \"(2]\"])] x",
         "[[\"f\", {\"s\": \"a)]\", \"l\": [1, \"(2]\"]}]]", "x"},
        {LLAMA4, "[f(s=\"a\")] Done", F, "Done"},
        {LLAMA4, "[h()]", "[]", "[h()]"},
        {LLAMA4, "[]", "[]", "[]"},
        {LLAMA4, "[1, 2]", "[]", "[1, 2]"},
        {LLAMA4, "f(s=\"a\")", "[]", "f(s=\"a\")"},
        {LLAMA4, "See [f(s=\"a\")]", "[]", "See [f(s=\"a\")]"},
        {LLAMA4, "[f](http://x)", "[]", "[f](http://x)"},
    };
    expect_all(cases, sizeof cases / sizeof *cases);
}

Test(chat_words, xml)
{
#define GLM_F "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"
#define M(inner) "<minimax:tool_call>\n" inner "\n</minimax:tool_call>"
#define M_F "<invoke name=\"f\">\n<parameter name=\"s\">a</parameter>\n</invoke>"
    static const struct wanted cases[] = {
        {GLM, GLM_F, F, ""},
        {GLM, "Text.\n" GLM_F "\n<tool_call>g\n</tool_call>\nMore.", FG, "Text.\nMore."},
        {GLM, "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value></tool_call>", F, ""},
        {GLM, "<tool_call>g</tool_call>", "[[\"g\", {}]]", ""},
        {GLM,
         "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>\nx\n</arg_value>\n<arg_key>i</arg_key>\n"
         "<arg_value> 5 </arg_value>\n<arg_key>o</arg_key>\n<arg_value>{\"a\": [\"</arg_value>\"]}"
         "</arg_value>\n</tool_call>",
         "[[\"f\", {\"s\": \"\\nx\\n\", \"i\": 5, \"o\": {\"a\": [\"</arg_value>\"]}}]]", ""},
        {GLM, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value></arg_value>\n</tool_call>",
         "[[\"f\", {\"s\": \"\"}]]", ""},
        {GLM, "<tool_call>{\"name\": \"f\"}</tool_call>", "[]",
         "<tool_call>{\"name\": \"f\"}</tool_call>"},
        {GLM, "<tool_call> is a tag", "[]", "<tool_call> is a tag"},
        {MINIMAX, M(M_F), F, ""},
        {MINIMAX, "Text.\n" M(M_F "\n<invoke name=\"g\">\n</invoke>") "\nMore.", FG,
         "Text.\nMore."},
        {MINIMAX, M(M_F) "\n" M("<invoke name=\"g\"></invoke>"), FG, ""},
        {MINIMAX, M_F, F, ""},
        {MINIMAX, "<invoke name=\"h\">\n</invoke>", "[]", "<invoke name=\"h\">\n</invoke>"},
        {MINIMAX, M("<invoke name=\"h\">\n</invoke>"), "[[\"h\", {}]]", ""},
        {MINIMAX, "<minimax:tool_call> is <minimax:tool_", "[]",
         "<minimax:tool_call> is <minimax:tool_"},
        {MINIMAX, "<minimax:tool_call>\n" M_F, F, ""},
        {MINIMAX, "<minimax:tool_call>\n" M_F "\n</minimax:t", F, ""},
        {MINIMAX,
         M("<invoke name=\"f\">\n<parameter name=\"s\"><invoke name=\"g\"></invoke></parameter>\n"
           "<parameter name=\"l\">[1, \"\\u00e9\"]</parameter>\n</invoke>"),
         "[[\"f\", {\"s\": \"<invoke name=\\\"g\\\"></invoke>\", \"l\": [1, \"\\u00e9\"]}]]", ""},
        {MINIMAX, M(M_F "\nno"), F, "no\n</minimax:tool_call>"},
    };
    expect_all(cases, sizeof cases / sizeof *cases);
}

Test(chat_words, gemma)
{
#define Q "<|\"|>"
#define C(inner) "<|tool_call>call:" inner "<tool_call|>"
    static const struct wanted cases[] = {
        {GEMMA, C("f{s:" Q "a" Q "}"), F, ""},
        {GEMMA, "Text. " C("f{s:" Q "a" Q "}") C("g{}"), FG, "Text."},
        {GEMMA, C("f{s:" Q "a\"\\n} <tool_call|>, b:c" Q ",i:5}"),
         "[[\"f\", {\"s\": \"a\\\"\\\\n} <tool_call|>, b:c\", \"i\": 5}]]", ""},
        {GEMMA,
         C("f{l:[1,true,null,-2.5,[" Q "x" Q "]],o:{k:" Q Q "," Q "a b" Q ":{}, two words:1}}"),
         "[[\"f\", {\"l\": [1, true, null, -2.5, [\"x\"]], \"o\": {\"k\": \"\", \"a b\": {}, "
         "\"two words\": 1}}]]",
         ""},
        {GEMMA, C("f{s:\"a\"}"), F, ""},
        {GEMMA, C("f{ s : " Q "a" Q " }"), F, ""},
        {GEMMA, C("h{a:1}"), "[[\"h\", {\"a\": 1}]]", ""},
        {GEMMA, "<|tool_call>f{}<tool_call|>", "[]", "<|tool_call>f{}<tool_call|>"},
        {GEMMA, "<|tool_call>call:h{a:<}<tool_call|>", "[]", "<|tool_call>call:h{a:<}<tool_call|>"},
        {GEMMA, "<|tool_call>call:f{s:" Q "a" Q "}", F, ""},
        {GEMMA, "<|tool_call>call:f{s:" Q "a" Q "}<tool_ca", F, ""},
    };
    expect_all(cases, sizeof cases / sizeof *cases);
}

Test(chat_words, names_before_json)
{
#define D(inner) "<｜tool▁calls▁begin｜>" inner "<｜tool▁calls▁end｜>"
#define DC(inner) "<｜tool▁call▁begin｜>" inner "<｜tool▁call▁end｜>"
#define FC(name, json) DC("function<｜tool▁sep｜>" name "\n```json\n" json "\n```")
#define K(inner) "<|tool_calls_section_begin|>" inner "<|tool_calls_section_end|>"
#define KC(id, json) \
    "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" json "<|tool_call_end|>"
#define A "{\"s\": \"a\"}"
    static const struct wanted cases[] = {
        {DEEPSEEK, D(DC("f<｜tool▁sep｜>" A)), F, ""},
        {DEEPSEEK, "Text." D(DC("f<｜tool▁sep｜>" A) DC("g<｜tool▁sep｜>{}")), FG, "Text."},
        {DEEPSEEK, DC("f<｜tool▁sep｜>" A), F, ""},
        {DEEPSEEK, DC("h<｜tool▁sep｜>{}"), "[]", DC("h<｜tool▁sep｜>{}")},
        {DEEPSEEK, D(DC("h<｜tool▁sep｜>{}")), "[[\"h\", {}]]", ""},
        {DEEPSEEK, D(DC("g<｜tool▁sep｜>")), "[[\"g\", {}]]", ""},
        {DEEPSEEK, D(DC("f<｜tool▁sep｜>{\"s\": \"<｜tool▁call▁end｜>\"}")),
         "[[\"f\", {\"s\": \"<｜tool▁call▁end｜>\"}]]", ""},
        {DEEPSEEK, D(DC("g<｜tool▁sep｜>[1]")), "[]", D(DC("g<｜tool▁sep｜>[1]"))},
        {DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", "[]",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"},
        {DEEPSEEK, "<｜tool▁calls▁begin｜>" DC("f<｜tool▁sep｜>" A) " then", F, "then"},
        {FENCED, D(FC("f", A)), F, ""},
        {FENCED, D(FC("f", A) "\n" FC("g", "{}")), FG, ""},
        {FENCED, D(FC("f", "{\"s\": \"```\", \"o\": {\"a\": {\"b\": [{}]}}}")),
         "[[\"f\", {\"s\": \"```\", \"o\": {\"a\": {\"b\": [{}]}}}]]", ""},
        {FENCED, D(DC("function<｜tool▁sep｜>f ```json" A "```")), F, ""},
        {FENCED, D(DC("function<｜tool▁sep｜>f{}")), "[]", D(DC("function<｜tool▁sep｜>f{}"))},
        {KIMI, K(KC("functions.f:0", A)), F, ""},
        {KIMI, "Text." K(KC("functions.f:0", A) "\n" KC("functions.g:1", "{}")), FG, "Text."},
        {KIMI, K(KC("f:0", A)), F, ""},
        {KIMI, K(KC("functions.f", A)), F, ""},
        {KIMI, K(KC("functions.ns.f:12", "{}")), "[[\"ns.f\", {}]]", ""},
        {KIMI, K(KC("functions.f:0", A) KC("functions.g:", "{}")),
         "[[\"f\", {\"s\": \"a\"}], [\"g:\", {}]]", ""},
        {KIMI, K(KC(" functions.f:0 ", " " A " ")), F, ""},
        {MISTRAL, "[TOOL_CALLS]f[ARGS]" A, F, ""},
        {MISTRAL, "Text.[TOOL_CALLS]f[ARGS]" A "[TOOL_CALLS]g[ARGS]{}", FG, "Text."},
        {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"s\": \"[TOOL_CALLS]\"}",
         "[[\"f\", {\"s\": \"[TOOL_CALLS]\"}]]", ""},
        {MISTRAL, "[TOOL_CALLS]f", "[]", "[TOOL_CALLS]f"},
        {MISTRAL, "[TOOL_CALLS] [ARGS]{}", "[]", "[TOOL_CALLS] [ARGS]{}"},
        {MISTRAL_IDS, "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]" A, F, ""},
        {MISTRAL_IDS, "[TOOL_CALLS]f[ARGS]" A "[TOOL_CALLS]g[CALL_ID]000000001[ARGS]{}", FG, ""},
    };
    expect_all(cases, sizeof cases / sizeof *cases);
}

/* What stands before a value says whether it is a string, whatever its tool asks for. */
Test(chat_words, deepseek_xml)
{
#define B          \
    "\xef\xbd\x9c" \
    "DSML"         \
    "\xef\xbd\x9c"
#define P(key, string, value) \
    "<" B "parameter name=\"" key "\" string=\"" string "\">" value "</" B "parameter>\n"
#define INVOKE(name, inner) "<" B "invoke name=\"" name "\">\n" inner "</" B "invoke>\n"
#define ALL(inner) "<" B "function_calls>\n" inner "</" B "function_calls>"
    static const struct wanted cases[] = {
        {DSML, ALL(INVOKE("f", P("s", "true", "a"))), F, ""},
        {DSML, "Text.\n\n" ALL(INVOKE("f", P("s", "true", "a")) INVOKE("g", "\n")), FG, "Text."},
        {DSML, ALL(INVOKE("h", P("a", "true", "5") P("b", "false", "5") P("c", "false", "[1]"))),
         "[[\"h\", {\"a\": \"5\", \"b\": 5, \"c\": [1]}]]", ""},
        {DSML, ALL(INVOKE("f", P("i", "true", "5") P("s", "false", "5"))),
         "[[\"f\", {\"i\": 5, \"s\": \"5\"}]]", ""},
        {DSML, ALL(INVOKE("f", P("s", "false", "no JSON"))), "[[\"f\", {\"s\": \"no JSON\"}]]", ""},
    };
    expect_all(cases, sizeof cases / sizeof *cases);
}

/* Between what opens all calls and the first of them; how it comes does not matter, nor how much.
 */
Test(chat_words, white_space_before_calls)
{
#define S16 "                "
#define OPENED "<｜tool▁calls▁begin｜>"
    static const struct wanted cases[] = {
        {DEEPSEEK, OPENED S16 S16 S16 S16 DC("f<｜tool▁sep｜>" A), F, ""},
        {DEEPSEEK, OPENED S16 S16 S16 S16 " " DC("f<｜tool▁sep｜>" A), F, OPENED},
        {DEEPSEEK, OPENED S16 S16 S16 S16 " x", "[]", OPENED S16 S16 S16 S16 " x"},
    };
    enum { MANY = 400000 };
    expect_all(cases, sizeof cases / sizeof *cases);
    char *text = malloc(MANY);
    cr_assert(text);
    memset(text, ' ', MANY);
    memcpy(text, OPENED, sizeof OPENED - 1);
    struct chat_rules rules = rules_of(DEEPSEEK, TOOLS);
    struct result result = parse(&rules, text, MANY, 1, 1); /* square to its length: minutes */
    cr_assert_eq(result.output.content.length, MANY);
    chat_output_clear(&result.output);
    chat_types_clear(&rules.types);
    free(text);
}

static void expect_ids(int syntax, const char *text, const char *ids)
{
    struct chat_rules rules = rules_of(syntax, TOOLS);
    struct result whole = parse_all_ways(&rules, text, strlen(text));
    struct strbuf got = {0};
    for (size_t i = 0; i < whole.output.calls.count; i++) {
        const char *id = whole.output.calls.items[i].id;
        strbuf_printf(&got, "%s ", id ? id : "none");
    }
    expect_text(&got, ids, text);
    strbuf_clear(&got);
    chat_output_clear(&whole.output);
    chat_types_clear(&rules.types);
}

Test(chat_words, ids_of_calls)
{
    expect_ids(KIMI, K(KC("functions.f:0", A) KC("functions.g:1", "{}")),
               "functions.f:0 functions.g:1 ");
    expect_ids(KIMI, K(KC("functions.g:3", "{}") KC("functions.g:3", "{}") KC("g", "{}")),
               "functions.g:3 none none ");
    expect_ids(KIMI, K(KC("functions.h:0", "{}") KC("g:1", "{}")), "functions.h:0 g:1 ");
    expect_ids(MISTRAL_IDS, "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}[TOOL_CALLS]g[ARGS]{}",
               "abc123XYZ none ");
    expect_ids(MISTRAL, "[TOOL_CALLS]f[ARGS]{}", "none ");
}

/* A call that goes wrong or ends too early after it has begun is no JSON, and none before. */
Test(chat_words, cut_calls)
{
    static const struct {
        int syntax;
        const char *text, *arguments, *content;
    } cases[] = {
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"a", "{\"s\": \"a", ""},
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}, ", "{\"s\": \"a\"", ""},
        {LLAMA4, "[f(s=\"a\", i=4", "{\"s\": \"a\", \"i\": 4", ""},
        {LLAMA4, "[f(s=\"a\"", "{\"s\": \"a\"", ""},
        {GLM, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>ab</arg_", "{\"s\": \"ab", ""},
        {MINIMAX, "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">ab</para",
         "{\"s\": \"ab", ""},
        {GEMMA, "<|tool_call>call:f{i:4,s:" Q "ab<|", "{\"i\": 4, \"s\": \"ab", ""},
        {DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"ab",
         "{\"s\": \"ab", ""},
        {FENCED, D(DC("function<｜tool▁sep｜>f\n```json\n" A "\n")), "{\"s\": \"a\"",
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
        {KIMI, K("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": x}"),
         "{\"s\": ", "x}<|tool_calls_section_end|>"},
        {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"s\": \"a\", ", "{\"s\": \"a\", ", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_rules rules = rules_of(cases[i].syntax, TOOLS);
        struct result whole = parse_all_ways(&rules, cases[i].text, strlen(cases[i].text));
        cr_assert_eq(whole.output.calls.count, 1, "%s", cases[i].text);
        cr_assert(whole.output.calls.items[0].cut, "%s", cases[i].text);
        cr_assert_str_eq(whole.output.calls.items[0].arguments, cases[i].arguments, "%s",
                         cases[i].text);
        expect_text(&whole.output.content, cases[i].content, cases[i].text);
        chat_output_clear(&whole.output);
        chat_types_clear(&rules.types);
    }
}

/* Beside a format of the text a marker in its strings begins no call. */
Test(chat_words, markers_in_a_text_of_a_format)
{
    static char offered[] = "{}";
    static const struct wanted cases[] = {
        {HERMES, "{\"a\": \"<tool_call>{\\\"name\\\": \\\"g\\\"}</tool_call>\"}", "[]",
         "{\"a\": \"<tool_call>{\\\"name\\\": \\\"g\\\"}</tool_call>\"}"},
        {HERMES, "{\"a\": \"<tool_call>{\"name\": \"g\"}</tool_call>\"}", "[]",
         "{\"a\": \"<tool_call>{\"name\": \"g\"}</tool_call>\"}"},
        {HERMES,
         "<tool_call>{\"name\": \"g\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
         "[[\"g\", {}], [\"g\", {}]]", ""},
        {MISTRAL, "{\"a\": \"[TOOL_CALLS]g[ARGS]{}\"}", "[]", "{\"a\": \"[TOOL_CALLS]g[ARGS]{}\"}"},
        {QWEN, "{\"a\": \"<function=g></function>\"}", "[]",
         "{\"a\": \"<function=g></function>\"}"},
        {LLAMA, "{\"a\": {\"name\": \"g\"}}", "[]", "{\"a\": {\"name\": \"g\"}}"},
        {LLAMA, "{\"name\": \"g\", \"a\": 1}", "[]", "{\"name\": \"g\", \"a\": 1}"},
        {LLAMA, "{\"name\": \"g\", \"parameters\": {}}", "[[\"g\", {}]]", ""},
        {KIMI, "{\"a\": \"" K(KC("functions.g:0", "{}")) "\"}", "[]",
         "{\"a\": \"" K(KC("functions.g:0", "{}")) "\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_rules rules = rules_of(cases[i].syntax, TOOLS);
        json_t *calls = json_loads(cases[i].calls, 0, NULL);
        rules.demand.offered = offered;
        expect(&rules, cases[i].text, "", cases[i].content, calls);
        json_decref(calls);
        chat_types_clear(&rules.types);
    }
}
