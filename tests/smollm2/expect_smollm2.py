# SPDX-License-Identifier: Apache-2.0
"""Writes expected.json beside this: what transformers computes for SmolLM2-135M-Instruct.

    python expect_smollm2.py MODEL TEXT      # MODEL as `make model-smollm2` leaves it

TEXT is WikiText-2's test.txt, which is not in this repository: expected.json names its beginnings by
their bytes and SHA-256. Needs torch 2.15.0, transformers 5.24.0, and 4 GB of memory.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from dense_reference import build, exact_logits, exact_model, read_config, read_tensors

VERSION = "5.24.0"
TOKENS, LONG_TOKENS, GREEDY_TOKENS = 1000, 2048, 16
PROMPT = "The capital of France is"


def beginning(tokenizer, text, count):
    """The first `count` ids of the text, and the text that has just these."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:count]
    start = tokenizer.decode(ids, skip_special_tokens=False)
    if tokenizer.encode(start, add_special_tokens=False).ids != ids or not text.startswith(start):
        raise SystemExit(f"the first {count} tokens do not stand for themselves: take one more or less")
    data = start.encode()
    return ids, {"tokens": count, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def single(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def following(logits, ids):
    """log p of each token after the first; and the best ids."""
    logprobs = logits.double().log_softmax(-1)
    return logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0], logprobs[:-1].argmax(-1)


def greedy(model, prompt):
    ids, margins = list(prompt), []
    for _ in range(GREEDY_TOKENS):
        best = exact_logits(model, ids)[-1].log_softmax(-1).topk(2)
        ids.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 6))
    return ids[len(prompt):], margins


def rounded(values):
    return [round(float(value), 5) for value in values]


def main():
    if transformers.__version__ != VERSION:
        raise SystemExit(f"transformers: expected {VERSION}, got {transformers.__version__}")
    folder, text = Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config, tensors = read_config(folder), read_tensors(folder)
    ids, short = beginning(tokenizer, text, TOKENS)
    long_ids, long = beginning(tokenizer, text, LONG_TOKENS)
    model = build(config, tensors, torch.float32)
    print("float32", flush=True)
    f32, best = following(single(model, ids), ids)
    long_f32, _ = following(single(model, long_ids), long_ids)
    del model
    print("float64", flush=True)
    model = exact_model(config, tensors)
    f64, best_f64 = following(exact_logits(model, ids), ids)
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    print("greedy", flush=True)
    answer, margins = greedy(model, prompt)
    expected = {
        "weights": "F32, as model_smollm2.py writes them",
        "by": f"transformers {VERSION}, torch {torch.__version__}, one call, eager attention, no cache",
        "text": {**short, "logprobs": rounded(f64), "top1": best_f64.tolist(),
                 "f32": {"largest_difference": float((f32 - f64).abs().max()),
                         "other_top1": (best != best_f64).nonzero().flatten().tolist(),
                         "mean_logprob": float(f32.mean())},
                 "mean_logprob": float(f64.mean())},
        "long_text": {**long, "mean_logprob_f32": float(long_f32.mean()),
                      "perplexity_f32": float((-long_f32.mean()).exp())},
        "greedy": {"prompt": PROMPT, "prompt_ids": prompt, "ids": answer, "margins": margins,
                   "text": tokenizer.decode(answer, skip_special_tokens=False)},
    }
    out = Path(__file__).with_name("expected.json")
    out.write_text(json.dumps(expected, ensure_ascii=False) + "\n", encoding="utf-8")
    print({key: value for key, value in expected["text"].items() if key not in ("logprobs", "top1")},
          expected["long_text"], expected["greedy"], f"{out.stat().st_size} bytes", sep="\n")


if __name__ == "__main__":
    main()
