# SPDX-License-Identifier: Apache-2.0
"""Token files as training reads them: uint16, by windows in a random order; and whether a model has
their tokens."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from train.files import must_exist
from train.tokenizer import compare_sizes, read_tokenizer, size_of


def open_tokens(path):
    """The tokens of a file, which stay there."""
    size = must_exist(path).stat().st_size
    if Path(path).is_dir() or size % 2 or not size:
        got = "a folder" if Path(path).is_dir() else f"{size} bytes"
        raise ValueError(f"{path}: expected tokens of two bytes each, got {got}")
    return np.memmap(path, dtype=np.uint16, mode="c")


def check_tokens(path, vocab_size, config_file):
    """Refuses tokens that the model has no embeddings for, and a tokenizer beside the tokens with more
    of them than the model. A sentence if it has fewer, else None."""
    tokenizer_file = Path(path).with_name("tokenizer.json")
    said = None
    if tokenizer_file.exists():
        size = size_of(read_tokenizer(tokenizer_file))
        said = compare_sizes(size, tokenizer_file, vocab_size, config_file)
    largest = int(open_tokens(path).max())
    if largest >= vocab_size:
        raise ValueError(
            f"{path}: expected tokens below {config_file}'s vocab_size of {vocab_size}, got {largest}"
        )
    return said


class Windows:
    """Windows of length+1 tokens of a token file, every one once in a random order, then again in
    another. The tokens are on the device; on a CPU they stay in the file."""

    def __init__(self, path, length, seed, device="cpu"):
        # PyTorch cannot index uint16 everywhere: int16 has the same bits.
        tokens = open_tokens(path).view(np.int16)
        self.length, self.seed = length, seed
        self.count = (len(tokens) - 1) // length
        self.epoch, self.starts = -1, None
        if self.count < 1:
            raise ValueError(f"{path}: expected {length + 1} tokens or more, got {len(tokens)}")
        self.tokens = torch.from_numpy(tokens).to(device)
        self.within = torch.arange(length + 1, device=device)

    def batch(self, step, size):
        """The step-th batch: ids [size, length + 1]."""
        starts = self._starts(step * size, (step + 1) * size)
        return self.tokens[starts[:, None] + self.within].long() & 0xFFFF

    def order(self, steps, size):
        """A hash of where the windows of the first batches begin, in their order."""
        starts = self._starts(0, steps * size).cpu().numpy().astype("<i8")
        return hashlib.sha256(starts.tobytes()).hexdigest()[:16]

    def _starts(self, first, end):
        parts = []
        while first < end:
            epoch, index = divmod(first, self.count)
            parts.append(self._starts_of(epoch)[index : index + end - first])
            first += len(parts[-1])
        return torch.cat(parts)

    def _starts_of(self, epoch):
        if epoch != self.epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
            self.epoch = epoch
            self.starts = torch.from_numpy(order * self.length).to(self.tokens.device)
        return self.starts
