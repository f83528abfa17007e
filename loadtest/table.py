# SPDX-License-Identifier: Apache-2.0
"""A CSV of measurements to which a line is added as soon as there is one, so that what was stopped
goes on where it was."""

import csv
import json
import os
from pathlib import Path

from measure import Failure


class Table:
    def __init__(self, path, columns, key, settings):
        """`key`: the columns that name a measurement. `settings`: what may not change between two
        runs that write to the same table; kept beside it as JSON."""
        self.path, self.columns, self.key = Path(path), columns, key
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = []
        if self.path.exists() and self.path.stat().st_size:
            self._check_settings(settings)
            self._resume()
        else:
            self._append(",".join(columns))
        self.settings = settings

    def _check_settings(self, settings):
        try:
            before = json.loads(self.path.with_suffix(".json").read_text())["settings"]
        except (OSError, ValueError, KeyError):
            return  # stopped before it was written
        for name in settings:
            if name != "commit" and before.get(name) != settings[name]:
                raise Failure(f"{self.path} was measured with {name} {before.get(name)}, this run "
                              f"has {settings[name]}: choose another --out")

    def _resume(self):
        text = self.path.read_text()
        whole = text[:text.rfind("\n") + 1]
        if whole != text:  # a line that was cut off
            os.truncate(self.path, len(whole.encode()))
        reader = csv.DictReader(whole.splitlines())
        if reader.fieldnames != self.columns:
            raise Failure(f"{self.path}: expected the columns {','.join(self.columns)}")
        self.rows = [self._parsed(row) for row in reader]

    def _parsed(self, row):
        return {name: number(value) for name, value in row.items()}

    def _append(self, line):
        with open(self.path, "a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def has(self, **key):
        return any(all(row[name] == key[name] for name in self.key) for row in self.rows)

    def add(self, row):
        cells = [printed(row[name]) for name in self.columns]
        self._append(",".join(cells))
        self.rows.append(self._parsed(dict(zip(self.columns, cells))))

    def values(self, column, **key):
        return [row[column] for row in self.rows
                if all(row[name] == value for name, value in key.items())]

    def write_json(self, **more):
        saved = {"settings": self.settings, **more, "points": self.rows}
        self.path.with_suffix(".json").write_text(json.dumps(saved, indent=1) + "\n")


def printed(value):
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def number(text):
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
