# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level BPE tokenizer (no normalizer: decode(encode(x)) is x for every x) and turns
texts into token files.

A token file is uint16, every document followed by <|endoftext|> (id 0).
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from train.config import read_config
from train.documents import read_documents, training_files
from train.files import read_object, told

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
LARGEST = 2**16  # ids are uint16 in a token file


def read_tokenizer(path):
    """The tokenizer of a tokenizer.json."""
    text = json.dumps(read_object(path))
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # of tokenizers, which has no narrower kind
        raise ValueError(f"{path}: expected a tokenizer.json, got: {error}") from None


def size_of(tokenizer):
    """How many ids a model needs for it: one more than the largest."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def compare_sizes(size, tokenizer_file, vocab_size, config_file):
    """Refuses a tokenizer of more tokens than the model has; of fewer, returns a sentence that says so,
    else None."""
    both = f"{tokenizer_file} has {size} tokens, {config_file} a vocab_size of {vocab_size}"
    if size > vocab_size:
        raise ValueError(f"{both}: expected no more tokens than that")
    if size < vocab_size:
        return f"{both}: {vocab_size - size} of the embeddings are for no token"
    return None


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


def end_of_text(tokenizer, path):
    """Refuses a tokenizer whose documents would end with a token that is another thing."""
    got = tokenizer.id_to_token(END_OF_TEXT_ID)
    if got != END_OF_TEXT:
        raise ValueError(f"{path}: expected {END_OF_TEXT} with the id {END_OF_TEXT_ID}, got {got!r}")


def tokenizer_of(args, files):
    """The tokenizer that is given, if it goes with the config, or a new one."""
    vocab_size = args.vocab_size
    if args.config:
        wanted = read_config(args.config)[0].vocab_size
        vocab_size = vocab_size or min(wanted, LARGEST)
    if args.tokenizer:
        tokenizer, name = read_tokenizer(args.tokenizer), args.tokenizer
        end_of_text(tokenizer, name)
        if size_of(tokenizer) > LARGEST:
            raise ValueError(f"{name}: expected at most {LARGEST} tokens, got {size_of(tokenizer)}")
    else:
        tokenizer, name = train_tokenizer(read_documents(files), vocab_size or 4096), "the tokenizer"
    if args.config and (said := compare_sizes(size_of(tokenizer), name, wanted, args.config)):
        print(f"# {said}", flush=True)
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", help="files or folders to learn from")
    parser.add_argument("--without", nargs="*", default=[], help="files held out")
    parser.add_argument("--tokenizer", help="tokenizer.json to take, in the place of learning one")
    parser.add_argument("--config", help="of the model to train, whose vocab_size it shall have")
    parser.add_argument("--vocab-size", type=int, help="by default the config's, or 4096")
    parser.add_argument("--jobs", type=int, default=1, help="files to turn into tokens at a time")
    parser.add_argument("--out", required=True, help="folder for tokenizer.json and train.u16")
    args = parser.parse_args()
    if args.vocab_size is not None and not 257 <= args.vocab_size <= LARGEST:
        parser.error("--vocab-size must be in 257..65536: all bytes and the end of text, in uint16")
    with told("train.tokenizer"):
        make(args)


def make(args):
    files = training_files(args.texts, args.without)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of(args, files)
    tokenizer.save(str(out / "tokenizer.json"))
    ids, size = encode_files(tokenizer, files, args.jobs)
    if not len(ids):
        raise ValueError(f"{' '.join(args.texts)}: expected a text, found empty files only")
    # The file is there when it is whole: an interrupted run starts this again.
    ids.tofile(out / "train.u16.part")
    (out / "train.u16.part").replace(out / "train.u16")
    print(f"{len(ids)} tokens, {size} bytes, {size / len(ids):.3f} bytes a token")


if __name__ == "__main__":
    main()
