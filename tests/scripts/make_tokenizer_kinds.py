# SPDX-License-Identifier: Apache-2.0
"""Makes the small World and Unigram tokenizers of tests/data/tokenizer/, and what the libraries make
of its mixed.txt.

    pip install rwkv==0.8.32 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    python tests/scripts/make_tokenizer_kinds.py

  world.txt         a vocabulary in the form of rwkv_vocab_v20230424.txt, made of mixed.txt alone
  world.expected    as make_tokenizer_data.py's, by the class of PyPI's rwkv
  unigram.json      trained on mixed.txt, with a small map of SentencePiece's as its normalizer
  unigram.expected  by Hugging Face's library
  variants.json     gets the forms that such tokenizers have
"""

import base64
import importlib.util
import io
import json
from collections import Counter, namedtuple
from types import SimpleNamespace

import sentencepiece
from make_tokenizer_data import (
    FUSED,
    ODD_TOKENS,
    OUT,
    STRIP,
    expectation_or_none,
    expectations,
    metaspace,
    normalizer,
    write_json,
)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers


def mixed_chunks():
    text, at, chunks = (OUT / "mixed.txt").read_bytes(), 0, []
    for size in map(int, (OUT / "chunks.txt").read_text().split()):
        chunks.append(text[at : at + size].decode())
        at += size
    return chunks


