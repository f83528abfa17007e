# SPDX-License-Identifier: Apache-2.0
"""The papers' tables: rows become configs, a run is made once, a failure stays in its row, claims
are judged with the noise in mind."""

import argparse
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

from train import plots, table_report, table_run, tables
from train.config import parse_config, shipped
from train.init import new_tensors, read_init
from train.model.model import Model
from train.paired import incomplete_beta, t_test, together, verdict
from train.parameters import factors_of, read_rates
from train.table_config import SIZES, Size, row_config
from train.table_rows import MENDED, ROWS, TABLES, Claim, Row
from train.table_text import LONGEST, prepare

TINY = Size(2, 32, 2, 300, 32, 1, 3e-3, 200, 200, 3, 3)  # FLASH takes chunks from 16, half of that


def test_every_table_names_rows_that_are_there():
    for name, table in TABLES.items():
        assert table.reference in table.rows, name
        assert set(table.rows) <= set(ROWS), name
        for claim in table.claims:
            for what in (side for pair in claim.pairs for side in pair):
                for row in (what,) if isinstance(what, str) else what:
                    assert isinstance(row, int) or row in ROWS, (name, claim.text, row)


def test_every_row_is_a_model_at_every_size():
    for row in ROWS.values():
        for size in SIZES.values():
            parse_config(shipped(row_config(row, size)))
        raw = row_config(row, TINY)
        assert set(row.mixers) <= set(raw["mixers"])  # a name that no layer has would change nothing
        config = parse_config(shipped(raw))
        Model(config, new_tensors(config, raw["shapes"]))


@pytest.mark.parametrize("row", ROWS)
def test_all_rows_have_embeddings_of_one_scale(row):
    raw = row_config(ROWS[row], TINY)
    assert raw["embedding_scale"] == TINY.width**0.5
    start = new_tensors(parse_config(shipped(raw)), raw["shapes"])["model.embeddings.weight"]
    assert 0.9 < (start * raw["embedding_scale"]).std() < 1.1


def test_what_a_row_changes():
    blocks = [row_config(ROWS[name], SIZES["S"])["mixers"]["block"]["window_size"]
              for name in ("t1-block-32", "transnormer_t1", "t1-block-128")]
    assert blocks == [8, 16, 32]
    heads = [row_config(ROWS[name], SIZES["S"])["shapes"]["head_dim"]
             for name in ("regla-16", "regla-32", "regla", "regla-96")]
    assert heads == [8, 16, 32, 48]
    assert row_config(ROWS["t2-3-9"], SIZES["S"])["layer_types"] == ["block"] + ["linear"] * 3
    assert "layer_types" in row_config(ROWS["kerple_log-windowed"], TINY)


def test_mended_rows_train_with_what_they_say():
    """A rate that finds no tensor, or first values for none, would be the old row."""
    mended = [name for name in ROWS if name.endswith(MENDED)]
    assert len(mended) == 7
    for name in mended:
        raw, old = row_config(ROWS[name], TINY), row_config(ROWS[name.removesuffix(MENDED)], TINY)
        config = parse_config(shipped(raw))
        model, before = (new_tensors(config, raw["shapes"], 0, read_init(r)) for r in (raw, old))
        changed = {key for key in model if not torch.equal(model[key], before[key])}
        faster = {key for key, factor in factors_of(Model(config, model), read_rates(raw)).items()
                  if factor == 10}
        if "t5" in name:
            assert not changed and all("bucket_bias" in key for key in faster)
        elif "kerple" in name:
            assert {key.rsplit(".", 1)[1] for key in changed} == {"r1"} and len(faster) >= 2
            assert model["model.layers.1.attn.position.r1"].tolist() == [1, 6]
        else:
            assert changed and all("_proj.bias" in key for key in changed) and not faster


@pytest.mark.parametrize("differences, p", [  # closed forms for 1 and 2 degrees of freedom
    ([1.0, 2.0], 1 - 2 / math.pi * math.atan(3)), ([1.0, 2.0, 3.0], 1 - math.sqrt(12 / 14)),
    ([1.0, 1.0], 0.0), ([0, 0], 1.0)])
def test_t_test(differences, p):
    assert t_test(differences) == pytest.approx(p, abs=1e-12)


def test_t_test_of_one_and_the_beta_function():
    assert t_test([1.0]) is None
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248)  # a binomial sum
    # The table of t: 5 % at 3.182446 for 3 degrees of freedom.
    assert incomplete_beta(1.5, 0.5, 3 / (3 + 3.182446**2)) == pytest.approx(0.05, abs=1e-7)
    assert incomplete_beta(0.5, 0.5, 0.25) == pytest.approx(2 / math.pi * math.asin(0.5))


