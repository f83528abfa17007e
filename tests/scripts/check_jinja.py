# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - templates in one line each
"""Renders every filter, test, function, method and statement of jinja2, as transformers sets it up, by
jinja2 and by ours, on many values. Where both render the texts must be the same, byte for byte. Where
jinja2 refuses we must. What jinja2 renders and we refuse must be refused by name: when the template is
loaded, or, if that cannot be known then, with a message that says that it is not supported. Prints what
differs, and how much of each name.

    cmake --build build/dev --target render_templates
    python tests/scripts/check_jinja.py build/dev/render_templates

Needs transformers (5.24.0).
"""

import collections
import sys

import make_chat_templates as reference
from check_package_templates import Ours

VALUES = (
    "''", "'Hello World'", "'\u00e9 \u00df \u01c4\u0143 x \u4e16'", "'<a href=\"x\">&amp; \\'q\\'</a>'", "123", "-5", "0",
    "3.7", "-2.5", "1e20", "1e-7", "true", "none", "[1, 2, 3]", "['b', 'A', 'c', 'a', 'B']", "[]", "(1, 2)", "()",
    "{'b': 2, 'a': 1, 'C': 0}", "{}", "range(5)", "absent", "'a b  c\\nd\\te'", "'12.5'", "'0x1F'", "'ab-cd_ef.gh 12'",
    "[{'n': 'x', 'v': 2}, {'n': 'y', 'v': 1}, {'n': 'X', 'v': 3}]", "'<b>x</b>'|safe", "[[1, 'a'], [2, 'b']]",
    "[1, 'a', none, 2.5, true]", "[3, 1, 2]|map('string')", "{'a': {'b': [1, {'c': '\u00e9'}]}}", "dict(x=1).items()",
    "'one two three four five six seven eight nine ten eleven twelve'", "[none, 1]", "['<', '>'|safe]",
)
FILTERS = {
    "abs": ("",), "attr": ("('n')", "('upper')"), "batch": ("(2)", "(2, 'x')", "(0)"), "capitalize": ("",),
    "center": ("", "(20)"), "count": ("",), "d": ("", "('x')", "('x', true)"), "default": ("(1)",),
    "dictsort": ("", "(true)", "(false, 'value')", "(by='value', reverse=true)"), "e": ("",), "escape": ("",),
    "filesizeformat": ("", "(true)"), "first": ("",), "float": ("", "(1.5)"), "forceescape": ("",),
    "format": ("", "(1)", "('a', 2)"), "groupby": ("('n')", "('n', case_sensitive=true)", "('v', default=0)", "(0)"),
    "indent": ("", "(2)", "(2, true)", "('> ', true, true)"), "int": ("", "(7)", "(0, 16)", "(0, 0)"), "items": ("",),
    "join": ("", "(', ')", "('-', attribute='n')", "('<')"), "last": ("",), "length": ("",), "list": ("",),
    "lower": ("",), "map": ("('upper')", "(attribute='n')", "(attribute='z', default='-')", "('default', 1)", "()"),
    "max": ("", "(true)", "(attribute='v')"), "min": ("", "(true)", "(attribute='v')"), "pprint": ("",),
    "random": ("",), "reject": ("", "('odd')", "('in', [1, 2])"), "rejectattr": ("('v')", "('v', 'gt', 1)"),
    "replace": ("('a', 'X')", "('', '-')", "('l', 'L', 1)", "('<', '&')"), "reverse": ("",),
    "round": ("", "(1)", "(0, 'ceil')", "(1, 'floor')", "(-1)"), "safe": ("",), "select": ("", "('string')", "('gt', 1)"),
    "selectattr": ("('v')", "('v', 'eq', 1)", "('n', 'upper')"), "slice": ("(2)", "(2, 'x')", "(4)"),
    "sort": ("", "(true)", "(false, true)", "(attribute='v')", "(attribute='n,v')", "(reverse=true, attribute='n')"),
    "string": ("",), "striptags": ("",), "sum": ("", "(attribute='v')", "(start=10)", "(start=[])"), "title": ("",),
    "tojson": ("", "(indent=2)", "(ensure_ascii=true)", "(separators=(',', ':'))", "(sort_keys=true)", "(indent='\t')"),
    "trim": ("", "('x')", "(none)"), "truncate": ("", "(9)", "(9, true)", "(9, true, '..')", "(9, false, '', 0)"),
    "unique": ("", "(true)", "(attribute='n')"), "upper": ("",), "urlencode": ("",), "urlize": ("",),
    "wordcount": ("",), "wordwrap": ("", "(10)", "(5, false)", "(10, true, '|')"), "xmlattr": ("", "(false)"),
}
TESTS = {
    **{name: ("",) for name in ("boolean", "callable", "defined", "escaped", "even", "false", "filter", "float", "integer",
                                "iterable", "lower", "mapping", "none", "number", "odd", "sequence", "string", "test",
                                "true", "undefined", "upper")},
    **{name: (" 1", " 'a'", " [1]", " none") for name in ("eq", "equalto", "ge", "greaterthan", "gt", "le", "lessthan", "lt",
                                                          "ne", "sameas")},
    "divisibleby": (" 1", " 3"), "in": (" [1, 2, 3]", " 'abc'", " {}"),
}
METHODS = {
    **{name: ("()",) for name in ("capitalize", "casefold", "expandtabs", "isalnum", "isalpha", "isascii", "isdecimal",
                                  "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle",
                                  "isupper", "keys", "lower", "swapcase", "title", "upper", "values", "items", "copy",
                                  "bit_length", "bit_count", "is_integer", "conjugate", "hex", "popitem", "clear",
                                  "reverse", "sort", "as_integer_ratio", "pop")},
    **{name: ("('a')", "('a', 1)", "('a', 1, -1)", "(('a', 'H'))") for name in (
        "find", "rfind", "index", "rindex", "count", "startswith", "endswith")},
    **{name: ("()", "('a')", "(' ', 1)", "(none, 1)") for name in ("split", "rsplit")},
    **{name: ("()", "('a')") for name in ("strip", "lstrip", "rstrip")},
    **{name: ("(12)", "(12, '*')") for name in ("center", "ljust", "rjust", "zfill")},
    **{name: ("('a')", "(' ')") for name in ("partition", "rpartition", "removeprefix", "removesuffix", "append", "get")},
    "splitlines": ("()", "(true)"), "replace": ("('a', 'b')", "('', '-', 2)"), "join": ("(['x', 'y'])", "('ab')"),
    "format": ("(1)", "(a=1)"), "format_map": ("({'a': 1})",), "encode": ("()", "('utf-8')"), "translate": ("({97: 'b'})",),
    "maketrans": ("('a', 'b')",), "fromkeys": ("([1, 2])",), "setdefault": ("('a', 1)",), "update": ("({})",),
    "extend": ("([1])",), "insert": ("(0, 1)",), "remove": ("(1)",), "isdisjoint": ("([1])",), "to_bytes": ("()",),
}
ATTRIBUTES = ("real", "imag", "numerator", "denominator", "mapping", "__class__", "_x", "n", "a")
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or")
FORMATS = ("'{:>8}'", "'{:08.3f}'", "'{:,}'", "'{!r}'", "'{:x}'", "'{:#b}'", "'{0} {0}'", "'{:e}'", "'{:5}|'", "'{:%}'",
           "'{:+d}'", "'{:c}'", "'{[0]}'", "'{.real}'", "'{:n}'", "'{{}}'")
