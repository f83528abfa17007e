# SPDX-License-Identifier: Apache-2.0
"""One run of a table: a row with a seed is trained, exported and scored by the engine."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from train.export import export
from train.files import read_object
from train.linearize import linearize, read_donor, write
from train.table_config import edit, row_config
from train.table_text import LONGEST
from train.windows import Windows

ROOT = Path(__file__).parents[1]
POINTS = 20  # of a run's loss, in its record


@dataclass
class Plan:
    """What all runs of a call share."""

    size: object
    tokens: int
    text: str  # the fingerprint of the texts
    work: Path  # texts, checkpoints
    out: Path  # a JSON a run
    engine: Path
    device: str = "cpu"
    bf16: bool = True
    seconds: float = 3600  # most for one training

    def steps(self, row):
        return max(round(self.tokens * row.tokens / (self.size.batch * self.size.window)), 4)

    def folder(self, name, seed):
        return self.work / f"{name}-s{seed}"

    def record(self, name, seed):
        return self.out / "runs" / f"{name}-s{seed}.json"


class RowFailed(Exception):
    """A run came to nothing; its text says why, in one sentence."""


def environment():
    """Waiting threads sleep; big blocks of memory are kept instead of faulted in again every step."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
            "MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}


RUNNING = set()  # processes; who ends this one ends them too


def end_all(*_):
    """For SIGTERM: what was saved stays, and the next sitting goes on from there."""
    for process in list(RUNNING):
        process.terminate()
    os._exit(143)


def call(command, seconds, **files):
    """Runs a command and returns its output; the last line of its complaint is the failure."""
    command = [str(part) for part in command]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), text=True,
                               stderr=subprocess.PIPE, **files)
    RUNNING.add(process)
    try:
        output, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RowFailed(f"{command[2] if '-m' in command else command[1]}: expected an end within "
                        f"{seconds:.0f} seconds") from None
    finally:
        RUNNING.discard(process)
    if process.returncode:
        lines = complaint.strip().splitlines() or [f"exit status {process.returncode}"]
        raise RowFailed(lines[-1].replace(f"{ROOT}/", ""))
    return output


