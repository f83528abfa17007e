#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long others wait beside chats with hostile templates: for each template and size of body four
chats at once, and meanwhile small completions and tokenizations, one after the other. Prints a table
in Markdown: the longest wait for a completion without chats, the longest of each beside them, what became
of the chats, and the longest time of one."""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from measure import Failure, find_binary, machine, serving, shipped_model

CHATS = 4
ALONE_SECONDS = 1  # of the same with no chats, which tells what else the machine does
MOST_SECONDS = 0.2  # of a small completion's wait; one with nothing beside it takes some milliseconds
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = WORK %}{% endfor %}{% endfor %}"
SETS = ("{% set c = messages[0].content %}{% set h = c[:c|length//2] %}{% set e = h ~ 'b' %}"
        "{% set s = 'b' ~ h %}{% set d = c ~ 'b' %}")
# What a loop without end does: name, work on c (the content), h (half of it), e (that and a b), s (a b
# and that), d (all and a b), and what the content repeats.
WORKS = (
    ("nothing", "1", "a"), ("find", "c.find(e)", "a"), ("rfind", "c.rfind(s)", "a"),
    ("index", "d.index('b')", "a"), ("count", "c.count('aa')", "a"),
    ("replace", "c.replace('a', 'bb')", "a"), ("split", "c.split('a')", "a"),
    ("split at spaces", "c.split()", "a "), ("rsplit", "c.rsplit(s)", "a"),
    ("splitlines", "c.splitlines()", "a\n"), ("one long line", "c.splitlines()", "a"),
    ("in", "e in c", "a"), ("==", "(c ~ '') == (c[1:] ~ 'b')", "a"), ("<", "c < d", "a"),
    ("sort", "[d, c, e, h, s]|sort", "a"), ("join", "[c, c]|join(c)", "a"),
    ("startswith", "c.startswith((e, s, e, s, e, s))", "a"), ("strip", "'x'.strip(c)", "a"),
    ("upper", "c.upper()", "\u00e9"), ("title", "c|title", "\u00e9 "), ("slice", "c[1:-1]", "\u00e9"),
    ("backwards", "c[::-1]", "\u00e9"), ("islower", "c.islower()", "a"), ("~", "c ~ c", "a"),
    ("*", "c * 9", "a"), ("tojson", "c|tojson", "\u00e9\n"), ("a dict's key", "{c: 1}[c ~ '']", "a"),
    ("list", "c|list", "a"), ("unique", "[c, d, e, h]|unique|list", "a"), ("indent", "c|indent", "a\n"),
    ("int", "c|int", "7"), ("format", "'%s %s'|format(c, c)", "a"),
)
# Templates that are more than such a loop.
WHOLE = (
    ("a long text", "{% for i in range(40) %}{{ messages[0].content }}{% endfor %}", "word "),
    ("deep macros", "{% macro m(n) %}{{ m(n ~ messages[0].content) }}{% endmacro %}{{ m('') }}", "a"),
    ("as written", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "word "),
)
TEMPLATES = [(name, SETS + LOOP.replace("WORK", work), text) for name, work, text in WORKS] + list(WHOLE)


class Chats:
    """Four at once, and what became of them."""

    def __init__(self, server, text, size):
        content = text * (size // (len(json.dumps(text, ensure_ascii=False).encode()) - 2))
        messages = [{"role": "user", "content": content}]
        self.server = server
        self.body = json.dumps({"messages": messages, "max_tokens": 1}, ensure_ascii=False).encode()
        self.statuses, self.longest = [], 0
        self.threads = [threading.Thread(target=self._chat) for _ in range(CHATS)]
        for thread in self.threads:
            thread.start()

    def _chat(self):
        began = time.monotonic()
        self.statuses.append(self.server.post("/v1/chat/completions", data=self.body, timeout=600,
                                              headers={"Content-Type": "application/json"}).status_code)
        self.longest = max(self.longest, time.monotonic() - began)

    def going_on(self):
        return any(thread.is_alive() for thread in self.threads)


SMALL = (("/v1/completions", {"prompt": "It", "max_tokens": 1}), ("/tokenize", {"prompt": "It is."}))


def waits(server, going_on):
    """The longest waits for a completion and for a tokenization while that says so."""
    longest = [0.0 for _ in SMALL]
    while going_on():
        for i, (path, body) in enumerate(SMALL):
            began = time.monotonic()
            reply = server.post(path, body)
            longest[i] = max(longest[i], time.monotonic() - began)
            if reply.status_code != 200:
                raise Failure(f"{path}: {reply.status_code} {reply.text[:200]}")
        time.sleep(0.01)
    return longest


def measure(binary, model, template, sizes):
    """A row's cells, and the longest wait for a completion."""
    _name, source, text = template
    cells, worst = [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.jinja"
        path.write_text(source)
        with serving(binary, model=model, chat_template=path, threads=1, max_model_len=2048,
                     max_body_memory="4G") as server:
            alone = time.monotonic() + ALONE_SECONDS
            cells.append(f"{waits(server, lambda: time.monotonic() < alone)[0] * 1e3:.0f}")
            for size in sizes:
                chats = Chats(server, text, size)
                longest = waits(server, chats.going_on)
                worst = max(worst, longest[0])
                cells += [f"{longest[0] * 1e3:.0f}", f"{longest[1] * 1e3:.0f}",
                          f"{'/'.join(map(str, sorted(set(chats.statuses))))}, {chats.longest:.1f} s"]
    return cells, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary")
    parser.add_argument("--model", default=None, help="one with a tokenizer; the shipped one by default")
    parser.add_argument("--sizes", default="100000,8000000", help="bytes of the messages")
    parser.add_argument("--only", help="the name of one template")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    try:
        binary, model = find_binary(options.binary), options.model or shipped_model()
        print(json.dumps(machine(binary)))
        print("| template | alone, ms |"
              + "".join(f" {size}: completion, ms | tokenization | chats |" for size in sizes))
        print("|---|---|" + "---|" * 3 * len(sizes))
        worst = 0
        for template in TEMPLATES:
            if options.only in (None, template[0]):
                cells, wait = measure(binary, model, template, sizes)
                worst = max(worst, wait)
                print(f"| {template[0]} | {' | '.join(cells)} |", flush=True)
    except Failure as failure:
        sys.exit(f"templates: {failure}")
    sys.exit(0 if worst < MOST_SECONDS else f"templates: a completion waited for {worst:.2f} s")


if __name__ == "__main__":
    main()