def test_verdicts():
    assert verdict(0.02, 0.01) == "holds"
    assert verdict(0.02, 0.2) == verdict(0.005, 0.001) == verdict(0.02, None) == "undecided"
    assert verdict(-0.02, 0.01) == "reversed"
    assert verdict(0.1, 0.01, 1.2) == "undecided" and verdict(0.2, 0.01, 1.2) == "holds"
    assert verdict(-0.015, 0.0, 1.02, True) == "holds" and verdict(0.03, 0.0, 1.02, True) == "reversed"
    # At most 2 % behind: who is better by more is within that, too.
    assert verdict(0.3, 0.0, 1.02, within=True) == verdict(-0.015, 0.0, 1.02, within=True) == "holds"
    assert verdict(-0.03, 0.0, 1.02, within=True) == "reversed"
    assert verdict(-0.03, 0.2, 1.02, within=True) == "undecided"
    assert together(["holds", "reversed"]) == "reversed"
    assert together(["holds", None]) == "undecided" and together(["holds"] * 2) == "holds"


def record(row, seed, losses, length=1):
    documents = [[100, 100 * loss] for loss in losses]
    return {"row": row, "seed": seed, "parameters": 7, "scores": {"valid": {str(length): {
        "nll": sum(n for _, n in documents), "tokens": 100 * len(losses), "documents": documents}}}}


def test_claims_are_paired_over_documents_or_seeds():
    one = {row: {0: record(row, 0, [2.0 + d, 2.5 + d, 3.0 + d])}
           for row, d in (("regla", 0.0), ("la_relu", 0.2))}
    one["la_relu"][0]["scores"]["valid"]["1"]["documents"][0][1] += 1
    assert table_report.judge(one, Claim("", [("regla", "la_relu")]))[0] == "holds"
    assert table_report.judge(one, Claim("", [("la_relu", "regla")]))[0] == "reversed"
    ahead, behind = (Claim("", [pair], ratio=1.02, within=True)
                     for pair in (("regla", "la_relu"), ("la_relu", "regla")))
    assert table_report.judge(one, ahead)[0] == "holds"
    assert table_report.judge(one, behind)[0] == "reversed"
    assert table_report.judge(one, Claim("", [("regla", "alibi")]))[0] == "not measured"
    found, said = table_report.judge(one, Claim("", [("regla", "la_relu"), ("regla", "alibi")]))
    assert found == "undecided" and "not measured: 1" in said[-1]
    seeds = {row: {s: record(row, s, [2.0 + d * (s - 1)]) for s in range(3)}
             for row, d in (("regla", 0.0), ("la_relu", 0.3))}
    assert table_report.judge(seeds, Claim("", [("regla", "la_relu")]))[0] == "undecided"
    both = Claim("", [(("regla", "la_relu"), "regla")], equal=True, ratio=1.2)
    assert table_report.judge(one, both)[0] == "holds"


ENGINE = """#!{python}
import json, sys
lines = [json.loads(l) for l in open(sys.argv[3])]
assert "--context" in sys.argv and open(sys.argv[2] + "/config.json").read()
d = [{{"tokens": 10, "nll": 20.0 + i}} for i, _ in enumerate(lines)]
nll = sum(x["nll"] for x in d)
print(json.dumps({{"ppl_token": 7.5, "nll": nll, "tokens": 10 * len(d), "by_document": d,
                  "by_position": [{{"tokens_before": "1-63", "tokens": 3, "nll_per_token": 2.0}}]}}))
"""


@pytest.fixture
def sitting(tmp_path, text):
    """arguments -> (Sitting, Plan): texts and an engine that says always the same."""
    (tmp_path / "train.txt").write_text(text * 5)
    (tmp_path / "valid.txt").write_text(text * 5)
    engine = tmp_path / "engine"
    engine.write_text(ENGINE.format(python=sys.executable))
    engine.chmod(0o755)
    fingerprint = prepare(tmp_path / "work", TINY, 200, 3, tmp_path / "train.txt",
                          tmp_path / "valid.txt", None)
    plan = table_run.Plan(TINY, 200, fingerprint, tmp_path / "work", tmp_path / "out", engine,
                          bf16=False)

    def make(rows, table_names=TABLES):
        needs = tables.needs_of(table_names, rows, 1)
        return tables.Sitting(plan, needs, None, lambda: None), plan

    return make


def test_commands_fail_with_their_last_line():
    code = "import sys; sys.exit('one\\ntwo')"
    with pytest.raises(table_run.RowFailed, match="^two$"):
        table_run.call([sys.executable, "-c", code], 60)
    with pytest.raises(table_run.RowFailed, match="expected an end within 0 seconds"):
        table_run.call([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)


def test_texts_have_equal_documents(sitting, tmp_path):
    _, plan = sitting(["regla"])
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(plan.work / "tokenizer.json"))
    lines = [json.loads(line)["text"] for line in (plan.work / "valid.jsonl").open()]
    assert len(lines) == 3 and all(len(tokenizer.encode(t).ids) == LONGEST * TINY.window for t in lines)


