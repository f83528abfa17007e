# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level BPE tokenizer (no normalizer: decode(encode(x)) is x for every x) and turns
texts into token files.

A token file is uint16, every document followed by <|endoftext|> (id 0).
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from train.documents import read_documents, text_files

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0


def train_tokenizer(documents, vocab_size):
    """A tokenizer with all 256 bytes, <|endoftext|> as id 0, and as many merges as fit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_documents(tokenizer, documents):
    """The documents' ids, each document closed by <|endoftext|>, and their number of bytes."""
    parts, size = [np.zeros(0, np.uint16)], 0
    for text in documents:
        parts.append(np.array(tokenizer.encode(text).ids + [END_OF_TEXT_ID], dtype=np.uint16))
        size += len(text.encode())
    return np.concatenate(parts), size


def encode_file(tokenizer, file):
    """encode_documents of a text file; the tokenizer as its JSON, which a process can be given."""
    return encode_documents(Tokenizer.from_str(tokenizer), read_documents([file]))


def encode_files(tokenizer, files, jobs):
    """encode_documents of text files, so many at a time."""
    encode = partial(encode_file, tokenizer.to_str())
    if jobs == 1 or len(files) == 1:
        parts = list(map(encode, files))
    else:
        with ProcessPoolExecutor(jobs) as processes:
            parts = list(processes.map(encode, files))
    return np.concatenate([ids for ids, _ in parts]), sum(size for _, size in parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", help="files or folders to learn from")
    parser.add_argument("--without", nargs="*", default=[], help="files held out")
    parser.add_argument("--tokenizer", help="tokenizer.json to take, in the place of learning one")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--jobs", type=int, default=1, help="files to turn into tokens at a time")
    parser.add_argument("--out", required=True, help="folder for tokenizer.json and train.u16")
    args = parser.parse_args()
    if not 257 <= args.vocab_size <= 65536:
        parser.error("--vocab-size must be in 257..65536: all bytes and the end of text, in uint16")

    held_out = {Path(p).resolve() for p in args.without}
    files = [f for p in args.texts for f in text_files(p) if f.resolve() not in held_out]
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.tokenizer:
        tokenizer = Tokenizer.from_file(args.tokenizer)
    else:
        tokenizer = train_tokenizer(read_documents(files), args.vocab_size)
    tokenizer.save(str(out / "tokenizer.json"))
    ids, size = encode_files(tokenizer, files, args.jobs)
    if not len(ids):
        parser.error("expected a text, found none")
    # The file is there when it is whole: an interrupted run starts this again.
    ids.tofile(out / "train.u16.part")
    (out / "train.u16.part").replace(out / "train.u16")
    print(f"{len(ids)} tokens, {size} bytes, {size / len(ids):.3f} bytes a token")


if __name__ == "__main__":
    main()
