# SPDX-License-Identifier: Apache-2.0
"""The card holds what the engine measured and the log says, and the continuations unedited."""

import json
import lzma
import re
import sys
from pathlib import Path

import pytest

from train import make_card
from train.checkpoint import save_model
from train.config import parse_config
from train.init import new_tensors
from train.model.model import Model
from train.schedule import Schedule

ENGINE = """#!{python}
import json, sys
if sys.argv[1] == "generate":
    print(" <" + sys.argv[sys.argv.index("--seed") + 1] + ">  two\\n\\nlines", end="\\n")
else:
    assert sys.stdin.read() == "held out" and sys.argv[3:6] == ["-", "--format", "jsonl"]
    losses = [("1-63", 10, 5.0), ("64-127", 10, 4.0), ("128-255", 10, 4.1), ("256-511", 9, 3.9)]
    if "--context" in sys.argv:
        losses.pop()
    print(json.dumps({{"documents": 8, "bytes": 2000, "tokens": 500, "words": 300, "nll": 2000.0,
                       "bits_per_byte": 1.4427, "ppl_word": 785.8, "ppl_token": 54.6,
                       "by_position": [dict(zip(("tokens_before", "tokens", "nll_per_token"), row))
                                       for row in losses]}}))
"""

LOG = [
    {"step": 10, "of": 40, "decay": 20, "tokens": 80, "loss": 9.0, "rate": 1.0, "seconds": 30},
    {"step": 20, "of": 40, "decay": 20, "tokens": 160, "loss": 8.0, "rate": 1.0, "seconds": 60},
    {"step": 30, "of": 40, "decay": 20, "tokens": 240, "loss": 7.0, "rate": 0.5, "seconds": 40},
    {"step": 40, "of": 40, "decay": 20, "tokens": 320, "loss": 6.0, "rate": 0.0, "seconds": 80},
]


def prepare(tmp_path, raw_config):
    """A model m, an engine, a log and held-out text; the model, and the arguments of all cards."""
    shapes = raw_config.pop("shapes")
    config = parse_config(raw_config)
    model = Model(config, new_tensors(config, shapes))
    save_model(tmp_path / "m", model, raw_config, "bf16")
    engine = tmp_path / "engine"
    engine.write_text(ENGINE.format(python=sys.executable))
    engine.chmod(0o755)
    (tmp_path / "log").write_text("words\n" + "".join(json.dumps(r) + "\n" for r in LOG))
    (tmp_path / "v.jsonl.xz").write_bytes(lzma.compress(b"held out"))
    same = ["--valid", tmp_path / "v.jsonl.xz", "--log", tmp_path / "log", "--engine", engine]
    return model, same


def make(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["make_card", *(str(a) for a in arguments)])
    make_card.main()


OF_A_CARD = ("--text-tokens", 1000, "--data", "some books", "--window", 128)


def test_card(tmp_path, raw_config, monkeypatch):
    model, same = prepare(tmp_path, raw_config)
    make(monkeypatch, tmp_path / "m", *same, *OF_A_CARD)
    card = (tmp_path / "m" / "README.md").read_text()
    count = sum(p.numel() for p in model.parameters())
    for part in (
        f"| parameters | {count:,} (",
        " MiB in BF16) |",
        "| training data | some books |",
        "| tokens seen | 320 (40 steps of 8); the data has 1,000 |",
        "| training time | 2 minutes on",
        "The command is `make model`, which runs",
        "over the last\n20 steps",
        "| validation loss | 4.0000 nats",
        "| bits per byte | **1.4427** |",
        "the training length (64-127 tokens\nbefore) is 4.0000. The highest loss at any later position "
        "is 4.1000 (+2.5 %)",
        "| 64-127 | 10 | 4.0000 | 10 | 4.0000 |\n| 128-255 | 10 | 4.1000 | 10 | 4.1000 |\n"
        "| 256-511 | | | 9 | 3.9000 |\n",
        "5.\n\n> **The captain ordered the men to** <5>  two\n>\n> lines\n",
    ):
        assert part in card, part


