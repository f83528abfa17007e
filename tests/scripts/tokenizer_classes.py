# SPDX-License-Identifier: Apache-2.0
"""Whether transformers reads tokenizer_config.json as lib/text/tokenizer.tsv says.

    pip install tokenizers==0.23.3 transformers==5.24.0
    python tests/scripts/tokenizer_classes.py

For each row that is followed or harmless, AutoTokenizer must give the ids and texts that the
`tokenizers` library gives with the change of the column *as*. Not part of `make test`, which has no
transformers; there the same rows are tried with regla.
"""

import json
import sys
import tempfile
from pathlib import Path

from tokenizer_mutations import SKIP, SPECIAL, TEXTS, library_answers
from tokenizer_table import bases, change, parsed, rows
from transformers import AutoTokenizer


def main():
    base, failed = bases()["plain"], 0
    for key, here, tried, same, *_ in rows("tokenizer_config.json"):
        if here == "refused":
            continue
        same = parsed(same) or {}
        special = same.pop("encode_special_tokens", False)
        lists, encoded, decoded = library_answers(json.dumps(change(base, same)), [5, 6, 7], special)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_text(json.dumps(base))
            (Path(folder) / "tokenizer_config.json").write_text(tried)
            (Path(folder) / "config.json").write_text('{"model_type": "regla"}')
            tokenizer = AutoTokenizer.from_pretrained(folder)
        got = [tokenizer.encode(t, add_special_tokens=s) for t, s in zip(TEXTS, SPECIAL)]
        texts = [tokenizer.decode(ids, skip_special_tokens=s) for ids, s in zip(lists, SKIP)]
        good = got == encoded and texts == decoded
        failed += not good
        print("ok  " if good else "FAIL", key, tried)
        if not good:
            for mine, theirs in [*zip(got, encoded), *zip(texts, decoded)]:
                if mine != theirs:
                    print(f"  transformers {mine!r}\n  as           {theirs!r}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
