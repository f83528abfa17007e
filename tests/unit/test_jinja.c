/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: what jinja2 makes of them, as transformers sets it up (tests/data/jinja, which
 * tests/scripts/make_chat_templates.py writes); errors; bounds. */
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/jinja/jinja.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct jinja_limits ENOUGH = {.steps = 4 << 20, .memory = 64 << 20};

static json_t *load(const char *name)
{
    char path[512], *text;
    size_t length;
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, "%s/tests/data/jinja/%s", REGLA_SOURCE_DIR, name);
    cr_assert_eq(file_read(path, 64 << 20, &text, &length, &err), 0, "%s", err.message);
    json_t *document = json_loadb(text, length, JSON_ALLOW_NUL, NULL);
    free(text);
    cr_assert(document, "%s", name);
    return document;
}

/* The text, or NULL with the error's message. The caller frees it. */
static char *render(const char *source, size_t bytes, const json_t *context,
                    const struct jinja_limits *limits, int64_t now, struct error *err)
{
    struct jinja *template;
    char *text = NULL;
    size_t length;
    if (jinja_compile(&template, "t", source, bytes, err))
        return NULL;
    if (jinja_render(template, context, limits, now, &text, &length, NULL, err) == 0)
        cr_expect_eq(strlen(text), length);
    jinja_free(template);
    return text;
}

static void expect_case(const json_t *one, const json_t *conversations, int64_t now)
{
    const char *name = json_string_value(json_object_get(one, "name"));
    const json_t *source = json_object_get(one, "source"), *texts = json_object_get(one, "texts");
    cr_assert_eq(json_array_size(texts), json_array_size(conversations));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        struct error err = ERROR_INIT;
        const char *expected = json_string_value(json_array_get(texts, i));
        char *text = render(json_string_value(source), json_string_length(source),
                            json_array_get(conversations, i), &ENOUGH, now, &err);
        if (expected)
            cr_expect(text && strcmp(text, expected) == 0,
                      "%s, conversation %zu:\nexpected: %s\ngot:      %s", name, i, expected,
                      text ? text : err.message);
        else
            cr_expect(!text && strncmp(err.message, "t: line ", 8) == 0,
                      "%s, conversation %zu: expected an error, got %s", name, i,
                      text ? text : err.message);
        free(text);
    }
}

Test(jinja, the_texts_of_python)
{
    setenv("TZ", "UTC", 1);
    tzset();
    json_t *cases = load("cases.json"), *conversations = load("conversations.json");
    const json_t *list = json_object_get(cases, "cases");
    cr_assert(json_array_size(list) >= 60);
    for (size_t i = 0; i < json_array_size(list); i++)
        expect_case(json_array_get(list, i), conversations,
                    json_integer_value(json_object_get(cases, "now")));
    json_decref(cases);
    json_decref(conversations);
}

static void expect_text(const char *source, const char *expected)
{
    struct error err = ERROR_INIT;
    char *text = render(source, strlen(source), NULL, &ENOUGH, 0, &err);
    cr_expect(text && strcmp(text, expected) == 0, "%.80s: expected \"%s\", got \"%s\"", source,
              expected, text ? text : err.message);
    free(text);
}

static void expect_error(const char *source, const struct jinja_limits *limits,
                         const char *expected)
{
    struct error err = ERROR_INIT;
    json_t *context = json_pack("{s[i]}", "l", 1);
    char *text = render(source, strlen(source), context, limits, 0, &err);
    cr_expect(!text && strstr(err.message, expected), "%.80s: expected \"%s\", got \"%s\"", source,
              expected, text ? "a text" : err.message);
    free(text);
    json_decref(context);
}