def test_a_run_is_made_once_and_a_failure_stays_in_its_row(sitting, monkeypatch, capsys):
    short = {"position_embedding": "learned", "max_position_embeddings": 4}
    monkeypatch.setitem(ROWS, "la_relu", Row("la_relu", config=short))
    made, plan = sitting(["la_relu", "regla"], ["regla4"])
    made.run(2)
    assert (made.finished, made.failed) == (2, 1)
    broken = json.loads(plan.record("la_relu", 0).read_text())
    assert broken["error"]
    good = json.loads(plan.record("regla", 0).read_text())
    assert good["scores"]["valid"]["1"]["ppl"] == 7.5 and good["steps"] == 6
    assert good["parameters"] > 10000 and len(good["losses"]) == 6 and good["gradient"]["mean"] > 0
    assert good["order"] == table_run.order_of(plan, ROWS["regla"], 0)
    assert good["order"] != table_run.order_of(plan, ROWS["regla"], 1)
    assert (plan.folder("regla", 0) / "model" / "model.safetensors").exists()
    again, _ = sitting(["la_relu", "regla"], ["regla4"])
    assert again.todo()[0] == [("la_relu", 0)]  # what failed is tried again
    monkeypatch.setitem(ROWS, "regla", Row("regla", mixers={"mixer": {"query_scale": "none"}}))
    assert ("regla", 0) in again.todo()[0]  # a row that says something else is made again
    table_report.report(plan.out, ["# head"], TABLES, TINY.window)
    shown = (plan.out / "README.md").read_text()
    assert "TABLES=regla4`" in shown and "TABLES=regla4-mended" not in shown  # of which no row was run
    assert all(len(line) <= 118 for line in shown.splitlines() if line[:1] not in "|#!")
    rows = (plan.out / "rows.csv").read_text()
    assert re.search(r"^regla4,la_relu,28.5,.*,\w+", rows, re.MULTILINE)
    assert re.search(r"^regla4,regla,19.0,\d+,\d+,8.166,", rows, re.MULTILINE)


def test_linearised_and_borrowed_rows_come_after_their_sources(sitting, capsys):
    made, plan = sitting(["regla-linearised-tenth", "kerple_log-windowed"])
    first, then = made.todo()
    assert first == [("donor", 0), ("kerple_log", 0)]
    assert sorted(then) == [("kerple_log-windowed", 0), ("regla-linearised-tenth", 0)]
    made.run(1)
    assert made.failed == 0, capsys.readouterr().out
    config = json.loads((plan.folder("kerple_log-windowed", 0) / "model/config.json").read_text())
    assert config["mixers"]["mixer"]["window_size"] == TINY.window and "shapes" not in config
    linear = json.loads((plan.folder("regla-linearised-tenth", 0) / "model/config.json").read_text())
    assert linear["mixers"]["regla"]["gate"] == "refined"
    assert json.loads(plan.record("donor", 0).read_text())["steps"] == 25


def test_a_row_without_its_preset_is_an_error(monkeypatch):
    monkeypatch.setitem(ROWS, "regla", Row("no_such_preset"))
    with pytest.raises(ValueError, match="row regla: expected the preset no_such_preset, found none"):
        tables.needs_of(["regla4"], ["regla"], 1)


def test_what_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("QUICK", "1")
    monkeypatch.setenv("TABLES", "regla4,lrpe2")
    args = tables.parse([])
    assert args.quick and tables.chosen(args.tables, TABLES, "TABLES") == ["regla4", "lrpe2"]
    with pytest.raises(ValueError, match="TABLES: expected names of .*got nothing"):
        tables.chosen("nothing", TABLES, "TABLES")
    args = argparse.Namespace(**{**vars(args), "data": Path("/no/data")})
    with pytest.raises(ValueError, match="/no/data: no such file or folder; say DATA"):
        tables.plan_of(args)


def test_plots(tmp_path):
    plots.lines(tmp_path / "a.svg", "a < b", {"one": [(1, 1.0), (2, math.inf)], "~two": [(1, 3.0)],
                                              ".three": [(2, 5.0)]}, "x", "y", True, True, 2)
    plots.rows(tmp_path / "b.svg", "rows", {"one": (2.0, 0.5), "none": (math.nan, 0.0)}, "x", True)
    assert "a &lt; b" in (tmp_path / "a.svg").read_text()
    for name in "ab":
        assert "nan" not in (tmp_path / f"{name}.svg").read_text()