PERCENTS = ("'%s'", "'%r'", "'%d'", "'%5.2f'", "'%x'", "'%05d'", "'%-5s|'", "'%e'", "'%g'", "'%c'", "'%a'", "'%i%%'",
            "'%(a)s'", "'%.2s'", "'%+d'", "'%#o'")
STATEMENTS = (
    "{% for i in [1, [2, [3]]] recursive %}{{ loop.depth }}{{ loop.depth0 }}{% if i is number %}{{ i }}{% else %}<{{ loop(i) }}>"
    "{% endif %}{% endfor %}",
    "{% for n in t recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ loop.index }}/{{ loop.length }};{% else %}-"
    "{% endfor %}",
    "{% for i in [1, 2] recursive %}{{ loop }}{% endfor %}", "{% for i in [1] %}{{ loop([2]) }}{% endfor %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m(1) }}",
    "{% macro m(a) %}{{ varargs|length }}{% for v in varargs %}{{ v }}{% endfor %}{% endmacro %}{{ m(1, 2, 3) }}{{ m(1, x=2) }}",
    "{% macro m(a) %}{% for k, v in kwargs.items() %}{{ k }}={{ v }}{% endfor %}{% endmacro %}{{ m(1, b=2, c=3) }}{{ m(1, 2) }}",
    "{% macro m(a) %}[{{ caller() }}]{{ a }}{% endmacro %}{% call m(1) %}x{{ 1 + 1 }}{% endcall %}",
    "{% macro m(a) %}[{{ caller(a, 2) }}]{% endmacro %}{% call(x, y=3) m(1) %}{{ x }}{{ y }}{% endcall %}",
    "{% macro m() %}{{ caller() if caller else 'none' }}{% endmacro %}{{ m() }}{% call m() %}y{% endcall %}",
    "{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}", "{% call nothing() %}{% endcall %}",
    "{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}",
    "{% macro m(a, b) %}{{ a }}{{ b is defined }}{% endmacro %}{{ m(1) }}{{ m(b=1, a=2) }}{{ m(*[3, 4]) }}{{ m(**{'a': 5}) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
    "{{ dict(*[[['a', 1]]], **{'b': 2}) }}", "{{ range(*[1, 4])|list }}", "{{ 'a'.replace(*['a', 'b']) }}",
    "{{ [1, 2]|join(*['-']) }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}"
    "{{ c.reset() }}{{ c.current }}", "{% set j = joiner() %}{{ j() }}a{{ j() }}b{{ j() }}",
    "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "{% set c = cycler() %}{{ c }}", "{{ lipsum(1)|length > 0 }}",
    "{% set x = 1 %}{% block b %}[{{ x }}{{ self is defined }}]{% endblock %}{{ self.b() }}",
    "{% block a %}{% block c %}x{% endblock %}{% endblock %}", "{% block b scoped %}{% endblock b %}",
    "{% autoescape true %}{{ '<' }}{{ '<'|safe }}{% endautoescape %}", "{% autoescape false %}{{ '<' }}{% endautoescape %}",
    "{% include 'x' %}", "{% include 'x' ignore missing %}", "{% import 'x' as y %}", "{% from 'x' import y %}",
    "{% extends 'x' %}", "{% do 1 %}", "{% if false %}{% include 'x' %}{% endif %}a",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}", "{% set a %}x{{ 1 }}{% endset %}{{ a }}",
    "{% set a | upper | replace('X', 'y') %}x{{ 1 }}{% endset %}{{ a }}", "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}"
    "{% set ns.b %}t{% endset %}{{ ns.a }}{{ ns.b }}", "{% set a.b = 1 %}", "{% set ns = namespace() %}{% set ns['x'] = 1 %}",
    "{% filter upper | replace('A', 'b') %}a{{ 'c' }}{% endfilter %}", "{% filter indent(2, true) %}a\nb{% endfilter %}",
    "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}",
    "{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ x }}{% else %}e{% endfor %}", "{% for x in [] %}{% else %}e{% endfor %}",
    "{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "{% for k in {'x': 1} %}{{ k }}{% endfor %}",
    "{% for x in 'a\u00e9' %}<{{ x }}>{% endfor %}", "{% for x in absent %}{% else %}e{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{{ loop.nextitem }}"
    "{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{% endfor %}",
    "{% for x in [1, 2]|map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}", "{{ loop }}", "{% for loop in [1] %}{% endfor %}",
    "{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}", "{{ 1 if 0 }}|{{ 1 if 0 else 2 }}", "{{ 'a' 'b' }}", "{{ 1, 2 }}", "{{ (1,) }}",
    "{{ [1, 2][0] }}{{ [1, 2][-1] }}{{ {'a': 1}['a'] }}{{ {'a': 1}.a }}{{ 'abc'[1] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][1:] }}",
    "{{ [1, 2, 3][0:3:2] }}{{ (1, 2)[::-1] }}{{ range(9)[2:7:2]|list }}{{ 'abc'[5:] }}{{ 'abc'[-9:2] }}", "{{ {(1, 2): 3}[1, 2] }}",
    "{{ 1.5.real }}", "{{ 1_000 }}{{ 0x1f }}{{ 0b11 }}{{ 0o17 }}{{ 1e3 }}{{ 1.5e-2 }}", "{{ 10 ** 20 }}", "{{ 2 ** -1 }}",
    "{{ 7 // -2 }}{{ 7 % -3 }}{{ -7 // 2 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}", "{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ not 1 == 2 }}",
    "{{ 'x' in 'xyz' and 1 not in [2] }}", "{{ - 1 ** 2 }}{{ 2 ** 3 ** 2 }}{{ -2|abs }}{{ 1 ~ 2 + 3 }}",
    "{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}", "{{ '\\n\\t\\x41\\u00e9\\\\' }}", "{{ \"it's\" }}{{ 'a\"b' }}",
    "{# c #}a{#- c -#} b", "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {{ x }} {%- endraw -%} b", "a\n  {% if 1 %}\n  b\n  {% endif %}\nc",
    "a\n  {%- if 1 -%}\n  b\n  {%+ endif %}\nc\n", "  {%+ if 1 %}x{% endif %}", "{{ 1 -}}  \n {{- 2 }}", "a {{- ' b ' -}} c", "x\n\n",
    "{% generation %}a{{ 1 }}{% endgeneration %}b", "{% generation %}{% for i in [1] %}{% break %}{% endfor %}{% endgeneration %}",
    "{{ raise_exception('no') }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S %j %a %A %b %B %d %p %I %y %Z %% %e %-d') }}",
    "{{ strftime_now('') }}", "{{ namespace(a=1).a }}", "{{ namespace(_a=1) }}", "{{ dict(a=1, b=[2]) }}", "{{ dict([('a', 1)]) }}",
    "{{ range(3) }}", "{{ {'a': 1}.items() }}", "{{ {'a': 1}.keys() }}", "{{ {'a': 1}.values() }}", "{{ [1]|map('string') }}",
    "{{ namespace(a=1) }}", "{{ absent }}|{{ absent.x }}", "{{ absent.x.y }}", "{{ absent() }}", "{{ absent + 1 }}", "{{ absent == absent }}",
    "{{ absent is none }}{{ not absent }}{{ absent|length }}", "{{ [absent, absent]|join(',') }}", "{{ [absent] }}",
    "{{ 'a'|safe ~ '<' }}{{ '<'|e ~ '<' }}{{ ('<'|e) + '<' }}{{ '%s'|safe % '<' }}{{ ('<'|safe).join(['&']) }}",
    "{{ '<%s>'|safe|format('<') }}{{ ('<{}>'|safe).format('<') }}{{ ('a'|safe).replace('a', '<') }}", "{{ ('<b>'|safe).striptags() }}",
    "{{ ('&lt;'|safe).unescape() }}", "{{ 'a'|safe * 2 }}{{ ['<'|safe, '<']|join('&') }}", "{{ 'é'.encode('utf-8') }}",
    "{{ 1.0 }}{{ 1e16 }}{{ 1e15 }}{{ 0.1 + 0.2 }}{{ 1e-5 }}{{ 100000000000000000000.0 }}{{ 5 / 2 }}{{ 4 / 2 }}",
    "{{ [1, 'a', none, true, 1.5, {'k': ('t',)}] }}", "{{ 'it\\'s' ~ [\"it's\", 'a\"b', '\\n', '\u00e9', '\u200b'] }}",
    "{{ messages[0]['role'] }}{{ messages|length }}{{ messages[-1].content }}{{ (messages|first).role }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}", "{{ messages|groupby('role')|length }}",
    "{{ 'a,b'.split(',')[0] }}{{ 'A'.lower() }}{{ ' a '.strip() }}{{ 'a'.startswith('a') }}", "{{ x.__class__ }}", "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}", "{{ [].append }}", "{{ {}.update({'a': 1}) }}", "{{ self }}", "{{ self._x }}", "{{ caller }}", "{{ varargs }}",
    "{{ 1 is divisibleby 1 }}{{ 1 is divisibleby(2) }}{{ 3 is not odd }}{{ 1 is in [1] }}{{ 'a' is in 'abc' }}{{ 1 is sameas 1 }}",
    "{{ 'upper' is filter }}{{ 'odd' is test }}{{ 'x' is filter }}", "{{ {} is mapping }}{{ () is sequence }}{{ range is callable }}",
)
TREE = [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4}]}]}, {"v": 5}]
SHOW = "{% set r = WHAT %}{{ r if r is string or r is number or r is none or r is mapping or r is undefined else r|list }}"