/* By jinja2 3.1.6. */
Test(jinja, numbers_and_strings_as_they_are_written)
{
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"{{ 1_000 }} {{ 0_0 }} {{ 00 }} {{ 1_000 in [1000] }}", "1000 0 0 True"},
        {"{{ 0x1F }} {{ 0XfF }} {{ 0x_ff }} {{ 0b101 }} {{ 0o17 }}", "31 255 255 5 15"},
        {"{{ 0x7fffffffffffffff }}", "9223372036854775807"},
        {"{{ 1_0.2_5e1_0 }} {{ 1e5 }} {{ 1E-3 }} {{ 1e400 }}", "102500000000.0 100000.0 0.001 inf"},
        {"{{ 5e-324 }} {{ 123456789012345678.0 }}", "5e-324 1.2345678901234568e+17"},
        {"{{ 0.100000000000000005551115123125782702118158340454101562500000000000 }}", "0.1"},
        {"{{ 1if true else 2 }} {{ 1.5if 1 }} {{ 1or 2 }} {{ 0xfor 1 }}", "1 1.5 1 15"},
        {"{{ [[1, 2], [3, 4]].1.0 }} {{ [1, 2].0if 1 }}", "3 1"},
        {"{{ '\\\xC3\xA9' }} {{ '\\\xE4\xB8\x96\\\xF0\x9F\x99\x82' }}", "\\xe9 \\u4e16\\U0001f642"},
        {"{{ '\\q' }} {{ '\\777' }} {{ 'a' 'b' }}", "\\q \xC7\xBF ab"},
        {"{{ '1_000'|int }} {{ ' 1_0 '|int }} {{ '1_0.5'|float }}", "1000 10 10.5"},
        {"{{ '0b101'|int(0, 2) }} {{ '-0B11'|int(0, 2) }} {{ '0o17'|int(0, 8) }}", "5 -3 15"},
        {"{{ '0x1f'|int(0, 16) }} {{ '0x_1f'|int(0, 16) }} {{ '101'|int(0, 2) }}", "31 31 5"},
        {"{{ '_1'|int(7) }}{{ '1_'|int(7) }}{{ '1__0'|int(7) }}{{ '1_e5'|float(7) }}", "7777"},
        {"{{ '0b'|int(7, 2) }}{{ '0b-11'|int(7, 2) }}{{ '0_x1f'|int(7, 16) }}{{ '- 5'|int(7) }}",
         "7777"},
    };
    static const char *const wrong[] = {"{{ 1__0 }}", "{{ 01 }}",   "{{ 0x }}", "{{ 0b2 }}",
                                        "{{ 1_ }}",   "{{ 12ab }}", "{{ 1e }}"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_text(cases[i].source, cases[i].expected);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_error(wrong[i], &ENOUGH, "expected");
}

Test(jinja, errors_name_the_place)
{
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"a\n  {{ x.y }}", "t: line 2, column 6: 'x' is undefined"},
        {"\xC3\xA9\xC3\xA9{% frob %}", "t: line 1, column 6: the tag frob is not supported"},
        {"{{ 1|frob }}", "t: line 1, column 6: the filter or test frob is not supported"},
        {"{{ 1 is frob }}", "the filter or test frob is not supported"},
        {"{% if x %}\n", "t: line 1, column 7: this block has no endif"},
        {"{% for i in [1] %}{{ loop([2]) }}{% endfor %}", "this loop is not recursive"},
        {"{% call 1 %}{% endcall %}", "t: line 1, column 11: expected a call"},
        {"{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}", "takes no such argument"},
        {"{{ 1 if false else 2|pprint }}",
         "t: line 1, column 22: the filter pprint is not supported"},
        {"{% if false %}{{ x.casefold() }}{% endif %}", "the method casefold is not supported"},
        {"{% if false %}{{ self.title() }}{% endif %}", "self, of blocks, is not supported"},
        {"{% if false %}{{ joiner() }}{% endif %}", "the function joiner is not supported"},
        {"{{ {}.items() == {}.items() }}", "to compare views of dicts is not supported"},
        {"{{ {}.items() - 1 }}", "- of a view of a dict is not supported"},
        {"{% include 'x' %}", "the tag include is not supported"},
        {"{{ range(*1) }}", "'int' object is not iterable"},
        {"{{ range(**l) }}", "argument after ** must be a mapping, not list"},
        {"{{ dict(**{1: 2}) }}", "keywords must be strings, not int"},
        {"{{ 99999999999999999999 }}", "integers of more than 64 bits"},
        {"{{ 9223372036854775807 + 1 }}", "integers of more than 64 bits"},
        {"{{ 2 ** 64 }}", "integers of more than 64 bits"},
        {"{{ ('a'|safe).replace('a', 'b') }}", "replace of what safe gives is not supported"},
        {"{{ ('%s'|safe) % 'b' }}", "the format \"%s\" is not supported"},
        {"{{ ('a'|safe).striptags() }}", "the method striptags is not supported"},
        {"{% macro m() %}{% endmacro %}{{ m.name }}", "name of a Macro is not supported"},
        {"{% if 1 %}{{ 1|frob }}{% endif %}", "t: line 1, column 16: the filter frob is not"},
        {"{{ 2 if 1 is frob }}", "the test frob is not supported"},
        {"{{ 'a'.encode() }}", "the method encode is not supported"},
        {"{{ (1).real }}", "real of a int is not supported"},
        {"{{ (1.5).hex is defined }}", "hex of a float is not supported"},
        {"{{ cycler(1) }}", "the function cycler is not supported"},
        {"{{ raise_exception('no system') }}", "the template refuses this: no system"},
        {"{{ namespace() }}", "a Namespace as text is not supported"},
        {"{{ '\\N{DASH}' }}", "this escape is not supported"},
        {"{{ '\\ud800' }}", "this is not a character"},
        {"\xFF", "not UTF-8 at byte 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].source, &ENOUGH, cases[i].expected);
}

