# SPDX-License-Identifier: Apache-2.0
"""Random mutations of tokenizer.json files of known styles: regla against Hugging Face's library.

    tests/.venv/bin/python tests/scripts/tokenizer_mutations.py --regla build/dev/regla
        [--count 500] [--seed 1] [--style NAME] [--verbose]

Each mutation must give the same ids and texts in both, or be refused by regla with a message that
names the place. What the library refuses, or cannot encode, regla must refuse, too. Truncation and
padding are off in the library, as transformers has them by default.
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "tokenizer"

TEXTS = [
    "Hello world, it's 12345 times!\r\n\t  x  <s>y</s> <|a|> \u4f60\u597d\u4e16\u754c "
    "abc\u65e5\u672c def. \n\n end  ",
    "  \u2581lead\u2581 Caf\u00e9 cafe\u0301 \u00b2\u00bd\u2163 \U0001f469\u200d\U0001f680 <0x41> "
    "don't WE'LL a_b--c (x), [y]? \u00a0\u3000z",
    "The quick brown fox jumps over the lazy dog 1000000 times; <|endoftext|> <unk><pad> na\u00efve.",
]

SPECIAL, SKIP = (True, False, True), (False, True, True)  # for each text

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = GPT4.replace("{1,3}", "")
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = [
    GPT4,
    QWEN2,
    BLOOM,
    KIMI,
    r"\bthe\b",
    r"\B",
    r"[^\S\n]+",
    r"[\S]+",
    r"\d{1,3}+",
    r"\w+|[^\w\s]+",
    r"[a-z&&[^aeiou]]+",
    r"(?i)the",
    r"x(?i)a|B",
    r"[\W]+",
    r"\p{Han}|\p{Punctuation}",
    r"[[a-c][x-z]]",
    r"(?<word>\w)\s",
    r"a|",
    r"^",
    r"$",
    r"\h+",
    r"[^[:alpha:]]",
    r"\X",
    r"(a)\1",
    r"(?i)ss",
    r"\p{Greek}+",
    r"(?=(\d{3})+(?!\d))",
    r"\p{^L}+",
    r"[\p{P}--[.]]",
    r"(?<=\s)\w",
    "\u4e00",
    r"[\u4e00-\u9fff]+",
    r"[",
    r"\R",
    r"(?m:.)x",
    r"[^\d\W]+",
    r"o{2}?",
    r"\s?[^\s]+?",
    r"(?>ab|a)c",
    r"[^a-z&&b]",
    "[0-9][0-9][0-9]",
]


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def added(i, content, **more):
    return {
        "id": i,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
        **more,
    }


def template(before, after=()):
    def piece(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}

    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    ids = dict([*before, *after])
    return {
        "type": "TemplateProcessing",
        "single": [*(piece(n) for n, _ in before), first, *(piece(n) for n, _ in after)],
        "pair": [first, second],
        "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in ids.items()},
    }


def replace(text, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


FALLBACK = [replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def load(name, **top):
    state = json.loads((DATA / f"{name}.json").read_text())
    state.update(top)
    return state


def styles():
    """name: a tokenizer.json like that of the models of this name, over a small vocabulary."""
    neox = load("neox")
    size = len(neox["model"]["vocab"])
    spaces = [added(size + i, " " * (8 - i), normalized=True) for i in range(4)]
    chat = [
        added(size, "<|a|>", special=True),
        added(size + 1, "<x>", lstrip=True),
        added(size + 2, "<pad>", rstrip=True, special=True),
        added(size + 3, "lazy", single_word=True),
    ]
    end = [added(0, "<|endoftext|>", special=True)]
    plain = {"post_processor": None, "decoder": byte_level()}
    return {
        "gpt2": load("neox", **plain, normalizer=None, pre_tokenizer=byte_level(), added_tokens=end),
        "gpt_neox": load("neox", added_tokens=end + spaces),
        "llama2": load("llama"),
        "llama3": load("llama3"),
        "qwen2": load(
            "llama3",
            normalizer={"type": "NFC"},
            pre_tokenizer=sequence("pretokenizers", split(QWEN2), byte_level(regex=False)),
        ),
        "mistral": load("llama", normalizer=None, pre_tokenizer=metaspace("first", False)),
        "falcon": load(
            "neox",
            **plain,
            normalizer=None,
            added_tokens=end,
            pre_tokenizer=sequence(
                "pretokenizers",
                {"type": "Punctuation", "behavior": "Contiguous"},
                byte_level(),
                {"type": "Digits", "individual_digits": False},
                split("[0-9][0-9][0-9]"),
            ),
        ),
        "bloom": load(
            "neox",
            **plain,
            normalizer=None,
            added_tokens=end,
            pre_tokenizer=sequence("pretokenizers", split(BLOOM), byte_level(regex=False)),
        ),
        "starcoder": load(
            "neox",
            **plain,
            normalizer=None,
            added_tokens=end + chat,
            pre_tokenizer=sequence(
                "pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()
            ),
        ),
        "phi": load(
            "neox",
            **plain,
            normalizer=None,
            pre_tokenizer=byte_level(),
            added_tokens=end
            + chat
            + [added(size + 4, "\t\t", normalized=True), added(size + 5, "\n\n", normalized=True)],
        ),
        "gemma": load(
            "llama",
            normalizer=replace(" ", "\u2581"),
            pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"),
            decoder=sequence("decoders", *FALLBACK),
        ),
        "kimi": load(
            "llama3", pre_tokenizer=sequence("pretokenizers", split(KIMI), byte_level(regex=False))
        ),
        "deepseek": load(
            "llama3",
            pre_tokenizer=sequence(
                "pretokenizers",
                split(r"\p{N}{1,3}"),
                split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                split(r"\s?\p{P}+"),
                {"type": "Digits", "individual_digits": True},
                byte_level(regex=False),
            ),
        ),
        "t5": load("unigram"),
    }


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "isolated"]
TOKENS = [
    "<s>",
    "</s>",
    "the",
    "<|a|>",
    "  ",
    "fox",
    "CAF\u00c9",
    "e\u0301",
    "\u4e16\u754c",
    "\n\n",
    "x",
    " lazy",
    "\u2581the",
    "Hello",
    "",
]


def random_value(rng):
    return rng.choice([None, True, False, 0, 1, -1, 7, 1.5, "", "x", "\u2581", [], {}, ["a"], {"a": 1}])


def random_pretokenizer(rng):
    return rng.choice(
        [
            byte_level(rng.random() < 0.5, rng.random() < 0.5),
            metaspace(rng.choice(["always", "first", "never"])),
            {"type": "Digits", "individual_digits": rng.random() < 0.5},
            {"type": "Whitespace"},
            {"type": "WhitespaceSplit"},
            {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
            {"type": "Punctuation"},
            {"type": "BertPreTokenizer"},
            {"type": "UnicodeScripts"},
            {"type": "CharDelimiterSplit", "delimiter": "-"},
            {"type": "FixedLength", "length": 4},
            split(rng.choice(PATTERNS), rng.choice(BEHAVIORS), rng.random() < 0.3),
            split(rng.choice(["a", " ", "the", "."]), rng.choice(BEHAVIORS), rng.random() < 0.3, "String"),
        ]
    )


def random_normalizer(rng):
    return rng.choice(
        [
            *(
                {"type": name}
                for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")
            ),
            {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5},
            {"type": "Prepend", "prepend": rng.choice(["\u2581", "x", " ", ""])},
            replace(rng.choice([" ", "a", "\u2581", "``"]), rng.choice(["\u2581", "", " ", "'"])),
            replace(rng.choice(PATTERNS), rng.choice(["\u2581", "", "~"]), "Regex"),
            {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
        ]
    )


def random_decoder(rng):
    return rng.choice(
        [
            byte_level(),
            metaspace(rng.choice(["always", "first", "never"])),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {
                "type": "Strip",
                "content": rng.choice([" ", "H"]),
                "start": rng.choice([0, 1, 3]),
                "stop": rng.choice([0, 0, 1]),
            },
            replace(rng.choice(["\u2581", "a", "the"]), rng.choice([" ", "", "b"])),
            replace(rng.choice(PATTERNS), rng.choice([" ", "_"]), "Regex"),
            {"type": "WordPiece", "prefix": "##", "cleanup": True},
            {"type": "BPEDecoder", "suffix": "</w>"},
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        ]
    )


def random_processor(rng):
    pair = {"sep": ["</s>", rng.choice([2, 1])], "cls": ["<s>", rng.choice([1, 3])]}
    return rng.choice(
        [
            byte_level(),
            {"type": "BertProcessing", **pair},
            template([("<s>", 1)]),
            template([("a", 5)], [("b", 6)]),
            {"type": "RobertaProcessing", **pair, "trim_offsets": True, "add_prefix_space": True},
        ]
    )


PARTS = {
    "pre_tokenizer": ("pretokenizers", random_pretokenizer),
    "normalizer": ("normalizers", random_normalizer),
    "decoder": ("decoders", random_decoder),
    "post_processor": ("processors", random_processor),
}


def change_part(rng, state):
    """Replaces a part, or puts a step into it."""
    name = rng.choice(list(PARTS))
    key, make = PARTS[name]
    part = state.get(name)
    steps = part.get(key) if isinstance(part, dict) and part.get("type") == "Sequence" else None
    if not isinstance(steps, list):
        steps = [part] if isinstance(part, dict) else []
    step = make(rng)
    choice = rng.random()
    if choice < 0.3 or not steps:
        state[name] = step
    elif choice < 0.4:
        state[name] = None
    else:
        steps = list(steps)
        if choice < 0.8:
            steps.insert(rng.randint(0, len(steps)), step)
        elif choice < 0.9:
            steps.pop(rng.randrange(len(steps)))
        else:
            rng.shuffle(steps)
        state[name] = {"type": "Sequence", key: steps}


def change_added(rng, state):
    tokens = state.get("added_tokens")
    if not isinstance(tokens, list):
        return
    size = len(state["model"]["vocab"]) if isinstance(state["model"].get("vocab"), dict) else 9
    choice = rng.random()
    flags = {
        key: rng.random() < 0.4 for key in ("single_word", "lstrip", "rstrip", "normalized", "special")
    }
    if choice < 0.5 or not tokens:
        content = rng.choice(TOKENS)
        tokens.insert(
            rng.randint(0, len(tokens)), added(size + rng.choice([0, 1, 2, 5, 9]), content, **flags)
        )
    elif choice < 0.6:
        tokens.append(copy.deepcopy(rng.choice(tokens)) | {rng.choice(list(flags)): rng.random() < 0.5})
    elif choice < 0.7:
        rng.shuffle(tokens)
    elif choice < 0.85:
        rng.choice(tokens)["id"] = rng.choice([0, 1, 5, size, size + 1, size + 7])
    else:
        tokens.pop(rng.randrange(len(tokens)))


def change_model(rng, state):
    model = state["model"]
    vocab = model.get("vocab")
    choice = rng.random()
    if choice < 0.5 or not isinstance(vocab, dict) or not vocab:
        key = rng.choice(
            [
                "byte_fallback",
                "fuse_unk",
                "ignore_merges",
                "unk_token",
                "dropout",
                "continuing_subword_prefix",
                "end_of_word_suffix",
                "type",
            ]
        )
        model[key] = rng.choice([True, False, None, "<unk>", "a", "", 0, 0.0, 0.1, "BPE", "WordPiece"])
    elif choice < 0.7:
        content = rng.choice(list(vocab))
        vocab[content + rng.choice(["", "x"])] = rng.choice([vocab[content], len(vocab), len(vocab) + 3])
    elif choice < 0.85:
        vocab.pop(rng.choice(list(vocab)))
    else:
        merges = model.get("merges")
        if isinstance(merges, list) and merges:
            i = rng.randrange(len(merges))
            merges[i] = rng.choice([merges[-1], merges[0], "#version: 0.2", ["a"], "a b c", merges[i]])


def nodes(value, path=()):
    if isinstance(value, dict):
        for key in value:
            yield (*path, key)
            if key not in ("vocab", "merges"):
                yield from nodes(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield (*path, i)
            yield from nodes(value[i], (*path, i))


def change_node(rng, state):
    """Deletes any value, renames it, or puts another in its place."""
    path = rng.choice(list(nodes(state)))
    parent = state
    for key in path[:-1]:
        parent = parent[key]
    value, choice = parent[path[-1]], rng.random()
    if choice < 0.25:
        del parent[path[-1]]
    elif choice < 0.35 and isinstance(parent, dict):
        parent[path[-1] + "_"] = parent.pop(path[-1])
    elif isinstance(value, bool) and choice < 0.8:
        parent[path[-1]] = not value
    elif path[-1] == "type":
        parent["type"] = rng.choice(
            [
                "Sequence",
                "ByteLevel",
                "Split",
                "Metaspace",
                "Replace",
                "NFC",
                "Fuse",
                "TemplateProcessing",
                "BertProcessing",
                "Nothing",
            ]
        )
    elif path[-1] in ("Regex", "String"):
        parent[path[-1]] = rng.choice(PATTERNS)
    elif path[-1] == "behavior":
        parent[path[-1]] = rng.choice(BEHAVIORS)
    else:
        parent[path[-1]] = random_value(rng)


def mutate(rng, state):
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        change = rng.choice(
            [change_part, change_part, change_added, change_added, change_model, change_node, change_node]
        )
        try:
            change(rng, state)
        except (AttributeError, KeyError, TypeError):
            pass  # an earlier change left nothing there to change
    return state


class Regla:
    def __init__(self, binary, folder):
        self.binary, self.file = binary, Path(folder) / "tokenizer.json"

    def run(self, text, *options):
        done = subprocess.run(
            [self.binary, "tokenize", self.file, *options],
            input=text.encode(),
            timeout=60,
            capture_output=True,
        )
        if done.returncode != 0:
            raise ValueError(done.stderr.decode())
        return done.stdout

    def encode(self, text, special):
        out = self.run(text, "--format", "ids", f"--add-special-tokens={str(special).lower()}")
        return [int(i) for i in out.split()]

    def decode(self, ids, skip):
        out = self.run(" ".join(map(str, ids)), "--decode", f"--skip-special-tokens={str(skip).lower()}")
        return out.decode()

    def answers(self, lists):
        return (
            [self.encode(t, s) for t, s in zip(TEXTS, SPECIAL)],
            [self.decode(ids, s) for ids, s in zip(lists, SKIP)],
        )


def library_answers(text, ids, encode_special_tokens=False):
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = encode_special_tokens
    known = [i for i in ids if tokenizer.id_to_token(i) is not None]
    encoded = [tokenizer.encode(t, add_special_tokens=s).ids for t, s in zip(TEXTS, SPECIAL)]
    lists = [encoded[0], encoded[1], known]
    return lists, encoded, [tokenizer.decode(i, skip_special_tokens=s) for i, s in zip(lists, SKIP)]


def library_says(text, ids):
    """(what it refuses, None) or (None, answers). It may panic twice, which ends the process: a
    child asks it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where it prints its panics
        try:
            said = [None, library_answers(text, ids)]
        except BaseException as error:  # a panic is no Exception
            said = [f"{type(error).__name__}: {error}", None]
        with os.fdopen(writer, "w") as out:
            json.dump(said, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as out:
        said = out.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else ["it ended the process", None]


def compare(regla, state, rng):
    """ "same", or "refused", or what is wrong, and a message."""
    text = json.dumps(state)
    regla.file.write_text(text)
    ids = [rng.randrange(600) for _ in range(60)]
    refusal, answers = library_says(text, ids)
    lists, encoded, decoded = answers or ([], [], [])
    try:
        if refusal is not None:
            for t, special in zip(TEXTS, SPECIAL):
                regla.encode(t, special)
            return "REGLA LOADS WHAT THE LIBRARY REFUSES", refusal
        got, texts = regla.answers(lists)
    except ValueError as error:
        message = str(error)
        named = "tokenizer.json" in message or "tokenizer:" in message
        return (
            "refused" if refusal is None else "refused by both"
        ) if named else "UNNAMED REFUSAL", message
    except subprocess.TimeoutExpired:
        return "HANG", ""
    for what, here, there in (("ids", got, encoded), ("text", texts, decoded)):
        for mine, theirs in zip(here, there):
            if mine != theirs:
                return "DIFFERENT " + what.upper(), f"library {theirs!r}\n  regla   {mine!r}"
    return "same", ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--regla", required=True)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--style")
    parser.add_argument("--verbose", action="store_true", help="print the message of each refusal")
    parser.add_argument("--keep", type=Path, help="a folder for the files that differ")
    options = parser.parse_args()
    bases = styles()
    names = [options.style] if options.style else list(bases)
    counts, per_style = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        regla = Regla(options.regla, folder)
        for i in range(-len(names), options.count):  # each style as it is, then mutations
            name = names[i % len(names)]
            rng = random.Random(f"{options.seed} {i}")
            state = copy.deepcopy(bases[name])
            if i >= 0:
                mutate(rng, state)
            result, message = compare(regla, state, rng)
            counts[result] += 1
            per_style[name, result] += 1
            if result.isupper() or options.verbose or (i < 0 and result != "same"):
                print(f"{name} {i}: {result}: {message.strip()[:1500]}", flush=True)
                if options.keep and result.isupper():
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{name}-{options.seed}-{i}.json").write_text(json.dumps(state))
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    for name in names:
        print(f"  {name}: " + ", ".join(f"{c} {w}" for (n, w), c in sorted(per_style.items()) if n == name))
    return int(any(what.isupper() for what in counts))


if __name__ == "__main__":
    sys.exit(main())