def templates():
    """(name of what it is about, source)."""
    for name, arguments in FILTERS.items():
        for value in VALUES:
            for argument in arguments:
                yield f"filter {name}", SHOW.replace("WHAT", f"({value})|{name}{argument}")
    for name, arguments in TESTS.items():
        for value in VALUES:
            for argument in arguments:
                yield f"test {name}", f"{{{{ ({value}) is {name}{argument} }}}}"
    for name, arguments in METHODS.items():
        for value in VALUES:
            for argument in arguments:
                yield f"method {name}", SHOW.replace("WHAT", f"({value}).{name}{argument}")
    for name in ATTRIBUTES:
        for value in VALUES:
            yield f"attribute {name}", f"{{{{ ({value}).{name} }}}}{{{{ ({value}).{name} is defined }}}}"
    for operator in OPERATORS:
        for a in VALUES:
            for b in VALUES:
                yield f"operator {operator}", SHOW.replace("WHAT", f"({a}) {operator} ({b})")
    for form in FORMATS:
        for value in VALUES:
            yield f"format {form}", f"{{{{ {form}.format({value}) }}}}"
    for form in PERCENTS:
        for value in VALUES:
            yield f"percent {form}", f"{{{{ {form} % ({value}) }}}}"
    for value in VALUES:
        yield "printing", f"{{{{ {value} }}}}{{{{ [{value}] }}}}{{{{ ({value})|string|length }}}}"
    for statement in STATEMENTS:
        yield f"statement {statement:.40}", statement


