/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a rendered text came from the context. Texts of the context are written in
 * Cyrillic here, all else in ASCII, so that what is not marked as it should be shows. */
#include "lib/jinja/builtins.h"
#include "lib/jinja/jinja.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char CONTEXT[] =
    "{\"x\": \"Жук жаба\", \"y\": \"ж\", \"a\": \"а\", \"k\": \"Щит\", \"f\": \"%sЖ{}Ж\", \"n\": 3,"
    " \"l\": [\"бык\", \"Лев\"], \"d\": {\"Щит\": \"щи\", \"щель\": [\"щётка\"]},"
    " \"lines\": \"ж\\n\\nк\\r\\nл\", \"q\": \"Ж'<&\\\"Ж\", \"role\": \"Жuser\", \"empty\": \"\"}";

static const struct jinja_limits ENOUGH = {.steps = 4 << 20, .memory = 64 << 20};

enum { OPEN = 1, CLOSE = 2 };

/* The text with marks around what came from the context; NULL: it failed. The caller frees it. */
static char *render(const char *source, const json_t *context, struct origin_marks *origin,
                    struct error *err)
{
    struct jinja *template;
    char *text = NULL, *marked = NULL;
    size_t length, used = 0, at = 0;
    if (jinja_compile(&template, "t", source, strlen(source), err))
        return NULL;
    if (jinja_render(template, context, &ENOUGH, 0, &text, &length, origin, err) == 0) {
        marked = calloc(1, length + 2 * origin->input.count + 1);
        for (size_t i = 0; i < origin->input.count; i++) {
            struct text_span span = origin->input.items[i];
            cr_assert(at <= span.start && span.start < span.end && span.end <= length);
            cr_assert(i == 0 || at < span.start, "%s: two spans are one", source);
            memcpy(marked + used, text + at, span.start - at);
            used += span.start - at;
            marked[used++] = OPEN;
            memcpy(marked + used, text + span.start, span.end - span.start);
            used += span.end - span.start;
            marked[used++] = CLOSE;
            at = span.end;
        }
        memcpy(marked + used, text + at, length - at);
    }
    span_list_clear(&origin->input);
    free(text);
    jinja_free(template);
    return marked;
}

static char *in_brackets(char *text)
{
    for (char *at = text; at && *at; at++)
        *at = *at == OPEN ? '[' : *at == CLOSE ? ']' : *at;
    return text;
}

static void expect(const char *source, const char *expected)
{
    json_t *context = json_loads(CONTEXT, 0, NULL);
    struct origin_marks origin = {0};
    struct error err = ERROR_INIT;
    char *text = in_brackets(render(source, context, &origin, &err));
    cr_expect(text && strcmp(text, expected) == 0, "%s:\nexpected: %s\ngot:      %s", source,
              expected, text ? text : err.message);
    free(text);
    json_decref(context);
}

Test(jinja_origin, of_what_templates_do_with_strings)
{
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"a{{ x }}b{{ 'c' }}{{ empty }}", "a[Жук жаба]bc"},
        {"{{ x }}{{ y }}", "[Жук жабаж]"},
        {"{{ 'a' + x + 'b' }}|{{ 'a' ~ n ~ y }}", "a[Жук жаба]b|a3[ж]"},
        {"{{ (' a ' + x + ' ') | trim }}", "a [Жук жаба]"},
        {"{{ x | upper }}{{ ('a' + x) | lower }}", "[ЖУК ЖАБА]a[жук жаба]"},
        {"{{ ('ab' + x)[1:5] }}{{ x[0] }}{{ x[-1] }}", "b[ЖукЖа]"},
        {"{{ ('ab' + y)[::-1] }}", "[ж]ba"},
        {"{{ x.split(' ')[-1] }}|{{ ('a ' + x).split(' ') | join('-') }}", "[жаба]|a-[Жук]-[жаба]"},
        {"{{ x | replace('ж', '<') }}|{{ 'abc' | replace('b', y) }}", "[Жук ]<[аба]|a[ж]c"},
        {"{{ 'a<ж>b'.replace('<ж>', '') }}|{{ ('(' ~ y ~ ')').replace('ж', '') }}", "ab|()"},
        {"{{ x.partition(' ') | join }}|{{ 'a ' .partition(' ')[1] }}", "[Жук жаба]| "},
        {"{{ l | join(', ') }}|{{ ['a', y] | join(y) }}", "[бык], [Лев]|a[жж]"},
        {"{{ d | tojson }}", "{\"[Щит]\": \"[щи]\", \"[щель]\": [\"[щётка]\"]}"},
        {"{{ q | tojson }}|{{ q }}", "\"[Ж'<&\\\"Ж]\"|[Ж'<&\"Ж]"},
        {"{{ {'a': y} | tojson(ensure_ascii=True) }}", "{\"a\": \"[\\u0436]\"}"},
        {"{{ {'a': y} }}|{{ [q] }}", "{'a': '[ж]'}|['[Ж\\'<&\"Ж]']"},
        {"{{ d | tojson(indent=y) }}",
         "{\n[ж]\"[Щит]\": \"[щи]\",\n[ж]\"[щель]\": [\n[жж]\"[щётка]\"\n[ж]]\n}"},
        {"{{ 'a%sb%s' % (x, 'c') }}|{{ '%4s|' % y }}|{{ '%.1s' % x }}",
         "a[Жук жаба]bc|   [ж]||[Ж]"},
        {"{{ 'a{}b{c}'.format(x, c='d') }}|{{ '{:>3}'.format(y) }}", "a[Жук жаба]bd|  [ж]"},
        {"{{ f % 'a' }}|{{ f.format('b') }}", "a[Ж{}Ж]|[%sЖ]b[Ж]"},
        {"{{ ('{:' ~ y ~ '>4}').format('a') }}|{{ 'a'.center(5, y) }}", "[жжж]a|[жж]a[жж]"},
        {"{{ y.center(3) }}{{ y * 3 }}{{ ('a' ~ y) * 2 }}", " [ж] [жжж]a[ж]a[ж]"},
        {"{{ lines | indent(2) }}", "[ж]\n\n  [к]\n  [л]"},
        {"{{ (q | safe) + '<' }}|{{ ('a' | safe) + q }}", "[Ж'<&\"Ж]&lt;|a[Ж&#39;&lt;&amp;&#34;Ж]"},
        {"{% set t %}a{{ y }}b{% endset %}{{ t }}{% filter upper %}a{{ y }}{% endfilter %}",
         "a[ж]bA[Ж]"},
        {"{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(y) }}{{ m('a') ~ m(y) | trim }}",
         "<[ж]><a><[ж]>"},
        {"{% for c in 'a' ~ y %}{{ c }}.{% endfor %}", "a.[ж]."},
        {"{% set ns = namespace(t='a') %}{% set ns.t = ns.t ~ y %}{{ ns.t }}", "a[ж]"},
        {"{{ {'Жук жаба': 'a'}[x] }}{{ 'a' if y == 'ж' else 'b' }}{{ y in x }}", "aaTrue"},
        {"{{ l | sort | first }}{{ l | map('upper') | join }}", "[быкБЫКЛЕВ]"},
        {"{{ d.items() | list }}", "[('[Щит]', '[щи]'), ('[щель]', ['[щётка]'])]"},
        {"{{ nothing }}{{ y | default('a') }}{{ nothing | default(y) }}", "[жж]"},
        {"{{ y | string ~ n | string }}", "[ж]3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].source, cases[i].expected);
}

