#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares regla on SmolLM2-135M-Instruct with expected.json: transformers' log-probabilities of 1,000
tokens, perplexity and greedy answer. The folder and the GGUF file must give the same bits in f32.

    tests/.venv/bin/python tests/smollm2/check_smollm2.py models/smollm2-135m-instruct WIKITEXT
"""

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
from harness import Server

TOLERANCE = 5e-4
PERPLEXITY_TOLERANCE = 5e-4  # a part of it


def beginning(text, expected):
    """The text that expected.json names."""
    part = text[: expected["bytes"]]
    if hashlib.sha256(part).hexdigest() != expected["sha256"]:
        raise SystemExit("the text is not WikiText-2's test.txt, as expected.json has it")
    return part.decode()


def score(server, text):
    """Log-probabilities of the text's tokens but the first."""
    reply = server.complete(prompt=text, max_tokens=0, echo=True, logprobs=1)
    return reply["choices"][0]["logprobs"]["token_logprobs"][1:]


def answers(model, texts, greedy):
    """The scores of each text, and what is generated."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "log", model, weights="f32")
        try:
            scores = [score(server, text) for text in texts]
            written = server.complete(prompt=greedy["prompt"], max_tokens=len(greedy["ids"]), temperature=0)
            return scores, written["choices"][0]["text"]
        finally:
            server.stop()


def main(folder, text_path):
    expected = json.loads((Path(__file__).parent / "expected.json").read_text())
    whole = Path(text_path).read_bytes()
    texts = [beginning(whole, expected[name]) for name in ("text", "long_text")]
    greedy = expected["greedy"]
    failed = 0

    def check(holds, what):
        nonlocal failed
        failed += not holds
        print(f"{'PASS' if holds else 'FAIL'}  {what}")

    (got, long), answer = answers(folder, texts, greedy)
    want = expected["text"]["logprobs"]
    check(len(got) == len(want), f"{len(got)} log-probabilities of {len(want)}")
    worst = max(abs(a - b) for a, b in zip(got, want))
    check(worst <= TOLERANCE, f"largest difference {worst:.1e}, at most {TOLERANCE:g}")
    check(answer == greedy["text"], f"greedy: {answer!r}")
    perplexity, want = math.exp(-sum(long) / len(long)), expected["long_text"]["perplexity_f32"]
    check(math.isclose(perplexity, want, rel_tol=PERPLEXITY_TOLERANCE),
          f"perplexity {perplexity:.4f} of {len(long)} tokens, expected {want:.4f}")
    gguf, = Path(folder).glob("*.gguf")
    check(answers(gguf, texts, greedy) == ([got, long], answer), "the GGUF file in f32: the same bits")
    print(f"smollm2: {5 - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
