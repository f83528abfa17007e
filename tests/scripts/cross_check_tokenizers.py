# SPDX-License-Identifier: Apache-2.0
"""World and Unigram against the libraries that they are from, with vocabularies that are not in the
repository: 0 differences, or it fails.

    pip install rwkv==0.8.32 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    python tests/scripts/cross_check_tokenizers.py --regla build/dev/regla [--seed 1] [--texts 60]

World: PyPI's whole rwkv_vocab_v20230424.txt; ids of the 1 MB of tests/data/tokenizer/mixed.txt as one
text and of random parts, and texts of random ids, which are rarely UTF-8, against Python's decoder.
Unigram: vocabularies trained here, with SentencePiece's own map nmt_nfkc, each in the forms that
tokenizer.json files have, on the same texts.
"""

import argparse
import importlib.util
import io
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
from make_tokenizer_kinds import UNIGRAM_FORMS, World, charsmap_of, mixed_chunks, train_unigram
from tokenizers import Tokenizer


class Regla:
    def __init__(self, binary):
        self.binary = binary

    def run(self, model, text, *options):
        command = [self.binary, "tokenize", str(model), *options]
        result = subprocess.run(command, input=text, capture_output=True)
        if result.returncode:
            raise SystemExit(f"{command}: {result.stderr.decode()}")
        return result.stdout

    def encode(self, model, text, special):
        options = () if special else ("--no-add-special-tokens",)
        return [int(i) for i in self.run(model, text.encode(), "--format", "ids", *options).split()]

    def decode(self, model, ids):
        return self.run(model, " ".join(map(str, ids)).encode(), "--decode").removesuffix(b"\n")


def parts_of(chunks, count, rng):
    whole = "".join(chunks)
    yield whole
    for _ in range(count):
        start = rng.randrange(len(whole))
        yield whole[start : start + rng.randrange(1, 20_000)]


def check(what, model, texts, regla, encode, decode):
    total = differ = 0
    for index, text in enumerate(texts):
        special = index % 2 == 1
        expected = encode(text, special)
        got = regla.encode(model, text, special)
        back = decode(expected)
        total += len(text.encode())
        if got != expected or regla.decode(model, expected) != back.encode():
            differ += 1
            at = next(
                (i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected))
            )
            print(
                f"{what}: text {index} differs at token {at}: {got[at : at + 8]}, "
                f"not {expected[at : at + 8]}, in {decode(expected[:at])[-40:]!r}"
            )
    print(f"{what}: {total} bytes, {differ} differ")
    return differ


def check_world(regla, chunks, arguments, rng):
    file = Path(importlib.util.find_spec("rwkv").origin).with_name("rwkv_vocab_v20230424.txt")
    world = World(file)
    differ = check(
        "World",
        file,
        parts_of(chunks, arguments.texts, rng),
        regla,
        lambda text, special: world.encode(text).ids,
        world.decode,
    )
    broken = 0
    for index in range(arguments.texts):
        ids = [rng.randrange(1, 65530) for _ in range(500)]
        if index % 2:
            ids = [rng.choice(world.partial) for _ in range(500)]
        broken += regla.decode(file, ids) != world.decode(ids).encode()
    print(f"World, random ids: {arguments.texts} texts, {broken} differ")
    return differ + broken


def check_unigram(regla, chunks, arguments, rng, folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(chunk.replace("\0", "") for chunk in chunks[::3]),
        model_writer=model,
        model_type="unigram",
        vocab_size=4000,
        byte_fallback=True,
        max_sentence_length=20_000,
        normalization_rule_name="nmt_nfkc",
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    proto = charsmap_of(model.getvalue())
    state = json.loads(train_unigram(chunks, 4000, proto.charsmap).to_str())
    differ = 0
    for vocabulary, model in (("tokenizers", state["model"]), ("SentencePiece", proto.model)):
        for name, form, change in UNIGRAM_FORMS:
            form = {**state, "model": {**model, **change}, **form}
            if vocabulary == "SentencePiece":
                form["added_tokens"], form["post_processor"] = [], None
            file = folder / f"{vocabulary}-{name}.json".replace(" ", "-")
            file.write_text(json.dumps(form))
            library = Tokenizer.from_file(str(file))
            differ += check(
                f"Unigram of {vocabulary}, {name}",
                file,
                parts_of(chunks, arguments.texts // 4, rng),
                regla,
                lambda text, special: library.encode(text, add_special_tokens=special).ids,
                lambda ids: library.decode(ids, skip_special_tokens=False),
            )
    return differ


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--regla", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, default=60)
    arguments = parser.parse_args()
    rng, chunks, regla = random.Random(arguments.seed), mixed_chunks(), Regla(arguments.regla)
    differ = check_world(regla, chunks, arguments, rng)
    with tempfile.TemporaryDirectory() as folder:
        differ += check_unigram(regla, chunks, arguments, rng, Path(folder))
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
