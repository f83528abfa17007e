/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of chats: reasoning and calls in each syntax, byte by byte; markers that are special
 * tokens; depth. */
#include "tests/unit/grammar_texts.h"

#include <stdlib.h>

TestSuite(grammar_reply);

#define S "\x1f" /* between texts */
#define ARGUMENTS                                                                       \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":0,"   \
    "\"maximum\":9},\"b\":{\"type\":\"string\",\"maxLength\":9}},\"required\":[\"a\"]," \
    "\"additionalProperties\":false}"
#define TOOLS                                                                    \
    "[{\"place\":\"tools[0].function\",\"name\":\"f\",\"parameters\":" ARGUMENTS \
    ",\"types\":{\"a\":[\"integer\"],\"b\":[\"string\"]}},"                      \
    "{\"place\":\"tools[1].function\",\"name\":\"fg\",\"parameters\":true,\"types\":{}}]"
/* The syntaxes, with their words. */
#define PYTHON "1,\"words\":{\"behind\":\"(\",\"key_end\":\"=\",\"end\":\")\"}"
#define XML                                                                                        \
    "2,\"words\":{\"before\":\"<function=\",\"behind\":\">\",\"key\":\"<parameter=\",\"key_end\":" \
    "\">\",\"value_end\":\"</parameter>\",\"end\":\"</function>\",\"lines\":true}"
#define GLM                                                                           \
    "2,\"exact\":true,\"words\":{\"behind\":\"\\n\",\"key\":\"<k>\",\"key_end\":\"</" \
    "k>\",\"value\":\""                                                               \
    "<v>\",\"value_end\":\"</v>\",\"end\":\"</c>\"}"
#define GEMMA                                                                              \
    "1,\"exact\":true,\"words\":{\"before\":\"call:\",\"behind\":\"{\",\"key_end\":\":\"," \
    "\"value\":"                                                                           \
    "\"<|\\\"|>\",\"value_end\":\"<|\\\"|>\",\"end\":\"}\"}"
#define NAMED \
    "3,\"exact\":true,\"words\":{\"section\":\"<s>\",\"section_end\":\"</s>\",\"behind\":\"<a>\"}"
#define KIMI                                                                              \
    "3,\"exact\":true,\"words\":{\"before\":\"functions.\",\"id\":\":\",\"counts\":true," \
    "\"behind\":"                                                                         \
    "\"<a>\"}"
#define MISTRAL "3,\"exact\":true,\"words\":{\"id\":\"[I]\",\"behind\":\"[A]\"}"
#define CALLS(syntax, list, most)                                                         \
    "\"calls\":{\"syntax\":" syntax ",\"open\":\"<c>\",\"close\":\"</c>\",\"list\":" list \
    ",\"most\":" most ",\"tools\":" TOOLS "}"