def test_the_sampling_that_the_author_recommends(tmp_path, raw_config, monkeypatch):
    _, same = prepare(tmp_path, raw_config)
    config = tmp_path / "m" / "generation_config.json"
    for said in (None, {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
                 {"do_sample": True, "temperature": 0.8, "top_p": 0.95}):
        config.unlink(missing_ok=True)
        if said:
            config.write_text(json.dumps({"eos_token_id": 0, **said}))
        make(monkeypatch, tmp_path / "m", *same, *OF_A_CARD)
        card = (tmp_path / "m" / "README.md").read_text()
        assert (make_card.RECOMMENDED in card) == (said is not None and said["temperature"] == 0.8)


def test_the_shipped_card_is_what_this_writes():
    folder, = (path.parent for path in Path(__file__).parents[2].glob("models/*/model.safetensors"))
    fixed = make_card.CARD.replace("{recommended}", make_card.RECOMMENDED)
    parts = re.split(r"\{\w[^{}]*\}", fixed)
    assert make_card.recommends(folder)
    assert re.fullmatch(".*?".join(map(re.escape, parts)), (folder / "README.md").read_text(), re.DOTALL)


def test_a_card_says_that_the_run_was_made_longer(tmp_path, raw_config, monkeypatch):
    _, same = prepare(tmp_path, raw_config)
    schedule = Schedule(40, 2, 20)
    said = schedule.resume(20, vars(Schedule(20, 2, 10)))
    with (tmp_path / "log").open("a") as log:
        log.write(f"# run/state.pt: {said}\n{json.dumps(LOG[-1])}\n")
    make(monkeypatch, tmp_path / "m", *same, *OF_A_CARD)
    card = (tmp_path / "m" / "README.md").read_text()
    assert "20 steps.\nThe run was made longer at step 20: there the rate" in card


def test_a_row_beside(tmp_path, raw_config, monkeypatch):
    model, same = prepare(tmp_path, raw_config)
    make(monkeypatch, tmp_path / "m", *same, *OF_A_CARD)
    card = (tmp_path / "m" / "README.md").read_text()
    for folder, mixer in (("one", {"gate": "gated_delta"}), ("two", {"gate": "mamba2"})):
        raw = {**raw_config, "layer_types": [folder, "b"]}
        raw["mixers"] = {folder: {"kind": "linear", **mixer}, "b": raw_config["mixers"]["b"]}
        config = parse_config(raw)
        other = Model(config, new_tensors(config, {"head_dim": 8, "value_dim": 8}))
        save_model(tmp_path / folder, other, raw, "bf16")
    for folder in ("one", "two", "one"):  # the last takes the place of the first
        make(monkeypatch, tmp_path / folder, *same, "--beside", tmp_path / "m")
    changed = (tmp_path / "m" / "README.md").read_text().splitlines()
    rows = [line for line in changed if line.startswith("| beside it: ")]
    assert [line for line in changed if line not in rows] == card.splitlines()
    assert changed.index(rows[0]) == card.splitlines().index("| perplexity per token | 54.60 |") + 1
    assert len(rows) == 2 and rows[0].startswith("| beside it: two, b | ")
    count = sum(p.numel() for p in other.parameters())
    assert f"{count:,} parameters, 320 tokens seen in 40 steps: training loss 6.000, " in rows[0]
    assert "validation loss 4.0000, bits per byte **1.4427**, perplexity per word 785.8" in rows[0]


def test_a_row_of_another_training_is_refused(tmp_path, raw_config, monkeypatch):
    _, same = prepare(tmp_path, raw_config)
    make(monkeypatch, tmp_path / "m", *same, *OF_A_CARD)
    card = (tmp_path / "m" / "README.md").read_text()
    (tmp_path / "log").write_text("".join(json.dumps(r) + "\n" for r in LOG[:3]))
    with pytest.raises(SystemExit, match=r"expected tokens, steps .* \(320, 40, 20\), got \(240, 30, 20\)"):
        make(monkeypatch, tmp_path / "m", *same, "--beside", tmp_path / "m")
    assert (tmp_path / "m" / "README.md").read_text() == card
    (tmp_path / "m" / "README.md").write_text("# another\n")
    with pytest.raises(SystemExit, match="expected a card of train.make_card"):
        make(monkeypatch, tmp_path / "m", *same, "--beside", tmp_path / "m")
