# SPDX-License-Identifier: Apache-2.0
"""The texts of the tables: a tokenizer learned from the training text, its tokens, and documents of
equal length to score on."""

import hashlib
import json
from pathlib import Path

from train.documents import read_documents, text_files, training_files
from train.files import read_object
from train.tokenizer import encode_documents, read_tokenizer, train_tokenizer

LONGEST = 32  # windows of a scored document, as in KERPLE's table 3
CHARACTERS = 4  # of the training text for each token of the longest run: enough to see none twice


def sample(files, characters):
    """The heads of all documents, in proportion: about so many characters together."""
    documents = list(read_documents(files))
    share = min(characters / max(sum(map(len, documents)), 1), 1.0)
    return [text[: max(round(share * len(text)), 1)] for text in documents]


def pieces(tokenizer, documents, tokens, count):
    """`count` texts of `tokens` tokens each, spread over the documents."""
    found = []
    for text in documents:
        offsets = tokenizer.encode(text).offsets
        for first in range(0, len(offsets) - tokens, tokens):
            piece = text[offsets[first][0] : offsets[first + tokens][0]]
            while len(ids := tokenizer.encode(piece).offsets) > tokens:
                piece = piece[: ids[-1][0]]  # cut elsewhere, a text may have a token more
            found.append(piece)
    if not found:
        raise ValueError(f"the text to score on: expected a document of {tokens} tokens, got none")
    return [found[i * len(found) // count] for i in range(count)] if count < len(found) else found


def held_out(data, valid):
    """The held-out file: VALID, or the data folder's valid.jsonl.xz."""
    if valid:
        return Path(valid)
    default = Path(data) / "valid.jsonl.xz"
    if not default.exists():
        raise ValueError("VALID: expected a held-out text, got none")
    return default


def prepare(work, size, tokens, documents, data, valid, test):
    """Writes tokenizer.json, train.u16, valid.jsonl and, with a test text, test.jsonl into the
    folder, once; returns the fingerprint of all of them."""
    work.mkdir(parents=True, exist_ok=True)
    wanted = {"size": vars(size), "tokens": tokens, "documents": documents, "data": str(data),
              "valid": str(valid), "test": str(test)}
    done = work / "prepared.json"
    if done.exists() and (old := read_object(done)).get("wanted") == wanted:
        return old["fingerprint"]
    valid = held_out(data, valid)
    text = sample(training_files([data], [valid]), CHARACTERS * tokens)
    tokenizer = train_tokenizer(text, size.vocabulary)
    tokenizer.save(str(work / "tokenizer.json"))
    tokenizer = read_tokenizer(work / "tokenizer.json")
    ids, _ = encode_documents(tokenizer, text)
    ids.tofile(work / "train.u16")
    names = ["tokenizer.json", "train.u16"]
    for name, path in (("valid", valid), ("test", test)):
        if path:
            found = pieces(tokenizer, read_documents(text_files(path)), LONGEST * size.window,
                           documents)
            lines = "".join(json.dumps({"text": piece}) + "\n" for piece in found)
            (work / f"{name}.jsonl").write_text(lines)
            names.append(f"{name}.jsonl")
    digest = hashlib.sha256(b"".join((work / name).read_bytes() for name in names)).hexdigest()[:16]
    done.write_text(json.dumps({"wanted": wanted, "fingerprint": digest, "tokens": len(ids)}))
    return digest