#define TEN(text) text text text text text text text text text text

/* Endless work, texts that grow, and depth: each ends with an error, and soon. */
Test(jinja, hostile_templates_are_stopped)
{
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
         "the template takes"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested more than"},
        {"{{ 'a' * 1000000000 }}", "too many steps"},
        {"{{ ('a' * 1000000) * 100000 }}", "bytes of memory"},
        {"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s "
         "%}"
         "{% endfor %}",
         "bytes of memory"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}"
         "{% endfor %}",
         "bytes of memory"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor "
         "%}"
         "{{ ns.l }}",
         "nested more than"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l, ns.l] %}"
         "{% endfor %}{{ ns.l == [[ns.l]] }}{{ ns.l|tojson }}",
         "nested more than"},
        {"{% set ns = namespace(t=1) %}{% for i in range(64) %}{% set ns.t = (ns.t, ns.t) %}{% "
         "endfor "
         "%}{{ {}.get(ns.t) }}",
         "too many steps"},
        {"{% set ns = namespace(t=1) %}{% for i in range(64) %}{% set ns.t = (ns.t, ns.t) %}{% "
         "endfor "
         "%}{{ {}[ns.t] }}",
         "too many steps"},
        {"{% set ns = namespace(t=1) %}{% for i in range(99999) %}{% set ns.t = (ns.t,) %}{% "
         "endfor "
         "%}{{ ns.t in {} }}",
         "nested more than"},
        {"{{ 'a'|map(" TEN(TEN(TEN("'map','map','map',"))) "'list')|list }}", "nested more than"},
        {"{% set a = 'a' * 1000000 %}{% set d = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, "
         "9: 9} "
         "%}{% for i in range(99999) %}{{ d.get(a) }}{% endfor %}",
         "too many steps"},
        {"{% set a = ' ' * 1000000 %}{% for i in range(99999) %}{% set b = a.isspace() %}{% endfor "
         "%}",
         "too many steps"},
        {"{% set a = 'A' * 1000000 %}{% for i in range(99999) %}{% set b = a.islower() %}{% endfor "
         "%}",
         "too many steps"},
        {"{% set a = ' ' * 1000000 %}{% for i in range(99999) %}{% set b = a.split() %}{% endfor "
         "%}",
         "too many steps"},
        {"{% set a = ' ' * 1000000 %}{% for i in range(99999) %}{% set b = a.rsplit() %}{% endfor "
         "%}",
         "too many steps"},
        {"{% set a = 'a' * 1000000 %}{% set b = a[1:] + 'b' %}{% for i in range(99999) %}"
         "{% set c = a.removeprefix(b) %}{% endfor %}",
         "too many steps"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% "
         "endfor %}"
         "{{ ([ns.l] * 9999)|map(attribute='0.' * 99998 + '0')|list|length }}",
         "too many steps"},
        {"{{ '%9999999d' % 1 }}", "is not supported"},
        {"{{ 'x'.center(1000000000) }}", "too many steps"},
        {"{{ 'a'|replace('', 'b' * 1000000) * 1000 }}", "bytes of memory"},
        {"{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}", "the template takes"},
        {TEN(TEN("{{ ")) "1", "this tag has no end"},
        {"{{ " TEN(TEN("((((((((((")) "1" TEN(TEN("))))))))))")) " }}", "nested more than"},
        {"{{ " TEN(TEN("----------")) "1 }}", "nested more than"},
        {"{{ " TEN(TEN("not not not ")) "1 }}", "nested more than"},
        {TEN(TEN("{% if 1 %}{% if 1 %}{% if 1 %}{% if 1 %}")), "nested more than"},
        {"{{ l" TEN(TEN("|list|list|list|list")) " }}", "nested more than"},
    };
    double begin = clock_seconds();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].source, &ENOUGH, cases[i].expected);
    cr_expect_lt(clock_seconds() - begin, 60);
}

