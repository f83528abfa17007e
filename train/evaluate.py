# SPDX-License-Identifier: Apache-2.0
"""Loss of a checkpoint on texts: nats a token, bits a byte, perplexity a word, and the loss by
position.

Every document begins with the bos token, which is not scored. A document longer than --length is
scored in windows of that many tokens, each starting anew.
"""

import argparse
import json
import math
import sys

import torch
import torch.nn.functional as F

from train.checkpoint import load_model
from train.documents import read_documents, text_files
from train.files import told
from train.tokenizer import compare_sizes, read_tokenizer, size_of

BUCKETS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
# Logits computed at a time.
ROWS = 2048


@torch.no_grad()
def token_losses(model, bos, ids):
    """-log p of every one of the ids after bos and those before it, in nats, [T]."""
    inputs = torch.tensor([[bos] + ids[:-1]])
    hidden, targets = model.hidden(inputs)[0], torch.tensor(ids)
    return torch.cat(
        [
            F.cross_entropy(
                model.logits(hidden[i : i + ROWS]).float(), targets[i : i + ROWS], reduction="none"
            )
            for i in range(0, len(ids), ROWS)
        ]
    )


def windows_of(ids, length):
    return [ids] if length is None else [ids[i : i + length] for i in range(0, len(ids), length)]


def evaluate(model, tokenizer, documents, length=None, limit=None):
    """Counts, nll and losses by position; at most `limit` windows, spread evenly."""
    windows, words, size = [], 0, 0
    for text in documents:
        windows += windows_of(tokenizer.encode(text, add_special_tokens=False).ids, length)
        words += len(text.split())
        size += len(text.encode())
    tokens = sum(len(w) for w in windows)
    if not tokens:
        raise ValueError("the texts: expected some text, found empty files only")
    if limit is not None and limit < len(windows):
        windows = [windows[i * len(windows) // limit] for i in range(limit)]
    sums, counts, scored = [0.0] * len(BUCKETS), [0] * len(BUCKETS), 0
    for number, ids in enumerate(windows):
        losses = token_losses(model, model.config.bos_token_id, ids)
        for i, first in enumerate(BUCKETS):
            part = losses[first : BUCKETS[i + 1] if i + 1 < len(BUCKETS) else None]
            sums[i] += float(part.double().sum())
            counts[i] += len(part)
        scored += len(ids)
        print(
            f"{number + 1} of {len(windows)} windows: {sum(sums) / scored:.4f} nats a token",
            file=sys.stderr,
        )
    loss = sum(sums) / scored
    nll = loss * tokens
    return {
        "tokens": tokens,
        "scored_tokens": scored,
        "words": words,
        "bytes": size,
        "loss": loss,
        "ppl_token": math.exp(loss),
        "ppl_word": math.exp(nll / words),
        "bits_per_byte": nll / math.log(2) / size,
        "loss_by_position": [
            {"from": first, "tokens": n, "loss": s / n}
            for first, s, n in zip(BUCKETS, sums, counts)
            if n
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="checkpoint folder with tokenizer.json")
    parser.add_argument("texts", nargs="+")
    parser.add_argument(
        "--length", type=int, help="tokens of a window (whole documents by default)"
    )
    parser.add_argument("--limit", type=int, help="score at most this many windows")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with told("train.evaluate"):
        documents = list(read_documents([f for path in args.texts for f in text_files(path)]))
        model, _ = load_model(args.model)
        file = f"{args.model}/tokenizer.json"
        tokenizer = read_tokenizer(file)
        compare_sizes(
            size_of(tokenizer), file, model.config.vocab_size, f"{args.model}/config.json"
        )
        print(json.dumps(evaluate(model, tokenizer, documents, args.length, args.limit), indent=1))


if __name__ == "__main__":
    main()