static const struct grammar_case CASES[] = {
    {"{" CALLS("0", "false", "2") "}",
     "<c>{\"name\":\"f\",\"arguments\":{\"a\":1}}</c>" S
     "<c>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"</c>\"}}\n</c>" S
     "<c>{\"name\":\"fg\",\"arguments\":{\"x\":[{}]}}</c>\n"
     "<c>{\"name\":\"f\",\"arguments\":{\"a\":0}}</c>",
     "" S "{\"name\":\"f\",\"arguments\":{\"a\":1}}" S
     "<c>{\"name\":\"f\",\"arguments\":{\"a\":10}}</c>" S
     "<c>{\"name\":\"f\",\"arguments\":{}}</c>" S "<c>{\"name\":\"fg\",\"arguments\":[]}</c>" S
     "<c>{\"name\":\"g\",\"arguments\":{\"a\":1}}</c>" S
     "<c>{\"name\":\"f\",\"arguments\":{\"a\":1}}" S
     "<c>{\"name\":\"fg\",\"arguments\":{}}</c><c>{\"name\":\"fg\",\"arguments\":{}}</c>"
     "<c>{\"name\":\"fg\",\"arguments\":{}}</c>"},
    {"{" CALLS("0", "true", "2") "}",
     "<c>[{\"name\":\"f\",\"arguments\":{\"a\":1}}]</c>" S
     "<c> [ {\"name\":\"fg\",\"arguments\":{}}, {\"name\":\"fg\",\"arguments\":{}} ] </c>",
     "<c>{\"name\":\"f\",\"arguments\":{\"a\":1}}</c>" S "<c>[]</c>" S
     "<c>[{\"name\":\"fg\",\"arguments\":{}}]</c><c>[{\"name\":\"fg\",\"arguments\":{}}]</c>"},
    {"{" CALLS(PYTHON, "true", "2") "}",
     "<c>[f(a=1)]</c>" S "<c>[f(a=1, b=\"x\\u003c\"), fg()]</c>" S "<c>[ fg() ]</c>",
     "<c>[f()]</c>" S "<c>[f(b=\"x\")]</c>" S "<c>[f(a=1,)]</c>" S "<c>[f(a=1, b=\"<\")]</c>" S
     "<c>[f(b=\"x\", a=1)]</c>" S "<c>f(a=1)</c>" S "<c>[fg(x=1)]</c>"},
    {"{" CALLS(PYTHON, "false", "2") "}", "<c>f(a=1)</c>" S "<c>f(a=1)\nfg()</c>",
     "<c>[f(a=1)]</c>" S "<c>f(a=1)fg()</c>" S "<c>fg()\nfg()\nfg()</c>"},
    {"{" CALLS(XML, "false", "2") "}",
     "<c>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</c>" S
     "<c><function=f><parameter=a>\n1\n</parameter><parameter=b>\n\"<1\n\n</parameter></function></"
     "c>" S "<c><function=fg></function></c>\n<c><function=fg></function></c>",
     "<c><function=f></function></c>" S
     "<c><function=f><parameter=a>\n12\n</parameter></function></c>" S
     "<c><function=f><parameter=a>1</parameter></function></c>" S
     "<c><function=f><parameter=a>\n1\n</parameter><parameter=b>\n0123456789\n</parameter>"
     "</function></c>" S "<c><function=g></function></c>"},
    {"{" CALLS(GLM, "false", "2") "}",
     "<c>f\n<k>a</k>\n<v>1</v>\n</c></c>" S "<c>f<k>a</k><v>1</v><k>b</k><v>x<y</v></c></c>" S
     "<c>fg</c></c>\n<c>fg\n</c></c>",
     "<c>f\n</c></c>" S "<c>f\n<k>a</k>\n<v>\n1</v></c></c>" S "<c>f\n<k>b</k><v>x</v></c></c>" S
     "<c>f\n<k>a</k><v>1</v><k>b</k><v></v></v></c></c>" S "<c>\nfg</c></c>"},
    {"{" CALLS(GEMMA, "false", "2") "}",
     "<c>call:f{a:1}</c>" S "<c>call:f{a:1, b:<|\"|>x\"<|y<|\"|>}</c><c>call:fg{}</c>",
     "<c>call:f{a:1,b:\"x\"}</c>" S "<c>call:f{}</c>" S "<c>call:f{a:1}call:fg{}</c>" S
     "<c>call:f{a:1,b:<|\"|>x<|\"|>y<|\"|>}</c>" S "<c>call:f{a:<|\"|>1<|\"|>}</c>"},
    {"{" CALLS(NAMED, "false", "2") "}",
     "<s><c>f<a>{\"a\":1}</c></s>" S "<s>\n<c>f<a>{\"a\":1,\"b\":\"</c>\"}</c><c>fg<a>{}</c>\n</s>",
     "<c>f<a>{\"a\":1}</c>" S "<s></s>" S "<s><c>f<a>{}</c></s>" S "<s><c>f\n<a>{\"a\":1}</c></s>" S
     "<s><c>f<a>{\"a\":1}</c></s><s><c>fg<a>{}</c></s>"},
    {"{" CALLS(KIMI, "false", "2") "}",
     "<c>functions.f:0<a>{\"a\":1}</c><c>functions.fg:12<a>{}</c>",
     "<c>functions.f<a>{\"a\":1}</c>" S "<c>f:0<a>{\"a\":1}</c>" S
     "<c>functions.f:12345<a>{\"a\":1}</c>" S "<c>functions.f:<a>{\"a\":1}</c>"},
    {"{" CALLS(MISTRAL, "false", "2") "}", "<c>f[I]aZ3456789[A]{\"a\":1}</c>",
     "<c>f[A]{\"a\":1}</c>" S "<c>f[I]aZ345678[A]{\"a\":1}</c>" S
     "<c>f[I]aZ34567890[A]{\"a\":1}</c>"},
    /* Without markers; keys of the other names. */
    {"{\"calls\":{\"syntax\":0,\"open\":\"\",\"close\":\"\",\"parameters\":true,\"most\":1,"
     "\"tools\":" TOOLS "}}",
     "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
     "{\"name\": \"f\", \"arguments\": {\"a\": 1}}" S
     " {\"name\": \"f\", \"parameters\": {\"a\": 1}}"},
    {"{\"reasoning\":{\"open\":\"<t>\",\"close\":\"</t>\",\"begun\":true},\"kind\":3,"
     "\"spec\":[\"yes\",\"no\"]}",
     "</t>yes" S "hm <t> </ </</t>\n\nno" S "\n</t>\nyes",
     "yes" S "hm" S "</t>\n\n\nyes" S "</t></t>no"},
    {"{\"reasoning\":{\"open\":\"<t>\",\"close\":\"</t>\",\"begun\":false},\"kind\":3,"
     "\"spec\":[\"yes\",\"no\"]}",
     "yes" S "<t></t>yes" S "<t>\xC3\xA9</t>\nno", "</t>yes" S "<t>yes" S "\nyes"},
    {"{\"reasoning\":{\"open\":\"<t>\",\"close\":\"</t>\",\"begun\":false},\"kind\":0}",
     "{}" S "<t>{</t>{\"a\":1}", "[]" S "<t>{}"},
    /* No string of a form has the marker of a call, which would be read as one. */
    {"{" CALLS(XML, "false", "1") ",\"kind\":1,\"spec\":{\"type\":\"string\"}}",
     "\"\\u003cc>\"" S "<c><function=fg></function></c>", "\"<c>\""},
};