/* On texts of a megabyte, and long lists. */
static const char *const EXPRESSIONS[] = {
    "a.find(b)",
    "a.rfind(c)",
    "a.index(a[1:])",
    "a.rindex(a[1:])",
    "a.count(b)",
    "a.count('a')",
    "a.count('')",
    "a.find('b', 9, 999999)",
    "u.find('b', 9, 899999)",
    "a.replace(b, 'x')",
    "a.replace('b', 'x')",
    "a|replace('a', 'bc')",
    "a.split(b)",
    "a.split('b')",
    "a.split('aaaaaaa')|length",
    "a.rsplit(c)",
    "a.rsplit('b', 1)",
    "a.partition(b)",
    "a.rpartition(c)",
    "a.splitlines()",
    "l.splitlines()|length",
    "b in a",
    "a == d",
    "a != d",
    "a < d",
    "a >= d",
    "[a] == [d]",
    "{a: 1} == {d: 1}",
    "a in [d]",
    "[a, d]|sort|length",
    "[a, d]|max",
    "[a, d]|unique|list|length",
    "[a, d].index(d)",
    "[a, d].count(d)",
    "a.startswith((b, c, b, c))",
    "a.endswith((d, d, d))",
    "a.startswith(d)",
    "u.startswith('b', 899999)",
    "a.strip(c)",
    "a.lstrip(n)",
    "a.rstrip(n)",
    "n.strip(u)",
    "a|trim",
    "a.upper()",
    "u.lower()",
    "u.title()",
    "u|title",
    "u.capitalize()",
    "u.swapcase()",
    "a|indent|length",
    "a|string ~ d",
    "a + d",
    "a * 2",
    "u[1:]",
    "u[:-1]",
    "u[899998]",
    "a[::-1]",
    "u[::2]",
    "u|reverse",
    "u|first + u|last",
    "a.center(2000000)",
    "a.zfill(2000000)",
    "a|int",
    "a|float",
    "('9' * 999999)|float",
    "a|tojson",
    "u|tojson",
    "[a]|string",
    "'%s' % a",
    "'%5s' % u",
    "'{}'.format(a)",
    "'{:5}'.format(u)",
    "','.join([a, d])",
    "[a, d]|join(c)",
    "u.isalpha()",
    "a.isascii()",
    "a.islower()",
    "l.split()|length",
    "a|safe + '<'",
    "a|list|length",
    "('.' * 999999).split('.')|length",
    "{}.get(a)",
    "[x, x, x]|sort|length",
    "r|sort|length",
    "r|sum",
    "r|max",
    "r|join|length",
    "r|map('string')|list|length",
    "r|list|tojson",
    "f|tojson",
    "f|string",
    "r == r|list",
    "x in r",
    "r|reverse|list|length",
    "r[::-1]",
    "r|list + r|list",
    "r|unique|list|length",
    "dict(r[10:99]|map('string'))",
};

