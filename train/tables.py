# SPDX-License-Identifier: Apache-2.0
"""The tables of the papers, made anew at a small size: every (row, seed) is trained, exported and
scored by the engine. A run leaves one JSON; what is there is not made again, so the whole can be
stopped at any time and called again. A row that fails does not stop the others.

From the environment: QUICK=1, TABLES (names by commas), ROWS, SEEDS, MINUTES (no run begins later),
DATA, VALID, TEST, SIZE, TOKENS, DEVICE, JOBS, REGLA. The flags have the same names.
"""

import argparse
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from train.files import told
from train.presets import presets
from train.table_config import SIZES
from train.table_report import report
from train.table_run import ROOT, Plan, end_all, is_done, make_record, read_record
from train.table_rows import ROWS, TABLES
from train.table_text import prepare

SHARED = ROOT.parent / "shared" / "data"


def chosen(names, known, what):
    """Names by commas; none means all."""
    wanted = [name for name in (names or "").split(",") if name] or list(known)
    for name in wanted:
        if name not in known:
            raise ValueError(f"{what}: expected names of {', '.join(known)}; got {name}")
    return wanted


def needs_of(tables, rows, most_seeds):
    """(row, seed) -> lengths to score, with donors and lenders first."""
    needs = {}

    def want(row, seed, lengths):
        if ROWS[row].system not in presets().SYSTEMS:
            raise ValueError(f"row {row}: expected the preset {ROWS[row].system}, found none")
        source = ROWS[row].donor or ROWS[row].scores
        if source:
            want(source, seed, (1,))
        needs.setdefault((row, seed), set()).update(lengths)

    for table in map(TABLES.get, tables):
        seeds = range(min(table.seeds, most_seeds))
        for row in table.rows:
            for seed in seeds if row in rows else ():
                want(row, seed, table.lengths)
    return needs


class Sitting:
    """One call: what is to be made, side by side."""

    def __init__(self, plan, needs, minutes, after):
        self.plan, self.needs, self.after = plan, needs, after
        self.end = time.time() + 60 * minutes if minutes else None
        self.lock, self.finished, self.failed, self.late = Lock(), 0, 0, 0

    def todo(self):
        """What is not done, and what that needs a checkpoint of; sources before the rest."""
        open_runs = [key for key in self.needs if not self._done(*key)]
        for row, seed in list(open_runs):
            source = ROWS[row].donor or ROWS[row].scores
            if source and not (self.plan.folder(source, seed) / "model").exists():
                open_runs.append((source, seed))
        unique = list(dict.fromkeys(open_runs))
        first = [key for key in unique if not (ROWS[key[0]].donor or ROWS[key[0]].scores)]
        first.sort(key=lambda key: -ROWS[key[0]].tokens)
        return first, [key for key in unique if key not in first]

    def _done(self, row, seed):
        return is_done(self.plan, read_record(self.plan, row, ROWS[row], seed),
                       self.needs[row, seed])

    def one(self, key):
        row, seed = key
        if self.end and time.time() > self.end:
            self.late += 1
            return
        started = time.time()
        record = make_record(self.plan, row, ROWS[row], seed, self.needs[key])
        with self.lock:
            self.finished += 1
            self.failed += "error" in record
            valid = record["scores"].get("valid", {}).get("1", {}).get("ppl")
            said = record.get("error") or (f"ppl {valid:.2f}" if valid else "ppl -")
            print(f"{self.finished}: {row}, seed {seed}, {time.time() - started:.0f} s: {said}",
                  flush=True)
            try:
                self.after()
            except Exception as error:  # a report is not worth a run
                print(f"the report: {type(error).__name__}: {error}", flush=True)

    def run(self, jobs):
        for part in self.todo():
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(self.one, part))


def head_of(args, plan, documents):
    size = plan.size
    return [
        f"# The papers' tables at size {args.size}{', quick' if args.quick else ''}", "",
        f"`{'QUICK=1 ' if args.quick else ''}make tables` wrote this "
        "([train/README.md](../../README.md) says how). No number is a paper's, but in the column "
        "*paper* of rows.csv.", "",
        f"{size.layers} layers, {size.width} wide, {size.heads} heads, a vocabulary of "
        f"{size.vocabulary:,} learned from the text, tied. Windows of {size.window} tokens, "
        f"{size.batch} a step, {plan.tokens:,} tokens a run (the donor: 4 times as many). AdamW, "
        f"{size.lr:g} with warm-up and a cosine, gradients clipped at 1, no dropout"
        f"{', bf16' if plan.bf16 else ''}, embeddings of deviation 1: the same for every row, "
        "but where a table says otherwise. "
        f"Scored by the engine on {documents} documents of {32 * size.window} tokens.", "",
    ]