Test(grammar_reply, texts)
{
    grammar_texts_expect_all(GRAMMAR_REPLY, CASES, sizeof CASES / sizeof *CASES);
}

/* XML has bare text: what reads as another type is no string where both may come. */
Test(grammar_reply, values_in_xml)
{
#define ONE(schema, types)                                                        \
    "{\"calls\":{\"syntax\":" XML                                                 \
    ",\"open\":\"\",\"close\":\"\",\"list\":false,\"most\":1,\"tools\":[{"        \
    "\"place\":\"\",\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":" schema \
    "},\"required\":[\"a\"]},\"types\":{\"a\":" types "}}]}}"
#define TEXT(value) "<function=f><parameter=a>\n" value "\n</parameter></function>"
    static const struct grammar_case cases[] = {
        {ONE("{\"type\":[\"string\",\"integer\"],\"minimum\":5}", "[\"string\",\"integer\"]"),
         TEXT("x") S TEXT("7") S TEXT("null x") S TEXT(""),
         TEXT("4") S TEXT("1x") S TEXT(" 4") S TEXT("null") S TEXT("[")},
        {ONE("{\"type\":\"string\",\"pattern\":\"^[0-9<]+$\"}", "[\"string\"]"),
         TEXT("12") S TEXT("<"), TEXT("x") S TEXT("\"12\"")},
        {ONE("{\"enum\":[\"a\",\"</parameter>\",\"1\",1,null]}",
             "[\"string\",\"integer\",\"null\"]"),
         TEXT("a") S TEXT("1") S TEXT("null"), TEXT("</parameter>") S TEXT("\"a\"")},
        {ONE("{\"type\":\"object\"}", "[\"object\"]"), TEXT("{\"a\":\"\\u003c\"}") S TEXT("{}"),
         TEXT("{\"a\":\"<\"}") S TEXT("x")},
        {ONE("{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"boolean\"}]}",
             "[\"string\",\"boolean\"]"),
         TEXT("ab") S TEXT("true"), TEXT("True") S TEXT("abc")},
        {ONE("{\"type\":\"array\",\"items\":{\"const\":\"<x>\"},\"minItems\":1}", "[\"array\"]"),
         TEXT("[\"\\u003cx>\"]"), TEXT("[\"<x>\"]")},
    };
    grammar_texts_expect_all(GRAMMAR_REPLY, cases, sizeof cases / sizeof *cases);
}

