# SPDX-License-Identifier: Apache-2.0
"""Asks transformers and flash-linear-attention what engine/model/config-keys.tsv says of them.

    python cross_check_config.py        # needs torch, transformers 5, accelerate, flash-linear-attention

For each value of each row it loads a model as that library does and compares its logits with the
reference of the tests: those of the changed configuration where the row says "followed", those of
the unchanged one where it says "harmless" or "warned". For "refused" it prints what the library does.
The files of test_config_keys.py that are not about keys (heads, prefixes, FP8) are compared, too.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "http")]

import numpy as np
import torch
import transformers
from make_gla_fixture import use_plain_operations
from reference_models import FAMILIES, PROMPT, log_softmax, write_model
from test_config_keys import GENERATION, TRIED, changed, in_fp8

NEAR = 2e-4  # logits of both are float64, but fla's recurrence is float32


def library(folder, dtype=torch.float64):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([PROMPT]), use_cache=False).logits[0].double().numpy()


def distance(folder, logits, dtype=torch.float64):
    """How far the library's log-probabilities are from these; or its error."""
    try:
        return float(np.abs(log_softmax(library(folder, dtype)) - log_softmax(logits)).max())
    except Exception as error:  # whatever a library raises
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"


def row(folder, key, of, here, value):
    family = FAMILIES.get(of, FAMILIES["gpt_neox"])
    config = changed(family.config, key, value) if of != GENERATION else family.config
    generation = changed({"eos_token_id": 0}, key, value) if of == GENERATION else None
    follows = here == "followed"
    tensors = family.tensors(config if follows else family.config)
    logits = family.logits(config if follows else family.config, tensors, PROMPT)
    write_model(folder, config, tensors, {}, generation)
    return distance(folder, logits)


def forgiven(folder):
    """(what, distance) of files that the libraries load with a warning."""
    for name, family in FAMILIES.items():
        config = {**family.config, "tie_word_embeddings": True}
        tensors = family.tensors(config)
        logits = family.logits(config, tensors, PROMPT)
        same = {**tensors, "lm_head.weight": tensors[family.embeddings]}
        write_model(folder / f"{name}-same", config, same, {})
        yield f"{name}: an equal head of a tied model", distance(folder / f"{name}-same", logits)
        other = {**tensors, family.head: tensors[family.embeddings][::-1].copy()}
        write_model(folder / f"{name}-other", config, other, {})
        yield (f"{name}: another head of a tied model",
               distance(folder / f"{name}-other", family.logits(config, other, PROMPT)))
        bare = {key.removeprefix(family.root): value for key, value in tensors.items()}
        write_model(folder / f"{name}-bare", config, bare, {})
        yield f"{name}: no base prefix", distance(folder / f"{name}-bare", logits)
        wide = {key: value.astype(np.float64) for key, value in tensors.items()}
        write_model(folder / f"{name}-f64", config, wide, {})
        yield f"{name}: F64", distance(folder / f"{name}-f64", logits)
        for block, way in (([16, 8], {"rows": 16, "cols": 8}),
                           (None, {"rows": None, "cols": None, "shape": ()})):
            file, numbers = in_fp8(family.tensors(family.config), **way)
            said = {"quant_method": "fp8", "weight_block_size": block}
            path = folder / f"{name}-fp8-{block}"
            write_model(path, {**family.config, "quantization_config": said}, file, {})
            yield (f"{name}: FP8, blocks {block}",
                   distance(path, family.logits(family.config, numbers, PROMPT), torch.float32))


def main():
    use_plain_operations()
    wrong = count = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for key, of, here, value in TRIED:
            count += 1
            far = row(folder / str(count), key, of, here, json.loads(value))
            good = here == "refused" or (isinstance(far, float) and far < NEAR)
            wrong += not good
            if here == "refused" or not good:
                same = " (the same as without)" if here == "refused" and far == 0 else ""
                print("ok   " if good else "WRONG", here, of, key, value, "->", far, same)
        for what, far in forgiven(folder):
            count += 1
            good = isinstance(far, float) and far < NEAR
            wrong += not good
            print("ok   " if good else "WRONG", what, far)
    print(f"{count - wrong} passed, {wrong} failed (transformers {transformers.__version__})")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
