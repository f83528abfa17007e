# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG, without a library: lines, points, and a value per row."""

import math
from html import escape
from pathlib import Path

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf",
           "#7f7f7f", "#bcbd22")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 190, 40, 50


class Axis:
    """Maps values to pixels, linearly or by their logarithm, and says where its marks are."""

    def __init__(self, values, first, last, log=False, base=10):
        self.log, self.base = log, base
        values = [self._of(v) for v in values if self.fits(v)] or [0, 1]
        low, high = min(values), max(values)
        room = 0.04 * (high - low) or 0.5
        self.low, self.high, self.first, self.last = low - room, high + room, first, last

    def fits(self, value):
        return value is not None and math.isfinite(value) and (not self.log or value > 0)

    def _of(self, value):
        return math.log(value, self.base) if self.log else value

    def at(self, value):
        share = (self._of(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def marks(self):
        if self.log:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            if len(powers) > 1:
                return [self.base**p for p in powers]
            return [self.base ** (self.low + i / 4 * (self.high - self.low)) for i in range(5)]
        rough = (self.high - self.low) / 5
        step = 10 ** math.floor(math.log10(rough))
        step *= next(f for f in (1, 2, 5, 10) if f * step >= rough)
        start = math.ceil(self.low / step)
        return [step * i for i in range(start, math.floor(self.high / step) + 1)]


def _text(x, y, text, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _frame(title, x_label, y_label, x_axis, y_axis, height):
    bottom = height - BOTTOM
    out = [_text(LEFT, 22, title, "start", 'font-weight="bold"'),
           _text((LEFT + WIDTH - RIGHT) / 2, height - 10, x_label)]
    if y_label:
        middle = (TOP + bottom) / 2
        out.append(_text(16, middle, y_label, "middle", f'transform="rotate(-90 16 {middle})"'))
    for value in x_axis.marks():
        x = x_axis.at(value)
        out.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        out.append(_text(x, bottom + 16, f"{value:.4g}"))
    for value in y_axis.marks() if y_axis else ():
        y = y_axis.at(value)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(_text(LEFT - 6, y + 4, f"{value:.4g}", "end"))
    return out


def _write(path, parts, height):
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts) + "\n</svg>\n")


def lines(path, title, series, x_label, y_label, log_x=False, log_y=False, base_x=10):
    """series: name -> [(x, y), ..]; a name that begins with "~" is dashed, with "." of points."""
    points = [p for line in series.values() for p in line]
    x_axis = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, log_x, base_x)
    y_axis = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, log_y)
    out = _frame(title, x_label, y_label, x_axis, y_axis, HEIGHT)
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        line = [(x_axis.at(x), y_axis.at(y)) for x, y in line if x_axis.fits(x) and y_axis.fits(y)]
        place = TOP + 14 + 18 * i
        out.append(_text(WIDTH - RIGHT + 30, place, name.lstrip("~."), "start"))
        out.append(f'<path d="M{WIDTH - RIGHT + 8} {place - 4}h18" stroke="{colour}" '
                   'stroke-width="2"/>')
        if name.startswith("."):
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in line]
        elif line:
            dash = ' stroke-dasharray="6 4"' if name.startswith("~") else ""
            out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in line)}" '
                       f'fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
    _write(path, out, max(HEIGHT, TOP + 18 * len(series) + 20))


def rows(path, title, values, x_label, log=False):
    """values: name -> (mean, deviation): a point with its deviation in each row."""
    height = TOP + BOTTOM + 20 * len(values)
    ends = [end for m, d in values.values() for end in (m - d, m + d)]
    axis = Axis(ends, LEFT + 120, WIDTH - 40, log)
    out = _frame(title, x_label, None, axis, None, height)
    for i, (name, (mean, deviation)) in enumerate(values.items()):
        y = TOP + 14 + 20 * i
        out.append(_text(LEFT + 110, y + 4, name, "end"))
        if axis.fits(mean):
            low = axis.at(mean - deviation) if axis.fits(mean - deviation) else axis.at(mean)
            out.append(f'<path d="M{low:.1f} {y}H{axis.at(mean + deviation):.1f}" stroke="#1f77b4" '
                       'stroke-width="2"/>')
            out.append(f'<circle cx="{axis.at(mean):.1f}" cy="{y}" r="4" fill="#1f77b4"/>')
    _write(path, out, height)