static bool has(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* The special token that a marker is comes in its place, and nowhere else. */
Test(grammar_reply, special_markers)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    int32_t special = 0;
    while (!tokenizer_is_special(texts.tokenizer, special))
        special++;
    char spec[512];
    snprintf(spec, sizeof spec,
             "{\"reasoning\":{\"open\":\"<t>\",\"close\":\"%s\",\"begun\":true},\"kind\":0}",
             tokenizer_token_content(texts.tokenizer, special));
    struct error err = ERROR_INIT;
    struct grammar *grammar = grammar_texts_compile(&texts, GRAMMAR_REPLY, spec, &err);
    cr_assert_not_null(grammar, "%s", err.message);
    struct grammar_matcher *matcher;
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    for (const char *c = "a</s"; *c; c++) {
        cr_assert(has(grammar_matcher_mask(matcher, &err), special), "%c", *c);
        cr_assert_not(grammar_matcher_may_end(matcher));
        cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes[(unsigned char)*c], &err), 0);
    }
    cr_assert_eq(grammar_matcher_accept(matcher, special, &err), 0);
    for (const char *c = "{\"a\": \"b"; *c; c++) {
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        cr_assert_not(has(mask, special), "%c", *c);
        cr_assert(has(mask, texts.bytes[(unsigned char)*c]), "%c", *c);
        cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes[(unsigned char)*c], &err), 0);
    }
    cr_assert_eq(grammar_matcher_accept(matcher, special, &err), -1);
    grammar_matcher_free(matcher);
    grammar_release(grammar);
    grammar_texts_close(&texts);
}

/* No call nests deeper than its reader allows (CHAT_CALLS_DEPTH, with the call's own). */
Test(grammar_reply, depth)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    struct grammar *grammar =
        grammar_texts_compile(&texts, GRAMMAR_REPLY, "{" CALLS("0", "true", "1") "}", &err);
    cr_assert_not_null(grammar, "%s", err.message);
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    for (const char *c = "<c>[{\"name\":\"fg\",\"arguments\":{\"x\":"; *c; c++)
        cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes[(unsigned char)*c], &err), 0);
    int depth = 3;
    while (has(grammar_matcher_mask(matcher, &err), texts.bytes['['])) {
        cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['['], &err), 0);
        cr_assert_lt(++depth, 61);
    }
    cr_assert_geq(depth, 50);
    grammar_matcher_free(matcher);
    grammar_release(grammar);
    grammar_texts_close(&texts);
}

static const struct {
    const char *spec, *message;
} REFUSED[] = {
    {"{}", "$: expected calls or another kind"},
    {"{\"kind\":5}", "$: expected calls or another kind"},
    {"{\"calls\":{\"syntax\":1,\"open\":\"<c>\",\"close\":\"</"
     "c>\",\"most\":1,\"tools\":[{\"place\":"
     "\"tools[0].function\",\"name\":\"a b\",\"parameters\":true}]}}",
     "tools[0].function.name: expected a name that this model's calls can have, got \"a b\""},
    {"{\"calls\":{\"syntax\":2,\"open\":\"<c>\",\"close\":\"</"
     "c>\",\"most\":1,\"tools\":[{\"place\":"
     "\"tools[0].function\",\"name\":\"f\",\"parameters\":{\"required\":[\"a>\"]}}]}}",
     "tools[0].function.parameters: $.required: expected names that this model's calls can have"},
    {"{\"calls\":{\"syntax\":2,\"open\":\"<c>\",\"close\":\"</"
     "c>\",\"most\":1,\"tools\":[{\"place\":"
     "\"tools[0].function\",\"name\":\"f\",\"parameters\":{\"enum\":[{}]}}]}}",
     "tools[0].function.parameters: $.enum: expected none here"},
    {"{\"calls\":{\"syntax\":0,\"open\":\"<c>\",\"close\":\"</"
     "c>\",\"most\":1,\"tools\":[{\"place\":"
     "\"tools[0].function\",\"name\":\"f\",\"parameters\":{\"type\":\"array\"}}]}}",
     "tools[0].function.parameters: $: expected what some text can match, got what none can"},
    {"{\"calls\":{\"syntax\":2,\"open\":\"<c>\",\"close\":\"</"
     "c>\",\"most\":1,\"tools\":[{\"place\":\"tools[0].function\",\"name\":\"f\",\"parameters\":"
     "true,"
     "\"types\":{}},{\"place\":\"tools[1].function\",\"name\":\"g\",\"parameters\":{\"properties\":"
     "{"
     "\"a\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":1}},\"required\":[\"a\"]},\"types\":"
     "{"
     "\"a\":[\"string\"]}}]}}",
     "tools[1].function.parameters: $: expected what some text can match, got what none can"},
};

Test(grammar_reply, refusals)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        struct error err = ERROR_INIT;
        cr_assert_null(grammar_texts_compile(&texts, GRAMMAR_REPLY, REFUSED[i].spec, &err), "%s",
                       REFUSED[i].spec);
        cr_assert(strncmp(err.message, REFUSED[i].message, strlen(REFUSED[i].message)) == 0,
                  "%s: expected \"%s\", got \"%s\"", REFUSED[i].spec, REFUSED[i].message,
                  err.message);
    }
    grammar_texts_close(&texts);
}
