#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the rounding of inputs does to a model's next tokens, in regla and in llama.cpp: the
Kullback-Leibler divergence from the same engine with the same weights and inputs in f32, which
llama.cpp gets as a GGUF file of the decoded weights. Needs loadtest/llama/build.sh perplexity.

Of GGUF itself and of a Q8_0 made of it, which both read; of FOLDER, if given, in q8 and q4, beside
llama.cpp's Q8_0 and GGUF. On the same tokens in the same windows, keys and values in f32; and
llama.cpp's also as its own llama-perplexity has it, which counts the second half of each window."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import peer_model
from measure import Failure, find_binary, machine, run
from peers import PEERS, programs

MODELS = PEERS / "models"
OWN = {"mean": r"Mean\s+KLD:\s+([-\d.]+)", "p99": r"99\.0%\s+KLD:\s+([-\d.]+)",
       "worst": r"Maximum KLD:\s+([-\d.]+)", "same_best": r"Same top p:\s+([\d.]+)"}


def write_ids(regla, model, options):
    """A file with the ids that `regla compare` has the model read: its BOS, then the text's."""
    from gguf import GGUFReader

    ids = run([regla, "tokenize", model, "--format", "ids"], text=options.text.read_text()).split()
    bos = GGUFReader(model).fields.get("tokenizer.ggml.bos_token_id")
    if bos and ids[:1] != [str(bos.contents())]:
        ids.insert(0, str(bos.contents()))
    if len(ids) <= options.tokens:
        raise Failure(f"{options.text}: expected more than {options.tokens} tokens, got {len(ids)}")
    file = MODELS / "divergence-ids.txt"
    file.write_text(" ".join(ids[:options.tokens]) + "\n")
    return file


def rounded(peer, file, kind):
    """A GGUF file made of another, in one of llama.cpp's types."""
    made = file.with_name(f"{file.stem.removesuffix('-decoded')}-{kind}.gguf")
    if not made.exists():
        part = made.with_suffix(".part")
        run([peer["turns"], "quantize", file, part, kind])
        part.rename(made)
    return made


def ours(regla, model, weights, options):
    formats = f"{weights}/f32/f32", f"{weights}/auto/f32"
    shown = json.loads(run([regla, "compare", model, *formats, options.text, "--context",
                            options.context, "--tokens", options.tokens, "--pp", 0, "--tg", 0,
                            "--quiet", "--json"]))
    found = {**shown["text"]["divergence"], "same_best": shown["text"]["same_best"]}
    return f"regla, {shown['b']['activations']}", found


def theirs(peer, decoded, file, ids, options):
    return json.loads(run([peer["divergence"], decoded, file, ids, options.tokens, options.context]))


def theirs_by_their_own(peer, decoded, file, options):
    """llama-perplexity's, of as many windows."""
    logits = MODELS / "divergence.kld"
    common = ["--kl-divergence-base", logits, "-c", options.context, "-ctk", "f32", "-ctv", "f32",
              "-fa", "off", "--chunks", options.tokens // options.context]
    run([peer["llama-perplexity"], "-m", decoded, "-f", options.text, *common])
    said = run([peer["llama-perplexity"], "-m", file, "--kl-divergence", *common])
    logits.unlink()
    found = {name: re.search(pattern, said) for name, pattern in OWN.items()}
    if not all(found.values()):
        raise Failure(f"llama-perplexity: expected its statistics, got {said[-400:]!r}")
    found = {name: float(match[1]) for name, match in found.items()}
    return {**found, "same_best": found["same_best"] / 100}


def show(model, engine, found):
    print(f"| {model} | {engine} | {1000 * found['mean']:.3f} | {1000 * found['p99']:.2f} | "
          f"{1000 * found['worst']:.1f} | {100 * found['same_best']:.2f} % |", flush=True)


def measure(regla, peer, options):
    given = Path(options.model)
    _, files = peer_model.given(given, MODELS, options.peer / "source" / "gguf-py")
    MODELS.mkdir(parents=True, exist_ok=True)
    ids = write_ids(regla, given, options)
    q8 = rounded(peer, files["f32"], "Q8_0")
    _, q8_files = peer_model.given(q8, MODELS, options.peer / "source" / "gguf-py")
    where = machine(regla)
    name = (options.peer / "name").read_text().strip()
    print(f"{options.tokens} tokens of {options.text} in windows of {options.context}; regla "
          f"{where['regla']} ({where['commit']}), {name}, {where['processor']}\n")
    print("| weights | engine | mean x 1000 | p99 x 1000 | worst x 1000 | same best token |")
    print("|---|---|---|---|---|---|")
    for file, decoded in ((given, files["f32"]), (q8, q8_files["f32"])):
        show(file.name, *ours(regla, file, "auto", options))
        show(file.name, "llama.cpp", theirs(peer, decoded, file, ids, options))
        show(file.name, "llama.cpp by llama-perplexity",
             theirs_by_their_own(peer, decoded, file, options))
    for weights in ("q8", "q4") if options.folder else ():
        show(f"{options.folder} as {weights}", *ours(regla, options.folder, weights, options))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="GGUF")
    parser.add_argument("text", type=Path, help="plain text")
    parser.add_argument("--folder", help="the model in Hugging Face's layout, in f32")
    parser.add_argument("--tokens", default=4096, type=int, help="(4096)")
    parser.add_argument("--context", default=512, type=int, help="tokens of a window (512)")
    parser.add_argument("--binary", help="regla (build/release/regla)")
    parser.add_argument("--peer", default=PEERS, type=Path,
                        help="folder that build.sh has made (build/peers)")
    options = parser.parse_args()
    try:
        measure(find_binary(options.binary),
                programs(options.peer, ("turns", "divergence", "llama-perplexity")), options)
    except (Failure, OSError, subprocess.TimeoutExpired) as failure:
        sys.exit(f"divergence: {failure}")


if __name__ == "__main__":
    main()
