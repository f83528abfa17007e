# SPDX-License-Identifier: Apache-2.0
"""Every golden case of the native family, by the recurrence in float64."""

import json
import os
from pathlib import Path

import pytest
import torch

from train.checkpoint import load_model
from train.config import parse_config
from train.model.recurrence import step_by_step

GOLDEN = Path(os.environ.get("REGLA_GOLDEN", Path(__file__).parents[2] / "tests" / "golden"))

# The expected values are float64 results rounded to six decimals.
TOLERANCE = 1e-6


# What the engine computes and train/ does not.
REFUSED = (
    "blocks_branches",
    "blocks_post_norm",
    "gated_convolutions",
)


def native_cases():
    for config in sorted(GOLDEN.glob("*/config.json")):
        raw = json.loads(config.read_text())
        if raw["model_type"] == "regla" and (config.parent / "expected.json").exists():
            yield config.parent


CASES = [case for case in native_cases() if case.name not in REFUSED]


def test_there_are_cases():
    assert len(CASES) >= 25


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    with pytest.raises(ValueError, match="train/ cannot train it"):
        parse_config(json.loads((GOLDEN / name / "config.json").read_text()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompt_logprobs(case):
    expected = json.loads((case / "expected.json").read_text())
    model, _ = load_model(case, torch.float64, step_by_step)
    prompt = torch.tensor([expected["prompt"]])
    with torch.no_grad():
        logprobs = model(prompt).log_softmax(-1)
    got = logprobs[0, :-1].gather(-1, prompt[0, 1:, None]).squeeze(-1)
    want = torch.tensor(expected["prompt_logprobs"], dtype=torch.float64)[: len(got)]
    assert len(want) == len(got)
    assert (got - want).abs().max() <= TOLERANCE
    for position, best in enumerate(expected["top5"]):
        for token, value in best:
            assert abs(logprobs[0, position, token].item() - value) <= TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_greedy(case):
    expected = json.loads((case / "expected.json").read_text())
    model, _ = load_model(case, torch.float64, step_by_step)
    ids = list(expected["prompt"])
    for token, margin in zip(expected["greedy"], expected["greedy_margin"]):
        if margin < 1e-3:
            break
        with torch.no_grad():
            best = model(torch.tensor([ids]))[0, -1].argmax().item()
        assert best == token
        ids.append(best)