class World:
    """The library's tokenizer, in the form that expectations() wants. The library gives one U+FFFD for
    a text that is not UTF-8 in any place; here it is Python's, as for all tokenizers of regla."""

    def __init__(self, file):
        spec = importlib.util.find_spec("rwkv")
        path = spec.submodule_search_locations[0] + "/rwkv_tokenizer.py"
        spec = importlib.util.spec_from_file_location("rwkv_tokenizer", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.library = module.TRIE_TOKENIZER(str(file))
        self.partial = [
            i for i, token in self.library.idx2token.items() if "\ufffd" in token.decode(errors="replace")
        ]

    def encode(self, text, add_special_tokens=False):
        return SimpleNamespace(ids=self.library.encode(text))

    def decode(self, ids, skip_special_tokens=False):
        return self.library.decodeBytes(ids).decode(errors="replace")


def world_tokens(chunks, count):
    """All bytes, the most frequent strings of 2 to 12 bytes and long runs: many cut characters."""
    frequent = Counter()
    for chunk in chunks[::4]:
        data = chunk.encode()
        for length in (2, 3, 4, 6, 8, 12):
            frequent.update(data[i : i + length] for i in range(0, len(data) - length + 1, 3))
    runs = [character * n for character in (b" ", b"-", b"=", b"\n", b"\t") for n in (16, 32, 64, 128)]
    tokens = {bytes([i]) for i in range(256)} | set(runs)
    for token, _ in frequent.most_common():
        if len(tokens) == count:
            break
        tokens.add(token)
    return sorted(tokens, key=lambda token: (len(token), token))


def world_lines(tokens):
    """As Python writes them: text where the bytes are UTF-8."""
    for i, token in enumerate(tokens, 1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        yield f"{i} {literal} {len(token)}\r\n"


Proto = namedtuple("Proto", "charsmap model")


def charsmap_of(serialized):
    """The map of a SentencePiece model, in Base64, and its vocabulary as tokenizer.json has one."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(serialized)
    model = {
        "type": "Unigram",
        "unk_id": proto.trainer_spec.unk_id,
        "byte_fallback": False,
        "vocab": [[piece.piece, piece.score] for piece in proto.pieces],
    }
    return Proto(base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode(), model)


def small_charsmap(folder):
    """Rules of every kind: clusters, one to several, several to one, to nothing, of what begins another."""
    rules = {
        "ﬁ": "fi",
        "ﬂ": "fl",
        "①": "1",
        "㈱": "(株)",
        "½": "1⁄2",
        "Å": "Å",
        "™": "TM",
        "\u00ad": "",
        "\u200b": "",
        "\ufeff": "",
        "\u3000": " ",
        "\u00a0": " ",
        "\t": " ",
        "\r\n": "\n",
        "\u2028": "\n",
        "e\u0301": "é",
        "a\u0308": "ä",
        "o\u0302\u0301": "ố",
        "c\u0327": "ç",
        "ｶ": "カ",
        "ｶﾞ": "ガ",
        "각": "각",
        "…": "...",
        "İ": "i\u0307",
        "م\u064f": "م",
        "ว\u0e31": "วั",
        "न\u093c": "न",
        "😀": ":)",
        "\x07": "",
        "Ω": "Ω",
        "ſ": "s",
        "𝔘": "U",
        "\u0301": "´",
    }
    table = folder / "rules.tsv"
    table.write_text(
        "".join(
            " ".join(f"{ord(c):X}" for c in old) + "\t" + " ".join(f"{ord(c):X}" for c in new) + "\n"
            for old, new in sorted(rules.items())
            if old != new
        )
    )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 50),
        model_writer=model,
        vocab_size=12,
        hard_vocab_limit=False,
        normalization_rule_tsv=str(table),
        minloglevel=2,
    )
    return charsmap_of(model.getvalue()).charsmap


def train_unigram(chunks, size, charsmap):
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(base64.b64decode(charsmap))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        chunks[::3],
        trainers.UnigramTrainer(
            vocab_size=size,
            unk_token="<unk>",
            special_tokens=["<pad>", "</s>", "<unk>", *fallback],
            show_progress=False,
        ),
    )
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in fallback]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.add_tokens(ODD_TOKENS)
    return tokenizer


BYTES = {"byte_fallback": True}
SQUEEZE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}

# name, changes at the top, changes in "model"
UNIGRAM_FORMS = [
    ("unigram", {}, {}),
    ("unigram with bytes", {"decoder": FUSED}, BYTES),
    ("unigram whole", {"pre_tokenizer": metaspace("always", False)}, {}),
    ("unigram whole with bytes", {"pre_tokenizer": metaspace("always", False), "decoder": FUSED}, BYTES),
    ("unigram first", {"normalizer": None, "pre_tokenizer": metaspace("first")}, {}),
    ("unigram never", {"pre_tokenizer": metaspace("never"), "decoder": metaspace("never")}, {}),
    ("unigram nothing before", {"normalizer": None, "pre_tokenizer": None}, {}),
    (
        "unigram nfkc",
        {"normalizer": normalizer("NFKC", SQUEEZE), "pre_tokenizer": metaspace("always")},
        BYTES,
    ),
    (
        "unigram byte-level",
        {
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            }
        },
        {},
    ),
]


def strip_after(charsmap):
    """As converted T5s and XLM-Rs have it."""
    return normalizer({"type": "Precompiled", "precompiled_charsmap": charsmap}, STRIP, SQUEEZE)


def main():
    from tempfile import TemporaryDirectory
    from pathlib import Path

    chunks = mixed_chunks()
    (OUT / "world.txt").write_text("".join(world_lines(world_tokens(chunks, 1500))), newline="")
    (OUT / "world.expected").write_text(expectations(World(OUT / "world.txt"), chunks))
    with TemporaryDirectory() as folder:
        charsmap = small_charsmap(Path(folder))
    base = train_unigram(chunks, 2000, charsmap)
    write_json(OUT / "unigram.json", json.loads(base.to_str()))
    (OUT / "unigram.expected").write_text(expectations(base, chunks))
    variants = [v for v in json.loads((OUT / "variants.json").read_text()) if v["base"] != "unigram"]
    forms = [*UNIGRAM_FORMS[1:], ("unigram stripped", {"normalizer": strip_after(charsmap)}, {})]
    for name, top, model in forms:
        state = json.loads(base.to_str())
        state.update(top)
        state["model"].update(model)
        tokenizer = Tokenizer.from_str(json.dumps(state))
        expected = [expectation_or_none(tokenizer, i, chunks[i]) for i in range(0, len(chunks), 17)]
        variants.append({"name": name, "base": "unigram", "set": top, "model": model, "expected": expected})
    write_json(OUT / "variants.json", variants)


if __name__ == "__main__":
    main()
