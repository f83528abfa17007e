/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of other kinds than schemas, masks, and what holds of all of them. */
#include "tests/unit/grammar_texts.h"

#include <stdlib.h>

#define S "\x1f" /* between texts */

static const struct grammar_case REGEXES[] = {
    {"a|bc", "a" S "bc", "" S "b" S "abc"},
    {"^a$", "a", "aa"},
    {"^(a|b)$", "a" S "b", "c"},
    {"a*b+c?", "b" S "aabbc", "c" S "a"},
    {"a{2}b{1,3}c{2,}", "aabcc" S "aabbbccc", "abcc" S "aabc" S "aabbbbcc"},
    {"(?:ab){2}", "abab", "ab" S "ababab"},
    {"(?P<x>a)(?<y>b)", "ab", "a"},
    {"[a-c\\]-]+", "a-]c", "d" S ""},
    {"[^a-c]", "d" S "\xC3\xA9" S "\n" S "\xF0\x9F\x98\x80", "a" S "\xC3" S "\xED\xA0\x80"},
    {"\\d\\w\\s", "1_ " S "9a\t", "a1 " S "1\xC3\xA9 " S "1a\xC2\xA0"},
    {"\\D\\W\\S", "a-b" S "\xC3\xA9-\xC3\xA9",
     "1-b" S "aab" S "a-\xC2\xA0" S "a\xC3\xA9"
     "b"},
    {"[^\\w]", "-", "a" S "\xC3\xA9"},
    {".", "a" S "\xC3\xA9", "\n" S "\r" S ""},
    {"\\x41\\u00e9\\n\\.\\/", "A\xC3\xA9\n./", "A"},
    {"\\uD83D\\uDE00|\\u{1F601}", "\xF0\x9F\x98\x80" S "\xF0\x9F\x98\x81", "\xF0\x9F\x98\x82"},
    {"a{,b{x}", "a{,b{x}", "a"},
    {"{x}a{2}?{b", "{x}aa{b", "aa"},
    {"", "", "a"},
    {"(?!ab)[a-c]{2}", "ac" S "bb" S "ba", "ab" S "a"},
    {"(?=.*\\d)(?=.*[a-z])[^ ]{3}", "a1-" S "1aa", "aaa" S "111" S "a1" S "a 1"},
    {"x(?:y|(?!b$)(?=[bc])[a-c]+)", "xy" S "xc" S "xba", "x" S "xb" S "xa"},
    {"a(?:(?!b)\\w(?=c).)?", "a" S "axc", "abc" S "axd"},
    {"(?!(?!ab)).*", "ab" S "abc", "" S "a" S "ba"},
    {"(^a|^b)c(d$|e)?", "ac" S "bcd" S "ace", "c" S "acdd" S "acf"},
    /* what must not follow may mean more than what must: Unicode's digits, and a last line break */
    {"(?!\\d)[^x]|(?!a$)[ab]\n?", "b" S "b\n" S "-", "1" S "\xD9\xA3" S "a\n"},
    {"(?=\\d)[^x]", "1", "\xD9\xA3"},
    {"(a*)*b|(a|a)*", "aab" S "" S "aaa", "ba"},
};

static const struct grammar_case CHOICES[] = {
    {"[\"yes\",\"no\",\"yesterday\",\"yes\"]", "yes" S "no" S "yesterday", "ye" S "yester" S ""},
    {"[\"\",\"\xC3\xA9\"]", "" S "\xC3\xA9", "\xC3"},
};

static const struct grammar_case GBNFS[] = {
    {"root ::= \"a\" | \"b\" # c\n", "a" S "b", "c" S "ab"},
    {"# c\n\nroot ::= x y? |\n  \"c\"\nx ::= [a-b]\ny ::= (\"1\"\n | \"2\")+\n", "a" S "b12" S "c",
     "1" S "cc"},
    {"root ::= x\n  | \"z\"\nx ::= \"x\"", "x" S "z", "xz"},
    {"root ::= \"(\" root \")\" | \"\"", "" S "()" S "((()))", "(" S "())"},
    {"root ::= \"a\"{2} \"b\"{1,2} \"c\"{1,} \"d\"{0} \"e\"* \"f\"{0,1}", "aabc" S "aabbcceef",
     "abc" S "aabcd" S "aabcff"},
    {"root ::= [^a\\n] . \"\\x41\\u00e9\\\"\\\\\"", "bxA\xC3\xA9\"\\" S "\xC3\xA9\nA\xC3\xA9\"\\",
     "axA\xC3\xA9\"\\"},
    {"root ::= \"a\" * # c\n  | \"b\" {2}\n", "" S "aa" S "bb", "b" S "a*"},
    {"root ::= (\"a\"\n ? \"b\") +\n", "b" S "abb", "" S "a"},
    {"root ::= (\"a\"? \"b\"?)* \"c\"", "c" S "abbac", "ab"},
};