/* Work on long texts takes its steps before it is done: in a loop without end each of these is
 * stopped by them, or by memory, in time that is in proportion to the steps. */
Test(jinja, work_on_long_texts_is_charged)
{
    static const char SETS[] =
        "{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' %}{% set c = 'b' ~ 'a' * 500000 "
        "%}{% set d = 'a' * 999999 ~ 'b' %}{% set u = '\\u00e9a' * 450000 %}"
        "{% set l = 'a\\n ' * 300000 %}{% set n = '\\u00e8' * 500000 %}"
        "{% set r = range(100000) %}{% set f = [1.7976931348623157] * 9999 %}{% set x = 'x' %}";
    static const struct jinja_limits LIMITS = {.steps = 2 << 20, .memory = 256 << 20};
    char source[2048];
    for (size_t i = 0; i < sizeof EXPRESSIONS / sizeof *EXPRESSIONS; i++) {
        snprintf(source, sizeof source,
                 "%s{%% for i in range(99999) %%}{%% for j in range(99999) %%}{%% set y = %s %%}"
                 "{%% endfor %%}{%% endfor %%}",
                 SETS, EXPRESSIONS[i]);
        int64_t begin = clock_nanos(CLOCK_THREAD_CPUTIME_ID);
        expect_error(source, &LIMITS, "the template takes");
        double seconds = (double)(clock_nanos(CLOCK_THREAD_CPUTIME_ID) - begin) * 1e-9;
        cr_expect_lt(seconds, 5, "%s: %.1f s", EXPRESSIONS[i], seconds);
    }
}

Test(jinja, a_rendering_ends_in_time)
{
    static const char SLOW[] = "{% for i in range(99999) %}{% for j in range(99999) %}{{ 1.5 }}"
                               "{% endfor %}{% endfor %}";
    struct jinja_limits limits = {.steps = INT64_MAX, .seconds = 0.05, .memory = 1 << 30};
    int64_t begin = clock_nanos(CLOCK_THREAD_CPUTIME_ID);
    expect_error(SLOW, &limits, "the template takes more than 0.05 s of");
    cr_expect_lt(clock_nanos(CLOCK_THREAD_CPUTIME_ID) - begin, 1000000000);
}

/* All places of short parts in short texts of two letters, as a search without wits finds them. */
Test(jinja, searches_find_what_is_there)
{
    enum { TEXT = 11, PART = 6 };
    static char source[1 << 16];
    for (unsigned part_length = 1; part_length <= PART; part_length++)
        for (unsigned part = 0; part < 1u << part_length; part++) {
            char part_text[PART + 1] = "";
            for (unsigned i = 0; i < part_length; i++)
                part_text[i] = part >> i & 1 ? 'b' : 'a';
            char expected[8192];
            size_t used = 0, written = 0;
            used += (size_t)snprintf(source, sizeof source, "{%% for t in [");
            for (unsigned text = part; text < 1u << TEXT; text += 37) {
                char text_text[TEXT + 1] = "";
                for (unsigned i = 0; i < TEXT; i++)
                    text_text[i] = text >> i & 1 ? 'b' : 'a';
                int first = -1, last = -1;
                for (int i = TEXT - (int)part_length; i >= 0; i--)
                    if (memcmp(text_text + i, part_text, part_length) == 0) {
                        last = last < 0 ? i : last;
                        first = i;
                    }
                used += (size_t)snprintf(source + used, sizeof source - used, "'%s',", text_text);
                written += (size_t)snprintf(expected + written, sizeof expected - written, "%d %d,",
                                            first, last);
            }
            snprintf(source + used, sizeof source - used,
                     "] %%}{{ t.find('%s') }} {{ t.rfind('%s') }},{%% endfor %%}", part_text,
                     part_text);
            expect_text(source, expected);
        }
}

