# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/jinja/cases.json: templates of our own writing, each on some conversations, with
the text that jinja2 makes of them as transformers sets it up.

    python tests/scripts/make_chat_templates.py

Needs transformers (5.24.0 wrote the file). A text of null: jinja2 refuses, and so must we.
"""

import datetime
import json
import os
import pathlib
import time

os.environ["TZ"] = "UTC"
time.tzset()

from transformers.utils import chat_template_utils  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/jinja"
NOW = 1795000000


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


def render(source, context):
    try:
        return chat_template_utils._compile_jinja_template(source).render(**context)
    except Exception:  # whatever jinja2 or Python raises is a refusal
        return None


def main():
    chat_template_utils.datetime = FixedTime
    conversations = json.loads((OUT / "conversations.json").read_text(encoding="utf-8"))
    cases = []
    for path in sorted((OUT / "templates").glob("*.jinja")):
        for i, source in enumerate(path.read_bytes().decode("utf-8").split("\n#### ")):
            if i == 0:
                continue  # what the file is about
            name, _, source = source.partition("\n")
            texts = [render(source, context) for context in conversations]
            if all(text is None for text in texts) != name.startswith("refused"):
                raise SystemExit(f"{path.name}: {name}: unexpected: {texts}")
            cases.append({"name": f"{path.stem}: {name}", "source": source, "texts": texts})
    text = json.dumps({"now": NOW, "cases": cases}, ensure_ascii=False, indent=0)
    (OUT / "cases.json").write_text(text + "\n", encoding="utf-8")
    print(len(cases), "templates,", len(conversations), "conversations")


if __name__ == "__main__":
    main()