static const struct {
    enum grammar_kind kind;
    const char *spec, *message;
} REFUSED[] = {
    {GRAMMAR_REGEX, "a(", "offset 2: expected ')', got the end"},
    {GRAMMAR_REGEX, "a)", "offset 1: expected the end, got ')'"},
    {GRAMMAR_REGEX, "\xC3\xA9[a", "offset 3: expected ']', got the end"},
    {GRAMMAR_REGEX, "[]", "offset 1: an empty class is not supported"},
    {GRAMMAR_REGEX, "[b-a]", "offset 4: expected a range that does not fall before this, got ']'"},
    {GRAMMAR_REGEX, "*a", "offset 0: expected something to repeat, got '*'"},
    {GRAMMAR_REGEX, "a**", "offset 2: expected something to repeat, got '*'"},
    {GRAMMAR_REGEX, "a{2}{3}", "offset 4: expected something to repeat, got '{'"},
    {GRAMMAR_REGEX, "a*{3,}", "offset 2: expected something to repeat, got '{'"},
    {GRAMMAR_REGEX, "a{2}*", "offset 4: expected something to repeat, got '*'"},
    {GRAMMAR_REGEX, "({2})", "offset 1: expected something to repeat, got '{'"},
    {GRAMMAR_REGEX, "a|{2}", "offset 2: expected something to repeat, got '{'"},
    {GRAMMAR_REGEX, "a*+", "offset 2: a possessive quantifier is not supported"},
    {GRAMMAR_REGEX, "((?=a)b)*", "offset 2: a lookahead in what is repeated, or in a group that "},
    {GRAMMAR_REGEX, "((?!a).)c", "offset 2: a lookahead in what is repeated, or in a group that "},
    {GRAMMAR_REGEX, "(?=a)*b", "offset 6: a repeated ^, $ or lookahead is not supported"},
    {GRAMMAR_REGEX, "(a$|b)c", "offset 2: ^ and $ are supported at the beginning and the end only"},
    {GRAMMAR_REGEX, "(b|a$)*", "offset 4: ^ and $ are supported at the beginning and the end only"},
    {GRAMMAR_REGEX, "a(^b)", "offset 2: ^ and $ are supported at the beginning and the end only"},
    {GRAMMAR_REGEX, "a(?=^b)", "offset 4: ^ and $ are supported at the beginning and the end only"},
    {GRAMMAR_REGEX, "(?<!a)", "offset 1: a lookbehind is not supported"},
    {GRAMMAR_REGEX, "(?i)a", "offset 1: such a group (?...) is not supported"},
    {GRAMMAR_REGEX, "(a)\\1", "offset 4: a backreference is not supported"},
    {GRAMMAR_REGEX, "\\bx", "offset 1: a boundary of words (\\b) is not supported"},
    {GRAMMAR_REGEX, "\\p{L}", "offset 1: a property (\\p) is not supported"},
    {GRAMMAR_REGEX, "\\q", "offset 1: the escape \\q is not supported"},
    {GRAMMAR_REGEX, "a^b", "offset 1: ^ and $ are supported at the beginning and the end only"},
    {GRAMMAR_REGEX, "a{3,2}", "offset 1: expected {least,most}, got {3,2}"},
    {GRAMMAR_REGEX, "a{99999}", "offset 1: expected at most 16384 repetitions, got more"},
    {GRAMMAR_REGEX, "((a{999}){999}){999}", "expected an expression of at most"},
    {GRAMMAR_REGEX, "[^\\d\\D]", "$: expected what some text can match, got what none can"},
    {GRAMMAR_CHOICE, "[]", "$: expected a list of 1 to 16384 strings, got one of 0"},
    {GRAMMAR_CHOICE, "[\"a\",1]", "$[1]: expected a string, got a number"},
    {GRAMMAR_GBNF, "", "expected a rule with the name root, got none"},
    {GRAMMAR_GBNF, "x ::= \"a\"", "expected a rule with the name root, got none"},
    {GRAMMAR_GBNF, "root = \"a\"", "line 1, column 6: expected '::=', got '='"},
    {GRAMMAR_GBNF, "root ::= x", "line 1, column 10: expected a rule that is defined, got x"},
    {GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"",
     "line 2, column 1: expected a rule that is not defined yet"},
    {GRAMMAR_GBNF, "root ::= (\"a\"", "line 1, column 14: expected ')', got the end"},
    {GRAMMAR_GBNF, "root ::= \"a\" !", "line 1, column 14: expected a string, a class, a rule"},
    {GRAMMAR_GBNF, "root ::= [b-a]",
     "line 1, column 13: expected a range that does not fall, got 'a'"},
    {GRAMMAR_GBNF, "root ::= \"a\"{2,1}", "line 1, column 13: expected {least,most} up to 16384"},
    {GRAMMAR_GBNF, "\nroot ::= x \"a\" | \"b\"\nx ::= \"\" root",
     "line 2, column 1: expected a rule that begins with some text, got root"},
    {GRAMMAR_GBNF, "root ::= \"a\" root",
     "$: expected what some text can match, got what none can"},
};