Test(jinja, what_safe_gives_can_be_measured)
{
    expect_text("{{ ([1]|tojson|safe)|length }}{{ 'ab'|safe|count }}{{ 'b' in 'ab'|safe }}",
                "32True");
}

Test(jinja, names_are_compared_whole)
{
    expect_text("{{ 1[''] is defined }}{{ 1['real\\x00' ~ 'a' * 1000000] is defined }}"
                "{{ 1['real\\x00'] is defined }}{{ 1['real denominator'] is defined }}"
                "{{ 'a'['upper\\x00b'] is defined }}"
                "{% for i in [1] %}{{ loop['index\\x00'] is defined }}{% endfor %}",
                "FalseFalseFalseFalseFalseFalse");
}

Test(jinja, least_integers)
{
    expect_text("{{ 'ab'.center(-9223372036854775807 - 1) }}", "ab");
    expect_text("{{ '-5'.zfill(-9223372036854775807 - 1) }}", "-5");
    expect_text("{{ 'a b c'.split(' ', -9223372036854775807 - 1)|length }}", "3");
    expect_text("{{ 'a b c'.rsplit(' ', -9223372036854775807 - 1)|length }}", "3");
    expect_text("{{ 'a b c'.replace(' ', '', -9223372036854775807 - 1) }}", "abc");
    expect_text("{{ '-5'.zfill(4) }}{{ '5'.zfill(3) }}{{ ''.zfill(1) }}", "-0050050");
}

Test(jinja, work_is_charged_as_it_is_done)
{
    expect_text("{{ ('word ' * 20000)|replace(' ', '_')|length }}", "100000");
    expect_text("{{ ('word ' * 20000).split(' ')|length }}", "20001");
    expect_text("{{ ('word ' * 20000).count('d') }}", "20000");
}

struct reserved {
    int64_t held, most, limit;
};

static bool reserve(void *context, int64_t bytes)
{
    struct reserved *reserved = context;
    if (bytes > reserved->limit - reserved->held)
        return false;
    reserved->held += bytes;
    reserved->most = reserved->held > reserved->most ? reserved->held : reserved->most;
    return true;
}

Test(jinja, memory_is_asked_for_as_it_is_taken)
{
    static const struct {
        const char *source;
        int64_t limit, least, most;
        enum error_code code;
    } cases[] = {
        {"{{ 'a' * 10 }}", 1 << 20, 1, 64 << 10, ERROR_NONE},
        {"{{ 'a' * 1000000 }}", 64 << 20, 1000000, 16 << 20, ERROR_NONE},
        {"{{ 'a' * 1000000 }}", 1000000, 1, 1000000, ERROR_NO_MEMORY},
        {"{{ 'a' * 1000000 }}{{ 1 + 'a' }}", 64 << 20, 1000000, 16 << 20, ERROR_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = ERROR_INIT;
        struct reserved reserved = {.limit = cases[i].limit};
        struct jinja_limits limits = ENOUGH;
        limits.reserve = reserve;
        limits.context = &reserved;
        char *text = render(cases[i].source, strlen(cases[i].source), NULL, &limits, 0, &err);
        cr_expect_eq(text == NULL, cases[i].code != ERROR_NONE);
        cr_expect_eq(err.code, cases[i].code, "%zu: %s", i, err.message);
        cr_expect(reserved.most >= cases[i].least && reserved.most <= cases[i].most, "%zu: %lld", i,
                  (long long)reserved.most);
        cr_expect_eq(reserved.held, 0);
        free(text);
    }
}

Test(jinja, mentions)
{
    static const char source[] = "{% if tools %}{{ m['content'] }}{% endif %} system";
    struct jinja *template;
    struct error err = ERROR_INIT;
    cr_assert_eq(jinja_compile(&template, "t", source, strlen(source), &err), 0);
    cr_expect(jinja_mentions(template, "tools"));
    cr_expect(jinja_mentions(template, "content"));
    cr_expect_not(jinja_mentions(template, "system"));
    jinja_free(template);
}
