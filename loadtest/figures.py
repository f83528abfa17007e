#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of FIGURES.md from results/figures/*.csv, one for each machine.

To add a figure, add a line to its machine's CSV in place of the one that it makes old, and run this
file. `--check` writes nothing and ends with status 1 where FIGURES.md is another: the lint asks. A
table stands between `<!-- figures NAME -->` and `<!-- end -->`.
"""

import argparse
import csv
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "FIGURES.md"
COLUMNS = ["about", "what", "setting", "figure", "date", "commit"]
PLACE = re.compile(r"(<!-- figures ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Failure(Exception):
    pass


def read(path, headings):
    """The rows of a CSV: first those about a heading of FIGURES.md, in its order."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    if not lines or lines[0] != COLUMNS:
        raise Failure(f"{path.name}:1: expected the columns {','.join(COLUMNS)}")
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        row = dict(zip(COLUMNS, cells))
        where = f"{path.name}:{number}"
        if len(cells) != len(COLUMNS):
            raise Failure(f"{where}: expected {len(COLUMNS)} cells, got {len(cells)}")
        if not re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"]):
            raise Failure(f"{where}: expected a date as 2026-11-30, got \"{row['date']}\"")
        if not re.fullmatch(r"([0-9a-f]{7,40})?", row["commit"]):
            raise Failure(f"{where}: expected a commit or nothing, got \"{row['commit']}\"")
        if not all((row["about"], row["what"], row["figure"])) or "|" in "".join(cells):
            raise Failure(f"{where}: expected about, what, figure, and no bar")
        rows.append(row)
    order = {heading: place for place, heading in enumerate(headings)}
    return sorted(rows, key=lambda row: (order.get(row["about"], len(order)), row["about"]))


def table(rows):
    """Markdown. What all rows are about, and what the row above has too, is not said again."""
    one = len({row["about"] for row in rows}) == 1
    names = ["what", "setting", "figure", "date, commit"]
    lines = [names if one else ["about", *names]]
    lines.append(["---"] * len(lines[0]))
    before = None
    for row in rows:
        when = " ".join(filter(None, (row["date"], row["commit"])))
        cells = [row["what"], row["setting"], row["figure"], when]
        lines.append(cells if one else ["" if row["about"] == before else row["about"], *cells])
        before = row["about"]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def written(text):
    """FIGURES.md with the tables as the CSV files have them."""
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    files = {path.stem: path for path in sorted((HERE / "results/figures").glob("*.csv"))}
    places = [found.group(2) for found in PLACE.finditer(text)]
    if sorted(places) != sorted(files):
        raise Failure(f"expected places for {', '.join(files)} in FIGURES.md; got {', '.join(places)}")
    return PLACE.sub(lambda found: found.group(1) + table(read(files[found.group(2)], headings))
                     + found.group(3), text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the file is another")
    args = parser.parse_args()
    text = FIGURES.read_text()
    try:
        new = written(text)
    except Failure as fault:
        print(f"loadtest/results/figures: {fault}")
        return 1
    if args.check:
        if new != text:
            print("loadtest/FIGURES.md: not what loadtest/figures.py writes; run it")
        return int(new != text)
    FIGURES.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
