# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown and plots, from the records of runs: means and deviations over seeds, a paired
t-test against the reference row, and what each claim of a paper comes to."""

import csv
import math
import textwrap
from dataclasses import dataclass
from statistics import mean, stdev

from train import plots
from train.files import read_object
from train.paired import HOLDS, LEVEL, NOISE, REVERSED, UNDECIDED, t_test, together, verdict
from train.table_rows import MENDED, ROWS, TABLES


NOT_MEASURED = "not measured"
COUNTED = (HOLDS, REVERSED, UNDECIDED, NOT_MEASURED)


@dataclass
class Losses:
    """Nats a token of one side of a comparison: by seed, and by seed and document."""

    total: dict
    documents: dict


def losses(records, row, length, text="valid"):
    """Of a row that was scored at the length; None if it was not."""
    total, documents = {}, {}
    for seed, record in records.get(row, {}).items():
        scored = record.get("scores", {}).get(text, {}).get(str(length))
        if scored:
            total[seed] = scored["nll"] / scored["tokens"]
            documents[seed] = [nll / tokens for tokens, nll in scored["documents"]]
    return Losses(total, documents) if total else None


def side(records, what, length):
    """A side of a claim's pair: a row, (row, length), or rows whose mean counts."""
    if isinstance(what, str):
        return losses(records, what, length)
    if isinstance(what[1], int):
        return losses(records, *what)
    parts = [losses(records, row, length) for row in what]
    if None in parts:
        return None
    seeds = set.intersection(*(set(part.total) for part in parts))
    return Losses({s: mean(part.total[s] for part in parts) for s in seeds},
                  {s: [mean(each) for each in zip(*(part.documents[s] for part in parts))]
                   for s in seeds})


def compare(better, other):
    """(the other's loss less the better's, p): paired over seeds where there are three, else over
    the documents. None: one was not measured."""
    if better is None or other is None:
        return None
    seeds = sorted(set(better.total) & set(other.total))
    if not seeds:
        return None
    differences = [other.total[s] - better.total[s] for s in seeds]
    if len(seeds) >= 3:
        return mean(differences), t_test(differences)
    by_document = [mean(other.documents[s][i] - better.documents[s][i] for s in seeds)
                   for i in range(len(better.documents[seeds[0]]))]
    return mean(differences), t_test(by_document)


def name_of(what):
    if isinstance(what, str):
        return what
    return f"{what[0]} at x{what[1]}" if isinstance(what[1], int) else f"mean of {', '.join(what)}"


def judge(records, claim):
    """(what it comes to, a sentence about each pair that does not hold)."""
    verdicts, said, missing = [], [], []
    for better, other in claim.pairs:
        for length in claim.lengths:
            place = f" (x{length})" if len(claim.lengths) > 1 else ""
            pair = f"{name_of(better)} / {name_of(other)}{place}"
            compared = compare(side(records, better, length), side(records, other, length))
            if compared is None:
                verdicts.append(None)
                missing.append(pair)
                continue
            verdicts.append(verdict(*compared, claim.ratio, claim.equal, claim.within))
            if verdicts[-1] != HOLDS:
                said.append(f"{pair}: {percent(compared[0])}")
    measured = len(verdicts) - len(missing)
    if measured == 0:
        return NOT_MEASURED, []
    if len(said) > 1:
        said[1:] = ["…"]
    if len(verdicts) > 1:
        said.insert(0, f"{sum(v == HOLDS for v in verdicts)} of {measured} hold")
    if missing:
        said.append(f"not measured: {len(missing)}, the first {missing[0]}")
    return together(verdicts), said


def percent(difference):
    if difference > 1:
        return f"{math.exp(min(difference, 700)):.3g} times"
    return f"{100 * math.expm1(difference):+.1f} %"


def perplexity(found):
    """Mean +- deviation over seeds."""
    if found is None:
        return "-"
    values = [math.exp(min(v, 700)) for v in found.total.values()]
    spread = f" ± {stdev(values):.3g}" if len(values) > 1 else ""
    return f"{mean(values):.4g}{spread}"


def wrapped(line):
    """A paragraph in lines of our documents' width; tables, headings and images as they are."""
    if line.startswith(("|", "#", "!", "    ")):
        return line
    return textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False)


COLUMNS = ("table", "row", "paper", "parameters", "length", "perplexity", "other domain",
           "to the reference", "p", "error")


def row_cells(records, name, row, window):
    """Lines of rows.csv: a row of a table, at each of its lengths. The other domain's text is scored
    at the first, and the last is held against the reference."""
    table, runs = TABLES[name], records.get(row, {})
    errors = sorted({record["error"] for record in runs.values() if "error" in record})
    parameters = next((r["parameters"] for r in runs.values() if "parameters" in r), "")
    for length in table.lengths:
        other = perplexity(losses(records, row, 1, "test")) if length == table.lengths[0] else "-"
        cells = [name, row, table.rows[row] or "-", parameters, length * window,
                 perplexity(losses(records, row, length)), other]
        compared = None
        if length == table.lengths[-1] and row != table.reference:
            compared = compare(losses(records, table.reference, length), losses(records, row, length))
        cells += ["-", "-"] if compared is None else [
            percent(compared[0]), "-" if compared[1] is None else f"{compared[1]:.2g}"]
        yield [*cells, "; ".join(errors)]


