# SPDX-License-Identifier: Apache-2.0
"""The figures, as SVG and PNG (matplotlib, see requirements.txt)."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
matplotlib.rcParams.update({"svg.hashsalt": "regla", "svg.fonttype": "path", "axes.grid": True,
                            "grid.alpha": 0.3, "font.size": 10, "figure.figsize": (7.2, 4.4)})
import matplotlib.pyplot as pyplot  # noqa: E402
from matplotlib.ticker import LogFormatter  # noqa: E402


def save(figure, out, name):
    figure.tight_layout()
    for ending in ("svg", "png"):
        figure.savefig(Path(out) / f"{name}.{ending}", dpi=150,
                       metadata={"Date": None} if ending == "svg" else None)
    pyplot.close(figure)


def study(rows, out):
    """Time per token against length, of the engine and over HTTP, for each batch."""
    for batch in sorted({row["batch"] for row in rows}):
        figure, axes = pyplot.subplots()
        mine = [row for row in rows if row["batch"] == batch]
        for number, system in enumerate(dict.fromkeys(row["system"] for row in mine)):
            points = [row for row in mine if row["system"] == system]
            lengths = [row["length"] for row in points]
            color = f"C{number}"
            axes.plot(lengths, [row["engine_ms"] for row in points], color=color, marker="o",
                      label=f"{system}, engine")
            axes.plot(lengths, [row["http_ms"] for row in points], color=color, marker="x",
                      linestyle="--", label=f"{system}, HTTP")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("generated tokens")
        axes.set_ylabel("time per token of a text, ms")
        axes.set_title(f"Engine and HTTP, batch {batch}")
        axes.legend(fontsize=7, ncols=2)
        save(figure, out, f"time-b{batch}")


def overhead(found, out):
    """Tokens per second, of `regla bench` and of what reaches the clients."""
    figure, axes = pyplot.subplots(figsize=(5.4, 4.0))
    for place, row in enumerate(found):
        for side, shift, color in (("engine", -0.2, "C0"), ("http", 0.2, "C1")):
            value = row[f"{side}_tokens_per_second"]
            bar = axes.bar(place + shift, value, 0.38, color=color,
                           label={"engine": "regla bench", "http": "over HTTP"}[side]
                           if place == 0 else None)
            axes.bar_label(bar, [f"{value:.1f}"])
    axes.set_xticks(range(len(found)), [str(row["streams"]) for row in found])
    axes.set_xlabel("streams at once")
    axes.set_ylabel("tokens per second, of all streams")
    axes.set_ylim(top=1.25 * max(row[f"{side}_tokens_per_second"] for row in found
                                 for side in ("engine", "http")))
    axes.set_title(f"{found[0]['preset']}: engine and HTTP")
    axes.legend(loc="upper left")
    save(figure, out, "overhead")


def rates(runs, out):
    """Latencies, and the requests that held the limits, against the rate of arrivals."""
    figure, every = pyplot.subplots(1, 3, figsize=(11, 3.8))
    for number, target in enumerate(dict.fromkeys(run["target"] for run in runs)):
        mine = sorted((run for run in runs if run["target"] == target), key=lambda run: run["rate"])
        color = f"C{number}"
        for axes, name in zip(every, ("first_ms", "between_ms")):
            for rank, style in (("p50", "-"), ("p99", "--")):
                points = [(run["rate"], run[name][rank]) for run in mine
                          if run[name][rank] is not None]
                axes.plot(*zip(*points), color=color, linestyle=style, marker=".",
                          label=f"{target}, {rank}")
        every[2].plot([run["rate"] for run in mine], [run["goodput"] for run in mine], color=color,
                      marker=".", label=target)
    for axes, name in zip(every, ("time to first token, ms", "time between tokens, ms",
                                  "requests per second within limits")):
        axes.set_xlabel("arrivals per second")
        axes.set_ylabel(name)
        axes.legend(fontsize=7)
    for axes in every[:2]:
        axes.set_yscale("log")
        for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            ticks(LogFormatter(minor_thresholds=(2, 0.5)))
    every[2].set_ylim(bottom=0)
    save(figure, out, "rates")


def soak(samples, out):
    figure, every = pyplot.subplots(1, 3, figsize=(11, 3.4))
    minutes = [sample["seconds"] / 60 for sample in samples]
    for axes, name, scale, label in zip(
            every, ("rss_bytes", "threads", "descriptors"), (2**20, 1, 1),
            ("resident memory, MiB", "threads", "open descriptors")):
        axes.plot(minutes, [sample[name] / scale for sample in samples], marker=".")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes")
        axes.set_ylabel(label)
    save(figure, out, "soak")