Test(grammar, regular_expressions)
{
    grammar_texts_expect_all(GRAMMAR_REGEX, REGEXES, sizeof REGEXES / sizeof *REGEXES);
}

Test(grammar, choices)
{
    grammar_texts_expect_all(GRAMMAR_CHOICE, CHOICES, sizeof CHOICES / sizeof *CHOICES);
}

Test(grammar, gbnf)
{
    grammar_texts_expect_all(GRAMMAR_GBNF, GBNFS, sizeof GBNFS / sizeof *GBNFS);
}

Test(grammar, refusals_name_the_place)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        struct error err = ERROR_INIT;
        cr_assert_null(grammar_texts_compile(&texts, REFUSED[i].kind, REFUSED[i].spec, &err), "%s",
                       REFUSED[i].spec);
        cr_assert(strncmp(err.message, REFUSED[i].message, strlen(REFUSED[i].message)) == 0,
                  "%s: expected \"%s\", got \"%s\"", REFUSED[i].spec, REFUSED[i].message,
                  err.message);
    }
    grammar_texts_close(&texts);
}

/* Whether a token may come, without masks: a matcher that has read `before` accepts it. */
static bool accepts(struct grammar *grammar, const int32_t *before, size_t count, int32_t id)
{
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(grammar_matcher_accept(matcher, before[i], &err), 0);
    bool accepted = grammar_matcher_accept(matcher, id, &err) == 0;
    grammar_matcher_free(matcher);
    return accepted;
}

/* Reads the text and compares the mask before each of its bytes with what is accepted. */
static void expect_masks(const struct grammar_texts *texts, enum grammar_kind kind,
                         const char *spec, const char *text)
{
    struct error err = ERROR_INIT;
    struct grammar *grammar = grammar_texts_compile(texts, kind, spec, &err);
    cr_assert_not_null(grammar, "%s", err.message);
    struct grammar_matcher *matcher;
    int32_t before[64];
    size_t count = 0;
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    do {
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        cr_assert_not_null(mask, "%s", err.message);
        for (int32_t id = 0; id < texts->vocab_size; id++)
            cr_assert_eq(mask[id / 32] >> id % 32 & 1, accepts(grammar, before, count, id),
                         "%s: token %d behind %.*s", spec, id, (int)count, text);
        if (text[count]) {
            before[count] = texts->bytes[(unsigned char)text[count]];
            cr_assert_eq(grammar_matcher_accept(matcher, before[count], &err), 0, "%s", text);
        }
    } while (text[count++]);
    grammar_matcher_free(matcher);
    grammar_release(grammar);
}

Test(grammar, masks_are_what_is_accepted)
{
    static const char *const models[] = {GRAMMAR_MODEL, GRAMMAR_LLAMA};
    for (int i = 0; i < 2; i++) {
        struct grammar_texts texts;
        grammar_texts_open(&texts, models[i]);
        expect_masks(&texts, GRAMMAR_JSON, "null", "{\"a\": [1.5, {\"\\u00");
        expect_masks(&texts, GRAMMAR_JSON_SCHEMA,
                     "{\"properties\":{\"the\":{\"type\":\"string\",\"minLength\":2,"
                     "\"maxLength\":6},\"of\":{\"items\":{\"type\":\"integer\"}}}}",
                     "{\"the\": \"\xC3\xA9"
                     "ab\",");
        expect_masks(&texts, GRAMMAR_JSON_SCHEMA,
                     "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"type\":\"string\","
                     "\"maxLength\":7},{\"type\":\"string\",\"maxLength\":2}]}",
                     "\"the o");
        expect_masks(&texts, GRAMMAR_REGEX, "(the|of )+[a-z]{3,9}\\d", "theof t");
        expect_masks(&texts, GRAMMAR_GBNF, "root ::= \"(\" root \")\" | [a-z ]+", "((th");
        grammar_texts_close(&texts);
    }
}

