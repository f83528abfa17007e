# SPDX-License-Identifier: Apache-2.0
"""What the fixture scripts share: random weights, and expected.json from a model's own forward pass.

The format of expected.json is described in tests/golden/README.md.
"""

import json
import pathlib
import shutil

import torch

GREEDY_TOKENS = 16
TOLERANCE = 5e-4


def fill_with_noise(model, seed, scale=1.3, norm=1.0):
    """Random weights that make every part of the network matter, and the next token uncertain.

    norm: the weight of a norm that only normalizes.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.named_parameters()):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if tensor.dim() == 2:
            value = noise * scale / tensor.shape[1] ** 0.5
        elif name.endswith("weight"):
            value = norm + 0.2 * noise
        else:
            value = 0.3 * noise
        tensor.data.copy_(value)


def random_prompt(vocab_size, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocab_size, (length,), generator=generator).tolist()


def expected(logits_of, prompt):
    """logits_of: list of T token ids -> logits [T, V], float64."""
    logprobs = torch.log_softmax(logits_of(prompt), dim=-1)
    best = logprobs.topk(5, dim=-1)
    greedy, margin = [], []
    text = list(prompt)
    for _ in range(GREEDY_TOKENS):
        values, ids = torch.log_softmax(logits_of(text)[-1], dim=-1).topk(2)
        greedy.append(int(ids[0]))
        margin.append(round(float(values[0] - values[1]), 6))
        text.append(greedy[-1])
    return {
        "prompt": prompt,
        "prompt_logprobs": [round(float(logprobs[t, token]), 6)
                            for t, token in enumerate(prompt[1:])],
        "top5": [[[int(i), round(float(p), 6)] for i, p in zip(ids, values)]
                 for ids, values in zip(best.indices, best.values)],
        "greedy": greedy,
        "greedy_margin": margin,
        "tolerance": TOLERANCE,
    }


def write_case(folder, logits_of, prompt):
    """Adds expected.json and a tokenizer to a folder that already holds the saved model."""
    folder = pathlib.Path(folder)
    tokenizer = pathlib.Path(__file__).parent.parent / "golden" / "gpt_neox" / "tokenizer.json"
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    case = expected(logits_of, prompt)
    (folder / "expected.json").write_text(json.dumps(case))
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{folder.name}: {sum(f.stat().st_size for f in folder.iterdir())} bytes, "
          f"mean logprob {sum(case['prompt_logprobs']) / len(case['prompt_logprobs']):.3f}, "
          f"smallest greedy margin {min(case['greedy_margin'])}")