def fit_arguments(plan, row, seed):
    """The recipe, the same for every row."""
    steps = plan.steps(row)
    arguments = ["--steps", steps, "--schedule", "cosine", "--warmup", max(steps // 20, 1),
                 "--batch", plan.size.batch, "--window", plan.size.window, "--optimizer", "adamw",
                 "--lr", plan.size.lr, "--seed", seed, "--threads", 1, "--log-every", 1,
                 "--device", plan.device]
    return [str(part) for part in arguments + (["--bf16"] if plan.bf16 else [])]


def start_of(plan, row, seed, folder):
    """The config of the run, as a file; linearised rows also have a checkpoint to begin with."""
    config_file = folder / "config.json"
    if not row.donor:
        config_file.write_text(json.dumps(row_config(row, plan.size), indent=1))
        return config_file, []
    donor = plan.folder(row.donor, seed) / "model"
    if not donor.exists():
        raise RowFailed(f"its donor, {row.donor}, has no checkpoint")
    raw, model = linearize(read_donor(donor), row.system, seed=seed)
    write(donor, folder / "start", raw, model, "f32")
    config_file.write_text(json.dumps(raw, indent=1))
    return config_file, ["--start", str(folder / "start")]


def read_log(log):
    """The steps of a run's log; of a step that a resumed run made again the last."""
    steps = {}
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            steps[entry["step"]] = entry
    return [steps[step] for step in sorted(steps)]


def summary(log):
    """Loss by step, seconds, and the relative deviation of the gradient's norm."""
    steps = read_log(log)
    norms = [entry["grad_norm"] for entry in steps]
    mean = math.fsum(norms) / len(norms)
    deviation = math.sqrt(math.fsum((n - mean) ** 2 for n in norms) / len(norms))
    stride = max(len(steps) // POINTS, 1)
    curve = [steps[i : i + stride] for i in range(0, len(steps), stride)]
    return {
        "losses": [[part[-1]["step"], round(sum(e["loss"] for e in part) / len(part), 4)]
                   for part in curve],
        "gradient": {"mean": mean, "deviation": deviation, "relative": deviation / mean},
        "seconds": steps[-1]["seconds"],
        "steps": steps[-1]["step"],
        "tokens": steps[-1]["tokens"],
    }


def order_of(plan, row, seed):
    """Of a run's data, as a hash."""
    windows = Windows(plan.work / "train.u16", plan.size.window, seed)
    return windows.order(plan.steps(row), plan.size.batch)


def train(plan, row, seed, folder):
    """Trains, or goes on with, a run; returns what its record says of it."""
    config_file, start = start_of(plan, row, seed, folder)
    arguments = fit_arguments(plan, row, seed)
    command = [sys.executable, "-m", "train.fit", "--config", config_file, *start, "--data",
               plan.work / "train.u16", "--run", folder, *arguments, "--resume"]
    with (folder / "log").open("a") as log:
        call(command, plan.seconds, stdout=log)
    export(folder / "state.pt", config_file, plan.work / "tokenizer.json", folder / "model", "f32")
    (folder / "state.pt").unlink()
    shutil.rmtree(folder / "start", ignore_errors=True)
    first = next(line for line in (folder / "log").read_text().splitlines() if " parameters, {" in line)
    return {"parameters": int(first.split()[0]), "recipe": " ".join(arguments),
            "order": order_of(plan, row, seed), **summary(folder / "log")}


def borrow(plan, row, seed, folder):
    """A checkpoint of another row, under this row's config."""
    source = plan.folder(row.scores, seed) / "model"
    if not source.exists():
        raise RowFailed(f"its checkpoint, of {row.scores}, is not there")
    shutil.rmtree(folder / "model", ignore_errors=True)
    shutil.copytree(source, folder / "model")
    config = {**read_object(source / "config.json"), "shapes": {}}
    edit(config, row, plan.size)
    del config["shapes"]
    (folder / "model" / "config.json").write_text(json.dumps(config, indent=1))
    return {}


def score(plan, folder, text, length):
    """What the engine says of a text in windows of `length` training windows."""
    command = [plan.engine, "perplexity", folder / "model", plan.work / f"{text}.jsonl",
               "--context", length * plan.size.window, "--json", "--by-document", "--quiet",
               "--threads", 1, "--device", plan.device]
    if length == LONGEST:
        command.append("--by-position")
    got = json.loads(call(command, plan.seconds, stdout=subprocess.PIPE))
    kept = {"ppl": got["ppl_token"], "nll": round(got["nll"], 3), "tokens": got["tokens"],
            "documents": [[d["tokens"], round(d["nll"], 3)] for d in got["by_document"]]}
    if "by_position" in got:
        kept["positions"] = [[p["tokens_before"], p["tokens"], round(p["nll_per_token"], 4)]
                             for p in got["by_position"]]
    return kept


def scores_wanted(plan, lengths):
    """(text, length) pairs: the test text, which is of another domain, at the training length."""
    test = [("test", 1)] if (plan.work / "test.jsonl").exists() else []
    return [("valid", length) for length in sorted(lengths)] + test


def key_of(plan, row, seed):
    """What a record depends on, as a hash: a record with another key is made again."""
    what = [fit_arguments(plan, row, seed), plan.text, plan.size.vocabulary, row.donor, row.scores]
    what.append(row_config(row, plan.size))
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def read_record(plan, name, row, seed):
    """A run's record, if it is of this plan; else None."""
    file = plan.record(name, seed)
    if not file.exists():
        return None
    record = read_object(file)
    return record if record["key"] == key_of(plan, row, seed) else None


def missing_scores(plan, record, lengths):
    return [(text, length) for text, length in scores_wanted(plan, lengths)
            if str(length) not in record["scores"].get(text, {})]


def is_done(plan, record, lengths):
    return bool(record) and "error" not in record and not missing_scores(plan, record, lengths)


def make_record(plan, name, row, seed, lengths):
    """Trains and scores what is missing; a failure is written into the record, too."""
    key, folder = key_of(plan, row, seed), plan.folder(name, seed)
    record = read_record(plan, name, row, seed)
    if record is None or "error" in record or not (folder / "model").exists():
        if (folder / "key").exists() and (folder / "key").read_text() != key:
            shutil.rmtree(folder)  # of another plan
        record = {"row": name, "system": row.system, "seed": seed, "key": key, "scores": {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key").write_text(key)
    try:
        if not (folder / "model").exists() or "parameters" not in record:
            record.update(borrow(plan, row, seed, folder) if row.scores
                          else train(plan, row, seed, folder))
        for text, length in missing_scores(plan, record, lengths):
            record["scores"].setdefault(text, {})[str(length)] = score(plan, folder, text, length)
    except Exception as error:  # whatever it is, the other rows go on
        record["error"] = f"{type(error).__name__}: {error}".removeprefix("RowFailed: ")
    save(plan.record(name, seed), record)
    return record


def save(file, record):
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record) + "\n")
    part.replace(file)