Test(grammar, special_tokens_are_in_no_mask)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    int special = 0;
    grammar_texts_open(&texts, GRAMMAR_LLAMA);
    struct grammar *grammar = grammar_texts_compile(&texts, GRAMMAR_REGEX, "(.|\\s)*", &err);
    cr_assert_not_null(grammar, "%s", err.message);
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    const uint32_t *mask = grammar_matcher_mask(matcher, &err);
    for (int32_t id = 0; id < texts.vocab_size; id++)
        if (tokenizer_is_special(texts.tokenizer, id)) {
            cr_assert_eq(mask[id / 32] >> id % 32 & 1, 0);
            cr_assert_eq(grammar_matcher_accept(matcher, id, NULL), -1);
            special++;
        }
    cr_assert_gt(special, 0);
    cr_assert_eq(grammar_matcher_accept(matcher, -1, NULL), -1);
    cr_assert_eq(grammar_matcher_accept(matcher, texts.vocab_size, NULL), -1);
    grammar_matcher_free(matcher);
    grammar_release(grammar);
    grammar_texts_close(&texts);
}

Test(grammar, a_matcher_stays_where_it_was_when_a_token_is_refused)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    struct grammar *grammar = grammar_texts_compile(&texts, GRAMMAR_CHOICE, "[\"ab\",\"a\"]", &err);
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    grammar_release(grammar); /* the matcher has a share */
    cr_assert(!grammar_matcher_may_end(matcher) && !grammar_matcher_must_end(matcher));
    cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['b'], &err), -1);
    cr_assert_eq(err.code, ERROR_INVALID);
    error_clear(&err);
    cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['a'], &err), 0);
    cr_assert(grammar_matcher_may_end(matcher) && !grammar_matcher_must_end(matcher));
    cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['a'], NULL), -1);
    cr_assert(grammar_matcher_may_end(matcher) && !grammar_matcher_must_end(matcher));
    cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['b'], &err), 0);
    cr_assert(grammar_matcher_may_end(matcher) && grammar_matcher_must_end(matcher));
    const uint32_t *mask = grammar_matcher_mask(matcher, &err);
    for (int32_t i = 0; i < (texts.vocab_size + 31) / 32; i++)
        cr_assert_eq(mask[i], 0);
    grammar_matcher_free(matcher);
    grammar_texts_close(&texts);
}

/* Opens as many as may be opened, then closes all of them. */
Test(grammar, nesting_is_bounded_and_can_always_end)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    struct grammar *grammar = grammar_texts_compile(&texts, GRAMMAR_JSON_SCHEMA, "true", &err);
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    int depth = 0;
    while (depth < 1000 && grammar_matcher_accept(matcher, texts.bytes['['], NULL) == 0) {
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        cr_assert(mask && mask[texts.bytes[']'] / 32] >> texts.bytes[']'] % 32 & 1);
        depth++;
    }
    cr_assert(depth > 60 && depth < 1000, "%d", depth);
    for (; depth > 0; depth--)
        cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes[']'], &err), 0, "%s", err.message);
    cr_assert(grammar_matcher_must_end(matcher));
    grammar_matcher_free(matcher);
    grammar_release(grammar);
    grammar_texts_close(&texts);
}

/* The first mask is made by the compile, whatever comes later. */
Test(grammar, first_masks_are_there)
{
    static const char *const specs[] = {"[^x]*y", "(a|b|c|d)*[a-z ]*!", ".{3,999}"};
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct grammar *grammar = grammar_texts_compile(&texts, GRAMMAR_REGEX, specs[i], &err);
        struct grammar_matcher *matcher;
        cr_assert_not_null(grammar, "%s", err.message);
        cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
        cr_assert_not_null(grammar_matcher_mask(matcher, &err));
        cr_assert_eq(grammar_matcher_work(matcher), 0, "%s", specs[i]);
        cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['a'], &err), 0);
        cr_assert_not_null(grammar_matcher_mask(matcher, &err));
        grammar_matcher_free(matcher);
        grammar_release(grammar);
    }
    grammar_texts_close(&texts);
}