def known_names():
    """Of jinja2's filters and tests, those that no template here has."""
    environment = reference.chat_template_utils._compile_jinja_template("x").environment
    signs = {"!=", "<", "<=", "==", ">", ">="}
    return (set(environment.filters) - set(FILTERS)) | (set(environment.tests) - set(TESTS) - signs)


def main(program):
    reference.chat_template_utils.datetime = reference.FixedTime
    compiles = reference.chat_template_utils._compile_jinja_template
    ours, kinds = Ours(program), collections.Counter()
    refused = collections.defaultdict(collections.Counter)
    context = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "t": TREE}
    for name, source in templates():
        compiles.cache_clear()
        [(text, error)] = ours.render(source, [context])
        expected = reference.render(source, context)
        if text == expected:
            kinds["same" if text is not None else "refused by both"] += 1
        elif text is None and "support" in error:
            kinds["refused by us, by name"] += 1
            refused[name][error.partition(": ")[2].partition(": ")[2]] += 1
        else:
            kinds["DIFFERENT"] += 1
            print(f"{name}: {source}\n  expected: {expected!r:.300}\n  got:      {text if text is not None else error!r:.300}")
    for name, messages in sorted(refused.items()):
        print(f"{name}: {dict(messages.most_common(3))}")
    if known_names():
        print("no template has", sorted(known_names()))
    print("check_jinja:", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    return 1 if kinds["DIFFERENT"] or known_names() else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
