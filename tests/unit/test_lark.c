/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars in Lark's notation as regular expressions: which texts these match, and what is refused.
 */
#include "api/lark.h"

#include "lib/grammar/regex.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(lark);

static void make(struct dfa *dfa, const char *grammar)
{
    struct strbuf regex = {0};
    struct work work = {0};
    struct error err = ERROR_INIT;
    cr_assert_eq(lark_to_regex(&regex, grammar, strlen(grammar), &work, &err), 0, "%s: %s", grammar,
                 err.message);
    cr_assert_eq(regex_compile(dfa, regex.data, regex.length, false, &work, &err), 0,
                 "%s: %.*s: %s", grammar, (int)regex.length, regex.data, err.message);
    strbuf_clear(&regex);
}

static void expect(const char *grammar, const char *const *texts, const char *const *others)
{
    struct dfa dfa;
    make(&dfa, grammar);
    for (; *texts; texts++)
        cr_expect(dfa_accepts(&dfa, *texts, strlen(*texts)), "%s: %s", grammar, *texts);
    for (; *others; others++)
        cr_expect_not(dfa_accepts(&dfa, *others, strlen(*others)), "%s: %s", grammar, *others);
    dfa_clear(&dfa);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const struct {
    const char *grammar;
    const char *const *texts, *const *others;
} CASES[] = {
    {"start: \"a\"", TEXTS("a"), TEXTS("", "aa", "b")},
    {"// a comment\n# another\n\nstart: A b? // and one\nA: /[0-9]+/\nb: \"x\"", TEXTS("1", "12x"),
     TEXTS("x", "1xx", "1 x")},
    {"start: a | b\n     | \"c\"\na: \"1\"\nb: \"2\"", TEXTS("1", "2", "c"), TEXTS("12", "|", "")},
    {"start:\n  | \"a\" -> first\n  | \"b\" -> second", TEXTS("a", "b"), TEXTS("", "first")},
    {"start: (\"a\" | \"b\")+ [\"c\"] \"d\"*", TEXTS("a", "abba", "bc", "acdd"), TEXTS("", "cd")},
    {"start: \"a\"~2 \"b\"~1..3", TEXTS("aab", "aabbb"), TEXTS("ab", "aabbbb", "aa")},
    {"start: \"a\"..\"f\" \"0\"..\"9\"", TEXTS("a0", "f9"), TEXTS("g0", "a", "a..f")},
    {"start: \"se\\nt\\t\\\"x\\\"\" \"+.*(\\\\\"", TEXTS("se\nt\t\"x\"+.*(\\"), TEXTS("set")},
    {"start: \"set\"i \"ä\\u00e9\"", TEXTS("setäé", "SeTäé"), TEXTS("SETÄé")},
    {"start: /a\\/b|c/ /\\d{2}/", TEXTS("a/b12", "c00"), TEXTS("a/b", "c0")},
    {"?start.2: x\n!x: A\nA.1: \"a\"", TEXTS("a"), TEXTS("x")},
    {"%import common.LF\n%import common.INT -> N\n%import common (WORD, WS_INLINE)\n"
     "start: N WS_INLINE WORD LF",
     TEXTS("12 abc\n"), TEXTS("12abc\n", "12 abc", "a b\n")},
    {"%import common.ESCAPED_STRING\n%import common.SIGNED_NUMBER\nstart: ESCAPED_STRING "
     "SIGNED_NUMBER",
     TEXTS("\"a\\\"b\"-1.5e3", "\"\"7"), TEXTS("\"a\"b\"1", "\"a\"")},
};

Test(lark, what_it_matches)
{
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        expect(CASES[i].grammar, CASES[i].texts, CASES[i].others);
}

/* As Codex sends it. */
static const char PATCH[] = "start: begin_patch hunk+ end_patch\n"
                            "begin_patch: \"*** Begin Patch\" LF\n"
                            "end_patch: \"*** End Patch\" LF?\n"
                            "\n"
                            "hunk: add_hunk | delete_hunk | update_hunk\n"
                            "add_hunk: \"*** Add File: \" filename LF add_line+\n"
                            "delete_hunk: \"*** Delete File: \" filename LF\n"
                            "update_hunk: \"*** Update File: \" filename LF change_move? change?\n"
                            "\n"
                            "filename: /(.+)/\n"
                            "add_line: \"+\" /(.*)/ LF -> line\n"
                            "\n"
                            "change_move: \"*** Move to: \" filename LF\n"
                            "change: (change_context | change_line)+ eof_line?\n"
                            "change_context: (\"@@\" | \"@@ \" /(.+)/) LF\n"
                            "change_line: (\"+\" | \"-\" | \" \") /(.*)/ LF\n"
                            "eof_line: \"*** End of File\" LF\n"
                            "\n"
                            "%import common.LF\n";

Test(lark, a_patch)
{
    expect(PATCH,
           TEXTS("*** Begin Patch\n*** Add File: a.c\n+int a;\n+\n*** End Patch\n",
                 "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f\n-x\n+y\n z\n"
                 "*** End of File\n*** Delete File: c\n*** End Patch"),
           TEXTS("*** Begin Patch\n*** End Patch\n", "*** Begin Patch\n*** Add File: a\nx\n",
                 "*** Begin Patch\n*** Add File: \n+x\n*** End Patch\n"));
}

static void refused(const char *grammar, size_t length, const char *words)
{
    struct strbuf regex = {0};
    struct work work = {0};
    struct error err = ERROR_INIT;
    cr_expect_eq(lark_to_regex(&regex, grammar, length, &work, &err), -1, "%s", grammar);
    cr_expect_eq(err.code, ERROR_UNSUPPORTED);
    cr_expect(strstr(err.message, words), "%s: %s", grammar, err.message);
    strbuf_clear(&regex);
}

Test(lark, what_is_refused)
{
    static const char *const ROWS[][2] = {
        {"", "line 1: expected a name that is defined"},
        {"a: \"b\"", "expected a name that is defined"},
        {"start: a\n", "line 1: expected a name that is defined"},
        {"\nstart: \"(\" start \")\" | \"\"",
         "line 2: expected a rule that does not come to itself"},
        {"start: a\na: b?\nb: \"x\" a", "line 3: expected a rule that does not come to itself"},
        {"start: \"a\n", "an end of what is quoted"},
        {"start: \"a\\\n", "an end of what is quoted"},
        {"start: /a/i", "an expression without flags"},
        {"start: (\"a\"", "the end of a group"},
        {"start: \"a\")", "a name, a string, an expression or a group"},
        {"start: x{\"a\"}\nx{y}: y", "a name, a string, an expression or a group"},
        {"start: \"a\"\n%ignore \" \"", "line 2: expected no directive but %import"},
        {"%import python.NAME\nstart: NAME", "line 1: expected the module common"},
        {"%import common.NOTHING\nstart: NOTHING", "a terminal of common"},
        {"%import common\nstart: A", "a terminal of common"},
        {"| \"a\"", "line 1: expected a rule"},
        {"start: \"a\"~x", "a number of times"},
        {"start: \"a\"~3..1", "a number of times"},
        {"start: \"ab\"..\"c\"", "a range of single characters"},
        {"start: \"a\"..b", "a string behind .."},
        {"start: \"\\q\"", "an escape of"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
        refused(ROWS[i][0], strlen(ROWS[i][0]), ROWS[i][1]);
    refused("start: \"a\0b\"", sizeof "start: \"a\0b\"" - 1, "no U+0000");
}

/* It doubles with each rule, or nests. */
Test(lark, what_is_too_much)
{
    struct strbuf grammar = {0};
    strbuf_puts(&grammar, "start: r0\n");
    for (int i = 0; i < 30; i++)
        strbuf_printf(&grammar, "r%d: r%d r%d\n", i, i + 1, i + 1);
    strbuf_puts(&grammar, "r30:");
    refused(grammar.data, grammar.length, "a grammar that is a shorter expression");
    strbuf_reset(&grammar);
    strbuf_puts(&grammar, "start: ");
    for (int i = 0; i < 1000; i++)
        strbuf_puts(&grammar, "(");
    refused(grammar.data, grammar.length, "nest less deep");
    strbuf_reset(&grammar);
    for (int i = 0; i < 2000; i++)
        strbuf_printf(&grammar, "r%d: \"a\"\n", i);
    refused(grammar.data, grammar.length, "at most 1024 rules");
    strbuf_clear(&grammar);
}

/* Each naming of a rule goes through all of it. */
Test(lark, blanks_are_work)
{
    enum { NAMED = 3000, BLANKS = 1 << 20 };
    struct strbuf grammar = {0};
    strbuf_puts(&grammar, "start:");
    for (int i = 0; i < NAMED; i++)
        strbuf_puts(&grammar, " b");
    strbuf_puts(&grammar, "\nb:");
    for (int i = 0; i < BLANKS; i++)
        strbuf_puts(&grammar, " ");
    refused(grammar.data, grammar.length, "steps to compile");
    strbuf_clear(&grammar);
}

/* Of many small grammars together. */
Test(lark, work_adds_up)
{
    enum { MOST = 5000, RULES = 11 };
    struct strbuf grammar = {0}, regex = {0};
    struct work work = {0};
    struct error err = {0};
    int made = 0;
    strbuf_puts(&grammar, "start: r0\n");
    for (int i = 0; i < RULES; i++)
        strbuf_printf(&grammar, "r%d: r%d r%d\n", i, i + 1, i + 1);
    strbuf_printf(&grammar, "r%d:", RULES);
    for (; made < MOST && !strstr(err.message, "steps to compile"); made++) {
        strbuf_reset(&regex);
        err = (struct error){0};
        lark_to_regex(&regex, grammar.data, grammar.length, &work, &err);
    }
    cr_expect_lt(made, MOST);
    strbuf_clear(&regex);
    strbuf_clear(&grammar);
}