def table_text(records, name, table):
    lines = [f"## {table.title}", "",
             f"`TABLES={name}`. The reference is {table.reference}, at the last of the lengths. {table.note}",
             "", "| claim | comes to | |", "|---|---|---|"]
    counts = dict.fromkeys(COUNTED, 0)
    for claim in table.claims:
        came_to, said = judge(records, claim)
        counts[came_to] += 1
        if came_to != NOT_MEASURED:
            lines.append(f"| {claim.text} | **{came_to}** | {'; '.join(said)} |")
    return [line.rstrip() for line in lines] + [""], counts


def draw(records, name, table, out, window):
    """Plots of a table; returns Markdown that shows them."""
    drawn = []
    if len(table.lengths) > 1:
        series = {row: [(length * window, math.exp(min(mean(found.total.values()), 700)))
                        for length in table.lengths
                        if (found := losses(records, row, length))] for row in table.rows}
        plots.lines(out / f"{name}-lengths.svg", "perplexity by length of the windows", series,
                    "tokens of a window", "perplexity", True, True, 2)
        plots.lines(out / f"{name}-positions.svg",
                    f"perplexity by position, windows of {table.lengths[-1] * window}",
                    positions(records, table, window), "tokens before (start of the range)", "perplexity",
                    True, True, 2)
        drawn += [f"{name}-lengths", f"{name}-positions"]
    else:
        values = {}
        for row in table.rows:
            found = losses(records, row, 1)
            ppl = [math.exp(min(v, 700)) for v in found.total.values()] if found else [math.nan]
            values[row] = (mean(ppl), stdev(ppl) if len(ppl) > 1 else 0.0)
        plots.rows(out / f"{name}.svg", table.title, values, "perplexity", True)
        drawn.append(name)
    return [f"![{plot}]({plot}.svg)" for plot in drawn] + [""]


def positions(records, table, window):
    """KERPLE's figure 5: perplexity by the tokens before, in the longest windows."""
    series = {}
    for row in table.rows:
        runs = [record["scores"]["valid"][str(table.lengths[-1])]["positions"]
                for record in records.get(row, {}).values()
                if str(table.lengths[-1]) in record.get("scores", {}).get("valid", {})]
        by_range = {}
        for place, _, loss in (entry for run in runs for entry in run):
            first = int(place.split("-")[0])
            if first < table.lengths[-1] * window:  # the last token of a window has a range alone
                by_range.setdefault(first, []).append(loss)
        series[row] = [(first, math.exp(min(mean(v), 700))) for first, v in sorted(by_range.items())]
    return series


def read_records(out):
    """row -> seed -> record."""
    records = {}
    for file in sorted((out / "runs").glob("*.json")):
        record = read_object(file)
        records.setdefault(record["row"], {})[record["seed"]] = record
    return records


def gradients(records):
    """TransNormer's table 2: the relative deviation of the gradient's norm over the steps."""
    paper = {"elu_sinusoidal": "0.58", "performer": "0.47", "sinusoidal": "0.25",
             "norm-attention": "0.20"}
    found = {row: [r["gradient"]["relative"] for r in records.get(row, {}).values()
                   if "gradient" in r] for row in paper}
    if not all(found.values()):
        return []
    lines = ["## TransNormer, table 2: relative deviation of the gradient's norm over the steps", "",
             "| row | paper | here |", "|---|---|---|"]
    lines += [f"| {row} | {paper[row]} | {mean(values):.3f} |" for row, values in found.items()]
    means = {row: mean(values) for row, values in found.items()}
    linear = min(means["elu_sinusoidal"], means["performer"])
    came_to = HOLDS if means["norm-attention"] < linear / NOISE else (
        REVERSED if means["norm-attention"] > linear * NOISE else UNDECIDED)
    return lines + ["", "| claim | comes to |", "|---|---|",
                    f"| NormAttention's gradients are steadier than 1+elu's and Performer's | "
                    f"**{came_to}** |", ""]


def report(out, head, names, window):
    """Writes README.md, rows.csv and the plots."""
    records = read_records(out)
    lines, cells, total = [], [], dict.fromkeys(COUNTED, 0)
    for name in names:
        rows = TABLES[name].rows
        if not any(row in records for row in [r for r in rows if r.endswith(MENDED)] or rows):
            continue
        text, counts = table_text(records, name, TABLES[name])
        cells += [line for row in rows if row in records for line in row_cells(records, name, row, window)]
        lines += text + draw(records, name, TABLES[name], out, window)
        total = {key: total[key] + counts[key] for key in total}
    lines += gradients(records)
    rows = sum(len(runs) for row, runs in records.items() if row in ROWS)
    summary = [f"{rows} runs. Claims: {total[HOLDS]} hold, {total[REVERSED]} are reversed, "
               f"{total[UNDECIDED]} are undecided"
               + (f", {total[NOT_MEASURED]} not measured." if total[NOT_MEASURED] else "."), "",
               f"Undecided: the perplexities differ by less than {100 * (NOISE - 1):.0f} %, or the "
               f"paired t-test has p ≥ {LEVEL} (over seeds where there are three, else over the "
               "scored documents), or a row is missing. A test over documents says that two trained "
               "models differ, not that another seed would. Rows that were not run, and claims about them "
               "alone, are left out. [rows.csv](rows.csv) has all perplexities, `runs/` the rest.", ""]
    (out / "README.md").write_text("\n".join(map(wrapped, head + summary + lines)))
    with (out / "rows.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *cells])
    return total
