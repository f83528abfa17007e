# SPDX-License-Identifier: Apache-2.0
"""A model that answers by a script, so that clients get calls and thoughts without being given wit: the
first line whose words are in the chat's last message is what it says. It is a recital (recital.py) whose
chat template writes, in the place of a chat, as many tokens as lead to the line."""

import json

from recital import TEMPLATES, Recital

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PADDING = "abcdefghijklmnopqrstuvwxyz"  # by line, so that no two share a prefix
TEMPLATE = """\
{%%- set said = (messages | last).content | string -%%}
{%%- if add_generation_prompt and not 'qzquestion' in said -%%}
%s
{%%- else -%%}
%s
{%%- endif -%%}
"""


def call(name, **arguments):
    """As hermes.jinja writes it."""
    return f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n</tool_call>'


class Line:
    """Where the last message has `words` ("": always), the model thinks, unless it is told not to
    think, and says `text`. The prompt has at least `length` tokens."""

    def __init__(self, words, text, thought=None, length=40):
        self.words, self.text, self.thought, self.length = words, text, thought, length


def choose(recital, lines):
    """The part of the template that leads to them. The last is for all other messages."""
    branches, at = [], 0
    for number, line in enumerate(lines):
        begins = []
        texts = [line.text]
        if line.thought:
            texts.append(f"<think>\n{line.thought}\n</think>\n\n{line.text}")
        for said in texts:
            at = max(at, line.length)
            recital.tokens += [0] * (at - len(recital.tokens))
            begins.append(recital.add(said) + 1)
            at = len(recital.tokens)
        short, long = (PADDING[number] * length for length in (begins[0], begins[-1]))
        branches.append((line.words, "{%- if enable_thinking is defined and not enable_thinking -%}"
                         f"{short}{{%- else -%}}{long}{{%- endif -%}}"))
    last = branches.pop()[1]
    return "".join(f"{{%- {'el' * (i > 0)}if {json.dumps(words)} in said -%}}{branch}"
                   for i, (words, branch) in enumerate(branches)) + f"{{%- else -%}}{last}{{%- endif -%}}"


OSLO = call("weather", city="Oslo")
LINES = [  # what the tests of clients have it say
    Line("[think]", "It rains in Oslo. 世", "Oslo is in Norway."),
    Line("[call]", f"I look.\n{OSLO}", "I need the weather."),
    Line("[calls]", "\n".join([OSLO, call("weather", city="Rome"), call("weather", city="Bonn")]), "Three."),
    Line("[demanded]", OSLO, "It is demanded."),
    Line("[handoff]", call("transfer_to_clerk"), "The clerk knows."),
    Line("[typed]", call("Weather", city="Oslo", rain=True), "As a call."),
    Line("[json]", '{"city": "Oslo", "rain": true}', "As JSON."),
    Line("[long]", "word " * 100),
    Line("", "It rains."),
]


def write(folder, lines):
    """The model's folder, with its template."""
    recital = Recital(dict.fromkeys(MARKERS, False))
    chosen = choose(recital, lines)
    recital.write(folder, "hermes", 0)
    hermes = (TEMPLATES / "hermes.jinja").read_text()
    (folder / "chat_template.jinja").write_text(TEMPLATE % (chosen, hermes))
    return folder
