#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what SmolLM2 answers to the hundred questions with f32, 16bit and 8bit activations.

    python tests/scripts/record_answers.py build/release/regla models/smollm2-135m-instruct/*.gguf \\
        > tests/data/questions/answers.json

The model is from `make model-smollm2`. The processor must have AVX-512 VNNI."""

import json
import subprocess
import sys

REFERENCE, ROUNDED = "auto/f32/f32", ("auto/16bit/f32", "auto/8bit/f32")  # weights as in the file


def compared(regla, model, formats):
    command = [regla, "compare", model, REFERENCE, formats, "questions", "--pp", "0", "--tg", "0", "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def run_of(shown, side):
    return {"right": shown[side]["right"],
            "answers": [each[side]["answer"] for each in shown["questions"]["answers"]]}


def main(regla, model):
    runs = {}
    for formats in ROUNDED:
        shown = compared(regla, model, formats)
        runs |= {REFERENCE: run_of(shown, "a"), formats: run_of(shown, "b")}
    json.dump({"model": shown["model"], "instruction_set": shown["instruction_set"], "runs": runs},
              sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