/* Fails where a letter of the context stands outside of the marks. */
static void expect_all_marked(const char *source, const char *text)
{
    bool inside = false;
    for (const char *at = text; *at; at++) {
        inside = *at == OPEN || (inside && *at != CLOSE);
        cr_expect(inside || !((unsigned char)*at & 0x80), "%s: %s", source, text);
        if (!inside && (unsigned char)*at & 0x80)
            return;
    }
}

/* Every filter and method that there is, with arguments of the context and without. */
Test(jinja_origin, no_builtin_loses_it)
{
    static const char *const ARGUMENTS[] = {"",     "y",       "' '", "y, y",    "a, y",
                                            "9, y", "'upper'", "30",  "y, y, y", "true",
                                            "l",    "f",       "d",   "x, 2",    "k"};
    static const char *const SELVES[] = {"x", "f", "l", "d", "lines", "q", "(x, y)", "'%s{}'"};
    const struct builtin *const tables[] = {builtins_filters, builtins_string_methods,
                                            builtins_list_methods, builtins_dict_methods};
    json_t *context = json_loads(CONTEXT, 0, NULL);
    size_t rendered = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct builtin *builtin = tables[t]; builtin->name; builtin++)
            for (size_t k = 0;
                 k < sizeof ARGUMENTS / sizeof *ARGUMENTS * (sizeof SELVES / sizeof *SELVES); k++) {
                char source[200];
                struct error err = ERROR_INIT;
                struct origin_marks origin = {0};
                const char *self = SELVES[k % (sizeof SELVES / sizeof *SELVES)];
                const char *arguments = ARGUMENTS[k / (sizeof SELVES / sizeof *SELVES)];
                snprintf(source, sizeof source,
                         "{%% set r = %s%s%s(%s) %%}{%% if r is iterable and r is not string %%}"
                         "{%% for i in r %%}{{ i }}{%% endfor %%}{%% else %%}{{ r }}{%% endif %%}",
                         self, t == 0 ? "|" : ".", builtin->name, arguments);
                char *text = render(source, context, &origin, &err);
                rendered += text != NULL;
                if (text)
                    expect_all_marked(source, text);
                free(text);
            }
    cr_expect_gt(rendered, 1000);
    json_decref(context);
}

Test(jinja_origin, parts_of_the_context_can_be_the_templates)
{
    json_t *context = json_loads("{\"m\": [{\"role\": \"user\", \"text\": \"ab<s>cd<e>\"}], "
                                 "\"bos\": \"<s>\"}",
                                 0, NULL);
    json_t *message = json_array_get(json_object_get(context, "m"), 0);
    const json_t *text = json_object_get(message, "text"), *bos = json_object_get(context, "bos");
    struct origin_own own[] = {{text, {7, 10}}, {bos, {0, 3}}, {text, {2, 5}}};
    struct origin_marks origin = {.own = own, .num_own = 3};
    struct error err = ERROR_INIT;
    char *marked =
        in_brackets(render("{{ bos }}{{ m[0].role }}: {{ m[0].text }}", context, &origin, &err));
    cr_expect_str_eq(marked, "<s>[user]: [ab]<s>[cd]<e>");
    free(marked);
    json_decref(context);
}