/* A long text: memory is swept, and masks that were kept are found again. */
Test(grammar, long_texts)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    struct grammar *grammar =
        grammar_texts_compile(&texts, GRAMMAR_JSON_SCHEMA,
                              "{\"items\":{\"properties\":{\"k\":{\"type\":\"string\"}},"
                              "\"required\":[\"k\"],\"type\":\"object\"},\"type\":\"array\"}",
                              &err);
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes['['], &err), 0);
    const uint32_t *first = NULL;
    for (int i = 0; i < 3000; i++) {
        static const char item[] = "{\"k\": \"abc\"},";
        for (const char *c = item; *c; c++) {
            cr_assert_eq(grammar_matcher_accept(matcher, texts.bytes[(unsigned char)*c], &err), 0);
            const uint32_t *mask = grammar_matcher_mask(matcher, &err);
            cr_assert_not_null(mask);
            if (c - item == 8 && i == 0)
                first = mask;
            else if (c - item == 8)
                cr_assert_eq(mask, first);
        }
    }
    grammar_matcher_free(matcher);
    grammar_release(grammar);
    grammar_texts_close(&texts);
}

/* Draws tokens among those of the mask, and ends as soon as it may. Returns bytes of text. */
static size_t draw_text(const struct grammar_texts *texts, struct grammar *grammar,
                        uint64_t *random, char *text, size_t most)
{
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    size_t used = 0;
    cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
    while (!grammar_matcher_may_end(matcher) && used < most) {
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        int32_t chosen = -1, seen = 0;
        for (int32_t id = 0; id < texts->vocab_size; id++) {
            size_t length;
            tokenizer_token_bytes(texts->tokenizer, id, &length);
            if (!(mask[id / 32] >> id % 32 & 1) || (used > 40 && length > 1 && chosen >= 0))
                continue;
            *random = *random * UINT64_C(6364136223846793005) + 1;
            if (*random >> 33 < (UINT64_C(1) << 31) / (uint64_t)++seen)
                chosen = id;
        }
        cr_assert_geq(chosen, 0, "a text that can neither go on nor end: %.*s", (int)used, text);
        cr_assert_eq(grammar_matcher_accept(matcher, chosen, &err), 0, "%s", err.message);
        size_t length;
        const char *bytes = tokenizer_token_bytes(texts->tokenizer, chosen, &length);
        memcpy(text + used, bytes, length);
        used += length;
    }
    bool whole = grammar_matcher_may_end(matcher);
    grammar_matcher_free(matcher);
    return whole ? used : 0;
}

Test(grammar, random_texts_are_json)
{
    static const char *const models[] = {GRAMMAR_MODEL, GRAMMAR_LLAMA,
                                         REGLA_SOURCE_DIR "/tests/data/tokenizer/neox.json",
                                         REGLA_SOURCE_DIR "/tests/data/tokenizer/llama3.json"};
    enum { TEXTS = 40, MOST = 2000 };
    static char text[MOST + 4096];
    uint64_t random = 1;
    for (int i = 0; i < 4; i++) {
        struct grammar_texts texts;
        struct error err = ERROR_INIT;
        int whole = 0;
        grammar_texts_open(&texts, models[i]);
        struct grammar *grammar = grammar_texts_compile(
            &texts, GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":{\"type\":\"string\",\"format\":"
            "\"date-time\"},\"c\":{\"type\":[\"integer\",\"array\"],\"maxItems\":2}},"
            "\"required\":[\"b\"],\"additionalProperties\":{\"type\":\"number\"}}",
            &err);
        cr_assert_not_null(grammar, "%s", err.message);
        for (int k = 0; k < TEXTS; k++) {
            size_t length = draw_text(&texts, grammar, &random, text, MOST);
            json_t *value = length > 0 ? json_loadb(text, length, 0, NULL) : NULL;
            cr_assert(length == 0 || value, "%.*s", (int)length, text);
            cr_assert(!value || json_is_string(json_object_get(value, "b")));
            whole += value != NULL;
            json_decref(value);
        }
        cr_assert_gt(whole, 0, "%s", models[i]);
        grammar_release(grammar);
        grammar_texts_close(&texts);
    }
}