def parse(arguments=None):
    parser = argparse.ArgumentParser(prog="train.tables", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add, env = parser.add_argument, os.environ.get
    add("--quick", action="store_true", default=env("QUICK", "") not in ("", "0"),
        help="a quarter of a million tokens a run, one seed")
    add("--tables", default=env("TABLES"), help=", ".join(TABLES))
    add("--rows", default=env("ROWS"), help="only these rows")
    add("--seeds", type=int, default=env("SEEDS"), help="at most so many")
    add("--size", choices=tuple(SIZES), default=env("SIZE", "S"))
    add("--tokens", type=int, default=env("TOKENS"), help="of a run")
    add("--documents", type=int, help="to score on")
    add("--minutes", type=float, default=env("MINUTES"), help="no run begins later")
    add("--data", type=Path, default=env("DATA", SHARED / "books"))
    add("--valid", type=Path, default=env("VALID"))
    add("--test", type=Path, default=env("TEST"), help="a text of another domain")
    add("--device", default=env("DEVICE", "cpu"))
    add("--f32", action="store_true", help="no bfloat16 autocast")
    add("--jobs", type=int, default=env("JOBS", 2), help="runs side by side, a thread each")
    add("--seconds", type=float, default=3600, help="most for one training")
    add("--engine", type=Path, default=env("REGLA", ROOT / "build" / "release" / "regla"))
    add("--out", type=Path, help="folder of the records and README.md")
    add("--work", type=Path, help="folder of the texts and checkpoints")
    add("--report-only", action="store_true")
    return parser.parse_args(arguments)


def plan_of(args):
    """(Plan, documents) of the arguments; makes the texts."""
    size = SIZES[args.size]
    if not args.data.exists():
        raise ValueError(f"{args.data}: no such file or folder; say DATA=your-texts and VALID=a-text")
    if not args.engine.exists():
        raise ValueError(f"{args.engine}: no such program (make build)")
    name = args.size.lower() + ("-quick" if args.quick else "")
    test = args.test or (SHARED / "wikitext-2" / "test.txt")
    test = test if args.test or (test.exists() and args.data == SHARED / "books") else None
    tokens = args.tokens or (size.quick_tokens if args.quick else size.tokens)
    documents = args.documents or (size.quick_documents if args.quick else size.documents)
    work = args.work or ROOT / "train" / "runs" / f"tables-{name}"
    longest = round(tokens * max(row.tokens for row in ROWS.values()))
    text = prepare(work, size, longest, documents, args.data, args.valid, test)
    out = args.out or ROOT / "train" / "tables" / name
    return Plan(size, tokens, text, work.absolute(), out.absolute(), args.engine.absolute(),
                args.device, not args.f32, args.seconds), documents


def main():
    args = parse()
    signal.signal(signal.SIGTERM, end_all)
    with told("make tables"):
        tables = chosen(args.tables, TABLES, "TABLES")
        rows = chosen(args.rows, ROWS, "ROWS")
        plan, documents = plan_of(args)
        seeds = args.seeds or (1 if args.quick else 3)
        needs = needs_of(tables, rows, seeds)
    plan.out.mkdir(parents=True, exist_ok=True)

    def write():
        return report(plan.out, head_of(args, plan, documents), TABLES, plan.size.window)

    sitting = Sitting(plan, needs, args.minutes, write)
    if not args.report_only:
        print(f"{len(needs)} runs, {sum(map(len, sitting.todo()))} to make", flush=True)
        sitting.run(args.jobs)
    total = write()
    print(f"{plan.out}/README.md: {', '.join(f'{n} {came_to}' for came_to, n in total.items())}; "
          f"{sitting.failed} runs failed, {sitting.late} left for another sitting")
    sys.exit(1 if sitting.failed else 0)


if __name__ == "__main__":
    main()
